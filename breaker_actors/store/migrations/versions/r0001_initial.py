"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "directory",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_directory")),
    )
    op.create_table(
        "events",
        sa.Column("shard", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("breaker_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("prev", sa.Text(), nullable=False),
        sa.Column("curr", sa.Text(), nullable=False),
        sa.Column("ts_ms", sa.BigInteger(), nullable=False),
        sa.Column("transition_seq", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("allow_rate", sa.Float(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("agg", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("shard", "sequence", name=op.f("pk_events")),
        sa.UniqueConstraint("breaker_id", "transition_seq", name=op.f("uq_events_breaker_id")),
    )
    op.create_index(
        "ix_events_breaker_newest", "events", ["project_id", "breaker_id", "ts_ms", "sequence"], unique=False
    )
    op.create_index("ix_events_project_newest", "events", ["project_id", "ts_ms", "sequence"], unique=False)
    op.create_index("ix_events_project_sequence", "events", ["project_id", "sequence"], unique=False)
    op.create_table(
        "gone_names",
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "name", name=op.f("pk_gone_names")),
    )
    op.create_table(
        "journals",
        sa.Column("shard", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("shard", name=op.f("pk_journals")),
    )
    op.create_table(
        "orgs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("inserted_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_orgs")),
    )
    op.create_table(
        "workspaces",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("org_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("inserted_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_workspaces_org_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workspaces")),
    )
    op.create_index(op.f("ix_workspaces_org_id"), "workspaces", ["org_id"], unique=False)
    op.create_table(
        "projects",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("enable_signed_ingest", sa.Boolean(), nullable=False),
        sa.Column("ingest_secret", sa.LargeBinary(), nullable=False),
        sa.Column("slack_webhook_url", sa.LargeBinary(), nullable=True),
        sa.Column("trace_id_url_template", sa.Text(), nullable=True),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("inserted_ms", sa.BigInteger(), nullable=False),
        sa.Column("breakers_updated_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], name=op.f("fk_projects_workspace_id")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_projects")),
        sa.UniqueConstraint("id", name=op.f("uq_projects_id")),
    )
    op.create_index(op.f("ix_projects_workspace_id"), "projects", ["workspace_id"], unique=False)
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("org_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key_prefix", sa.Text(), nullable=False),
        sa.Column("key_sha256", sa.Text(), nullable=False),
        sa.Column("inserted_ms", sa.BigInteger(), nullable=False),
        sa.Column("last_used_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["org_id"], ["orgs.id"], name=op.f("fk_api_keys_org_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_api_keys_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("key_sha256", name=op.f("uq_api_keys_key_sha256")),
    )
    op.create_index(op.f("ix_api_keys_org_id"), "api_keys", ["org_id"], unique=False)
    op.create_index(op.f("ix_api_keys_project_id"), "api_keys", ["project_id"], unique=False)
    op.create_table(
        "breakers",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("actions", sa.Text(), nullable=True),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_breakers_project_id")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_breakers")),
        sa.UniqueConstraint("id", name=op.f("uq_breakers_id")),
    )
    op.create_index("ix_breakers_project_created", "breakers", ["project_id", "created_ms", "number"], unique=False)
    op.create_index("ix_breakers_project_name", "breakers", ["project_id", "name"], unique=False)
    op.create_table(
        "routers",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("inserted_ms", sa.BigInteger(), nullable=False),
        sa.Column("deleted_ms", sa.BigInteger(), nullable=True),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("log_slot", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_routers_project_id")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_routers")),
        sa.UniqueConstraint("id", name=op.f("uq_routers_id")),
    )
    op.create_index(op.f("ix_routers_project_id"), "routers", ["project_id"], unique=False)
    op.create_table(
        "changes",
        sa.Column("id", NUMBER, autoincrement=True, nullable=False),
        sa.Column("router_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("entries", sa.LargeBinary(), nullable=False),
        sa.Column("links", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["router_id"], ["routers.id"], name=op.f("fk_changes_router_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_changes")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_changes_router_id"), "changes", ["router_id"], unique=False)
    op.create_table(
        "links",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("router_id", sa.Text(), nullable=False),
        sa.Column("breaker_id", sa.Text(), nullable=False),
        sa.Column("since_offset", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["breaker_id"], ["breakers.id"], name=op.f("fk_links_breaker_id")),
        sa.ForeignKeyConstraint(["router_id"], ["routers.id"], name=op.f("fk_links_router_id")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_links")),
        sa.UniqueConstraint("router_id", "breaker_id", name=op.f("uq_links_router_id")),
    )
    op.create_index(op.f("ix_links_breaker_id"), "links", ["breaker_id"], unique=False)
    op.create_table(
        "records",
        sa.Column("breaker_id", sa.Text(), nullable=False),
        sa.Column("transition_seq", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("allow_rate", sa.Float(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=True),
        sa.Column("cut", sa.Text(), nullable=False),
        sa.Column("settings", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["breaker_id"], ["breakers.id"], name=op.f("fk_records_breaker_id")),
        sa.PrimaryKeyConstraint("breaker_id", name=op.f("pk_records")),
    )
