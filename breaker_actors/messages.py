"""Small frozen values that cross processes between replicas, routers, breakers, journal and directory.

Each survives pickling (a test proves it). Bounds of the queues that hold them are in settings.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import msgspec

from breaker_actors.core.model import HiddenBy, Rule, StateWord, Transition, View


class Part(msgspec.Struct, frozen=True, array_like=True):
    """The samples of one ingest request that go to one router, already encoded as the log keeps them.

    `keys` are 16-byte values under which the router recognises a repetition: the append id first, then the request's
    duplicate keys where it has any: its signature's, its caller's Idempotency-Key with the body, and in the end that
    key alone, which must not come with another body. `counters`: points of cumulative series beside the samples
    (`core.counters`), b"" where there are none.
    """

    router_id: str
    keys: tuple[bytes, ...]
    payload: bytes
    count: int
    counters: bytes = b""

    def weight(self) -> int:
        """What it counts in a lane: its samples, or its size where names make it large."""
        return max(self.count, (len(self.payload) + len(self.counters)) >> 6)


REACHABILITY_INTERVAL_MS = 1_000
"""How often a replica pings a RouterActor."""

Refusal = Literal["log_full", "share_full"]
"""Why samples are not taken into a log for now: see AppendResult."""


class AppendResult(msgspec.Struct, frozen=True, array_like=True):
    """Result of appending a Part: "ok" (durable, at `offset`), "duplicate" (an earlier one at `offset` had its key),
    "reused" (an earlier one with another body had it), "not_owner" or "failed"; "not_configured": the
    log does not say yet which breakers count. Refused for now: "full" (too much in
    flight), "log_full" (the log is at its bound), "share_full" (this project's share of it is). "damaged": nothing is
    taken into a log that is not as it was written, until an operator says how to go on. "clock_behind": the log's last
    stamp is so far ahead of the clock that the samples would not count. "later": not taken, as the call brought more
    than a group carries; it is to be sent again at once.

    Of "ok", who hears the record that the Part became a part of: `disabled`, nobody, as its router is; `unheard`, some
    of its metrics that no breaker of the router has, and `heard`, some that breakers have. `beyond`: points of new
    cumulative series for which the router has no room."""

    status: Literal[
        "ok",
        "duplicate",
        "reused",
        "full",
        "log_full",
        "share_full",
        "not_owner",
        "not_configured",
        "failed",
        "damaged",
        "clock_behind",
        "later",
    ]
    offset: int = 0
    disabled: bool = False
    unheard: tuple[str, ...] = ()
    heard: tuple[str, ...] = ()
    beyond: int = 0


class ChangesTaken(msgspec.Struct, frozen=True, array_like=True):
    """Changes of configuration that lie in their routers' logs: id -> offset of the first record. `damaged`: routers
    whose logs take none, until an operator says how to go on."""

    offsets: dict[int, int]
    damaged: frozenset[str] = frozenset()


class Target(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Everything of a router's log in (after, upto] that concerns one breaker.

    `spans` are (index into Delivery.records, start row, stop row); rows are -1, -1 for a record that is not samples.
    `spans` None means: there is something in that range, read it from the log (the lane had no room for it).
    """

    breaker_id: str
    epoch: int
    router_id: str
    after: int
    upto: int
    spans: tuple[tuple[int, int, int], ...] | None


class DeliveredEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A log entry as a delivery carries it. `kind`: see core.log_entries."""

    offset: int
    received_ms: int
    kind: int
    payload: bytes


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """One call of a lane from a router's owner to a breaker's owner: entries once each, and who takes what of them.

    Pickled as one piece, which costs a quarter of pickling its targets."""

    records: list[DeliveredEntry]
    targets: list[Target]

    def __reduce__(self) -> tuple[Callable[[bytes], Delivery], tuple[bytes]]:
        return _read_delivery, (msgspec.msgpack.encode(self),)


_read_delivery = partial(msgspec.msgpack.decode, type=Delivery)
"""Pickled by what it is made of: the release before reads it, too."""


class BreakerEpoch(msgspec.Struct, frozen=True, array_like=True):
    """A breaker under one of its epochs."""

    breaker_id: str
    epoch: int


class SubscribeRequest(msgspec.Struct, frozen=True, array_like=True):
    """A breaker's owner asks a router's owner for the router's entries. `epoch`: the breaker's."""

    router_id: str
    breaker_id: str
    epoch: int
    applied: int = 0
    """Up to where the breaker has applied the router's log: the log can't be shorter."""


class Subscribers(msgspec.Struct, frozen=True, array_like=True):
    """The breakers of one owner that are subscribed to a router: their number and the sum of their epochs, which
    differ when others are."""

    count: int
    epoch_sum: int


class FoundDamage(msgspec.Struct, frozen=True, array_like=True):
    """A breaker could not read a router's log on: what is wrong with it, in words, and from which offset on."""

    router_id: str
    words: str
    offset: int


class SubscriptionCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A RouterActor's answer to `check_subscriptions`. `not_owned`: routers that are not its own. `mismatched`: routers
    to which others than the named breakers are subscribed."""

    incarnation: str
    not_owned: list[str]
    mismatched: list[str]


class WatermarkAnswer(msgspec.Struct, frozen=True, array_like=True):
    """A RouterActor's answer to a request for a watermark, for one breaker of one router.

    "given": nothing stamped at or before the asked time will come any more. Everything that concerns the breaker lies
    at or below `sent_offset`; what lies between it and `end_offset`, the end of the log, concerns others.
    "not_subscribed": the breaker is not known there. "unavailable": no samples can be taken there now, so silence is no
    evidence. Both offsets are 0 in these two."""

    status: Literal["given", "not_subscribed", "unavailable"]
    sent_offset: int = 0
    end_offset: int = 0


NOT_SUBSCRIBED = WatermarkAnswer("not_subscribed")
UNAVAILABLE = WatermarkAnswer("unavailable")


class ActorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an actor says of itself: its incarnation, and the epochs of the routers or breakers that it owns, by id."""

    incarnation: str
    epochs: dict[str, int]


ENDING = 1 << 62
"""The until_offset of a link whose end is not in the log yet."""


class RouterRef(msgspec.Struct, frozen=True, array_like=True):
    """Where a breaker's router lives: its owner's name, the log slot, the offset after which the link counts, and, once
    it has ended, the offset of the view that left the breaker out."""

    router_id: str
    owner: str
    log_slot: str
    since_offset: int
    until_offset: int | None = None


class BreakerAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The Directory hands a breaker to a BreakerActor under a new epoch. `record` None: it has none yet."""

    breaker_id: str
    project_id: str
    shard: int
    epoch: int
    name: str
    routers: tuple[RouterRef, ...]
    record: bytes | None = None
    applied_offsets: dict[str, int] = {}
    """For each of the routers at least: the offset up to which its log was read."""
    settings: bytes | None = None
    """The encoded BreakerSet in force at these offsets."""
    state: StateWord = "closed"
    transition_seq: int = 0
    """As they are stored beside the record: with them a breaker begins whose record can't be read."""
    damaged: bool = False
    """The record, or what is stored beside it, is not what was written."""
    aside: bool = False
    """How far the breaker has read is not known: it is given, and stands still."""
    org_id: str = ""


class RouterAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The Directory hands a router to a RouterActor under a new epoch. `reached_offset`: the store says that its
    log reached that far; where it is shorter, some of it is lost."""

    router_id: str
    project_id: str
    epoch: int
    log_slot: str
    reached_offset: int = 0
    org_id: str = ""


class LogRead(msgspec.Struct, frozen=True):
    """What the store knows of a router's log: it reached `last` at least, and of its breakers the one that is farthest
    behind has read up to `first`; None: no breaker hangs on it."""

    router_id: str
    log_slot: str
    project_id: str = ""
    last: int = 0
    first: int | None = None


FaultKind = Literal["file", "log", "event", "state", "delivery", "configuration", "count"]


class Fault(msgspec.Struct, frozen=True):
    """Something that is stored, and is not as it has to be. `of`: the file, or the id of what it is of. `project_id`:
    whose it is, "" where it is nobody's alone."""

    kind: FaultKind
    of: str
    words: str
    project_id: str = ""


class MoreFaults(msgspec.Struct, frozen=True):
    """How many faults of a kind a project has beyond those that are told."""

    kind: FaultKind
    project_id: str
    count: int


class LogFloor(msgspec.Struct, frozen=True, array_like=True):
    """What of a router's log is still needed: records above `offset` to catch up, and those received after `since_ms`
    to fill windows again. None: nobody needs anything. `project_id` and `org_id` "": of a router that is gone."""

    router_id: str
    owner: str
    slot: str
    offset: int | None
    since_ms: int | None
    project_id: str = ""
    org_id: str = ""


class EventDraft(msgspec.Struct, frozen=True, kw_only=True):
    """One transition on its way into the journal."""

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
    trace_id: str | None = None
    """For links in notifications; the history does not show it."""
    hidden_by: HiddenBy | None = None
    """Why callers did not see this move of the machine."""
    by: str | None = None
    comment: str | None = None
    """Who moved it by hand, and why."""

    @classmethod
    def of(cls, name: str, rule: Rule, move: Transition) -> EventDraft:
        """A transition of the breaker of that name and rule."""
        return cls(
            name=name,
            prev=move.prev,
            curr=move.curr,
            ts_ms=move.ts_ms,
            transition_seq=move.transition_seq,
            reason=move.reason,
            allow_rate=move.allow_rate,
            value=None if move.value is None else move.value + 0.0,  # -0.0 is 0.0: SQLite keeps no other
            rule={
                "kind": rule.kind,
                "metric": rule.metric,
                "threshold": rule.threshold,
                "window_ms": rule.window_ms,
                "tags": {},
            },
            agg=msgspec.to_builtins(move.agg),
            trace_id=move.trace_id,
            hidden_by=move.hidden_by,
            by=move.by,
            comment=move.comment,
        )


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What a BreakerActor asks its Journal to make durable for one breaker: events, the record and its applied offsets.

    With `events` it is a transition (fenced by epoch and transition_seq); without, a change of allow_rate or a mere
    checkpoint. `announce`: callers see another allow_rate, whether moves come with it or not: behind a throttle that
    ends the machine may have made one that is hidden. `state` and `allow_rate` are what callers see from then on.
    `number`: rises from one commit of a process to its next, from 1; 0 where nobody counts.
    """

    breaker_id: str
    project_id: str
    epoch: int
    events: tuple[EventDraft, ...]
    state: StateWord
    allow_rate: float
    transition_seq: int
    record: bytes
    applied_offsets: dict[str, int]
    settings: bytes | None = None
    """The encoded BreakerSet, when it changed since this process last stored it."""
    announce: bool = False
    number: int = 0

    def seen(self) -> bool:
        """Whether callers see something else after it."""
        return self.announce or any(event.hidden_by is None for event in self.events)


CommitResult = Literal["ok", "repeated", "fenced", "failed"]
"""`repeated`: its events are stored already, as its first answer got lost. To its owner that is "ok"."""


class Paced(msgspec.Struct, frozen=True):
    """Instead of a result: the project has stored too many transitions for now, or its organisation fills the call;
    come again after so long."""

    wait_ms: int


EVERY_PROJECT = ""
"""In a feed entry instead of a project's id."""
SESSIONS = "sessions"
"""The same in a "keys" entry by which only sessions of the console have ended."""


class FeedEntry(msgspec.Struct, frozen=True, array_like=True):
    """One thing replicas must know; `sequence` is the store's position it was committed at.

    kind "state": a breaker's state or rate. "config": something of the project's (or EVERY_PROJECT's)
    configuration changed, reload it. "keys": an API key of the project's (or EVERY_PROJECT's) was revoked or
    its row changed, drop what is remembered of both; of SESSIONS: sessions have ended."""

    sequence: int
    kind: Literal["state", "config", "keys"]
    project_id: str
    breaker_id: str = ""
    state: StateWord = "closed"
    allow_rate: float = 1.0
    transition_seq: int = 0


class FeedPage(msgspec.Struct, frozen=True, array_like=True):
    """Answer of a long poll: entries after the asked position, or `reset` when the position is not held any more.

    `position` counts the entries of this Journal's epoch; it is not a sequence."""

    epoch: int
    position: int
    entries: list[FeedEntry]
    reset: bool = False


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """Where an actor runs. `node`: the id Ray gave it. `release`: what it was started from, program and settings."""

    node: str
    pid: int
    started_ms: int
    release: str


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What one process has counted. `values`: counters and gauges by series (name, label values); `histograms`: how
    many values of a series fell into each bucket, and their sum."""

    actor: str
    values: dict[tuple[str, ...], float]
    histograms: dict[tuple[str, ...], tuple[tuple[int, ...], float]]


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of the cluster that is up."""

    id: str
    address: str
    cpus: float
    head: bool


class ClusterTopology(msgspec.Struct, frozen=True, kw_only=True):
    """What the parts run on. `replicas`: how many of the API's are there."""

    nodes: tuple[Node, ...]
    replicas: int


class ActorPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """A RouterActor or BreakerActor as the Directory knows it; `holds`: how many routers or breakers are placed there.

    `restarts`: how often another process came up under the name since this Directory began."""

    name: str
    kind: Literal["router", "breaker"]
    state: Literal["starting", "up", "away"]
    since_ms: int
    restarts: int
    incarnation: str
    holds: int


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The Directory's view: how many actors of a kind there may be, and those there are."""

    budgets: dict[str, int]
    actors: list[ActorPlacement]


StoredLimit = Literal[
    "configuration_bytes",
    "audit_bytes",
    "events",
    "deliveries",
    "org_audit_bytes",
    "gone_audit_bytes",
    "projects",
    "workspaces",
    "keys",
]
"""Limits of what is kept in the database, of projects and then of organisations."""
ShareLimit = Literal["log_bytes", "transitions", "window_samples", StoredLimit]


class ProjectShare(msgspec.Struct, frozen=True, kw_only=True):
    """A project, or an organisation, that has reached its share of what all use: how much of how much, in the unit of
    the limit. One of the ids is given."""

    project_id: str | None = None
    org_id: str | None = None
    limit: ShareLimit
    used: int
    most: int


class RouterFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`waiting`: samples on their way into the log. `log_bytes`: by slot; two owners may write into one. `limits`: the
    projects that have used up their share of a log, at most 100 / BREAKERS_LOG_PROJECT_PERCENT_MAX of each, and the
    organisations that leave no more free than they use. `damaged`:
    routers into whose logs nothing is taken, a hundred at most. `fault`: why the log's last write failed, "" when it
    did not. `logs_ahead`: routers whose logs are ahead of the clock and take no samples until it gets there, a
    hundred at most; `ahead_ms`: the most that one is. `clock_doubted_ms`: by how much the wall clock is ahead of
    what is believed of it."""

    routers: int
    waiting: int
    log_bytes: dict[str, int]
    limits: tuple[ProjectShare, ...] = ()
    damaged: tuple[str, ...] = ()
    fault: str = ""
    logs_ahead: tuple[str, ...] = ()
    ahead_ms: int = 0
    clock_doubted_ms: int = 0


class BreakerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`behind`: breakers that have not applied all they were sent, `lag` records of a log at most. `unheard`: links to
    routers that nobody serves. `overdue_ms`: how long the oldest unfired timer has been due. `limits`: the projects
    that have used up their share of window memory here. `ahead`: those whose time is ahead of the clock,
    so that samples of now do not count for them."""

    breakers: int
    starting: int
    behind: int
    lag: int
    unheard: int
    overdue_ms: int
    limits: tuple[ProjectShare, ...] = ()
    ahead: int = 0


class JournalFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`sequence`: the last number given out; `position`: entries fed since this Journal began. `limits`: the projects
    whose transitions wait."""

    epoch: int
    sequence: int
    position: int
    limits: tuple[ProjectShare, ...] = ()


class Rebalanced(msgspec.Struct, frozen=True, kw_only=True):
    """One step of evening out: how many routers and breakers got a new owner, and how many are left to be moved."""

    moved: int
    left: int


class StateReading(msgspec.Struct, frozen=True, kw_only=True):
    """One breaker's state as a replica answers it; `stale` when its owner did not answer and the store did."""

    breaker_id: str
    view: View
    stale: bool = False
    aside: bool = False
    """Its owner could not read it: `view` says nothing, the store is asked."""
    project_id: str = ""
    """Whose it is, by its owner's word; "" from an owner of the release before, and from the store, which was asked for
    one project's."""


class Readings(list[StateReading]):
    """Readings that cross processes as one text: a tenth of the work of pickling each."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _decode_readings, (msgspec.msgpack.encode(list(self)),)


_readings = msgspec.msgpack.Decoder(list[StateReading])


def _decode_readings(text: bytes) -> Readings:
    return Readings(_readings.decode(text))


class WatermarkAnswers(list[WatermarkAnswer]):
    """Answers in the order of the request, that cross processes as one text, as Readings do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _decode_watermark_answers, (msgspec.msgpack.encode(list(self)),)


_watermark_answers = msgspec.msgpack.Decoder(list[WatermarkAnswer])


def _decode_watermark_answers(text: bytes) -> WatermarkAnswers:
    return WatermarkAnswers(_watermark_answers.decode(text))


class ChangeRow(msgspec.Struct, frozen=True, kw_only=True):
    """Records to append to one router's log: (kind, payload) in order. `links`: breakers that start to count
    with it."""

    id: int
    router_id: str
    project_id: str
    entries: tuple[tuple[int, bytes], ...]
    links: tuple[str, ...] = ()


class Address(msgspec.Struct, frozen=True):
    """Where a process listens, and what proves that Ray sent the caller."""

    host: str
    port: int
    token: bytes

    def __repr__(self) -> str:
        return f"Address({self.host}:{self.port})"


PAYLOAD_MAX = 4_096
"""Bytes kept of what could not be read."""
AsideKind = Literal["change", "log", "state", "row", "channel", "commit"]


class Aside(msgspec.Struct, frozen=True, kw_only=True):
    """One stored thing that could not be read.

    `kind` change: a row of `changes` (`thing`: its router, `place`: its id). log: a record of a router's log (`place`:
    its offset). state: a breaker's record. row: a JSON column (`thing`: table.column, `place`: a check sum of the
    text). channel: a sealed configuration. commit: what the Journal could not store for a breaker.
    `payload`: the first PAYLOAD_MAX bytes of `size`."""

    kind: AsideKind
    thing: str
    place: int
    project_id: str
    reason: str
    payload: bytes
    size: int
    seen_ms: int

    @property
    def key(self) -> tuple[AsideKind, str, int]:
        return self.kind, self.thing, self.place
