"""The check value of the sealing key; on PostgreSQL also the sample log, which SQLite keeps in files of its own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

# Byte order: faster to compare, and an index does not break when a system library changes how it sorts.
NAME = sa.Text(collation="C")


def upgrade() -> None:
    op.create_table(
        "seals",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_seals")),
    )
    if op.get_bind().dialect.name == "postgresql":
        _create_log()


def _create_log() -> None:
    op.create_table(
        "log_records",
        sa.Column("slot", NAME, nullable=False),
        sa.Column("router_id", NAME, nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("received_ms", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.SmallInteger(), nullable=False),
        sa.Column("view_offset", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("slot", "router_id", "offset", name=op.f("pk_log_records")),
    )
    op.execute("ALTER TABLE log_records ALTER payload SET STORAGE EXTERNAL")
    op.create_table(
        "log_heads",
        sa.Column("slot", NAME, nullable=False),
        sa.Column("router_id", NAME, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("owner", NAME, nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("last_received_ms", sa.BigInteger(), nullable=False),
        sa.Column("view_offset", sa.BigInteger(), nullable=False),
        sa.Column("taken_offset", sa.BigInteger(), nullable=False),
        sa.Column("before_ms", sa.BigInteger(), nullable=False),
        sa.Column("keys_from_ms", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("slot", "router_id", name=op.f("pk_log_heads")),
        postgresql_with={"fillfactor": 50},
    )
    op.create_table(
        "log_keys",
        sa.Column("slot", NAME, nullable=False),
        sa.Column("router_id", NAME, nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("received_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("slot", "router_id", "offset", "key", name=op.f("pk_log_keys")),
    )
    op.create_table(
        "log_alive",
        sa.Column("slot", NAME, nullable=False),
        sa.Column("owner", NAME, nullable=False),
        sa.Column("alive_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("slot", "owner", name=op.f("pk_log_alive")),
    )
