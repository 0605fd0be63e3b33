"""Which database this is: an id made with its schema, that copies and backups keep and no other database has."""

from __future__ import annotations

from sqlalchemy import Connection, select

from breaker_actors.store import tables as t


def known(c: Connection) -> str:
    """The id."""
    found: str = c.execute(select(t.identity.c.id)).scalar_one()
    return found
