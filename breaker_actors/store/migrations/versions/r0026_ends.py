"""Names that went away are found by their time, and no change of breakers walks all of its project's."""

from __future__ import annotations

from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.create_index("ix_gone_names_until_ms", "gone_names", ["until_ms"])
    op.create_index("ix_gone_names_project_until", "gone_names", ["project_id", "until_ms", "name"])
