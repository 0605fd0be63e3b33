"""Series of open protocols: the mappings that say what becomes of them, and, beside the sample log, the last points of
cumulative ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.create_table(
        "mappings",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("matchers", sa.Text, nullable=False),
        sa.Column("to", sa.Text, nullable=False),
        sa.Column("enabled", sa.Boolean, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("inserted_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_mappings"),
        sa.UniqueConstraint("id", name="uq_mappings_id"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_mappings_project_id"),
    )
    op.create_index("ix_mappings_project_position", "mappings", ["project_id", "position"])
    if op.get_bind().dialect.name == "postgresql":
        _create_counters()


def _create_counters() -> None:
    op.create_table(
        "log_counters",
        sa.Column("slot", sa.Text(collation="C"), nullable=False),
        sa.Column("router_id", sa.Text(collation="C"), nullable=False),
        sa.Column("series", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("slot", "router_id", "series", name=op.f("pk_log_counters")),
        postgresql_with={"fillfactor": 50},
    )
