"""Answer bodies of workspaces, project keys, notification channels and the audit log. Pure functions of stored rows."""

from __future__ import annotations

from collections.abc import Sequence

from api.bodies import Body, listing, rfc3339
from breaker_actors.stores.base import AuditRow, ChannelRow, KeyRow, WorkspaceRow
from breaker_actors.stores.masking import mask

KEY_SHOWN_ONCE = "Keep this key: it is shown only now."


def workspace(row: WorkspaceRow) -> Body:
    return {
        "id": row.id,
        "name": row.name,
        "slug": row.slug,
        "org_id": row.org_id,
        "inserted_at": rfc3339(row.inserted_ms),
    }


def workspace_list(rows: Sequence[WorkspaceRow]) -> Body:
    return listing("workspaces", [workspace(row) for row in rows])


def key(row: KeyRow) -> Body:
    return {
        "id": row.id,
        "name": row.name,
        "key_prefix": row.key_prefix,
        "inserted_at": rfc3339(row.inserted_ms),
        "last_used_at": None if row.last_used_ms is None else rfc3339(row.last_used_ms),
    }


def new_key(row: KeyRow, text: str) -> Body:
    """The only answer that shows the key."""
    return key(row) | {"key": text, "message": KEY_SHOWN_ONCE}


def key_list(rows: Sequence[KeyRow]) -> Body:
    return listing("keys", [key(row) for row in rows], count=len(rows))


def channel(row: ChannelRow) -> Body:
    return {
        "id": row.id,
        "project_id": row.project_id,
        "name": row.name,
        "channel": row.channel,
        "config": mask(row.config),
        "enabled": row.enabled,
        "events": list(row.events),
        "inserted_at": rfc3339(row.inserted_ms),
        "created_at": rfc3339(row.inserted_ms),
        "updated_at": rfc3339(row.updated_ms),
    }


def channel_single(row: ChannelRow) -> Body:
    return {"channel": channel(row)}


def channel_list(rows: Sequence[ChannelRow]) -> Body:
    return listing("channels", [channel(row) for row in rows])


def audit_entry(row: AuditRow) -> Body:
    """`key_id`: who did it, or a word where no key was used (system, command line)."""
    return {
        "id": str(row.number),
        "project_id": row.project_id,
        "ts_ms": row.at_ms,
        "timestamp": rfc3339(row.at_ms),
        "key_id": row.who,
        "action": row.action,
        "target_id": row.target_id,
        "before": row.before,
        "after": row.after,
    }


def audit_list(rows: Sequence[AuditRow], next_cursor: str | None) -> Body:
    page = {"next_cursor": next_cursor, "cursor": next_cursor, "has_more": next_cursor is not None}
    return listing("entries", [audit_entry(row) for row in rows], returned=len(rows)) | page
