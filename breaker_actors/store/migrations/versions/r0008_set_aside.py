"""What could not be read is set aside; and modes and slugs with a line end, which were taken once, are put right.

A router's mode with a line end is read by nobody: not in the rows, not in changes that wait, not in the views that lie
in the logs. The rows and the changes are put right here. What lies in a log stays and is passed over by its readers;
each of these routers gets a change with its view as it is now, which comes behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import context, op

from breaker_actors.core.log_entries import VIEW, encode_entry
from breaker_actors.store.config.routing_tables import Linked, view_of

revision = "0008"
down_revision = "0007"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MODES = ("static", "canary", "weighted")
# What a row, or a part of it, may be that nobody can read: MsgspecError and JSONDecodeError are ValueErrors, too.
_UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, RecursionError, OverflowError, msgspec.MsgspecError)


def upgrade() -> None:
    op.create_table(
        "set_aside",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("thing", sa.Text(), nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("times", sa.BigInteger(), nullable=False),
        sa.Column("first_ms", sa.BigInteger(), nullable=False),
        sa.Column("seen_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_set_aside")),
        sa.UniqueConstraint("kind", "thing", "place", name=op.f("uq_set_aside_kind")),
        sqlite_autoincrement=True,
    )
    c = op.get_bind()
    _tell(_repair_slugs(c))
    _tell(_repair_changes(c))
    _tell(_repair_routers(c))


def _tell(lines: Iterable[str]) -> None:
    """What was put right, for whoever ran the upgrade."""
    told: list[str] = context.config.attributes.get("told", [])
    told.extend(lines)


def _repair_slugs(c: sa.Connection) -> list[str]:
    """A slug that is taken in its organisation gets a number behind it."""
    rows = c.execute(sa.text("SELECT id, org_id, slug FROM workspaces ORDER BY id")).all()
    taken = {(row.org_id, row.slug) for row in rows}
    lines = []
    for row in rows:
        if not isinstance(row.slug, str) or not row.slug.endswith("\n"):
            continue
        slug = next(slug for slug in _spellings(_cut(row.slug)) if (row.org_id, slug) not in taken)
        taken.add((row.org_id, slug))
        c.execute(sa.text("UPDATE workspaces SET slug = :slug WHERE id = :id"), {"id": row.id, "slug": slug})
        lines.append(f"workspace {row.id}: slug {row.slug!r} is {slug!r} now")
    return lines


def _spellings(slug: str) -> Iterator[str]:
    yield slug
    yield from (f"{slug}-{number}" for number in count(2))


def _cut(text: str) -> str:
    return text.rstrip("\n")


def _repair_changes(c: sa.Connection) -> list[str]:
    """Views in changes that wait: a mode that is none loses its line end."""
    lines = []
    for row in c.execute(sa.text("SELECT id, router_id, entries FROM changes ORDER BY id")).all():
        try:
            entries = msgspec.msgpack.decode(row.entries, type=list[tuple[int, bytes]])
            repaired = [(kind, _view(payload) if kind == VIEW else payload) for kind, payload in entries]
        except _UNREADABLE as error:
            lines.append(
                f"nothing of change {row.id}: it can't be read ({type(error).__name__}), the service sets it aside"
            )
            continue
        if repaired != entries:
            values = {"id": row.id, "entries": msgspec.msgpack.encode(repaired)}
            c.execute(sa.text("UPDATE changes SET entries = :entries WHERE id = :id"), values)
            lines.append(f"change {row.id} of router {row.router_id}: the mode of its view was put right")
    return lines


def _view(payload: bytes) -> bytes:
    fields: dict[str, Any] = msgspec.msgpack.decode(payload)
    if (mode := fields.get("mode", "static")) in MODES:
        return payload
    return msgspec.msgpack.encode(fields | {"mode": _mode(mode)})


def _mode(text: str) -> str:
    """The word that was meant: "" was the default."""
    found = _cut(text)
    return found if found in MODES else "static"


def _repair_routers(c: sa.Connection) -> list[str]:
    query = "SELECT id, project_id, mode, enabled, metadata, version, deleted_ms FROM routers ORDER BY number"
    rows = c.execute(sa.text(query)).all()
    lines = []
    for row in [row for row in rows if row.mode not in MODES]:
        try:
            _repair_router(c, row)
        except _UNREADABLE as error:
            lines.append(
                f"nothing of router {row.id}: it can't be read ({type(error).__name__}), the service sets it aside"
            )
            continue
        lines.append(f"router {row.id}: mode {row.mode!r} is {_mode(row.mode)!r} now")
    return lines


def _repair_router(c: sa.Connection, row: Any) -> None:
    """Writes only when all could be read."""
    entries = None if row.deleted_ms is not None else _entries(c, row, _mode(row.mode))
    values = {"id": row.id, "mode": _mode(row.mode), "version": row.version + 1}
    c.execute(sa.text("UPDATE routers SET mode = :mode, version = :version WHERE id = :id"), values)
    if entries is None:
        return
    values = {"router": row.id, "project": row.project_id, "entries": entries, "links": "[]"}
    insert = "INSERT INTO changes (router_id, project_id, entries, links) VALUES (:router, :project, :entries, :links)"
    c.execute(sa.text(insert), values)


def _entries(c: sa.Connection, row: Any, mode: Any) -> bytes:
    """A change with the view as the configuration has it now."""
    query = (
        "SELECT b.id, b.name, b.rule FROM links AS l JOIN breakers AS b ON b.id = l.breaker_id"
        " WHERE l.router_id = :id ORDER BY l.number"
    )
    found = c.execute(sa.text(query), {"id": row.id}).all()
    linked = [Linked(b.id, b.name, json.loads(b.rule)["metric"]) for b in found]
    view = view_of(row.version + 1, mode, bool(row.enabled), json.loads(row.metadata), linked)
    return msgspec.msgpack.encode([(VIEW, encode_entry(view))])
