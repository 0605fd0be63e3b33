"""Mutes, and deliveries that are held behind them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

_HELD, _LIVE = sa.text("state = 'held'"), sa.text("ended_ms IS NULL")


def upgrade() -> None:
    op.create_table(
        "mutes",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("matchers", sa.Text, nullable=False),
        sa.Column("all", sa.Boolean, nullable=False),
        sa.Column("starts_ms", sa.BigInteger, nullable=False),
        sa.Column("ends_ms", sa.BigInteger),
        sa.Column("windows", sa.Text, nullable=False),
        sa.Column("zone", sa.Text, nullable=False),
        sa.Column("comment", sa.Text, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("created_name", sa.Text, nullable=False),
        sa.Column("inserted_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("ended_reason", sa.Text),
        sa.Column("matched_ms", sa.BigInteger),
        sa.Column("warned_ms", sa.BigInteger),
        sa.PrimaryKeyConstraint("number", name="pk_mutes"),
        sa.UniqueConstraint("id", name="uq_mutes_id"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_mutes_project_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_mutes_project_number", "mutes", ["project_id", "number"])
    op.create_index("ix_mutes_live", "mutes", ["project_id"], sqlite_where=_LIVE, postgresql_where=_LIVE)
    op.create_index("ix_mutes_ends", "mutes", ["ends_ms"], sqlite_where=_LIVE, postgresql_where=_LIVE)
    op.add_column("outbox", sa.Column("mute_id", sa.Text()))
    op.create_index(
        "ix_outbox_held", "outbox", ["project_id", "breaker_id"], sqlite_where=_HELD, postgresql_where=_HELD
    )
    op.create_index("ix_outbox_held_number", "outbox", ["number"], sqlite_where=_HELD, postgresql_where=_HELD)
