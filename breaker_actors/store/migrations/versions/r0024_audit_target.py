"""What files declare counts in the configuration. Entries of the audit log are found by what they are about, else each
such look walks all of a project's log; those of an organisation are not looked for among all others'. So is where an
outage began: of a breaker that flaps for days each alert walked all its events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    _count_declarations()
    op.create_index("ix_audit_target", "audit", ["project_id", "target_id", "number"])
    of_none = sa.text("project_id IS NULL")
    op.create_index("ix_audit_org", "audit", ["org_id", "number"], sqlite_where=of_none, postgresql_where=of_none)
    begins, key = sa.text("prev = 'closed' AND hidden_by IS NULL"), ["breaker_id", "project_id", "transition_seq"]
    op.create_index("ix_events_outage", "events", key, sqlite_where=begins, postgresql_where=begins)


def _count_declarations() -> None:
    """What files declare counts in the configuration of its project from now on."""
    size = "length(CAST({} AS BLOB))" if op.get_bind().dialect.name == "sqlite" else "octet_length({})"
    texts = " + ".join(size.format(column) for column in ("owner", "name", "fields", "labels"))
    rows = f"SELECT project_id, 'configuration', SUM(200 + {texts}) FROM declared WHERE true GROUP BY project_id"  # nosec B608 # names of columns
    clash = "ON CONFLICT (of_id, what) DO UPDATE SET used = stored.used + excluded.used"
    op.execute(sa.text(f"INSERT INTO stored (of_id, what, used) {rows} {clash}"))  # nosec B608
