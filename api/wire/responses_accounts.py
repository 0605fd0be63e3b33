"""Answer bodies of workspaces, project keys, notification channels and the audit log, made of stored rows; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.wire.responses import Answer, list_of, shown
from api.wire.types import Count, Instant, JsonObject, Ms, Uuid
from breaker_actors.clock import rfc3339
from breaker_actors.store.rows import (
    AuditRow,
    ChannelEvent,
    ChannelKind,
    ChannelRow,
    KeyRow,
    ProjectKeyKind,
    WorkspaceRow,
)
from breaker_actors.text.redaction import mask

KEY_SHOWN_ONCE = "Keep this key: it is shown only now."


class Workspace(Answer, kw_only=True):
    id: Uuid
    name: str
    slug: str
    org_id: Uuid
    inserted_at: Instant


WorkspaceList = list_of("WorkspaceList", "workspaces", Workspace)


def workspace(row: WorkspaceRow) -> Workspace:
    return shown(Workspace, row, inserted_at=rfc3339(row.inserted_ms))


class ProjectKey(Answer, kw_only=True):
    id: Uuid
    kind: ProjectKeyKind
    name: str
    key_prefix: str
    inserted_at: Instant
    last_used_at: Instant | None


class NewProjectKey(ProjectKey, kw_only=True):
    """`key` is shown only here."""

    key: str
    message: str


ProjectKeyList = list_of("ProjectKeyList", "keys", ProjectKey, count=Count)


def key(row: KeyRow) -> ProjectKey:
    last_used_at = None if row.last_used_ms is None else rfc3339(row.last_used_ms)
    return shown(ProjectKey, row, inserted_at=rfc3339(row.inserted_ms), last_used_at=last_used_at)


def new_key(row: KeyRow, text: str) -> NewProjectKey:
    """The only answer that shows the key."""
    return shown(NewProjectKey, key(row), key=text, message=KEY_SHOWN_ONCE)


class Channel(Answer, kw_only=True):
    """Addresses and secrets in `config` are masked."""

    id: str
    project_id: Uuid
    name: str
    channel: ChannelKind
    config: JsonObject
    enabled: bool
    events: list[ChannelEvent]
    inserted_at: Instant
    created_at: Instant
    updated_at: Instant


class ChannelSingle(Answer, kw_only=True):
    channel: Channel


class ChannelTest(Answer, kw_only=True):
    status: str
    message: str


def channel(row: ChannelRow) -> Channel:
    return shown(
        Channel,
        row,
        config=mask(row.config),
        events=list(row.events),
        inserted_at=rfc3339(row.inserted_ms),
        created_at=rfc3339(row.inserted_ms),
        updated_at=rfc3339(row.updated_ms),
    )


def channel_single(row: ChannelRow) -> ChannelSingle:
    return ChannelSingle(channel=channel(row))


class AuditEntry(Answer, kw_only=True):
    """`key_id`: whose key did it, or a word where no key was used; `who`: its name. Secrets are masked."""

    id: str
    project_id: Uuid | None
    ts_ms: Ms
    timestamp: Instant
    key_id: str
    who: str
    action: str
    target_id: str
    before: JsonObject | None
    after: JsonObject | None


AuditList = list_of("AuditList", "entries", AuditEntry, returned=Count)


def audit_entry(row: AuditRow, names: Mapping[str, str]) -> AuditEntry:
    """Words where no key was used: system, command line. `names`: of keys, by id."""
    who = names.get(row.who, row.who)
    at: dict[str, Any] = {"ts_ms": row.at_ms, "timestamp": rfc3339(row.at_ms)}
    return shown(AuditEntry, row, id=str(row.number), **at, key_id=row.who, who=who)
