"""What creates were answered with, by their Idempotency-Key."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("org_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=True),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("inserted_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_idempotency_keys")),
        sa.UniqueConstraint("org_id", "operation", "key", name=op.f("uq_idempotency_keys_org_id")),
    )
    op.create_index("ix_idempotency_keys_org_number", "idempotency_keys", ["org_id", "number"])
    op.create_index(op.f("ix_idempotency_keys_project_id"), "idempotency_keys", ["project_id"])
