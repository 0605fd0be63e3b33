"""Names that went away, and sessions, are found by their end: no change of breakers walks all names of its project, and
no sign-in all sessions of everybody. Sessions may outlive their key's row: a project ends without a walk over those of
all its keys."""

from __future__ import annotations

from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.create_index("ix_gone_names_until_ms", "gone_names", ["until_ms"])
    op.create_index("ix_gone_names_project_until", "gone_names", ["project_id", "until_ms", "name"])
    with op.batch_alter_table("console_sessions") as sessions:  # SQLite copies the table
        sessions.drop_constraint(op.f("fk_console_sessions_key_id"), type_="foreignkey")
    op.create_index("ix_console_sessions_ends_ms", "console_sessions", ["ends_ms"])
