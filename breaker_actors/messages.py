"""Small frozen values that cross processes between replicas, routers, breakers, journal and directory.

Each survives pickling (a test proves it). Bounds of the queues that hold them are in settings.py.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from breaker_actors.core.model import Rule, StateWord, Transition, View


class Part(msgspec.Struct, frozen=True, array_like=True):
    """The samples of one ingest request that go to one router, already encoded as the log keeps them.

    `keys` are 16-byte values under which the router recognises a repetition: the append id first, then the
    request's duplicate key when it has one.
    """

    router_id: str
    keys: tuple[bytes, ...]
    payload: bytes
    count: int

    def weight(self) -> int:
        """What it counts in a lane: its samples, or its size where names make it large."""
        return max(self.count, len(self.payload) >> 6)


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What became of a Part: "ok", "duplicate" (an earlier one had its key), "full", "not_owner" or "failed"."""

    word: Literal["ok", "duplicate", "full", "not_owner", "failed"]
    offset: int = 0


class Target(msgspec.Struct, frozen=True, array_like=True):
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


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """One call of a lane from a router's owner to a breaker's owner.

    `records`: (offset, received_ms, kind, payload)."""

    records: list[tuple[int, int, int, bytes]]
    targets: list[Target]


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
    cut: dict[str, int] = {}
    """For each of the routers at least: the offset up to which its log was read."""
    settings: bytes | None = None
    """The encoded BreakerSet in force at the cut."""


class RouterAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The Directory hands a router to a RouterActor under a new epoch."""

    router_id: str
    project_id: str
    epoch: int
    log_slot: str


class LogFloor(msgspec.Struct, frozen=True, array_like=True):
    """What of a router's log is still needed: records above `offset` to catch up, and those received after `since_ms`
    to fill windows again. None: nobody needs anything."""

    router_id: str
    owner: str
    slot: str
    offset: int | None
    since_ms: int | None


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
            value=move.value,
            rule={
                "kind": rule.kind,
                "metric": rule.metric,
                "threshold": rule.threshold,
                "window_ms": rule.window_ms,
                "tags": {},
            },
            agg=msgspec.to_builtins(move.agg),
            trace_id=move.trace_id,
        )


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What a BreakerActor asks its Journal to make durable for one breaker: events, the record and its cut.

    With `events` it is a transition (fenced by epoch and transition_seq); without, a change of allow_rate
    (`announce`) or a mere checkpoint.
    """

    breaker_id: str
    project_id: str
    epoch: int
    events: tuple[EventDraft, ...]
    state: StateWord
    allow_rate: float
    transition_seq: int
    record: bytes
    cut: dict[str, int]
    settings: bytes | None = None
    """The encoded BreakerSet, when it changed since this process last stored it."""
    announce: bool = False


CommitResult = Literal["ok", "fenced", "failed"]


EVERY_PROJECT = ""
"""In a feed entry instead of a project's id."""


class FeedEntry(msgspec.Struct, frozen=True, array_like=True):
    """One thing replicas must know; `sequence` is the store's position it was committed at.

    kind "state": a breaker's state or rate. "config": something of the project's (or EVERY_PROJECT's)
    configuration changed, reload it. "keys": an API key was revoked or a project's secret changed, drop caches."""

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


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of the cluster that is up."""

    id: str
    address: str
    cpus: float
    head: bool


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """What the parts run on. `replicas`: how many of the API's are there."""

    nodes: tuple[Node, ...]
    replicas: int


class Seat(msgspec.Struct, frozen=True, kw_only=True):
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
    seats: list[Seat]


class RouterFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`waiting`: samples on their way into the log. `log_bytes`: by slot; two owners may write into one."""

    routers: int
    waiting: int
    log_bytes: dict[str, int]


class BreakerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`behind`: breakers that have not applied all they were sent, `lag` records of a log at most. `unheard`: links to
    routers that nobody serves. `overdue_ms`: how long the oldest unfired timer has been due."""

    breakers: int
    starting: int
    behind: int
    lag: int
    unheard: int
    overdue_ms: int


class JournalFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`sequence`: the last number given out; `position`: entries fed since this Journal began."""

    epoch: int
    sequence: int
    position: int


class Rebalanced(msgspec.Struct, frozen=True, kw_only=True):
    """One step of evening out: how many routers and breakers got a new owner, and how many are left to be moved."""

    moved: int
    left: int


class StateReading(msgspec.Struct, frozen=True, kw_only=True):
    """One breaker's state as a replica answers it; `stale` when its owner did not answer and the store did."""

    breaker_id: str
    view: View
    stale: bool = False
