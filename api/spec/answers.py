"""Bodies of answers, field by field: what `api/bodies.py` makes. A test decodes every answer with them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from api.spec.types import (
    ChannelEvent,
    ChannelKind,
    Count,
    Cursor,
    DeliveryKind,
    DeliveryState,
    Hash,
    Instant,
    Int32,
    JsonObject,
    Kind,
    Metadata,
    Mode,
    Ms,
    Op,
    Policy,
    Rate,
    ReasonCode,
    Secret,
    StateWord,
    Uuid,
)


class Answer(msgspec.Struct, kw_only=True):
    """Base of all: fields without a default are always there."""


class Error(Answer, kw_only=True):
    """`error` and `code` are the same machine word."""

    error: str
    code: str
    message: str
    request_id: str
    details: JsonObject = {}


class Listing(Answer, kw_only=True):
    """What every list carries besides its own key; only events have further pages."""

    next_cursor: Cursor | None
    cursor: Cursor | None
    has_more: bool


class Project(Answer, kw_only=True):
    project_id: Uuid
    id: Uuid
    workspace_id: Uuid
    name: str
    enable_signed_ingest: bool
    slack_webhook_url: str | None
    trace_id_url_template: str | None


class NewProject(Project, kw_only=True):
    ingest_secret: Secret


class ProjectList(Listing, kw_only=True):
    projects: list[Project]
    items: list[Project]
    count: Count


class RotatedSecret(Answer, kw_only=True):
    ingest_secret: Secret


class ProjectStatus(Answer, kw_only=True):
    """half_open counts as neither."""

    closed_count: Count
    open_count: Count
    last_eval_ms: Ms


class Workspace(Answer, kw_only=True):
    id: Uuid
    name: str
    slug: str
    org_id: Uuid
    inserted_at: Instant


class WorkspaceList(Listing, kw_only=True):
    workspaces: list[Workspace]
    items: list[Workspace]


class ProjectKey(Answer, kw_only=True):
    id: Uuid
    name: str
    key_prefix: str
    inserted_at: Instant
    last_used_at: Instant | None


class NewProjectKey(ProjectKey, kw_only=True):
    """`key` is shown only here."""

    key: str
    message: str


class ProjectKeyList(Listing, kw_only=True):
    keys: list[ProjectKey]
    items: list[ProjectKey]
    count: Count


class Breaker(Answer, kw_only=True):
    id: Uuid
    router_id: str
    router_ids: list[Uuid]
    name: str
    metric: str
    kind: Kind
    kind_params: JsonObject | None
    op: Op
    threshold: float
    window_ms: Int32
    eval_interval_ms: Int32
    min_count: Int32
    min_state_duration_ms: Int32
    cooldown_ms: Int32
    half_open_backoff_enabled: bool
    half_open_backoff_cap_ms: Int32
    half_open_indeterminate_policy: Policy
    recovery_allow_rate_ramp_steps: Int32
    half_open_confirmation_ms: Int32
    recovery_window_ms: Int32
    actions: JsonObject | None
    metadata: Metadata


class BreakerSingle(Breaker, kw_only=True):
    """The breaker in an envelope and flat: there are clients of both kinds."""

    breaker: Breaker


class BreakerList(Listing, kw_only=True):
    breakers: list[Breaker]
    items: list[Breaker]
    count: Count
    hash: Hash
    updated_at: Instant


class BulkResult(Answer, kw_only=True):
    """`hash` is that of the set as the list shows it."""

    changed: bool
    count: Count
    hash: Hash
    duration_ms: Count
    breakers: list[Breaker]


class MetadataItem(Answer, kw_only=True):
    id: Uuid
    name: str
    metadata: Metadata


class BreakerMetadataList(Listing, kw_only=True):
    project_id: Uuid
    breakers: list[MetadataItem]
    items: list[MetadataItem]


class RouterMetadataList(Listing, kw_only=True):
    project_id: Uuid
    routers: list[MetadataItem]
    items: list[MetadataItem]


class BreakerState(Answer, kw_only=True):
    """BreakerStateLookup and BreakerStateBatchItem in one."""

    breaker_id: Uuid
    name: str
    state: StateWord
    allow_rate: Rate
    indeterminate: bool
    indeterminate_reason: Literal["insufficient_samples"] | None
    reason_code: ReasonCode | None
    held_back: bool
    observed: bool
    value: float | None
    threshold: float
    sample_count: Count
    min_count: Int32
    window_ms: Int32
    passes: Count
    transition_seq: Count
    last_eval_ms: Ms
    evaluated_at_ms: Ms | None
    next_eval_ms: Ms | None
    state_since_ms: Ms
    updated_at: Instant
    truncated: Count
    late: Count
    stale: bool = False


class BreakerStateList(Listing, kw_only=True):
    states: list[BreakerState]
    items: list[BreakerState]


class EventRule(Answer, kw_only=True):
    kind: str
    metric: str
    threshold: float
    window_ms: Int32
    tags: JsonObject


class EventAggregates(Answer, kw_only=True):
    avg: float
    count: Count
    error_count: Count
    p95: float


class BreakerEvent(Answer, kw_only=True):
    id: str
    sequence: Count
    project_id: Uuid
    breaker_id: Uuid
    name: str
    prev: StateWord
    curr: StateWord
    from_state: StateWord
    to_state: StateWord
    reason: str | None
    ts_ms: Ms
    timestamp: Instant
    transition_seq: Count
    rule: EventRule
    agg: EventAggregates
    source: Literal["live", "backfill"] = "live"
    run_id: str = ""


class EventList(Listing, kw_only=True):
    events: list[BreakerEvent]
    items: list[BreakerEvent]
    returned: Count


class Router(Answer, kw_only=True):
    id: Uuid
    name: str
    mode: Mode
    enabled: bool
    created_by: Literal["system", "user"]
    inserted_at: Instant
    metadata: Metadata
    breaker_count: Count


class RouterDetail(Router, kw_only=True):
    breakers: list[Breaker]


class RouterSingle(RouterDetail, kw_only=True):
    """The router in an envelope and flat: there are clients of both kinds."""

    router: RouterDetail


class RouterList(Listing, kw_only=True):
    routers: list[Router]
    items: list[Router]
    count: Count


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


class ChannelList(Listing, kw_only=True):
    channels: list[Channel]
    items: list[Channel]


class ChannelTest(Answer, kw_only=True):
    status: str
    message: str


class Delivery(Answer, kw_only=True):
    """One notification on its way to one channel. `event_id` null: the end of a deleted breaker has no event.
    `next_attempt_at`: null unless it is pending."""

    id: Uuid
    project_id: Uuid
    channel_id: str
    breaker_id: Uuid
    name: str
    event_id: str | None
    transition_seq: Count
    kind: DeliveryKind
    state: DeliveryState
    attempts: Count
    last_status: Int32 | None
    last_error: str | None
    next_attempt_at: Instant | None
    created_at: Instant
    sent_at: Instant | None
    ended_at: Instant | None


class Silence(Answer, kw_only=True):
    """Why nothing is tried on a channel now: its receiver fails. open: until `retry_at`; half_open: it is probed."""

    state: StateWord
    retry_at: Instant | None
    last_status: Int32 | None
    last_error: str | None


class DeliveryList(Listing, kw_only=True):
    deliveries: list[Delivery]
    items: list[Delivery]
    returned: Count
    silence: Silence | None


class AuditEntry(Answer, kw_only=True):
    """`key_id`: who did it, or a word where no key was used. Secrets are masked."""

    id: str
    project_id: Uuid | None
    ts_ms: Ms
    timestamp: Instant
    key_id: str
    action: str
    target_id: str
    before: JsonObject | None
    after: JsonObject | None


class AuditList(Listing, kw_only=True):
    entries: list[AuditEntry]
    items: list[AuditEntry]
    returned: Count


class SampleError(Answer, kw_only=True):
    index: Count
    field: str
    code: str


class Accepted(Answer, kw_only=True):
    """`rejected` and `errors` (the first hundred) only when some samples were not taken."""

    accepted: Count
    rejected: Count = 0
    errors: list[SampleError] = []


class Node(Answer, kw_only=True):
    id: str
    address: str
    cpus: float
    head: bool


class JournalFigures(Answer, kw_only=True):
    epoch: Count
    sequence: Count
    position: Count


class ActorStatus(Answer, kw_only=True):
    """Null: it has no such figure, or did not say. `holds`: routers or breakers placed there; `routers`, `breakers`:
    what it says it has itself. `behind`: breakers that have not applied all they were sent, `lag` log records at most;
    `unheard`: links to routers that nobody serves; `overdue_ms`: age of the oldest unfired timer."""

    name: str
    kind: Literal["journal", "directory", "notifier", "router", "breaker"]
    state: Literal["up", "starting", "away"]
    since_ms: Ms | None
    restarts: Count
    holds: Count
    incarnation: str | None
    node_id: str | None
    pid: Count | None
    started_ms: Ms | None
    routers: Count | None
    waiting: Count | None
    log_bytes: dict[str, Count] | None
    breakers: Count | None
    starting: Count | None
    behind: Count | None
    lag: Count | None
    unheard: Count | None
    overdue_ms: Count | None


class ActorBudgets(Answer, kw_only=True):
    router: Count | None
    breaker: Count | None


class ClusterStatus(Answer, kw_only=True):
    """`journal` null: it does not answer."""

    ts_ms: Ms
    timestamp: Instant
    nodes: list[Node]
    replicas: Count
    budgets: ActorBudgets
    journal: JournalFigures | None
    log_bytes: Count
    actors: list[ActorStatus]


class Rebalanced(Answer, kw_only=True):
    """To be repeated while anything is left."""

    moved: Count
    left: Count


class Health(Answer, kw_only=True):
    status: str


class Document(Answer, kw_only=True):
    """This document."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
