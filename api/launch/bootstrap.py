"""First start: an organisation, a workspace, a project and keys, and the file that tells the operator about them.

credentials.json (mode 600) holds secrets that the store can't give back: keys are stored as hashes only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from api.launch import private_files as private
from api.launch.cut_off import LOOKED_AT, unsent_words
from api.launch.put_back import count_again
from breaker_actors.clock import Clock
from breaker_actors.errors import Invalid
from breaker_actors.settings import Settings
from breaker_actors.store.base import ReplicaStore

FILE_NAME = "credentials.json"
OTHER = (
    "{path} belongs to other data than database {database}: move it away to start anew, or set BREAKERS_DATABASE_URL "
    "and BREAKERS_DATA_DIR as they were when it was made"
)
MISSING = (
    "{path} is missing but there is data already; the keys in it can't be shown again. "
    "Make new ones with: breakers keys create"
)

WITHOUT = (
    "no credentials in {folder}: put the credentials.json of before there, or make a key with `breakers keys create`"
    " (`breakers keys --help`)"
)

NOT_MADE = "BREAKERS_BOOTSTRAP_ADMIN_KEY is no key of this database: only the first start on an empty one makes it"

ONE_WRITER = "{journals} Journals on SQLite, which has one writer: they are no faster than one"
FEWER = "unset BREAKERS_JOURNALS, or set BREAKERS_DATABASE_URL: PostgreSQL"
SIGN = "to take signed ones alone: `breakers projects edit --signed-ingest`, docs/guides/signed-ingest.md"


SURVIVES_POWER = "what is answered survives the end of any process and a loss of power"
SURVIVES_PROCESSES = "what is answered survives the end of any process, not a loss of power ({weakness})"


class Credentials(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of credentials.json."""

    base_url: str
    admin_key: str
    user_key: str
    workspace_id: str
    project_id: str
    project_key: str
    ingest_secret: str
    database_id: str = ""

    def __repr__(self) -> str:
        return f"Credentials(base_url={self.base_url!r}, project_id={self.project_id!r})"


class Prepared(NamedTuple):
    """`settings`: for all others, who are not told the first admin key. `survives`: what all that is answered does."""

    settings: Settings
    survives: str


def unsigned_words(count: int, unsigned: int) -> str:
    """That so many of the projects take samples of whoever knows their ids."""
    if count == 1:
        return "the project takes unsigned samples: who knows its ids can send some"
    takes = "takes" if unsigned == 1 else "take"
    return f"{unsigned} of {count} projects {takes} unsigned samples: who knows their ids can send some"


def prepare(settings: Settings, base_url: str, clock: Clock, warn: Callable[[str], None]) -> Prepared:
    """Opens the store (and so brings its schema up to date), sees that credentials.json fits, closes it again. Raises
    Invalid."""
    weakness = asyncio.run(_prepare(settings, base_url, clock, warn))
    survives = SURVIVES_PROCESSES.format(weakness=weakness) if weakness else SURVIVES_POWER
    return Prepared(settings.model_copy(update={"bootstrap_admin_key": None}), survives)


async def _prepare(settings: Settings, base_url: str, clock: Clock, warn: Callable[[str], None]) -> str:
    from breaker_actors.persistence import make_store
    from breaker_actors.store.secrets import parse_admin_key

    given = settings.bootstrap_admin_key
    admin_key = None if given is None else parse_admin_key(given.get_secret_value())
    store = make_store(settings)
    await store.open()
    try:
        await ensure(store, settings.data_dir / FILE_NAME, base_url, clock.now_ms(), warn, admin_key)
        await count_again(store, settings, clock.now_ms(), warn)
        count, unsigned = await store.signing()
        if unsigned:
            warn(f"{unsigned_words(count, unsigned)} ({SIGN})")
        if settings.database_url is None and settings.journals > 1:
            warn(f"{ONE_WRITER.format(journals=settings.journals)} ({FEWER})")
        if not settings.allow_private_destinations or settings.smtp_host is None:
            for line in unsent_words(await store.enabled_channels(LOOKED_AT), settings):
                warn(line)
        return await store.power_loss()
    finally:
        await store.close()


async def ensure(
    store: ReplicaStore,
    path: Path,
    base_url: str,
    now_ms: int,
    warn: Callable[[str], None],
    admin_key: str | None = None,
) -> None:
    """Makes the first organisation, with this admin key or a random one, and its file on an empty store; later only
    keeps the file's base_url right. A key that was revoked is not made again. Raises Invalid beside a file of another
    database."""
    known, database_id = read(path), await store.database_id()
    if known is None and not await store.has_org():
        write(path, await _found(store, base_url, now_ms, admin_key))
        return
    if known is not None:
        if not await _fits(store, known, database_id):
            raise Invalid(OTHER.format(path=path, database=database_id))
        write(path, msgspec.structs.replace(known, base_url=base_url, database_id=database_id))
    if admin_key is not None and await store.find_key(admin_key) is None:
        warn(NOT_MADE)
    elif admin_key is None and known is None:
        warn(MISSING.format(path=path))


async def _fits(store: ReplicaStore, known: Credentials, database_id: str) -> bool:
    """Whether a file is of this database. One of version 0.1.0 does not say; something of what it names is there."""
    if known.database_id:
        return known.database_id == database_id
    keys = (known.admin_key, known.user_key, known.project_key)
    return await store.get_workspace(known.workspace_id) is not None or any(
        [await store.find_key(key) is not None for key in keys]
    )


async def _found(store: ReplicaStore, base_url: str, now_ms: int, admin_key: str | None) -> Credentials:
    """The first organisation with all that a client needs."""
    org_id = await store.create_org("default", now_ms)
    workspace = await store.create_workspace(org_id, "Default", "default", now_ms)
    project = await store.create_project(org_id, workspace.id, "Default", now_ms)
    _, admin_key = await store.create_key(org_id, "admin", "first admin key", now_ms, key=admin_key)
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
        database_id=await store.database_id(),
    )


def whereabouts(folder: Path) -> str:
    """Where an operator finds the keys, in one line; the file may not be there, on a database that was in use."""
    path = folder / FILE_NAME
    return f"credentials {path}" if path.is_file() else WITHOUT.format(folder=folder)


def read(path: Path) -> Credentials | None:
    """The file's content, None if there is no file. Raises Invalid when it is not what we wrote."""
    try:
        content = private.read_own(path)
        return msgspec.json.decode(content, type=Credentials)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Invalid(f"{path} can't be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise Invalid(f"{path} can't be read: {error}") from None


def write(path: Path, credentials: Credentials) -> None:
    """Replaces the file in one step: it is never there half, nor readable for others. Makes its folder."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private.replace_own(path, json.dumps(msgspec.to_builtins(credentials), indent=2) + "\n")
