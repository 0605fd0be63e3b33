"""Links that ended stay known as long as a window reaches them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "ended_links",
        sa.Column("breaker_id", sa.Text(), nullable=False),
        sa.Column("router_id", sa.Text(), nullable=False),
        sa.Column("since_offset", sa.BigInteger(), nullable=True),
        sa.Column("log_slot", sa.Text(), nullable=True),
        sa.Column("change_id", sa.BigInteger(), nullable=False),
        sa.Column("until_offset", sa.BigInteger(), nullable=True),
        sa.Column("ended_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["breaker_id"], ["breakers.id"], name=op.f("fk_ended_links_breaker_id")),
        sa.PrimaryKeyConstraint("breaker_id", "router_id", name=op.f("pk_ended_links")),
    )
    op.create_index(op.f("ix_ended_links_change_id"), "ended_links", ["change_id"])
