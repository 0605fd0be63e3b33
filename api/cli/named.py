"""Projects, routers and channels by name: what a command means, as id. An id means itself and asks for nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from api.cli.narrow import ID_CHARS
from api.cli.store_access import on_store, settings_of
from breaker_actors.errors import Invalid

if TYPE_CHECKING:
    from breaker_actors.store.base import Store

NAMED_MAX = 10
"""Ids that an error about a name lists at most."""


def is_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


BEGINNING = f"at least the first {ID_CHARS} characters"


def one_of(noun: str, wanted: str, rows: Iterable[tuple[str, str]], place: Callable[[], str] = str) -> str:
    """The id that is meant, of rows (id, name): that id, or else that name. Raises Invalid for none and for several.
    `place`: where they are, for the error."""
    known = list(rows)
    ids = [id_ for id_, _ in known if id_ == wanted.lower()] or [id_ for id_, name in known if name == wanted]
    if len(ids) == 1:
        return ids[0]
    if ids:
        more = ", ..." if len(ids) > NAMED_MAX else ""
        raise Invalid(f"{len(ids)} {noun}s are named {wanted}: say which by id: {', '.join(ids[:NAMED_MAX])}{more}")
    near = get_close_matches(wanted, [name for _, name in known], n=1)
    where = f" in {found}" if (found := place()) else ""
    raise Invalid(f"there is no {noun} {wanted}{where}" + (f": did you mean {near[0]}?" if near else ""))


def begun_id(noun: str, wanted: str, known: Iterable[str]) -> str:
    """The one id that is this, or begins so where at least ID_CHARS of it are given. Raises Invalid for none and for
    several."""
    ids, text = sorted(set(known)), wanted.lower()
    if text in ids:
        return text
    found = [id_ for id_ in ids if len(text) >= ID_CHARS and id_.startswith(text)]
    if len(found) > 1:
        raise Invalid(f"{len(found)} ids of a {noun} begin with {wanted}: give more of it")
    if not found:
        more = f": of an id at least {ID_CHARS} characters are needed" if len(text) < ID_CHARS else ""
        raise Invalid(f"there is no {noun} {wanted}{more}")
    return found[0]


def named_project(id_: str, name: str | None) -> str:
    """How a project is called where nothing was found in it."""
    return f"project {id_}" if name is None or name == id_ else f"project {name} ({id_})"


async def project_words(store: Store, project_id: str) -> str:
    """The same of a project of the store."""
    row = await store.get_project(project_id)
    return named_project(project_id, None if row is None else row.shown_name())


def project_id_of(wanted: str | None, data_dir: Path | None) -> str:
    """By default the project of credentials.json."""
    if wanted is None:
        return _default_project(data_dir)

    async def rows(store: Store) -> list[tuple[str, str]]:
        found = [row for org in await store.list_orgs() for row in await store.list_projects(org.id)]
        return [(row.id, row.shown_name()) for row in found]

    return _found("project", wanted, data_dir, rows)


def router_id_of(wanted: str, project_id: str, data_dir: Path | None) -> str:
    async def rows(store: Store) -> list[tuple[str, str]]:
        return [(row.id, row.name) for row in await store.list_routers(project_id)]

    return _found("router", wanted, data_dir, rows, project_id)


def channel_id_of(wanted: str, project_id: str, data_dir: Path | None) -> str:
    async def rows(store: Store) -> list[tuple[str, str]]:
        return [(row.id, row.name) for row in await store.list_channels(project_id)]

    return _found("channel", wanted, data_dir, rows, project_id)


def _found(
    noun: str,
    wanted: str,
    data_dir: Path | None,
    rows: Callable[[Store], Awaitable[list[tuple[str, str]]]],
    project_id: str = "",
) -> str:
    if is_id(wanted):
        return wanted.lower()

    async def work(store: Store, _: int) -> str:
        place = await project_words(store, project_id) if project_id else ""
        return one_of(noun, wanted, await rows(store), lambda: place)

    return on_store(data_dir, work)


def _default_project(data_dir: Path | None) -> str:
    from api.launch.bootstrap import FILE_NAME, read

    path = settings_of(data_dir).data_dir / FILE_NAME
    known = read(path)
    if known is None:
        raise Invalid(f"name the project with --project: there is no {path} that says which")
    return known.project_id
