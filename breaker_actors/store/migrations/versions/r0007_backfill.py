"""Events of history that was loaded afterwards: beside those that happened, and never among them unasked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "backfill_events",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("breaker_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("prev", sa.Text(), nullable=False),
        sa.Column("curr", sa.Text(), nullable=False),
        sa.Column("ts_ms", sa.BigInteger(), nullable=False),
        sa.Column("transition_seq", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("allow_rate", sa.Float(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("agg", sa.Text(), nullable=False),
        sa.Column("inserted_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_backfill_events")),
        sa.UniqueConstraint("run_id", "breaker_id", "transition_seq", name=op.f("uq_backfill_events_run_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_backfill_events_project_newest", "backfill_events", ["project_id", "ts_ms", "number"])
    op.create_index(
        "ix_backfill_events_breaker_newest", "backfill_events", ["project_id", "breaker_id", "ts_ms", "number"]
    )
    op.create_index("ix_backfill_events_project_number", "backfill_events", ["project_id", "number"])
