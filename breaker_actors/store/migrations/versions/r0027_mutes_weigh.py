"""Mutes that ended, and answers that are kept for repeated requests, are found by their time: upkeep read all there
are. Mutes count in the configuration."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    _count_mutes()
    ended = sa.text("ended_ms IS NOT NULL")
    op.create_index("ix_mutes_ended", "mutes", ["ended_ms"], sqlite_where=ended, postgresql_where=ended)
    op.create_index("ix_idempotency_keys_inserted_ms", "idempotency_keys", ["inserted_ms"])


def _count_mutes() -> None:
    """They count in the configuration of their project from now on, those that ended, too."""
    size = "length(CAST({} AS BLOB))" if op.get_bind().dialect.name == "sqlite" else "octet_length({})"
    texts = " + ".join(size.format(column) for column in ("matchers", "windows", "comment", "created_name"))
    rows = f"SELECT project_id, 'configuration', SUM(200 + {texts}) FROM mutes WHERE true GROUP BY project_id"  # nosec B608 # names of columns
    clash = "ON CONFLICT (of_id, what) DO UPDATE SET used = stored.used + excluded.used"
    op.execute(sa.text(f"INSERT INTO stored (of_id, what, used) {rows} {clash}"))  # nosec B608
