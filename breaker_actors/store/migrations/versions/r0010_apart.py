"""The transitions of a breaker's id are numbered per project: who takes an id that another project gave back begins
anew. And the database gets an id of its own, so that a deployment notices when it is given another one."""

from __future__ import annotations

from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

UNIQUE, COLUMNS = "uq_events_breaker_id", ["breaker_id", "project_id", "transition_seq"]


def upgrade() -> None:
    with op.batch_alter_table("events") as events:  # SQLite copies the table: a million events take some ten seconds
        events.drop_constraint(op.f(UNIQUE), type_="unique")
        events.create_unique_constraint(op.f(UNIQUE), COLUMNS)
    identity = op.create_table(
        "identity",
        sa.Column("id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_identity")),
    )
    op.bulk_insert(identity, [{"id": str(uuid4())}])
