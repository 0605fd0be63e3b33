"""What an owner of a sample log wrote before it took the log again is refused when it comes late."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":  # SQLite's logs are files of their own: `slotfile.py`
        op.add_column("log_heads", sa.Column("turn", sa.BigInteger(), nullable=False, server_default="0"))
        op.alter_column("log_heads", "turn", server_default=None)
