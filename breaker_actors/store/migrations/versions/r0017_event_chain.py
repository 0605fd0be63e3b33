"""Events and breakers' records have checksums; an event's goes over that of the event before it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    for table, names in (("events", ("before", "checksum")), ("records", ("event_checksum", "checksum"))):
        for name in names:
            op.add_column(table, sa.Column(name, sa.BigInteger()))
