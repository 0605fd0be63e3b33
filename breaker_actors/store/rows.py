"""Stored rows as values, and the drafts and queries that go into the store. Neighbour: `base.py`, the methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from breaker_actors.core.model import BreakerMode, Control, Rule, StateWord
from breaker_actors.messages import EventDraft, ProjectShare, RouterRef
from breaker_actors.store.mappings.model import MappingTo, SeriesMatcher
from breaker_actors.store.mutes.matching import Matcher
from breaker_actors.store.mutes.schedule import Schedule, Window, is_active

SYSTEM = "system"
"""Who did it, in the audit log, when no API key was used."""

KeyKind = Literal["user", "admin", "project", "reader", "ingest"]
ProjectKeyKind = Literal["project", "reader", "ingest"]
"""Kinds of keys that are for one project: `project` reads its runtime, `ingest` (an ingest token) posts its samples."""


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


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody signed in to the console with a key, until `ends_ms`."""

    key: KeyRow
    ends_ms: int


class AccessVersion(NamedTuple):
    """Rises: `access` by every revoked key, and by every change of a project's ingest authentication (whether it asks
    for signatures, with which secrets, or that it is gone); `sessions` by every session that ends before its time while
    its key is there."""

    access: int
    sessions: int


class OrgRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    inserted_ms: int


class WorkspaceRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    org_id: str
    name: str
    slug: str
    inserted_ms: int


class ProjectRow(msgspec.Struct, frozen=True, kw_only=True):
    """`ingest_secret` is decrypted here (64 hex digits) and must not reach a log or an answer but on create/rotate.

    The `previous_secret` counts beside it until `previous_until_ms`."""

    id: str
    workspace_id: str
    org_id: str
    name: str | None
    enable_signed_ingest: bool
    ingest_secret: str
    slack_webhook_url: str | None
    trace_id_url_template: str | None
    shard: int
    inserted_ms: int
    previous_secret: str | None = None
    previous_until_ms: int | None = None
    override_max_ms: int | None = None
    """How long an override of its breakers may last; None: as the service says."""

    def __repr__(self) -> str:
        return f"ProjectRow(id={self.id!r})"

    def shown_name(self) -> str:
        """Never empty: clients can't read a project without a name."""
        return self.name or f"project-{self.id[:8]}"

    def secrets(self, now_ms: int) -> tuple[str, ...]:
        """The ingest secrets that count now."""
        if self.previous_secret is None or now_ms >= (self.previous_until_ms or 0):
            return (self.ingest_secret,)
        return self.ingest_secret, self.previous_secret


class BreakerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker's configuration. `router_ids`: in link order. `version` goes up by one with every change.

    `control` None: mode enforce, and never an override. An override that is over by itself stays in it for a while.
    `shadow_of`: the breaker whose samples this one gets, too."""

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
    control: Control | None = None
    shadow_of: str | None = None

    @property
    def controls(self) -> Control:
        """What stands between the machine and its callers."""
        return self.control or Control()


def with_mode(
    control: Control | None, mode: BreakerMode | None, by: str | None = None, comment: str | None = None
) -> Control | None:
    """A control with another mode, set by somebody; the same where that changes nothing. `mode` None: as it is."""
    known = control or Control()
    if mode is None or mode == known.mode:
        return control
    return msgspec.structs.replace(known, mode=mode, by=by, comment=comment)


class BriefRule(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer about a breaker's state shows of its rule."""

    threshold: float
    min_count: int = 1
    window_ms: int = 60_000


class BreakerBrief(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer about a breaker's state shows of its configuration: small, whatever else is stored."""

    id: str
    name: str
    rule: BriefRule


class ScrapedRule(msgspec.Struct, frozen=True, kw_only=True):
    """What metrics show of a rule."""

    metric: str
    kind: str
    threshold: float


class ScrapedBreaker(msgspec.Struct, frozen=True, kw_only=True):
    """What metrics show of a breaker's configuration. `project`: the project's name, "" where it has none."""

    id: str
    name: str
    project_id: str
    project: str
    rule: ScrapedRule


class BreakerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    metadata: dict[str, str]


class BreakerDraft(msgspec.Struct, frozen=True, kw_only=True):
    """What a create asks for; id and name may be left to the store (name: unique and non-empty)."""

    rule: Rule
    id: str | None = None
    name: str | None = None
    actions: dict[str, Any] | None = None
    metadata: dict[str, str] = {}
    control: Control | None = None
    shadow_of: str | None = None


NO_SHADOW = "can't be changed: a shadow is made with POST .../breakers"


class BreakerItem(msgspec.Struct, frozen=True, kw_only=True):
    """One breaker of a bulk replace: matched by id, else by name. `metadata` or `mode` None: what is stored is kept.
    `shadow_of`: as it is stored, or None."""

    rule: Rule
    id: str | None = None
    name: str | None = None
    actions: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    mode: BreakerMode | None = None
    shadow_of: str | None = None


KEPT_MS = 86_400_000
"""How long the repetition of a request that is done once is answered like the first one."""


class Once(msgspec.Struct, kw_only=True):
    """A request that is to be done once, under the key that its caller gave it. `fingerprint`: of all it asks.
    `answer`: its answer's body, from what the write results in. `forgotten`: keys that had to go early for it."""

    org_id: str
    operation: str
    key: str
    fingerprint: str
    status: int
    answer: Callable[[Any], str]
    now_ms: int
    project_id: str | None = None
    forgotten: int = 0


class Repeated(Exception):
    """The request was done before: its answer, and the change rows that it wrote. `thing`: the id of what it made,
    where the answer was too large to keep."""

    def __init__(self, status: int, body: str, change_ids: Sequence[int], thing: str | None = None) -> None:
        super().__init__(status)
        self.status, self.body, self.change_ids, self.thing = status, body, change_ids, thing


class Replaced(msgspec.Struct, frozen=True, kw_only=True):
    """The set of breakers after a bulk replace, in creation order, and the change rows it took."""

    changed: bool
    rows: list[BreakerRow]
    change_ids: list[int]


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


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Owner and epoch of one breaker or router; owner None: nobody yet. `log_slot` for routers only."""

    id: str
    project_id: str
    owner: str | None
    epoch: int
    log_slot: str | None = None


class ForgottenLinks(msgspec.Struct, frozen=True, kw_only=True):
    """How many ended links of some breakers were forgotten; `left`: by owner of a breaker the routers that its stored
    cut names for nothing, each with the offset there as the end; the last breaker looked at, None: there were none."""

    count: int = 0
    left: dict[str, list[tuple[str, RouterRef]]] = {}
    after: str | None = None


class JournalHead(msgspec.Struct, frozen=True):
    shard: int
    epoch: int
    sequence: int


EventSource = Literal["live", "backfill"]


class EventRow(EventDraft, frozen=True, kw_only=True):
    """A stored event: the draft and its place. `sequence` is global per shard; those of history that was loaded
    afterwards (`source` backfill, by the run `run_id`) have one of their own."""

    sequence: int
    project_id: str
    breaker_id: str
    source: EventSource = "live"
    run_id: str | None = None


class EventQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of an events read. `hidden`: only the moves that callers did not see, or only those that they saw.

    `before`: (ts_ms, sequence) of the last event already given (exclusive, newest first).
    `until_ms` inclusive, `since_ms` exclusive; `after_sequence` switches to ascending order by sequence.

    `source` "all": both, at equal times those that happened first; it has no `after_sequence`, and its `before` is a
    place among the events of `before_source`."""

    project_id: str
    breaker_id: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    before: tuple[int, int] | None = None
    after_sequence: int | None = None
    limit: int = 50
    hidden: bool | None = None
    source: EventSource | Literal["all"] = "live"
    before_source: EventSource | None = None


class StoredState(msgspec.Struct, frozen=True, kw_only=True):
    """The committed state of one breaker. `record` None: it never had one (just created). `control`: what is set of it
    now, of which its owner may not have heard."""

    breaker_id: str
    name: str
    rule: Rule
    created_ms: int
    state: StateWord
    allow_rate: float
    transition_seq: int
    record: bytes | None
    control: Control | None = None


class StreamSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All committed states of a project and the Journal position they were read at, in one transaction.

    Ordered by creation; `gone`: names deleted or renamed away in the last 24 h and not taken again, the last
    ones of more than Shares.gone_names.
    """

    position: int
    states: tuple[StoredState, ...]
    gone: tuple[str, ...]


ChannelKind = Literal["slack", "pagerduty", "alertmanager", "email", "webhook", "apprise"]
ALERTS_ALONE: frozenset[ChannelKind] = frozenset({"pagerduty", "alertmanager"})
"""Kinds that know alerts and their ends alone: nothing else is told there."""
Alert = Literal["trip", "recover"]
ChannelEvent = Alert | Literal["observed"]
"""What a channel takes; observed: trips and recoveries of breakers that observe, which callers don't see."""


def alert_of(prev: str, curr: str) -> Alert | None:
    """The notification that a move is worth (semantics.md section 5): every move to open is a trip, every move to
    closed the end of what began when it was left."""
    if curr == "open":
        return "trip"
    return "recover" if curr == "closed" and prev != "closed" else None


class ChannelDraft(msgspec.Struct, frozen=True, kw_only=True):
    channel: ChannelKind
    config: dict[str, Any]
    name: str | None = None
    enabled: bool = True
    events: tuple[ChannelEvent, ...] = ("trip", "recover")


class ChannelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A notification channel. `config` is decrypted here and must be masked before it reaches a log or an answer."""

    id: str
    project_id: str
    name: str
    channel: ChannelKind
    config: dict[str, Any]
    enabled: bool
    events: tuple[ChannelEvent, ...]
    inserted_ms: int
    updated_ms: int

    def __repr__(self) -> str:
        return f"ChannelRow(id={self.id!r})"


AlertKind = Literal["trip", "recover", "resolve", "observed", "mute_ending"]
DeliveryState = Literal["pending", "held", "sent", "dead", "cancelled", "suppressed"]


class MutedBy(msgspec.Struct, frozen=True, kw_only=True):
    """The mute behind which a notification waited. `by`: the name of the key that made it. `open_since_ms`: when the
    outage began. `ends_ms`, `holding`: of a warning, when the mute ends and how many notifications wait behind it."""

    mute_id: str
    comment: str
    by: str
    open_since_ms: int | None = None
    ends_ms: int | None = None
    holding: int | None = None


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What an alert is about, for receivers that tell alerts apart by their labels: as it was when the outage began,
    whatever was renamed or edited since. `router`: the name of the first router that the breaker was linked to."""

    breaker: str
    metric: str
    kind: str
    project: str | None = None
    router: str | None = None
    metadata: dict[str, str] = {}


class AlertPayload(msgspec.Struct, frozen=True, kw_only=True):
    """What a notification has to tell: the event as it was stored, or the end of a deleted breaker.

    `rule` is that of the event and, where the breaker's settings are still the same, op, min_count and kind_params.
    `outage_ms`: since the breaker left closed; None for the move that began it, or where that is not known any more.
    `muted_by`: of a trip that was held behind a mute, and of the warning that a mute ends. `by` and `comment`: who made
    the move by hand, and why. `subject`: on channels to an Alertmanager.
    """

    name: str
    prev: StateWord
    curr: StateWord
    ts_ms: int
    reason: str
    value: float | None
    rule: dict[str, Any]
    agg: dict[str, Any]
    outage_ms: int | None = None
    trace_url: str | None = None
    muted_by: MutedBy | None = None
    by: str | None = None
    comment: str | None = None
    subject: Subject | None = None


UNREADABLE_ALERT = AlertPayload(
    name="(unreadable)", prev="closed", curr="open", ts_ms=0, reason="unreadable", value=None, rule={}, agg={}
)
"""Stands for what can't be read any more; it is told to nobody."""
UNREADABLE_RULE = Rule(metric="(unreadable)", kind="count", op="gt", threshold=1e308)
"""Stands for a breaker's rule that can't be read: nothing is sent for its metric, and it never trips."""
UNREADABLE_MATCHERS = (Matcher(field="id", op="=", value=""),)
UNREADABLE_WINDOWS = (Window(weekdays=(), begins="00:00", ends="00:00"),)
"""Stand for a mute's matchers, or windows, that can't be read: they match nothing, and never come, so people hear what
happens."""


class DeliveryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One notification on its way to one channel. `id` is the same over all attempts; `number` orders them.

    `kind` resolve: its breaker was deleted while it was open; mute_ending: `breaker_id` is the mute's. `next_ms`: not
    before then is it tried (again); `created_ms`: the time of the event; `ended_ms`: when it became sent, dead,
    cancelled or suppressed. `mute_id`: behind which it is held, or for which it was suppressed."""

    number: int
    id: str
    project_id: str
    channel_id: str
    breaker_id: str
    kind: AlertKind
    transition_seq: int
    incident: int | None
    told: AlertPayload
    state: DeliveryState
    attempts: int
    next_ms: int
    since_ms: int | None
    last_status: int | None
    last_error: str | None
    created_ms: int
    ended_ms: int | None
    mute_id: str | None = None


DEAD_LOOKED_AT = 1_000
"""Among so many of its newest deliveries the dead ones of a channel are counted."""

REDRIVEN_MAX = 200
"""Dead deliveries of an outage that are sent again together: the newest ones say all that a receiver must know."""


class DeliveryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries of one channel, newest first. `before`: the number of the last one already given."""

    project_id: str
    channel_id: str
    state: DeliveryState | None = None
    before: int | None = None
    limit: int = 50


class CircuitRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a channel whose receiver failed: the encoded core Record of its circuit breaker, a pause that
    the receiver asked for, and its last failure. Good for one `version` of the channel's address only."""

    channel_id: str
    version: str
    record: bytes
    not_before_ms: int
    last_status: int | None
    last_error: str | None


PENDING_COUNTED = 1_000
"""What waits for a receiver is counted up to here: it may be a million."""


class Failing(msgspec.Struct, frozen=True, kw_only=True):
    """A channel whose receiver failed, and what waits for it: how many deliveries, PENDING_COUNTED for more than that,
    and when the oldest of them happened. `name`: "" of the project's own slack_webhook_url."""

    channel_id: str
    name: str
    circuit: CircuitRow
    pending: int
    oldest_ms: int | None


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A channel with pending deliveries. `newest`: the highest number among them. `kind` and `version` None: the
    channel is disabled or gone, and nothing can be sent; whose it was is "" then."""

    channel_id: str
    org_id: str
    project_id: str
    newest: int
    kind: ChannelKind | None
    version: str | None
    circuit: CircuitRow | None


class Leased(msgspec.Struct, frozen=True, kw_only=True):
    """What the Notifier may send on one channel now. `config` is opened (None: its seal does not open) and must not
    reach a log. `later_ms`: when the next of those that wait may be tried; None: nobody knows of one.
    `dropped`: recoveries that ended here because their trips were not sent, by state."""

    channel_id: str
    org_id: str
    kind: ChannelKind
    config: dict[str, Any] | None
    project_name: str | None
    rows: tuple[DeliveryRow, ...]
    later_ms: int | None
    dropped: dict[str, int]

    def __repr__(self) -> str:
        return f"Leased(channel_id={self.channel_id!r}, rows={len(self.rows)})"


class DeliveryResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one attempt to deliver. `status`: the receiver's HTTP status; `next_ms`: when to try again (retry
    only)."""

    delivery_id: str
    result: Literal["sent", "retry", "dead"]
    at_ms: int
    status: int | None = None
    error: str | None = None
    next_ms: int = 0


MuteState = Literal["pending", "active", "expired"]
MuteEnd = Literal["expired", "deleted", "matched_nothing"]


class MuteDraft(msgspec.Struct, frozen=True, kw_only=True):
    """What a create asks for. `all`: matches everything of the project, without matchers."""

    starts_ms: int
    ends_ms: int | None
    comment: str
    matchers: tuple[Matcher, ...] = ()
    all: bool = False
    windows: tuple[Window, ...] = ()
    zone: str = "UTC"


class MuteRow(MuteDraft, frozen=True, kw_only=True):
    """A mute: whom people don't hear of, and when. `created_by`, `created_name`: id and name of the key that made it.
    `ended_ms`: when it ended, and why; `matched_ms`: when it matched a breaker last; `warned_ms`: the end that was
    warned of."""

    number: int
    id: str
    project_id: str
    created_by: str
    created_name: str
    inserted_ms: int
    updated_ms: int
    ended_ms: int | None = None
    ended_reason: MuteEnd | None = None
    matched_ms: int | None = None
    warned_ms: int | None = None

    @property
    def schedule(self) -> Schedule:
        """When it is active, as long as it has not ended."""
        return Schedule(starts_ms=self.starts_ms, ends_ms=self.ends_ms, windows=self.windows, zone=self.zone)

    def state(self, now_ms: int) -> MuteState:
        """active: nobody hears now; pending: it waits for its start or its next window; expired: it has ended."""
        if self.ended_ms is not None or (self.ends_ms is not None and now_ms >= self.ends_ms):
            return "expired"
        return "active" if is_active(self.schedule, now_ms) else "pending"


class MappingDraft(msgspec.Struct, frozen=True, kw_only=True):
    """What a create asks for. `name`: None: one is made. `position`: from 1 on; None, and beyond the last: the last."""

    matchers: tuple[SeriesMatcher, ...]
    to: MappingTo
    name: str | None = None
    enabled: bool = True
    position: int | None = None


class MappingItem(msgspec.Struct, frozen=True, kw_only=True):
    """One of the whole set: matched by id, else by name; one of them is there. Its place in the list is its
    position."""

    matchers: tuple[SeriesMatcher, ...]
    to: MappingTo
    id: str | None = None
    name: str | None = None
    enabled: bool = True


class MappingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A mapping: what becomes of series of open protocols. `position`: 1 is looked at first, without gaps; the first
    that matches decides. `version`: goes up with each change, but not where only others move."""

    id: str
    project_id: str
    position: int
    name: str
    matchers: tuple[SeriesMatcher, ...]
    to: MappingTo
    enabled: bool
    version: int
    inserted_ms: int
    updated_ms: int


DeclaredKind = Literal["breakers", "routers", "mappings", "channels", "mutes"]


class DeclaredRow(msgspec.Struct, frozen=True, kw_only=True):
    """What files of rules declare of a thing: `owner` is whose files they are. `fields`: what was applied last, in
    their words, references in the place of secrets. `stamp`: of the thing as it was then; another one says that it was
    changed since. `labels`: of the files. `applied_by`: the id of a key."""

    kind: DeclaredKind
    thing_id: str
    owner: str
    name: str
    fields: dict[str, Any]
    labels: dict[str, str]
    stamp: int
    applied_ms: int
    applied_by: str


class ProjectRules(msgspec.Struct, frozen=True, kw_only=True):
    """All that files of rules may declare of one project, read at once, and what was declared of it so far. Secrets
    of channels are open here."""

    breakers: list[BreakerRow]
    routers: list[RouterRow]
    mappings: list[MappingRow]
    channels: list[ChannelRow]
    mutes: list[MuteRow]
    declared: list[DeclaredRow]

    def __repr__(self) -> str:
        return f"ProjectRules(breakers={len(self.breakers)}, declared={len(self.declared)})"


class RulesChange(msgspec.Struct, frozen=True, kw_only=True):
    """What an apply does to a project. Rows that are made bring their ids, breakers the id of their router, too;
    edited ones are (before, after), where a router's links count. `mappings`: the whole list, None as it is. `mutes`
    to make are (id, draft). `declared`: all that `owner` declares from now on."""

    owner: str
    declared: tuple[DeclaredRow, ...]
    breakers_made: tuple[BreakerRow, ...] = ()
    breakers_edited: tuple[tuple[BreakerRow, BreakerRow], ...] = ()
    breakers_removed: tuple[BreakerRow, ...] = ()
    routers_made: tuple[tuple[str, RouterDraft], ...] = ()
    routers_edited: tuple[tuple[RouterRow, RouterRow], ...] = ()
    routers_removed: tuple[RouterRow, ...] = ()
    channels_made: tuple[ChannelRow, ...] = ()
    channels_edited: tuple[tuple[ChannelRow, ChannelRow], ...] = ()
    channels_removed: tuple[ChannelRow, ...] = ()
    mappings: tuple[MappingRow, ...] | None = None
    mutes_made: tuple[tuple[str, MuteDraft], ...] = ()
    mutes_edited: tuple[tuple[MuteRow, MuteRow], ...] = ()
    mutes_ended: tuple[MuteRow, ...] = ()

    def __repr__(self) -> str:
        return f"RulesChange(owner={self.owner!r}, declared={len(self.declared)})"


class MutesTended(msgspec.Struct, frozen=True, kw_only=True):
    """What the Notifier did about mutes at a time. `ended`: ids of those that came to their end; `next_ms`: when the
    next end, or the next warning of one, is due; `running`: mutes between start and end, the oldest of which started at
    `oldest_ms`."""

    ended: tuple[str, ...] = ()
    next_ms: int | None = None
    running: int = 0
    oldest_ms: int | None = None


class HeldLook(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a part of the held deliveries. `last`: the number of the last one that was looked at, None when
    there was none. `released`: the channels of those that are pending now. `states`: how many left, by state.
    `next_ms`: when the next of those that stay is to be looked at. `turns`: of projects that had their turn, the
    number of the last one that was looked at, None at the end of a project's. `behind`: by project, mute and channel
    how many stay behind mutes whose end is to be warned of."""

    last: int | None
    released: tuple[str, ...] = ()
    states: dict[str, int] = {}
    next_ms: int | None = None
    turns: dict[str, int | None] = {}
    behind: dict[tuple[str, str, str], int] = {}


class AsideRow(msgspec.Struct, frozen=True, kw_only=True):
    """Something stored that could not be read and was set aside (see `setaside.Aside`). `times`: how often a process
    met it for the first time."""

    number: int
    kind: str
    thing: str
    place: int
    project_id: str | None
    reason: str
    payload: bytes
    size: int
    times: int
    first_ms: int
    seen_ms: int


class StoredFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What projects and organisations keep. `shares`: those near a bound or beyond it. `shortened`: audit entries that
    were written without before and after; `dropped`, `deliveries_dropped`: events and ended deliveries that went before
    their time; `unsent`: alerts that were given up, or never written, since too many waited; `unmuted`: alerts that
    went out since matching them with mutes took too long."""

    shares: tuple[ProjectShare, ...] = ()
    shortened: int = 0
    dropped: int = 0
    deliveries_dropped: int = 0
    unsent: int = 0
    unmuted: int = 0


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of the audit log: those whose action begins so, and those of one thing; None: all."""

    action: str | None = None
    target_id: str | None = None


EVERY_ENTRY = AuditFilter()


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """One change of configuration: who (the id of a key) did what to which thing. Secrets are masked."""

    number: int
    project_id: str | None
    at_ms: int
    who: str
    action: str
    target_id: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def is_told_later(told: tuple[int, int, bool], since_offset: int, version: int) -> bool:
    """Whether the last settings of a breaker in a log (offset, version, whether they end it) are beyond its row. What
    lies before the link that it has now is of an earlier life."""
    offset, at, ended = told
    return offset > since_offset and (ended or at > version)
