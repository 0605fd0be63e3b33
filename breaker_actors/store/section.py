"""What the parts of the SQL store share: the database, the secret box, and a few statements used by several of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    delete,
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


_Sums = dict[Column[int], Counter[tuple[str, ...]]]
"""What a transaction adds to sums: by column and primary key."""
_SUMS: tuple[Column[int], ...] = (t.stored.c.used, t.counters.c.value)
"""The columns that are sums, in the order in which they are written: everybody's counters last."""


@contextmanager
def sums_at_the_end(c: Connection) -> Iterator[None]:
    """Around the work of a transaction. What it adds to sums (`raise_sum`) is written at its end, each sum once and all
    in one order, and nothing of it where it raises. So who holds a sum waits for nothing but a sum behind it: no two
    ever wait for what the other one has, in whatever order they do their work."""
    sums: _Sums = {column: Counter() for column in _SUMS}
    c.execution_options(sums=sums)
    yield
    for column, added in sums.items():
        for key, by in sorted(added.items()):
            if by:
                _write_sum(c, column, key, by)


def raise_sum(c: Connection, column: Column[int], by: int, *key: str) -> None:
    """Adds to a sum, which starts at 0; several may do it at once. It is written at the end of the transaction."""
    _sums(c)[column][key] += by


def raised(c: Connection, column: Column[int], *key: str) -> int:
    """What the transaction adds to a sum, as far as it has come: not stored yet."""
    return _sums(c)[column][key]


def drop_sum(c: Connection, column: Column[int], *key: str) -> None:
    """Forgets a sum, with what the transaction has added to it. Of such only as serial transactions alone change."""
    _sums(c)[column].pop(key, None)
    mine = (column.table.c[name] == value for name, value in _row_of(column, key).items())
    c.execute(delete(column.table).where(*mine))


def bump(c: Connection, counter: str, by: int = 1) -> None:
    """Raises a counter, as a sum is."""
    raise_sum(c, t.counters.c.value, by, counter)


def _sums(c: Connection) -> _Sums:
    found: _Sums = c.get_execution_options()["sums"]
    return found


def _write_sum(c: Connection, column: Column[int], key: tuple[str, ...], by: int) -> None:
    row = _row_of(column, key)
    values = {f"of_{name}": value for name, value in row.items()} | {"by": by}
    if c.execute(_adding(column), values).rowcount == 0:
        insert_new(c, column.table, row | {column.name: 0})
        c.execute(_adding(column), values)


def _row_of(column: Column[int], key: tuple[str, ...]) -> dict[str, Any]:
    return dict(zip(column.table.primary_key.columns.keys(), key, strict=True))


@cache
def _adding(column: Column[int]) -> Update:
    mine = (name == bindparam(f"of_{name.name}") for name in column.table.primary_key.columns)
    return update(column.table).where(*mine).values({column: column + bindparam("by")})


def insert_new(c: Connection, table: Table, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Inserts what is not there yet: unique indexes decide, also between two who insert the same at once."""
    kind = sqlite if c.dialect.name == "sqlite" else postgresql
    c.execute(kind.insert(table).on_conflict_do_nothing(), rows)
