"""Which key sealed the secrets of a store: noted at first, so that another key is refused when the store is opened."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select

from breaker_actors.errors import Invalid
from breaker_actors.store import tables as t
from breaker_actors.store.config.projects import secret_place
from breaker_actors.store.secrets import SecretBox

OTHER_KEY = (
    "the sealing key is not the one that sealed the secrets of this database: set BREAKERS_SECRET_KEY to that one, "
    "or put its secret.key into the data directory"
)
_NAME = "check"


def known(c: Connection) -> bytes | None:
    """The check value, if there is one yet."""
    return c.execute(select(t.seals.c.value).where(t.seals.c.name == _NAME)).scalar()


def note(c: Connection, box: SecretBox) -> bytes:
    """Notes the key of `box` unless one is noted; answers the check value that counts. Raises Invalid when `box` does
    not open what has been sealed before there were check values."""
    found = known(c)
    if found is None:
        project = c.execute(select(t.projects.c.id, t.projects.c.ingest_secret).limit(1)).first()
        if project is not None and not box.opens(project.ingest_secret, secret_place(project.id)):
            raise Invalid(OTHER_KEY)
        found = box.check_value()
        c.execute(insert(t.seals).values(name=_NAME, value=found))
    return found
