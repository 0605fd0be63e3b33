"""First start: an organisation, a workspace, a project and keys, and the file that tells the operator about them.

credentials.json (mode 600) holds secrets that the store can't give back: keys are stored as hashes only.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec

from breaker_actors.clock import Clock
from breaker_actors.errors import Invalid
from breaker_actors.settings import Settings
from breaker_actors.stores.base import Store

FILE_NAME = "credentials.json"
MISSING = (
    "{path} is missing but there is data already; the keys in it can't be shown again. "
    "Make new ones with: breakers keys create"
)


class Credentials(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of credentials.json."""

    base_url: str
    admin_key: str
    user_key: str
    workspace_id: str
    project_id: str
    project_key: str
    ingest_secret: str

    def __repr__(self) -> str:
        return f"Credentials(base_url={self.base_url!r}, project_id={self.project_id!r})"


def prepare(settings: Settings, base_url: str, clock: Clock, warn: Callable[[str], None]) -> None:
    """Opens the store (and so brings its schema up to date), sees that credentials.json fits, closes it again."""
    asyncio.run(_prepare(settings, base_url, clock, warn))


async def _prepare(settings: Settings, base_url: str, clock: Clock, warn: Callable[[str], None]) -> None:
    from breaker_actors.stores.opening import make_store

    store = make_store(settings)
    await store.open()
    try:
        await ensure(store, settings.data_dir / FILE_NAME, base_url, clock.now_ms(), warn)
    finally:
        await store.close()


async def ensure(store: Store, path: Path, base_url: str, now_ms: int, warn: Callable[[str], None]) -> None:
    """Makes the first organisation and its file on an empty store; later only keeps the file's base_url right."""
    known = read(path)
    if await store.has_org():
        if known is None:
            warn(MISSING.format(path=path))
        else:
            write(path, msgspec.structs.replace(known, base_url=base_url))
    elif known is not None:
        raise Invalid(f"{path} belongs to other data than this empty store; move it away to start anew")
    else:
        write(path, await _found(store, base_url, now_ms))


async def _found(store: Store, base_url: str, now_ms: int) -> Credentials:
    """The first organisation with all that a client needs."""
    org_id = await store.create_org("default", now_ms)
    workspace = await store.create_workspace(org_id, "Default", "default", now_ms)
    project = await store.create_project(org_id, workspace.id, "Default", now_ms)
    _, admin_key = await store.create_key(org_id, "admin", "first admin key", now_ms)
    _, user_key = await store.create_key(org_id, "user", "first user key", now_ms)
    _, project_key = await store.create_key(org_id, "project", "first project key", now_ms, project.id)
    return Credentials(
        base_url=base_url,
        admin_key=admin_key,
        user_key=user_key,
        workspace_id=workspace.id,
        project_id=project.id,
        project_key=project_key,
        ingest_secret=project.ingest_secret,
    )


def read(path: Path) -> Credentials | None:
    """The file's content, None if there is no file. Raises Invalid when it is not what we wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Credentials)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise Invalid(f"{path} can't be read: {error}") from None


def write(path: Path, credentials: Credentials) -> None:
    """Replaces the file in one step: it is never there half, nor readable for others. Makes its folder."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(msgspec.to_builtins(credentials), file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
