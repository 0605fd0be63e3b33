"""Changes that wait are taken project by project."""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.create_index("ix_changes_project_id", "changes", ["project_id", "id"], if_not_exists=True)
