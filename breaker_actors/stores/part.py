"""What the parts of the SQL store share: the database, the secret box, and a few statements used by several of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar
from uuid import uuid4

from sqlalchemy import BindParameter, Connection, Select, bindparam, insert, select, update

from breaker_actors.errors import NotFound
from breaker_actors.stores import tables as t
from breaker_actors.stores.engine import Database
from breaker_actors.stores.secrets import SecretBox

T = TypeVar("T")

ACCESS = "access"
"""The counter of everything that decides who may do what."""
PARAMETERS_MAX = 500
IDS: BindParameter[Any] = bindparam("ids", expanding=True)
"""The parameter of statements about one piece of `chunks`. They are made once: to put a statement together costs more
than to run it."""
DAY_MS = 86_400_000


class StorePart:
    """One resource of the store. Its methods hand a plain function over a `Connection` to the database."""

    _db: Database
    _box: SecretBox
    _shards: int
    _breakers_max: int


def new_id() -> str:
    return str(uuid4())


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Pieces small enough for the parameters of one statement."""
    for start in range(0, len(items), PARAMETERS_MAX):
        yield items[start : start + PARAMETERS_MAX]


def lock_project(c: Connection, project_id: str) -> None:
    """Makes configuration writes of one project serial (SQLite's write lock does it anyway). Raises NotFound."""
    mine = (t.projects.c.id == project_id) & t.projects.c.deleted_ms.is_(None)
    must_exist(c, select(t.projects.c.id).where(mine).with_for_update(), "project")


def touch_breakers(c: Connection, project_id: str, now_ms: int) -> None:
    """Notes the time of a configuration change of the project's breakers."""
    c.execute(update(t.projects).where(t.projects.c.id == project_id).values(breakers_updated_ms=now_ms))


def must_exist(c: Connection, query: Select[Any], what: str) -> None:
    """Raises NotFound when the query finds nothing."""
    if c.execute(query).first() is None:
        raise NotFound(f"There is no such {what}.")


def bump(c: Connection, counter: str) -> None:
    """Raises a counter by one; it starts at 0."""
    mine = t.counters.c.name == counter
    if c.execute(update(t.counters).where(mine).values(value=t.counters.c.value + 1)).rowcount == 0:
        c.execute(insert(t.counters).values(name=counter, value=1))
