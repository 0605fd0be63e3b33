"""The first trip of an outage, and whether it has one in a state, is one look at an index: a breaker that flaps for
days has any number of them, and each alert read them all."""

from __future__ import annotations

from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.drop_index("ix_outbox_incident", "outbox")
    op.create_index("ix_outbox_outage", "outbox", ["incident", "channel_id", "kind", "state", "number"])
