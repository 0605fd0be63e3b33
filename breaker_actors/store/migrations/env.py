"""Alembic's entry: runs the migrations on the connection that `upgrade` hands over, inside its transaction."""

from __future__ import annotations

from alembic import context

from breaker_actors.store.tables import metadata

connection = context.config.attributes.get("connection")
assert connection is not None, "run migrations through breaker_actors.store.migrations.upgrade"
context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
context.run_migrations()
