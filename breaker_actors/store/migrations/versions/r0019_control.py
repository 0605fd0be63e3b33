"""Breakers have a mode and overrides; events say which moves callers did not see, and who made one by hand."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.add_column("breakers", sa.Column("control", sa.Text()))
    op.add_column("breakers", sa.Column("shadow_of", sa.Text()))
    op.create_index("ix_breakers_shadow_of", "breakers", ["shadow_of"])
    op.add_column("projects", sa.Column("override_max_ms", sa.BigInteger()))
    for name in ("hidden_by", "by", "comment"):
        op.add_column("events", sa.Column(name, sa.Text()))
