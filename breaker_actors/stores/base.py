"""What the service keeps durably and the one door to it. `sql.py` implements it for SQLite (and PostgreSQL).

Configuration writes are one transaction each: rows plus `changes` rows that the Directory later appends to the routers'
logs (design.md section 3.6). Runtime writes (records, events) come from the Journal only, fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from breaker_actors.core.model import Rule, StateWord
from breaker_actors.messages import BreakerAssignment, Commit, CommitResult, RouterAssignment

KeyKind = Literal["user", "admin", "project"]


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """An API key without its secret: only a SHA-256 of the key is stored."""

    id: str
    org_id: str
    project_id: str | None
    kind: KeyKind
    name: str
    key_prefix: str
    inserted_ms: int
    last_used_ms: int | None = None


class WorkspaceRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    org_id: str
    name: str
    slug: str
    inserted_ms: int


class ProjectRow(msgspec.Struct, frozen=True, kw_only=True):
    """`ingest_secret` is decrypted here (64 hex digits) and must not reach a log or an answer but on create/rotate."""

    id: str
    workspace_id: str
    org_id: str
    name: str
    enable_signed_ingest: bool
    ingest_secret: str
    slack_webhook_url: str | None
    trace_id_url_template: str | None
    shard: int
    inserted_ms: int

    def __repr__(self) -> str:
        return f"ProjectRow(id={self.id!r})"


class BreakerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker's configuration. `router_ids`: in link order. `version` goes up by one with every change."""

    id: str
    project_id: str
    name: str
    rule: Rule
    actions: dict[str, Any] | None
    metadata: dict[str, str]
    version: int
    created_ms: int
    updated_ms: int
    router_ids: tuple[str, ...]


class BreakerDraft(msgspec.Struct, frozen=True, kw_only=True):
    """What a create asks for; id and name may be left to the store (name: unique and non-empty)."""

    rule: Rule
    id: str | None = None
    name: str | None = None
    actions: dict[str, Any] | None = None
    metadata: dict[str, str] = {}


class RouterRow(msgspec.Struct, frozen=True, kw_only=True):
    """A router's configuration. `breaker_ids`: in link order."""

    id: str
    project_id: str
    name: str
    mode: Literal["static", "canary", "weighted"]
    enabled: bool
    created_by: Literal["system", "user"]
    metadata: dict[str, str]
    version: int
    inserted_ms: int
    breaker_ids: tuple[str, ...]


class RouterDraft(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None
    mode: Literal["static", "canary", "weighted"] = "static"
    enabled: bool = True
    metadata: dict[str, str] = {}
    breaker_ids: tuple[str, ...] = ()


class ChangeRow(msgspec.Struct, frozen=True, kw_only=True):
    """Records to append to one router's log: (kind, payload) in order. `links`: breakers that start to count
    with it."""

    id: int
    router_id: str
    project_id: str
    entries: tuple[tuple[int, bytes], ...]
    links: tuple[str, ...] = ()


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Owner and epoch of one breaker or router; owner None: nobody yet. `log_slot` for routers only."""

    id: str
    project_id: str
    owner: str | None
    epoch: int
    log_slot: str | None = None


class JournalHead(msgspec.Struct, frozen=True):
    shard: int
    epoch: int
    sequence: int


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """A stored event. `sequence` is global per shard."""

    sequence: int
    project_id: str
    breaker_id: str
    name: str
    prev: StateWord
    curr: StateWord
    ts_ms: int
    transition_seq: int
    reason: str
    allow_rate: float
    value: float | None
    rule: dict[str, Any]
    agg: dict[str, Any]


class EventQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of an events read. `before`: (ts_ms, sequence) of the last event already given (exclusive, newest first).
    `until_ms` inclusive, `since_ms` exclusive; `after_sequence` switches to ascending order by sequence."""

    project_id: str
    breaker_id: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    before: tuple[int, int] | None = None
    after_sequence: int | None = None
    limit: int = 50


class StoredState(msgspec.Struct, frozen=True, kw_only=True):
    """The committed state of one breaker. `record` None: it never had one (just created)."""

    breaker_id: str
    name: str
    rule: Rule
    created_ms: int
    state: StateWord
    allow_rate: float
    transition_seq: int
    record: bytes | None


class StreamSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All committed states of a project and the Journal position they were read at, in one transaction.

    Ordered by creation; `gone`: names deleted or renamed away in the last 24 h and not taken again.
    """

    position: int
    states: tuple[StoredState, ...]
    gone: tuple[str, ...]


Edit = Callable[[BreakerRow], BreakerRow]


class Store(Protocol):
    """Every method is one transaction, runs on the event loop and raises errors.Unavailable when the database does not
    answer. `now_ms` is the caller's clock."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def ping(self) -> None: ...

    # organisations, keys, projects
    async def create_org(self, name: str, now_ms: int) -> str: ...
    async def has_org(self) -> bool: ...
    async def create_workspace(self, org_id: str, name: str, slug: str, now_ms: int) -> WorkspaceRow: ...
    async def get_workspace(self, workspace_id: str) -> WorkspaceRow | None: ...
    async def create_key(
        self, org_id: str, kind: KeyKind, name: str, now_ms: int, project_id: str | None = None
    ) -> tuple[KeyRow, str]:
        """The row and, only here, the key itself."""
        ...

    async def find_key(self, key: str) -> KeyRow | None: ...
    async def create_project(self, org_id: str, workspace_id: str, name: str | None, now_ms: int) -> ProjectRow: ...
    async def list_projects(self, org_id: str, workspace_id: str | None = None) -> list[ProjectRow]: ...
    async def get_project(self, project_id: str) -> ProjectRow | None: ...
    async def update_project(self, project_id: str, fields: Mapping[str, Any], now_ms: int) -> ProjectRow: ...
    async def rotate_secret(self, project_id: str, now_ms: int) -> ProjectRow: ...

    # breakers and routers: the second value lists the ids of the change rows written
    async def create_breaker(
        self, project_id: str, draft: BreakerDraft, now_ms: int
    ) -> tuple[BreakerRow, list[int]]: ...
    async def update_breaker(
        self, project_id: str, breaker_id: str, edit: Edit, now_ms: int
    ) -> tuple[BreakerRow, list[int]]:
        """`edit` is a pure function from the current row to the wanted one; equal means nothing is written."""
        ...

    async def delete_breaker(self, project_id: str, breaker_id: str, now_ms: int) -> list[int]: ...
    async def list_breakers(self, project_id: str) -> tuple[list[BreakerRow], int]:
        """Rows in creation order, and the time of the last configuration change (ms)."""
        ...

    async def get_breaker(self, project_id: str, breaker_id: str) -> BreakerRow | None: ...
    async def create_router(self, project_id: str, draft: RouterDraft, now_ms: int) -> tuple[RouterRow, list[int]]: ...
    async def list_routers(self, project_id: str) -> list[RouterRow]: ...
    async def get_router(self, project_id: str, router_id: str) -> RouterRow | None: ...

    # directory
    async def open_directory(self) -> int:
        """Raises the directory epoch and returns it; older directories are refused from here on."""
        ...

    async def placements(self, kind: Literal["breaker", "router"]) -> list[Placement]: ...
    async def claim(
        self, directory_epoch: int, kind: Literal["breaker", "router"], owners: Mapping[str, str]
    ) -> dict[str, int]:
        """Gives each id to its new owner under a raised epoch; unknown ids are left out of the answer."""
        ...

    async def pending_changes(self, limit: int) -> list[ChangeRow]: ...
    async def settle_changes(self, directory_epoch: int, offsets: Mapping[int, int]) -> None:
        """Removes applied change rows; `offsets`: change id -> offset of its first record, which becomes the links'
        since_offset (offset - 1)."""
        ...

    async def breaker_assignments(self, breaker_ids: Sequence[str]) -> list[BreakerAssignment]: ...
    async def router_assignments(self, router_ids: Sequence[str]) -> list[RouterAssignment]: ...

    # journal
    async def open_journal(self, shard: int) -> JournalHead: ...
    async def commit(self, head: JournalHead, commits: Sequence[Commit]) -> tuple[JournalHead, list[CommitResult]]:
        """One transaction. Each commit with events or `announce` takes sequence numbers in order: one per event, one
        for an announcement (n events take n numbers; the last one is its feed entry). Raises Fenced when a newer
        journal holds the shard."""
        ...

    # reads
    async def events(self, query: EventQuery) -> list[EventRow]: ...
    async def latest_event_ms(self, query: EventQuery) -> int | None: ...
    async def stored_states(self, project_id: str, breaker_ids: Sequence[str] | None = None) -> list[StoredState]: ...
    async def stream_snapshot(self, project_id: str, now_ms: int) -> StreamSnapshot: ...
