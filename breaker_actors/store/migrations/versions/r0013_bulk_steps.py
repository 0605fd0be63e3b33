"""Which set of breakers a project has (`breakers_version`), and which bulk replace is under way (`replacing`)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("projects", sa.Column("breakers_version", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("projects", sa.Column("replacing", sa.Text()))
