"""Checksums of the sample log. What lies in it already has none: heads say up to where that is so."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    op.add_column("log_records", sa.Column("before", sa.BigInteger()))
    op.add_column("log_records", sa.Column("checksum", sa.BigInteger()))
    for name in ("checksum", "unchained", "floor", "seal"):
        op.add_column("log_heads", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
        op.alter_column("log_heads", name, server_default=None)
    op.execute('UPDATE log_heads SET unchained = "offset", floor = "offset" + 1')
