"""Notification channels, the audit log, secrets that overlap, projects that wait for their last changes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("projects", sa.Column("previous_secret", sa.LargeBinary(), nullable=True))
    op.add_column("projects", sa.Column("previous_until_ms", sa.BigInteger(), nullable=True))
    op.add_column("projects", sa.Column("deleted_ms", sa.BigInteger(), nullable=True))
    op.create_table(
        "channels",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("config", sa.LargeBinary(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("events", sa.Text(), nullable=False),
        sa.Column("inserted_ms", sa.BigInteger(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_channels_project_id")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_channels")),
        sa.UniqueConstraint("id", name=op.f("uq_channels_id")),
    )
    op.create_index(op.f("ix_channels_project_id"), "channels", ["project_id"], unique=False)
    op.create_table(
        "audit",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("org_id", sa.Text(), nullable=True),
        sa.Column("project_id", sa.Text(), nullable=True),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target_id", sa.Text(), nullable=False),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_project_number", "audit", ["project_id", "number"], unique=False)
    op.create_table(
        "counters",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_counters")),
    )
