"""What each organisation keeps: its own audit log and that of its deleted projects, answers, and how many projects,
workspaces and keys it has. Deliveries of each project.

What is there is summed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

ROW = 200
_GONE = "NOT EXISTS (SELECT 1 FROM projects WHERE projects.id = stored.of_id AND projects.deleted_ms IS NULL)"


def upgrade() -> None:
    op.create_index("ix_outbox_project_number", "outbox", ["project_id", "number"])
    c = op.get_bind()
    own = _weight("before", "after")
    answers = _weight("sealed", "operation", "key")
    sums = [
        f"SELECT org_id AS of_id, 'org_audit' AS what, {own} AS used FROM audit"  # nosec B608 # constants
        " WHERE project_id IS NULL AND org_id IS NOT NULL",
        f"SELECT org_id, 'answers', {answers} FROM idempotency_keys",  # nosec B608 # constants
        "SELECT workspaces.org_id, 'projects', 1 FROM projects JOIN workspaces ON workspaces.id = projects.workspace_id"
        " WHERE projects.deleted_ms IS NULL",
        "SELECT org_id, 'workspaces', 1 FROM workspaces",
        "SELECT org_id, 'keys', 1 FROM api_keys",
        "SELECT project_id, 'deliveries', 1 FROM outbox",
    ]
    c.execute(
        sa.text(
            "INSERT INTO stored (of_id, what, used) SELECT of_id, what, SUM(used) FROM ("  # nosec B608 # constants
            + " UNION ALL ".join(sums)
            + ") AS each GROUP BY of_id, what"
        )
    )
    _hand_over(c)


def _hand_over(c: sa.Connection) -> None:
    """Audit logs of deleted projects count for their organisations, as far as they are known."""
    known = "SELECT project_id, MAX(org_id) AS org_id FROM audit WHERE org_id IS NOT NULL GROUP BY project_id"
    gone = f"FROM stored WHERE what = 'audit' AND {_GONE}"  # nosec B608 # constants
    c.execute(
        sa.text(
            "INSERT INTO stored (of_id, what, used) SELECT known.org_id, 'gone_audit', SUM(gone.used)"  # nosec B608 # constants
            f" FROM (SELECT of_id, used {gone}) AS gone JOIN ({known}) AS known ON known.project_id = gone.of_id"
            " GROUP BY known.org_id"
        )
    )
    has = "EXISTS (SELECT 1 FROM audit WHERE audit.project_id = stored.of_id AND audit.org_id IS NOT NULL)"
    c.execute(sa.text(f"DELETE {gone} AND {has}"))  # nosec B608 # constants


def _weight(*columns: str) -> str:
    return " + ".join((str(ROW), *(f"COALESCE({_octets(column)}, 0)" for column in columns)))


def _octets(column: str) -> str:
    return f"LENGTH(CAST({column} AS BLOB))" if op.get_bind().dialect.name == "sqlite" else f"OCTET_LENGTH({column})"
