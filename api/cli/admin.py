"""`breakers keys`, `breakers orgs`, `breakers projects`: administration on the store itself, beside a running service.

A revocation reaches a running service by way of the store: every change of access raises a counter there, and the
Journal, which looks at it several times a second, tells the replicas.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.errors import one_line_errors
from api.cli.named import BEGINNING, begun_id, project_id_of
from api.cli.output import note, put, put_records
from api.cli.project_edit import create_project, edit_project
from api.cli.store_access import BY, AsJson, DataDir, on_store
from breaker_actors.clock import rfc3339
from breaker_actors.errors import Invalid

if TYPE_CHECKING:
    from breaker_actors.store.base import Store
    from breaker_actors.store.rows import KeyRow, OrgRow, ProjectRow

keys = typer.Typer(name="keys", no_args_is_help=True, help="Make, list and revoke API keys.")
orgs = typer.Typer(name="orgs", no_args_is_help=True, help="Make and list organisations.")
projects = typer.Typer(name="projects", no_args_is_help=True, help="Make, list and change projects.")

projects.command("create")(create_project)
projects.command("edit")(edit_project)

KEY_TITLES = ("id", "kind", "key_prefix", "project_id", "name", "last_used_at")
PROJECT = "BREAKERS_PROJECT"
KeysProject = Annotated[
    str | None,
    typer.Option(
        help=f"Name or id of the project, for a key of one project; default: {PROJECT}, or that of credentials.json."
    ),
]
Org = Annotated[str | None, typer.Option(help="Id of the organisation; not needed while there is one only.")]


class Kind(StrEnum):
    """Kinds of keys."""

    user = "user"
    admin = "admin"
    project = "project"
    reader = "reader"
    ingest = "ingest"


@keys.command("create")
def create_key(
    kind: Annotated[Kind, typer.Option(help="What the key may do.")] = Kind.user,
    name: Annotated[str, typer.Option(help="What the key is for.")] = "command line",
    org: Org = None,
    project: KeysProject = None,
    data_dir: DataDir = None,
) -> None:
    """Make a key and show it; it can't be shown again."""

    with one_line_errors():
        project_id = _project_of(kind, project, data_dir)

    async def work(store: Store, now_ms: int) -> tuple[str, str]:
        owner = await _org(store, org, project_id)
        row, key = await store.create_key(owner.id, kind.value, name, now_ms, project_id, by=BY)
        return row.id, key

    id_, key = on_store(data_dir, work)
    put(key)
    note(f"key {id_}: it can't be shown again; `breakers keys revoke {id_}` takes it back")


@keys.command("list")
def list_keys(org: Org = None, json: AsJson = False, data_dir: DataDir = None) -> None:
    """List keys: id, kind, beginning, project, name, last use."""

    async def work(store: Store, _: int) -> list[tuple[object, ...]]:
        rows = [row for owner in await _orgs(store, org) for row in await store.list_keys(owner.id)]
        return [_key(row) for row in rows]

    put_records("keys", KEY_TITLES, on_store(data_dir, work), json, short=("id",), least=("project id", "key prefix"))


@keys.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help=f"Id of the key, as `keys list` shows it; {BEGINNING}.")],
    data_dir: DataDir = None,
) -> None:
    """Remove a key; a running service refuses it within a second."""

    async def work(store: Store, now_ms: int) -> str:
        owners = {row.id: owner.id for owner in await store.list_orgs() for row in await store.list_keys(owner.id)}
        meant = begun_id("key", key_id, owners)
        await store.revoke_key(owners[meant], meant, now_ms, by=BY)
        return meant

    put(f"revoked {on_store(data_dir, work)}")


@orgs.command("create")
def create_org(name: Annotated[str, typer.Argument(help="Its name.")], data_dir: DataDir = None) -> None:
    """Make an organisation with a workspace; show its id. Keys for it: `breakers keys create --org`."""

    async def work(store: Store, now_ms: int) -> str:
        org_id = await store.create_org(name, now_ms)
        await store.create_workspace(org_id, "Default", "default", now_ms, by=BY)
        return org_id

    put(on_store(data_dir, work))


@orgs.command("list")
def list_orgs(json: AsJson = False, data_dir: DataDir = None) -> None:
    """List organisations: id, name."""

    async def work(store: Store, _: int) -> list[tuple[object, ...]]:
        return [(row.id, row.name) for row in await store.list_orgs()]

    put_records("orgs", ("id", "name"), on_store(data_dir, work), json)


@projects.command("list")
def list_projects(org: Org = None, json: AsJson = False, data_dir: DataDir = None) -> None:
    """List projects: id, workspace, name."""

    async def work(store: Store, _: int) -> list[tuple[object, ...]]:
        rows: list[ProjectRow] = []
        for owner in await _orgs(store, org):
            rows += await store.list_projects(owner.id)
        return [(row.id, row.workspace_id, row.shown_name()) for row in rows]

    put_records("projects", ("id", "workspace_id", "name"), on_store(data_dir, work), json, least=("workspace id",))


# ------------------------------------------------------------------ inside


def _project_of(kind: Kind, project: str | None, data_dir: Path | None) -> str | None:
    """The id of the project that a key is for. Raises Invalid."""
    if kind in (Kind.user, Kind.admin):
        if project is not None:
            raise Invalid("--project goes with --kind project, reader or ingest, and only with them")
        return None
    return project_id_of(project or os.environ.get(PROJECT) or None, data_dir)


def _key(row: KeyRow) -> tuple[object, ...]:
    used_at = None if row.last_used_ms is None else rfc3339(row.last_used_ms)
    return row.id, row.kind, row.key_prefix, row.project_id, row.name, used_at


async def _orgs(store: Store, wanted: str | None) -> list[OrgRow]:
    found = [row for row in await store.list_orgs() if wanted in (None, row.id)]
    if wanted is not None and not found:
        raise Invalid(f"there is no organisation {wanted}")
    return found


async def _org(store: Store, wanted: str | None, project_id: str | None) -> OrgRow:
    """The organisation that is meant: the one named, the project's, or the only one."""
    if wanted is None and project_id is not None and (project := await store.get_project(project_id)):
        wanted = project.org_id
    found = await _orgs(store, wanted)
    if len(found) != 1:
        raise Invalid("name the organisation with --org: there are several")
    return found[0]
