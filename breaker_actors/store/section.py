"""What the parts of the SQL store share: the database, the secret box, and a few statements used by several of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar
from uuid import uuid4

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    CompoundSelect,
    Connection,
    Row,
    Select,
    Table,
    Update,
    bindparam,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from breaker_actors.errors import NotFound
from breaker_actors.sql.database import Database
from breaker_actors.store import tables as t
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.steps import Steps
from breaker_actors.telemetry.set_aside import Asides

T = TypeVar("T")

ACCESS = "access"
"""The counter of everything that decides who may do what, but for single sessions of the console that end: SESSIONS."""
SESSIONS = "sessions"
PARAMETERS_MAX = 500
IDS: BindParameter[Any] = bindparam("ids", expanding=True)
"""The parameter of statements about one piece of `chunks`. They are made once: to put a statement together costs more
than to run it."""
DAY_MS = 86_400_000


class StorePart:
    """One resource of the store. Its methods hand a plain function over a `Connection` to the database."""

    _db: Database
    _box: SecretBox
    asides: Asides
    _shards: int
    _breakers_max: int
    _steps: Steps

    async def _write_small(self, project_id: str, work: Callable[[Connection], T]) -> T:
        """A change of a few rows of a project, in its organisation's turn."""
        return await self._steps.write_small(await self._steps.whose(project_id), work)


def new_id() -> str:
    return str(uuid4())


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Pieces small enough for the parameters of one statement."""
    for start in range(0, len(items), PARAMETERS_MAX):
        yield items[start : start + PARAMETERS_MAX]


def by_ids(
    c: Connection, query: Select[Any] | CompoundSelect[Any], ids: Sequence[str] | Sequence[int], **values: Any
) -> list[Row[*tuple[Any, ...]]]:
    """The rows of a statement with IDS; `values`: its other parameters."""
    return [row for some in chunks(ids) for row in c.execute(query, {"ids": some} | values)]


def belongs(column: Column[Any], project_id: str) -> ColumnElement[bool]:
    """The row is the project's, where rows are found by id: an expression that no index serves, as the planner would
    rather walk a project's rows by it than look many ids up."""
    return column.concat("") == project_id


_THIS = t.projects.c.id == bindparam("project")
_LOCK = select(t.projects.c.id).where(_THIS, t.projects.c.deleted_ms.is_(None)).with_for_update()
_TOUCH = (
    update(t.projects)
    .where(_THIS)
    .values(breakers_updated_ms=bindparam("now"), breakers_version=t.projects.c.breakers_version + 1)
)


def lock_project(c: Connection, project_id: str) -> None:
    """Makes configuration writes of one project serial (SQLite's write lock does it anyway). Raises NotFound."""
    must_exist(c, _LOCK, "project", project=project_id)


def touch_breakers(c: Connection, project_id: str, now_ms: int) -> None:
    """Notes the time of a configuration change of the project's breakers."""
    c.execute(_TOUCH, {"project": project_id, "now": now_ms})


def must_exist(c: Connection, query: Select[Any], what: str, **values: Any) -> None:
    """Raises NotFound when the query finds nothing with these parameters."""
    if c.execute(query, values).first() is None:
        raise NotFound(f"There is no such {what}.")


def bump(c: Connection, counter: str, by: int = 1) -> None:
    """Raises a counter, which starts at 0; several may do it at once."""
    raise_sum(c, t.counters.c.value, by, {"name": counter})


def raise_sum(c: Connection, column: Column[int], by: int, key: Mapping[str, str]) -> None:
    """Adds to a sum; its row is made with 0 where there is none. Several may do it at once."""
    adding, values = _adding(column, tuple(key)), {**{f"of_{name}": value for name, value in key.items()}, "by": by}
    if c.execute(adding, values).rowcount == 0:
        insert_new(c, column.table, {**key, column.name: 0})
        c.execute(adding, values)


@cache
def _adding(column: Column[int], key: tuple[str, ...]) -> Update:
    mine = (column.table.c[name] == bindparam(f"of_{name}") for name in key)
    return update(column.table).where(*mine).values({column: column + bindparam("by")})


def insert_new(c: Connection, table: Table, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Inserts what is not there yet: unique indexes decide, also between two who insert the same at once."""
    kind = sqlite if c.dialect.name == "sqlite" else postgresql
    c.execute(kind.insert(table).on_conflict_do_nothing(), rows)
