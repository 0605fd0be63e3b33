"""One breaker as its BreakerActor holds it: the machine, its place in the routers' logs, and what waits for it."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Mapping
from operator import attrgetter
from sys import intern
from types import MappingProxyType

import msgspec

from breaker_actors.breaker.sharing import same_link, settings_of
from breaker_actors.core.log_entries import (
    BREAKER,
    DAMAGED,
    GAPS,
    SAMPLES,
    VIEW,
    BreakerSet,
    SampleColumns,
    decode_breaker,
    decode_gap,
    decode_lost,
    encode_entry,
)
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import (
    BreakerMode,
    Cause,
    Control,
    Effect,
    Override,
    RateChange,
    Record,
    StateWord,
    Transition,
    View,
)
from breaker_actors.core.overlay import hidden_by, shown, shown_since
from breaker_actors.messages import BreakerAssignment, Commit, EventDraft, RouterRef, WatermarkAnswer

Effects = tuple[Effect, ...]

INBOX_ROWS_MAX, ITEM_ROW_BYTES = 50_000, 1 << 10
"""What waits for one breaker: so many rows, and of each record its KiBs count as many, since it is held whole."""
EFFECTS_MAX = 100
"""One commit of a breaker that is behind its time carries so many effects at most."""
EMPTY: deque[Item] = deque(maxlen=0)
"""The inbox of all for whom nothing waits: an empty one of each would be half of what an idle breaker takes."""
NO_LINKS: Mapping[str, RouterRef] = MappingProxyType({})
END_OF_LOG = 1 << 62
NO_VIEW = View(
    state="closed",
    state_since_ms=0,
    allow_rate=1.0,
    verdict="indeterminate",
    value=None,
    sample_count=0,
    passes=0,
    last_eval_ms=0,
    next_eval_ms=None,
    transition_seq=0,
    open_cause=None,
    held_back=False,
)
"""Of a breaker that was set aside; it says nothing."""
_NUMBERS = itertools.count(1)
"""Of this process's commits: one that takes a breaker up anew, under the same epoch, goes on behind its own."""
IDLE_MS = 60_000
READ_ROWS, READ_SAMPLES = 200, 8
"""What a look at a breaker's figures costs, in rows that are applied, and how many samples held as much as one row: a
fifth of that where they stand for several."""


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
    size: int = 0
    """Bytes of the record, as it lies in the log."""


class Committed(msgspec.Struct, frozen=True):
    """What readers may see while a transition is on its way into the journal."""

    state: StateWord
    state_since_ms: int
    allow_rate: float
    transition_seq: int
    open_cause: Cause | None
    machine_state: StateWord
    mode: BreakerMode
    override: Override | None


class Watermark(msgspec.Struct, frozen=True):
    """A breaker's watermark: nothing stamped at or before `upto_ms` will come any more but what `answers`, by router,
    say was sent. A router whose owner gave none is not among them."""

    upto_ms: int
    answers: dict[str, WatermarkAnswer]


class HostedBreaker:
    """State of one assigned breaker. `blocked` while a commit or a read of the log is under way for it, or it waits for
    its turn: `resting` when it has more to do than goes in one step. What comes while it is blocked is read from the
    log later, but for as many rows as it `keeps`: while it is restored, and for the time of a commit's first try.

    Who sets a field from outside: `applying` sets `blocked` and `resting`; it and `background` set `keeps`, which
    `read_later` ends; `watermarks` `watermark` and `looked_ms`; `commits` `stored_version`; `wakeups` `wake`; `metrics`
    `noted`; `subscriptions` and the host's `link` the owners in `routers`; `recovery` moves `cut` over what it has
    read, and makes `breaker` from its stored record. `dirty` is set by whoever changes what a checkpoint stores and
    cleared by `commits`; `needs_refill` is set by `apply` and cleared by the host, which has the window refilled.
    Everything else is set by the methods below alone."""

    __slots__ = (
        "_drafts",
        "_machine_rate",
        "_starting",
        "_stored",
        "applied_offsets",
        "aside",
        "blocked",
        "breaker",
        "dirty",
        "dropped",
        "ended_links",
        "epoch",
        "id",
        "inbox",
        "inbox_rows",
        "keeps",
        "looked_ms",
        "losses_reported",
        "needs_refill",
        "org_id",
        "overflows",
        "project_id",
        "ready",
        "resting",
        "routers",
        "settings",
        "shard",
        "stored_version",
        "wake",
        "watermark",
    )

    def __init__(self, assignment: BreakerAssignment) -> None:
        self.id = assignment.breaker_id
        self.project_id, self.org_id = intern(assignment.project_id), intern(assignment.org_id)
        self.shard = assignment.shard
        self.epoch = assignment.epoch
        # a link that ended comes before the same one begun anew
        self.routers: dict[str, RouterRef] = {r.router_id: r for r in map(same_link, assignment.routers)}
        self.applied_offsets: dict[str, int] = {
            router_id: assignment.applied_offsets[router_id] for router_id in self.routers
        }
        # links that have ended: read no further, but refilled from as long as the window reaches them
        self.ended_links: Mapping[str, RouterRef] = NO_LINKS
        leave_ended(self)
        self.settings: BreakerSet | None = settings_of(assignment.settings, self.id) if assignment.settings else None
        self.stored_version = self.settings.version if self.settings else 0
        self.breaker: Breaker | None = None
        # what the journal has: the machine's record as of then, which it mostly still goes by, and its rate
        self._stored: Record | None = None
        self._machine_rate = 1.0
        self.inbox = EMPTY
        self.inbox_rows = 0
        self.blocked = True
        self.resting, self.keeps = False, 0
        self._drafts: tuple[EventDraft, ...] | None = None
        self.dropped = False
        self.aside = False
        self.dirty = False
        self.needs_refill = False
        self.watermark: Watermark | None = None
        self.looked_ms = 0
        self.overflows = 0
        self.losses_reported = (0, 0, 0)
        self.ready = False
        self._starting: asyncio.Future[None] | None = None
        self.wake: int | None = None

    @classmethod
    def unreadable(cls, assignment: BreakerAssignment) -> HostedBreaker:
        """One that is given here and stands still: nothing of it is known that could be gone on from."""
        hosted = cls(msgspec.structs.replace(assignment, routers=(), applied_offsets={}, settings=None, record=None))
        hosted.set_aside()
        return hosted

    def set_aside(self) -> None:
        """From here on it takes nothing and fires nothing, and the store is asked for its state: until it is assigned
        anew, which happens when its actor starts again."""
        self.aside = self.aside or not self.dropped
        self.dropped = True
        self.clear()
        self.routers.clear()
        self.be_ready()

    def end(self) -> None:
        """The breaker was deleted, or has another owner: it takes nothing any more, and its samples go."""
        self.dropped = True
        self.clear()
        self.be_ready()
        if self.breaker is not None:
            self.breaker.unload()  # timers and calls under way may still know it for a while

    @property
    def is_over(self) -> bool:
        """It has ended here; one that was set aside stays, to say so."""
        return self.dropped and not self.aside

    def push(self, item: Item) -> None:
        """Queues an item; past INBOX_ROWS_MAX, or what it keeps while it is blocked, the whole inbox is read from the
        log. A marker behind one of the same router takes its place."""
        if self.inbox is EMPTY:
            self.inbox = deque()
        elif item.body is None and self.inbox[-1].body is None and self.inbox[-1].router_id == item.router_id:
            self.inbox[-1] = max(item, self.inbox[-1], key=attrgetter("offset"))
            return
        self.inbox.append(item)
        self.inbox_rows += _weight(item)
        if self.inbox_rows > min(self.keeps or INBOX_ROWS_MAX, INBOX_ROWS_MAX):
            self.overflows += 1
            read_later(self)

    def push_first(self, item: Item) -> None:
        """Puts an item back before all that waits."""
        if self.inbox is EMPTY:
            self.inbox = deque()
        self.inbox.appendleft(item)
        self.inbox_rows += _weight(item)

    def losses(self) -> tuple[int, int, int]:
        """So far: samples too late for the window, samples that left it early, inboxes that became markers."""
        late, truncated = self.breaker.lost if self.breaker is not None else (0, 0)
        return late, truncated, self.overflows

    def pop(self) -> Item:
        item = self.inbox.popleft()
        self.inbox_rows -= _weight(item)
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
            self._starting.set_result(None)
            self._starting = None

    def starting(self) -> asyncio.Future[None]:
        """Done once it is ready, which it is not yet. One for all who wait: it is not to be cancelled."""
        assert not self.ready
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_future()
        return self._starting

    def wants(self, router_id: str, offset: int) -> bool:
        """Whether a record of a router's log is news for this breaker."""
        return not self.dropped and router_id in self.routers and offset > self.applied_offsets[router_id]

    def skip_to(self, router_id: str, offset: int) -> None:
        """What lies before an offset of a router's log concerns others."""
        if router_id in self.routers:
            self.applied_offsets[router_id] = max(self.applied_offsets[router_id], offset)

    def is_behind(self, item: Item) -> bool:
        """Whether the breaker may have more to do before an entry than goes in one step."""
        return self.breaker is not None and item.body is not None and self.breaker.is_behind(item.received_ms)

    def moves_until(self, item: Item) -> int | None:
        """Up to when its own timers fire before an entry (ms); None: the entry does not concern them."""
        if item.kind == SAMPLES:
            return item.received_ms - 1
        if item.kind in GAPS:
            assert isinstance(item.body, bytes)
            return decode_gap(item.body).from_ms
        if item.kind != BREAKER:
            return None
        assert isinstance(item.body, bytes)
        change = decode_breaker(item.body)
        return item.received_ms - 1 if change.breaker_id == self.id and change.rule is not None else None

    def apply(self, item: Item, window_samples_max: int) -> Effects:
        """One log entry into the breaker; the cut moves with it. What becomes of the effects is the caller's."""
        self.applied_offsets[item.router_id] = item.offset
        self.dirty = True
        if item.kind == VIEW:
            if self.breaker is not None:  # else its creation was lost before, and may be told again behind this
                self.leave(item.router_id, item.offset)
            return ()
        if item.kind == BREAKER:
            assert isinstance(item.body, bytes)
            return self._set(settings_of(item.body, self.id), item.received_ms, window_samples_max)
        if self.breaker is None:
            return ()
        if item.kind == SAMPLES:
            assert isinstance(item.body, SampleColumns)
            rows = item.body.received(item.received_ms)
            if rows is None or item.start == item.stop:
                return self.breaker.ingest(item.body.rows(item.start, item.stop), item.received_ms)
            return self.breaker.ingest_rows(rows, item.start, item.stop)
        if item.kind in GAPS:
            assert isinstance(item.body, bytes)
            if item.kind == DAMAGED and decode_lost(item.body).sets_back:
                self.breaker = set_back(self.breaker, item.received_ms, window_samples_max)
                self.looked_ms = min(self.looked_ms, item.received_ms)
            gap = decode_gap(item.body)
            return self.breaker.gap(gap.from_ms, gap.to_ms)
        return ()

    def _set(self, settings: BreakerSet, now_ms: int, window_samples_max: int) -> Effects:
        """Settings of this breaker: creation, change or end."""
        if settings.breaker_id != self.id or (self.settings and settings.version <= self.settings.version):
            return ()
        if settings.rule is None:
            self.end()
            return ()
        if self.breaker is None:
            if not settings.created:
                return ()
            self.settings = settings
            self.breaker, effects = Breaker.create(
                settings.rule,
                now_ms,
                after_seq=settings.after_seq,
                control=settings.control,
                window_samples_max=window_samples_max,
            )
            return effects
        effects = self.breaker.advance(now_ms - 1)
        drafts = _events(self, effects)  # these moves were made under the rule and name before the change
        rate = self.breaker.allow_rate
        self.settings = settings
        if settings.rule != self.breaker.rule:
            self.needs_refill = self.breaker.configure(settings.rule, now_ms)
        by_hand = self.breaker.control(settings.control or Control(), now_ms)
        if effects or by_hand:
            self._drafts = drafts + _events(self, by_hand)
        if not by_hand and self.breaker.allow_rate != rate:
            by_hand = (RateChange(ts_ms=now_ms, allow_rate=self.breaker.allow_rate),)
        return effects + by_hand

    def leave(self, router_id: str, offset: int) -> None:
        """The link to a router ended at an offset of its log; it may have begun anew behind that. The cut stays: what
        lies before it is in the window for a while, and must not be read twice if the link begins again (until
        `forget_left`)."""
        router = self.routers.get(router_id)
        if router is not None and router.since_offset < offset:
            _keep_ended(self, router_id)

    def next_look(self) -> int:
        """When to look at the breaker again: its next timer, and once a minute anyway, for its cut to follow the logs.
        On whole minutes, so that many idle ones share their routers' watermarks."""
        assert self.breaker is not None
        idle = self.looked_ms - self.looked_ms % IDLE_MS + IDLE_MS
        timer = self.breaker.next_wake()
        return idle if timer is None else min(timer, idle)

    def show(self) -> None:
        """From its creation (or restore) on a breaker answers reads. No effects are on their way: what readers see is
        what the machine says, also where it has a newer record that says the same."""
        assert self.breaker is not None
        if self.breaker.schedule.record is not self._stored:
            self.note_committed()
        if not self.ready:
            self.be_ready()

    def note_committed(self) -> None:
        """What the journal has is what the machine says now."""
        assert self.breaker is not None
        self._stored, self._machine_rate = self.breaker.schedule.record, self.breaker.machine_rate

    @property
    def committed(self) -> Committed | None:
        """What readers may see; None until it has been shown."""
        record = self._stored
        if record is None:
            return None
        seen = shown(record, self._machine_rate)
        return Committed(
            seen.state,
            shown_since(record),
            seen.allow_rate,
            record.transition_seq,
            None if hidden_by(record) else record.open_cause,
            record.state,
            record.mode,
            record.override,
        )

    def view(self, now_ms: int) -> View:
        """The committed state, with the live figures of the window."""
        assert self.breaker is not None
        view = self.breaker.view(now_ms)
        if self._stored is self.breaker.schedule.record and self._machine_rate == self.breaker.machine_rate:
            return view
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
            machine_state=c.machine_state,
            mode=c.mode,
            override=c.override,
        )

    def commit(self, effects: Effects) -> Commit:
        """What the journal has to store for these effects (none: a checkpoint)."""
        assert self.breaker is not None
        assert self.settings is not None
        drafts, self._drafts = self._drafts, None
        record, shown = self.breaker.record(), self.breaker.shown
        changed = self.settings.version != self.stored_version
        return Commit(
            breaker_id=self.id,
            project_id=self.project_id,
            epoch=self.epoch,
            events=_events(self, effects) if drafts is None else drafts,
            state=shown.state,
            allow_rate=shown.allow_rate,
            transition_seq=record.transition_seq,
            record=msgspec.msgpack.encode(record),
            applied_offsets=dict(self.applied_offsets),
            settings=encode_entry(self.settings) if changed else None,
            announce=any(isinstance(e, RateChange) for e in effects),
            number=next(_NUMBERS),
        )


def relink(hosted: HostedBreaker, router: RouterRef) -> None:
    """Takes a link in, or what has become of it."""
    hosted.routers[router.router_id] = same_link(router)


def read_later(hosted: HostedBreaker) -> None:
    """What waits for a breaker, and what comes while it is blocked, is to be read from the log: one catch-up marker per
    router."""
    hosted.keeps = 0
    upto: dict[str, int] = {}
    for waiting in hosted.inbox:
        upto[waiting.router_id] = max(waiting.offset, upto.get(waiting.router_id, 0))
    if upto:
        hosted.inbox = deque(catch_up_marker(router_id, offset) for router_id, offset in upto.items())
        hosted.inbox_rows = len(hosted.inbox)


def _weight(item: Item) -> int:
    """In rows: at least one, and one for each ITEM_ROW_BYTES of the record, which is held whole."""
    return max(1, item.stop - item.start) + item.size // ITEM_ROW_BYTES


def reading_rows(hosted: HostedBreaker) -> int:
    """What a look at its figures costs, in rows that are applied: its value may be worked out from the window."""
    window = hosted.breaker.evidence.window if hosted.breaker is not None else None
    if window is None:
        return READ_ROWS
    held = len(window)
    return READ_ROWS + (held if window.observations == held else 5 * held) // READ_SAMPLES


def is_next(hosted: HostedBreaker, router_id: str, after: int, offset: int, received_ms: int) -> bool:
    """Whether samples of a router's log are what comes next for a breaker, with nothing to be done before."""
    breaker = hosted.breaker
    return (
        breaker is not None
        and not hosted.blocked
        and not hosted.inbox
        and hosted.ready
        and not hosted.dropped
        and router_id in hosted.routers
        and after <= hosted.applied_offsets[router_id] < offset
        and not breaker.is_behind(received_ms)
    )


def leave_ended(hosted: HostedBreaker) -> None:
    """A breaker leaves the links that have ended, as the store knows, and were read to their ends."""
    for router in list(hosted.routers.values()):
        if router.until_offset is not None and hosted.applied_offsets[router.router_id] >= router.until_offset:
            _keep_ended(hosted, router.router_id)


def _keep_ended(hosted: HostedBreaker, router_id: str) -> None:
    ended = hosted.ended_links if isinstance(hosted.ended_links, dict) else {}
    ended[router_id] = hosted.routers.pop(router_id)
    hosted.ended_links = ended


def forget_left(hosted: HostedBreaker, router: RouterRef) -> None:
    """Takes a link out of the cut that ended, was read up to `until_offset`, and is forgotten by the store; unless it
    has begun anew since, or was read further."""
    router_id = router.router_id
    if router_id in hosted.routers or hosted.applied_offsets.get(router_id) != router.until_offset:
        return
    del hosted.applied_offsets[router_id]
    if isinstance(hosted.ended_links, dict):
        hosted.ended_links.pop(router_id, None)
    hosted.dirty = True


def set_back(breaker: Breaker, at_ms: int, window_samples_max: int) -> Breaker:
    """A breaker whose time was ahead of the clock, as of `at_ms`: state, numbers and baseline stay, evidence and timers
    begin anew. One that is not that far is left as it is."""
    if breaker.now_ms <= at_ms:
        return breaker
    old = breaker.record()
    record = msgspec.structs.replace(
        old,
        created_ms=min(old.created_ms, at_ms),
        now_ms=at_ms,
        grid_ms=at_ms,
        state_since_ms=min(old.state_since_ms, at_ms),
        evidence_floor_ms=at_ms,
        gap_end_ms=at_ms,
        streak=0,
        peak=0,
        seen=0,
    )
    return Breaker.restore(breaker.rule, record, window_samples_max=window_samples_max)


def catch_up_marker(router_id: str, upto: int) -> Item:
    """Returns an item that says: read the log of this router up to here."""
    return Item(router_id, 0, upto, 0, 0, None, 0, 0)


def _events(hosted: HostedBreaker, effects: Effects) -> tuple[EventDraft, ...]:
    assert hosted.settings is not None
    assert hosted.breaker is not None
    name, rule = hosted.settings.name, hosted.breaker.rule
    return tuple(EventDraft.of(name, rule, effect) for effect in effects if isinstance(effect, Transition))
