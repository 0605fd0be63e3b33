"""The outbox of notifications, the Notifier's epoch, and what is known of channels that do not answer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
PENDING = sa.text("state = 'pending'")


def upgrade() -> None:
    op.create_table(
        "outbox",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("channel_id", sa.Text(), nullable=False),
        sa.Column("breaker_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=True),
        sa.Column("sequence", sa.BigInteger(), nullable=True),
        sa.Column("transition_seq", sa.BigInteger(), nullable=False),
        sa.Column("incident", sa.BigInteger(), nullable=True),
        sa.Column("told", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_ms", sa.BigInteger(), nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=True),
        sa.Column("lease_epoch", sa.BigInteger(), nullable=True),
        sa.Column("lease_until_ms", sa.BigInteger(), nullable=True),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_outbox")),
        sa.UniqueConstraint("id", name=op.f("uq_outbox_id")),
        sa.UniqueConstraint("shard", "sequence", "channel_id", name=op.f("uq_outbox_shard")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_outbox_pending", "outbox", ["channel_id", "number"], sqlite_where=PENDING, postgresql_where=PENDING
    )
    op.create_index("ix_outbox_channel_newest", "outbox", ["project_id", "channel_id", "number"])
    op.create_index("ix_outbox_incident", "outbox", ["incident", "channel_id"])
    op.create_index("ix_outbox_created", "outbox", ["created_ms"])
    op.create_table(
        "notifier",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notifier")),
    )
    op.create_table(
        "circuits",
        sa.Column("channel_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("not_before_ms", sa.BigInteger(), nullable=False),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("channel_id", name=op.f("pk_circuits")),
    )
