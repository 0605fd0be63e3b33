"""One breaker as its BreakerActor holds it: the machine, its place in the routers' logs, and what waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from sys import intern

import msgspec

from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Cause, Effect, RateChange, StateWord, Transition, View
from breaker_actors.core.records import BreakerSet, SampleColumns, decode_breaker, encode_entry
from breaker_actors.messages import BreakerAssignment, Commit, EventDraft, RouterRef

INBOX_ROWS_MAX = 50_000
EMPTY: deque[Item] = deque(maxlen=0)
"""The inbox of all for whom nothing waits: an empty one of each would be half of what an idle breaker takes."""
END_OF_LOG = 1 << 62
IDLE_MS = 60_000


class Item(msgspec.Struct, frozen=True):
    """A log record waiting to be applied: nothing that concerns the breaker lies between `after` and `offset`.

    `body` None: only known that the log must be read up to `offset`.
    """

    router_id: str
    after: int
    offset: int
    received_ms: int
    kind: int
    body: SampleColumns | bytes | None
    start: int
    stop: int


class Committed(msgspec.Struct, frozen=True):
    """What readers may see while a transition is on its way into the journal."""

    state: StateWord
    state_since_ms: int
    allow_rate: float
    transition_seq: int
    open_cause: Cause | None


class Held:
    """State of one assigned breaker. `blocked` while a commit or a read of the log is under way for it."""

    __slots__ = (
        "_drafts",
        "_starting",
        "blocked",
        "breaker",
        "committed",
        "cut",
        "dirty",
        "dropped",
        "epoch",
        "former",
        "id",
        "inbox",
        "inbox_rows",
        "looked_ms",
        "needs_refill",
        "noted",
        "overflows",
        "project_id",
        "promised",
        "ready",
        "routers",
        "settings",
        "shard",
        "stored_version",
        "wake",
    )

    def __init__(self, assignment: BreakerAssignment) -> None:
        self.id = assignment.breaker_id
        self.project_id = assignment.project_id
        self.shard = assignment.shard
        self.epoch = assignment.epoch
        # a link that ended comes before the same one begun anew
        self.routers: dict[str, RouterRef] = {r.router_id: shared(r) for r in assignment.routers}
        self.cut: dict[str, int] = {r.router_id: assignment.cut[r.router_id] for r in assignment.routers}
        # links that have ended: read no further, but refilled from as long as the window reaches them
        self.former: dict[str, RouterRef] = {}
        for router in list(self.routers.values()):
            if router.until_offset is not None and self.cut[router.router_id] >= router.until_offset:
                self.former[router.router_id] = self.routers.pop(router.router_id)
        self.settings: BreakerSet | None = decode_breaker(assignment.settings) if assignment.settings else None
        self.stored_version = self.settings.version if self.settings else 0
        self.breaker: Breaker | None = None
        self.committed: Committed | None = None
        self.inbox = EMPTY
        self.inbox_rows = 0
        self.blocked = True
        self._drafts: tuple[EventDraft, ...] | None = None
        self.dropped = False
        self.dirty = False
        self.needs_refill = False
        self.promised: tuple[int, dict[str, tuple[int, int]]] | None = None
        self.looked_ms = 0
        self.overflows = 0
        self.noted = (0, 0, 0)
        self.ready = False
        self._starting: asyncio.Event | None = None
        self.wake: int | None = None

    def push(self, item: Item) -> None:
        """Queues an item; past INBOX_ROWS_MAX the whole inbox becomes one mark per router (read the log)."""
        if self.inbox is EMPTY:
            self.inbox = deque()
        self.inbox.append(item)
        self.inbox_rows += max(1, item.stop - item.start)
        if self.inbox_rows > INBOX_ROWS_MAX:
            self.overflows += 1
            upto: dict[str, int] = {}
            for waiting in self.inbox:
                upto[waiting.router_id] = max(waiting.offset, upto.get(waiting.router_id, 0))
            self.inbox = deque(mark(router_id, offset) for router_id, offset in upto.items())
            self.inbox_rows = len(self.inbox)

    def losses(self) -> tuple[int, int, int]:
        """So far: samples too late for the window, samples that left it early, inboxes that became marks."""
        late, truncated = self.breaker.lost if self.breaker is not None else (0, 0)
        return late, truncated, self.overflows

    def pop(self) -> Item:
        item = self.inbox.popleft()
        self.inbox_rows -= max(1, item.stop - item.start)
        if not self.inbox:
            self.inbox = EMPTY
        return item

    def clear(self) -> None:
        """Nothing waits any more."""
        self.inbox, self.inbox_rows = EMPTY, 0

    def be_ready(self) -> None:
        """From here on reads are answered, or known to be in vain."""
        self.ready = True
        if self._starting is not None:
            self._starting.set()
            self._starting = None

    async def until_ready(self) -> None:
        if not self.ready:
            self._starting = self._starting or asyncio.Event()
            await self._starting.wait()

    def wants(self, router_id: str, offset: int) -> bool:
        """Whether a record of a router's log is news for this breaker."""
        return not self.dropped and router_id in self.routers and offset > self.cut[router_id]

    def leave(self, router_id: str, offset: int) -> None:
        """The link to a router ended at an offset of its log; it may have begun anew behind that. The cut stays: what
        lies before it is in the window for a while, and must not be read twice if the link begins again."""
        router = self.routers.get(router_id)
        if router is not None and router.since_offset < offset:
            self.former[router_id] = self.routers.pop(router_id)

    def next_look(self) -> int:
        """When to look at the breaker again: its next timer, and once a minute anyway, for its cut to follow the logs.
        On whole minutes, so that many idle ones share their routers' promises."""
        assert self.breaker is not None
        idle = self.looked_ms - self.looked_ms % IDLE_MS + IDLE_MS
        timer = self.breaker.next_wake()
        return idle if timer is None else min(timer, idle)

    def note_committed(self) -> None:
        """What the journal has is what the machine says now."""
        assert self.breaker is not None
        record = self.breaker.record()
        self.committed = Committed(
            record.state,
            record.state_since_ms,
            self.breaker.allow_rate,
            record.transition_seq,
            record.open_cause,
        )

    def view(self, now_ms: int) -> View:
        """The committed state, with the live figures of the window."""
        assert self.breaker is not None
        view = self.breaker.view(now_ms)
        c = self.committed
        if c is None or (view.transition_seq == c.transition_seq and view.allow_rate == c.allow_rate):
            return view
        return msgspec.structs.replace(
            view,
            state=c.state,
            state_since_ms=c.state_since_ms,
            allow_rate=c.allow_rate,
            transition_seq=c.transition_seq,
            open_cause=c.open_cause,
        )

    def commit(self, effects: tuple[Effect, ...]) -> Commit:
        """What the journal has to store for these effects (none: a checkpoint)."""
        assert self.breaker is not None
        assert self.settings is not None
        drafts, self._drafts = self._drafts, None
        record = self.breaker.record()
        changed = self.settings.version != self.stored_version
        return Commit(
            breaker_id=self.id,
            project_id=self.project_id,
            epoch=self.epoch,
            events=self._events(effects) if drafts is None else drafts,
            state=record.state,
            allow_rate=self.breaker.allow_rate,
            transition_seq=record.transition_seq,
            record=msgspec.msgpack.encode(record),
            cut=dict(self.cut),
            settings=encode_entry(self.settings) if changed else None,
            announce=bool(effects) and all(isinstance(e, RateChange) for e in effects),
        )

    def draft(self, effects: tuple[Effect, ...]) -> None:
        """Words the events of effects now; the next commit takes them as they are."""
        self._drafts = self._events(effects)

    def _events(self, effects: tuple[Effect, ...]) -> tuple[EventDraft, ...]:
        return tuple(self._event(e) for e in effects if isinstance(e, Transition))

    def _event(self, effect: Transition) -> EventDraft:
        assert self.settings is not None
        rule = self.breaker.rule if self.breaker is not None else self.settings.rule
        assert rule is not None
        return EventDraft.of(self.settings.name, rule, effect)


def shared(router: RouterRef) -> RouterRef:
    """With names that all breakers here have in common: they are few, and each came as a copy of its own."""
    return msgspec.structs.replace(router, owner=intern(router.owner), log_slot=intern(router.log_slot))


def mark(router_id: str, upto: int) -> Item:
    """ "Read the log of this router up to here"."""
    return Item(router_id, 0, upto, 0, 0, None, 0, 0)
