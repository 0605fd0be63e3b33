"""How far each router's log reached is known without its breakers, too."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column("routers", sa.Column("reached_offset", sa.BigInteger(), nullable=False, server_default="0"))
