"""What alerts say is stored once for all channels that are told it: rows of the outbox point to it. Rows that are there
keep their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"

INDEXES: dict[str, tuple[list[str], str | None]] = {
    "ix_outbox_pending": (["channel_id", "number"], "pending"),
    "ix_outbox_channel_newest": (["project_id", "channel_id", "number"], None),
    "ix_outbox_incident": (["incident", "channel_id"], None),
    "ix_outbox_created": (["created_ms"], None),
    "ix_outbox_project_number": (["project_id", "number"], None),
    "ix_outbox_held": (["project_id", "breaker_id"], "held"),
    "ix_outbox_held_number": (["number"], "held"),
}
"""In the order they were made in: of two that serve alike SQLite takes the younger one. A copy of the table makes them
anew in any order, and with another one than this the look for held deliveries reads all of a project."""


def upgrade() -> None:
    op.create_table(
        "alert_payloads",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_payloads")),
    )
    indexes = INDEXES if op.get_bind().dialect.name == "sqlite" else {}
    for name in indexes:
        op.drop_index(name, "outbox")
    # SQLite copies the table: a million rows take some ten seconds
    with op.batch_alter_table("outbox", table_kwargs={"sqlite_autoincrement": True}) as outbox:
        outbox.alter_column("told", existing_type=sa.Text(), nullable=True)
        outbox.add_column(sa.Column("payload_id", sa.Text()))
        outbox.create_foreign_key(op.f("fk_outbox_payload_id"), "alert_payloads", ["payload_id"], ["id"])
    for name, (columns, state) in indexes.items():
        op.create_index(name, "outbox", columns, sqlite_where=None if state is None else sa.text(f"state = '{state}'"))
    op.create_index("ix_outbox_payload_id", "outbox", ["payload_id"])
