"""What each project keeps: bytes of configuration and of the audit log, and a number of events.

What is there is summed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

ROW, LINK = 200, 100


def upgrade() -> None:
    op.create_table(
        "stored",
        sa.Column("of_id", sa.Text(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("of_id", "what", name=op.f("pk_stored")),
    )
    op.create_index("ix_stored_what_used", "stored", ["what", "used"])
    c = op.get_bind()
    sums = [
        _sum("configuration", "breakers", "name", "rule", "actions", "metadata"),
        _sum("configuration", "routers", "name", "metadata") + " WHERE deleted_ms IS NULL",
        _sum("configuration", "channels", "name", "config"),
        _sum("configuration", "api_keys", "name") + " WHERE project_id IS NOT NULL",
        f"SELECT project_id, 'configuration' AS what, {LINK} AS used FROM links"  # nosec B608 # constants
        " JOIN breakers ON breakers.id = links.breaker_id",
        _sum("audit", "audit", "before", "after") + " WHERE project_id IS NOT NULL",
        "SELECT project_id, 'events' AS what, 1 AS used FROM events",
    ]
    c.execute(
        sa.text(
            "INSERT INTO stored (of_id, what, used) SELECT project_id, what, SUM(used) FROM ("  # nosec B608 # constants
            + " UNION ALL ".join(sums)
            + ") AS each GROUP BY project_id, what"
        )
    )


def _sum(what: str, table: str, *columns: str) -> str:
    sizes = " + ".join(f"COALESCE({_octets(column)}, 0)" for column in columns)
    return f"SELECT project_id, '{what}' AS what, {ROW} + {sizes} AS used FROM {table}"  # nosec B608 # constants


def _octets(column: str) -> str:
    return f"LENGTH(CAST({column} AS BLOB))" if op.get_bind().dialect.name == "sqlite" else f"OCTET_LENGTH({column})"
