"""What files of rules declare: who owns a thing of a project, and what was applied last."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.create_table(
        "declared",
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("thing_id", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("fields", sa.Text, nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("stamp", sa.BigInteger, nullable=False),
        sa.Column("applied_ms", sa.BigInteger, nullable=False),
        sa.Column("applied_by", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "kind", "thing_id", name="pk_declared"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_declared_project_id"),
    )
