"""Answer bodies: structs that are served and described, and how they are made of stored rows; pure.

They have the document's fields plus those that public clients read, in the order they are served. Numbers that count or
measure time are integers, `metadata` is always an object of strings, unset `actions` are null, times are RFC 3339 in
UTC with milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from api.wire.http import digest
from api.wire.types import (
    Count,
    Cursor,
    Hash,
    Instant,
    Int32,
    JsonObject,
    Metadata,
    Mode,
    Ms,
    Rate,
    ReasonCode,
    Secret,
    Uuid,
)
from breaker_actors.clock import rfc3339
from breaker_actors.core.model import BreakerMode, HiddenBy, Kind, Op, Override, OverrideKind, Policy, StateWord, View
from breaker_actors.core.overlay import shown_under
from breaker_actors.core.rules import derived
from breaker_actors.messages import StateReading
from breaker_actors.store.rows import (
    BreakerBrief,
    BreakerMetadata,
    BreakerRow,
    EventRow,
    EventSource,
    ProjectRow,
    Replaced,
    RouterRow,
)
from breaker_actors.text.redaction import mask_text

Texts = list[Any]
"""Items of an answer, or their JSON where they are encoded already (msgspec.Raw, see api/wire/telling.py)."""


class Answer(msgspec.Struct, kw_only=True):
    """Base of all: fields without a default are always there."""


A = TypeVar("A", bound=Answer)


class Error(Answer, kw_only=True, omit_defaults=True):
    """`error` and `code` are the same machine word."""

    error: str
    code: str
    message: str
    request_id: str
    details: JsonObject = {}


class Health(Answer, kw_only=True):
    status: str


class Ready(Health, kw_only=True):
    """`set_aside`: stored things that could not be read, while there are any; all others are served."""

    set_aside: Count | UnsetType = UNSET
    message: str | UnsetType = UNSET


def list_of(name: str, key: str, item: type[Answer], **more: Any) -> type[msgspec.Struct]:
    """The body of a list of items: under the document's key, and under the names that paging clients look for."""
    page = {"next_cursor": Cursor | None, "cursor": Cursor | None, "has_more": bool}
    items: Any = list[item]  # type: ignore[valid-type]
    listed = Annotated[items, msgspec.Meta(description=f"The {key}.")]
    fields: dict[str, Any] = {key: listed, "items": items, **page, **more}
    return msgspec.defstruct(name, fields.items(), module=__name__, kw_only=True)


def listing(kind: type[msgspec.Struct], items: Texts, next_cursor: str | None = None, **more: Any) -> msgspec.Struct:
    """Such a body; all its items are in it while there is no `next_cursor`. Where it counts them, so it does here."""
    lists = {kind.__struct_fields__[0]: items, "items": items}
    counts = {name: len(items) for name in ("count", "returned") if name in kind.__struct_fields__}
    page = {"next_cursor": next_cursor, "cursor": next_cursor, "has_more": next_cursor is not None}
    return kind(**lists, **page, **(counts | more))


def shown(kind: type[A], row: Any, **others: Any) -> A:
    """The answer about a row: `others`, and for the rest what the row has under the same names."""
    return kind(**{name: getattr(row, name) for name in kind.__struct_fields__ if name not in others}, **others)


# projects


class Project(Answer, kw_only=True):
    project_id: Uuid
    id: Uuid
    workspace_id: Uuid
    name: str
    enable_signed_ingest: bool
    slack_webhook_url: str | None
    trace_id_url_template: str | None
    override_max_ms: Ms | None


class NewProject(Project, kw_only=True):
    ingest_secret: Secret


class RotatedSecret(Answer, kw_only=True):
    """previous_valid_until_ms: until when the secret before still counts; null: it does not."""

    ingest_secret: Secret
    previous_valid_until_ms: Ms | None


class ProjectStatus(Answer, kw_only=True):
    closed_count: Count
    open_count: Count
    half_open_count: Count
    last_eval_ms: Ms


ProjectList = list_of("ProjectList", "projects", Project, count=Count)


def project(row: ProjectRow) -> Project:
    address = mask_text(row.slack_webhook_url) if row.slack_webhook_url else None
    return shown(Project, row, project_id=row.id, name=row.shown_name(), slack_webhook_url=address)


def new_project(row: ProjectRow) -> NewProject:
    """The only answer besides rotation that shows the secret."""
    return shown(NewProject, project(row), ingest_secret=row.ingest_secret)


def rotated(row: ProjectRow) -> RotatedSecret:
    """The new secret, and until when the one before still counts."""
    until_ms = None if row.previous_secret is None else row.previous_until_ms
    return RotatedSecret(ingest_secret=row.ingest_secret, previous_valid_until_ms=until_ms)


def project_status(readings: Sequence[StateReading]) -> ProjectStatus:
    words = [reading.view.state for reading in readings]
    return ProjectStatus(
        closed_count=words.count("closed"),
        open_count=words.count("open"),
        half_open_count=words.count("half_open"),
        last_eval_ms=max((reading.view.last_eval_ms for reading in readings), default=0),
    )


# breakers


class Breaker(Answer, kw_only=True):
    id: Uuid
    router_id: str
    name: str
    metric: str
    kind: Kind
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
    kind_params: JsonObject | None
    half_open_confirmation_ms: Int32
    recovery_window_ms: Int32
    actions: JsonObject | None
    metadata: Metadata
    router_ids: list[Uuid]
    mode: BreakerMode
    shadow_of: Uuid | None


class BreakerSingle(Breaker, kw_only=True):
    """The breaker in an envelope and flat: there are clients of both kinds."""

    breaker: Breaker


class BulkResult(Answer, kw_only=True):
    """`hash` is that of the set as the list shows it."""

    changed: bool
    count: Count
    hash: Hash
    duration_ms: Count
    breakers: list[Breaker]


BreakerList = list_of("BreakerList", "breakers", Breaker, count=Count, hash=Hash, updated_at=Instant)


def breaker(row: BreakerRow) -> Breaker:
    """A breaker as lists show it."""
    return shown(
        Breaker,
        row.rule,
        **derived(row.rule),
        id=row.id,
        router_id=row.router_ids[0] if row.router_ids else "",
        name=row.name,
        actions=row.actions or None,
        metadata=row.metadata,
        router_ids=list(row.router_ids),
        mode=row.controls.mode,
        shadow_of=row.shadow_of,
    )


def breaker_single(row: BreakerRow) -> BreakerSingle:
    body = breaker(row)
    return shown(BreakerSingle, body, breaker=body)


def breaker_tag(row: BreakerRow) -> str:
    """What one breaker is known by: any difference in what is shown of it makes another tag."""
    return digest(breaker(row))


def set_hash(rows: Sequence[BreakerRow]) -> str:
    """What the list of these breakers is known by: any difference in what it shows makes another hash."""
    return digest(sorted(map(breaker, rows), key=lambda body: body.id))


def bulk_result(replaced: Replaced, texts: Texts, content_hash: str, duration_ms: int) -> BulkResult:
    return BulkResult(
        changed=replaced.changed, count=len(texts), hash=content_hash, duration_ms=duration_ms, breakers=texts
    )


def breaker_list(updated_ms: int, texts: Texts, content_hash: str) -> msgspec.Struct:
    return listing(BreakerList, texts, hash=content_hash, updated_at=rfc3339(updated_ms))


# routers


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


RouterList = list_of("RouterList", "routers", Router, count=Count)


def router(row: RouterRow) -> Router:
    """A router as lists show it."""
    return shown(Router, row, inserted_at=rfc3339(row.inserted_ms), breaker_count=len(row.breaker_ids))


def linked_to(row: RouterRow, breakers: Iterable[BreakerRow]) -> list[BreakerRow]:
    """Those of the breakers that are linked to a router, in its order."""
    known = {breaker.id: breaker for breaker in breakers}
    return [known[name] for name in row.breaker_ids if name in known]


def router_with(row: RouterRow, linked: Texts) -> RouterSingle:
    """A router with its breakers in full: typed clients can't read an element of only id and name."""
    fields = msgspec.structs.asdict(router(row)) | {"breaker_count": len(linked), "breakers": linked}
    return RouterSingle(**fields, router=RouterDetail(**fields))


# metadata


class MetadataItem(Answer, kw_only=True):
    id: Uuid
    name: str
    metadata: Metadata


BreakerMetadataList = list_of("BreakerMetadataList", "breakers", MetadataItem, project_id=Uuid)
RouterMetadataList = list_of("RouterMetadataList", "routers", MetadataItem, project_id=Uuid)


def metadata(row: BreakerMetadata | RouterRow) -> MetadataItem:
    return shown(MetadataItem, row)


# states


class OverrideShown(Answer, kw_only=True):
    """An override in force. `by`: who set it; `version` names it in If-Match."""

    kind: OverrideKind
    allow_rate: Rate
    reason: str
    by: str
    since: Instant
    since_ms: Ms
    until: Instant
    until_ms: Ms
    then: Literal["half_open"] | None
    version: Count


def override_fields(override: Override) -> dict[str, Any]:
    """All that is shown of an override."""
    return msgspec.structs.asdict(override) | {
        "allow_rate": shown_under(override).allow_rate,
        "since": rfc3339(override.since_ms),
        "until": rfc3339(override.until_ms),
    }


def shown_override(override: Override | None) -> OverrideShown | None:
    return None if override is None else OverrideShown(**override_fields(override))


class BreakerState(Answer, kw_only=True, omit_defaults=True):
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
    deadline_ms: Ms | None
    state_since_ms: Ms
    updated_at: Instant
    truncated: Count
    late: Count
    machine_state: StateWord
    mode: BreakerMode
    override: OverrideShown | None
    stale: bool = False


BreakerStateList = list_of("BreakerStateList", "states", BreakerState)


def state(row: BreakerBrief, reading: StateReading) -> BreakerState:
    """The state of one breaker: all that a single read and an element of a batch show."""
    view = reading.view
    return BreakerState(
        breaker_id=row.id,
        name=row.name,
        state=view.state,
        allow_rate=view.allow_rate,
        indeterminate=view.verdict == "indeterminate",
        indeterminate_reason="insufficient_samples" if view.verdict == "indeterminate" else None,
        reason_code=reason_code(view),
        held_back=view.held_back,
        observed=view.sample_count > 0,
        value=view.value,
        threshold=row.rule.threshold,
        sample_count=view.sample_count,
        min_count=row.rule.min_count,
        window_ms=row.rule.window_ms,
        passes=view.passes,
        transition_seq=view.transition_seq,
        last_eval_ms=view.last_eval_ms,
        evaluated_at_ms=view.last_eval_ms or None,
        next_eval_ms=view.next_eval_ms,
        deadline_ms=view.deadline_ms,
        state_since_ms=view.state_since_ms,
        updated_at=rfc3339(max(view.last_eval_ms, view.state_since_ms)),
        truncated=view.truncated_count,
        late=view.late_count,
        machine_state=view.machine_state,
        mode=view.mode,
        override=shown_override(view.override),
        stale=reading.stale,
    )


def reason_code(view: View) -> ReasonCode | None:
    """Why the breaker is in its state, or what keeps it from leaving it."""
    if view.state == "open":
        return view.open_cause
    if view.verdict == "indeterminate":
        return "insufficient_samples"
    return "threshold_exceeded" if view.held_back else None


# events


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


class BreakerEvent(Answer, kw_only=True, omit_defaults=True):
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
    value: float | None = None
    source: EventSource = "live"
    run_id: str = ""
    observed: bool = False
    hidden_by: HiddenBy | None = None
    by: str | None = None
    comment: str | None = None


EventList = list_of("EventList", "events", BreakerEvent, returned=Count)


def event(row: EventRow) -> BreakerEvent:
    """Those of a backfill carry the run that brought them; for what happened nothing is added."""
    return shown(
        BreakerEvent,
        row,  # its rule and agg as they were written, see messages.EventDraft
        id=".".join([*filter(None, [row.run_id]), row.breaker_id, str(row.transition_seq)]),
        from_state=row.prev,
        to_state=row.curr,
        timestamp=rfc3339(row.ts_ms),
        run_id=row.run_id or "",
        observed=row.hidden_by is not None,
    )


# samples


class SampleError(msgspec.Struct, frozen=True):
    """What is wrong with the sample at `index` of the request: the first of its fields that isn't right."""

    index: Count
    field: str
    code: str
    message: str


class Accepted(Answer, kw_only=True, omit_defaults=True):
    """`rejected` and `errors` (the first hundred) only when some samples were not taken."""

    accepted: Count
    rejected: Count = 0
    errors: list[SampleError] = []
