"""What the parts of the SQL store share: the database, the secret box, and a few statements used by several of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar
from uuid import uuid4

from sqlalchemy import Connection, select, update

from breaker_actors.errors import NotFound
from breaker_actors.stores import tables as t
from breaker_actors.stores.engine import Database
from breaker_actors.stores.secrets import SecretBox

T = TypeVar("T")

PARAMETERS_MAX = 500
DAY_MS = 86_400_000


class StorePart:
    """One resource of the store. Its methods hand a plain function over a `Connection` to the database."""

    _db: Database
    _box: SecretBox
    _shards: int


def new_id() -> str:
    return str(uuid4())


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Pieces small enough for the parameters of one statement."""
    for start in range(0, len(items), PARAMETERS_MAX):
        yield items[start : start + PARAMETERS_MAX]


def lock_project(c: Connection, project_id: str) -> None:
    """Makes configuration writes of one project serial (SQLite's write lock does it anyway). Raises NotFound."""
    found = c.execute(select(t.projects.c.id).where(t.projects.c.id == project_id).with_for_update()).first()
    if found is None:
        raise NotFound("no such project", {"project_id": project_id})


def touch_breakers(c: Connection, project_id: str, now_ms: int) -> None:
    """Notes the time of a configuration change of the project's breakers."""
    c.execute(update(t.projects).where(t.projects.c.id == project_id).values(breakers_updated_ms=now_ms))
