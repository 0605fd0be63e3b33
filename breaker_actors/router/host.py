"""RouterActor's inside (stop 7 of a sample's life): stamps, appends to the sample log, splits by linked breaker.

Gets Parts from replicas and changes from the Directory; hands records to the owners of the linked breakers. All that
touches a router's log goes through one group lane, so one log transaction is in flight and offsets stay dense.

In the lane projects take turns, so that nobody waits for another's flood. A router's samples and changes stay in the
order in which they came. Steps stay in order among themselves and wait for no samples; each is right wherever it
lies between them: samples are stamped and judged when their group is written. One that waited while a watermark was
given is stamped behind it; while the router was let go, or acquired, it is judged by who owns the router then. What
changes a router's log is no step: a view stays behind the samples that came before it, a gap lies before whatever is
written next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec
import structlog

from breaker_actors.clock import Clock, doubted_ms
from breaker_actors.errors import BreakersError, NotOwner, Unavailable
from breaker_actors.messages import (
    UNAVAILABLE,
    ActorReport,
    AppendResult,
    ChangeRow,
    ChangesTaken,
    FoundDamage,
    LogFloor,
    Part,
    RouterAssignment,
    RouterFigures,
    SubscribeRequest,
    Subscribers,
    SubscriptionCheck,
    WatermarkAnswer,
    WatermarkAnswers,
)
from breaker_actors.router.appends import Appends
from breaker_actors.router.group import Change, Group, Parts
from breaker_actors.router.owned import OwnedRouters
from breaker_actors.router.takeover import Takeover
from breaker_actors.router.watermark import LogsAhead, Watermarks
from breaker_actors.settings import Settings
from breaker_actors.telemetry.guard import run_supervised
from breaker_actors.telemetry.meters import Meters
from breaker_actors.telemetry.set_aside import Asides
from breaker_actors.transport.lane import Lane
from breaker_actors.transport.peers import DirectoryPeer, Net
from breaker_actors.wal.base import SampleLog

T = TypeVar("T")

RECORD_ROWS_MAX = 10_000
DAMAGED_TOLD_MAX = 100

log = structlog.get_logger()


class _Step(msgspec.Struct, frozen=True):
    """Work that no append runs beside: done behind those of its group, with the group's time, in the order of steps."""

    name: str
    do: Callable[[int], Awaitable[Any]]


async def _nothing(_: int) -> None: ...


_BEAT = _Step("beat", _nothing)
_PING = _Step("ping", _nothing)
_SETTLE = _Step("settle", _nothing)
"""Makes a group, in which a slice of owed gaps is written."""

_FAILED = AppendResult("failed")

_STEPS = ""
"""Whose turn it is for steps."""

_Item = Parts | Change | _Step

CHANGES_AT_ONCE, CHANGES_BYTES = 100, 1 << 20
"""Changes of configuration in one group, one at least: what others append waits for no more than that."""
WATERMARKS_AT_ONCE = 500
"""Watermarks in one group: what others append waits for no more than that, some milliseconds."""
ACQUIRE_AT_ONCE = 100
"""Routers that are acquired in one step: what others append waits for no more than that."""
ACQUIRE_S = 5.0
"""Seconds in which a call begins to acquire routers, a third of what its caller waits."""
CHANGES_S = 5.0
"""Seconds in which a call begins with slices of changes, a third of what its caller waits."""


def _slices(changes: Sequence[ChangeRow]) -> Iterator[list[ChangeRow]]:
    """Changes in their order, at most CHANGES_AT_ONCE and CHANGES_BYTES at a time and one of a router."""
    found: list[ChangeRow] = []
    routers: set[str] = set()
    room = CHANGES_BYTES
    for row in changes:
        size = sum(len(payload) for _, payload in row.entries)
        if found and (row.router_id in routers or len(found) == CHANGES_AT_ONCE or size > room):
            yield found
            found, routers, room = [], set(), CHANGES_BYTES
        found.append(row)
        routers.add(row.router_id)
        room -= size
    if found:
        yield found


def _key(change: ChangeRow) -> bytes:
    """What a repeated change is known by: a database that was put back gives numbers again, to others."""
    said = b"".join(b"%d:%d:%b" % (kind, len(payload), payload) for kind, payload in change.entries)
    return blake2b(b"change:%d:%b" % (change.id, said), digest_size=16).digest()


def _by_slot(assignments: Sequence[RouterAssignment]) -> Iterator[tuple[str, list[RouterAssignment]]]:
    """Slots, each with at most ACQUIRE_AT_ONCE of what is to be acquired there."""
    by_slot: dict[str, list[RouterAssignment]] = {}
    for assignment in assignments:
        by_slot.setdefault(assignment.log_slot, []).append(assignment)
    for slot, group in by_slot.items():
        for start in range(0, len(group), ACQUIRE_AT_ONCE):
            yield slot, group[start : start + ACQUIRE_AT_ONCE]


def _weigh(item: _Item) -> int:
    return item.weight if isinstance(item, Parts) else 0


def _rows(item: _Item) -> int:
    """Rows alone are held: they were bounded on their way, and who takes them was not."""
    return item.rows if isinstance(item, Parts) else 0


class RouterHost:
    """Everything a RouterActor does, without Ray. Start with `start()`, end with `stop()`."""

    def __init__(self, name: str, incarnation: str, log: SampleLog, net: Net, clock: Clock, settings: Settings) -> None:
        self.name = name
        self.incarnation = incarnation
        self._log = log
        self._directory = DirectoryPeer(net)
        self._clock = clock
        self._settings = settings
        self.meters = Meters("router", name)
        self._asides = Asides()
        self._owned = OwnedRouters(log, net, settings, self.meters, self._asides)
        self._outages = self._owned.outages
        self._appends = Appends(log, self._owned, clock, self.meters, self._asides)
        skew_max_ms = settings.max_clock_skew_ms
        self._ahead = LogsAhead(self._owned.by_id, clock, settings)
        self._takeover = Takeover(log, incarnation, self._owned, self._appends, clock, skew_max_ms, self._asides)
        self._watermarks = Watermarks(log, incarnation)
        self._is_settling = False
        self._work: Lane[_Item, Any] = Lane(
            self._run,
            weigh=_weigh,
            hold=_rows,
            weight_max=settings.lane_samples_max,
            call_weight_max=RECORD_ROWS_MAX,
        )
        self._beating: asyncio.Task[None] | None = None
        self.meters.watch(self._look)
        self.meters.watch_asides(self._asides)

    # ------------------------------------------------------------------ calls

    def start(self) -> None:
        """Begins the heartbeat. Nothing is owned until `acquire`."""
        self._beating = asyncio.create_task(self._beat())

    async def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        await self._work.close()
        await self._owned.fanout.close()

    async def append(self, parts: Sequence[Part]) -> list[AppendResult]:
        """Appends samples; one outcome per part. "ok" means durable in the log. Where a call's takers are more than a
        group carries only so much of it is taken; the rest is "later", so that nobody's answer waits for all of it."""
        self._outages.heard(self._clock.now_ms())
        outcomes = [AppendResult("later")] * len(parts)
        waiting: list[tuple[Parts, asyncio.Future[list[AppendResult]]]] = []
        for some in self._owned.taken(parts, RECORD_ROWS_MAX):
            try:
                waiting.append((some, self._work.put(some, *self._owned.whose(some.router_id))))
            except BreakersError:
                for place in some.places:
                    outcomes[place] = AppendResult("full")
        if len(waiting) == 1 and len(waiting[0][0].places) == len(parts):
            return await _outcomes(waiting[0][1], len(parts))
        for some, future in waiting:
            for place, outcome in zip(some.places, await _outcomes(future, len(some.places)), strict=True):
                outcomes[place] = outcome
        return outcomes

    async def ping(self) -> str:
        """Notes that a replica can reach this process: samples could be taken now, unless the log refuses them. Returns
        why the log's last write failed; "" when it did not, or when no router is owned."""
        self._outages.heard(self._clock.now_ms())
        with contextlib.suppress(Unavailable):
            await self._work.put(_PING, _STEPS)
        return self._appends.fault if self._owned.by_id else ""

    async def acquire(self, assignments: Sequence[RouterAssignment]) -> list[str]:
        """Becomes the owner of routers; returns the ids that are owned now. What is missing there was fenced by a
        higher epoch, or the log did not answer for it, or its keys were not all read within ACQUIRE_S: it may be asked
        for again. Raises Unavailable when something is missing that was not fenced, and nothing was acquired."""
        loop = asyncio.get_running_loop()
        taken, left, until = list[str](), list[BreakersError](), loop.time() + ACQUIRE_S
        for slot, some in _by_slot(assignments):
            if len(left) > 1 or ((taken or left) and loop.time() > until):
                break
            try:
                upto = await self._takeover.learn(slot, some, until)
                able = [a for a in some if a.router_id in upto or a.router_id in self._owned.by_id]
                if len(able) < len(some):
                    left.append(Unavailable("duplicate keys of logs are being read"))
                taken += await self._in_turn("acquire", partial(self._takeover.acquire, able, keys_upto=upto))
            except Unavailable as error:
                left.append(error)
                until = loop.time() + ACQUIRE_S
        if left and not taken:
            raise left[0]
        return taken

    async def change(self, changes: Sequence[ChangeRow]) -> ChangesTaken:
        """Appends configuration changes. Repeating one is harmless. After one that failed no other of its router is
        appended: an old view must not come behind a newer one. Those that were not begun within CHANGES_S are left
        out; they come again."""
        loop, offsets = asyncio.get_running_loop(), dict[int, int]()
        stuck, damaged = set[str](), set[str]()
        until = loop.time() + CHANGES_S
        for slice_ in _slices(changes):
            if loop.time() > until:
                break
            able = [row for row in slice_ if row.router_id not in stuck]
            whose = self._owned.whose
            waiting = [self._work.put(Change(row, _key(row)), *whose(row.router_id)) for row in able]
            for row, outcome in zip(able, await asyncio.gather(*waiting), strict=True):
                if outcome.status in ("ok", "duplicate"):
                    offsets[row.id] = outcome.offset
                elif outcome.status == "not_owner":
                    raise NotOwner(f"router {row.router_id} is not owned here")
                else:
                    stuck.add(row.router_id)
                    damaged |= {row.router_id} if outcome.status == "damaged" else set()
        return ChangesTaken(offsets, frozenset(damaged))

    async def subscribe(self, owner: str, requests: Sequence[SubscribeRequest]) -> list[int | None]:
        """Subscribes breakers of an owner; returns for each the offset after which deliveries start (what lies before
        is read from the log), None when the router is not owned here. A breaker that has read further than a log is
        known to go may have read what another owner wrote since: the log says whether there is one."""

        async def subscribe(_: int) -> list[int | None]:
            if self._owned.is_short(requests):
                await self._takeover.reread()
            return [self._owned.subscribe(owner, request) for request in requests]

        return await self._in_turn("subscribe", subscribe)

    async def advance_watermark(self, upto_ms: int, pairs: Sequence[tuple[str, str]]) -> WatermarkAnswers:
        """Advances the watermark: nothing stamped at or before `upto_ms` will come any more. Returns one answer for
        each (router_id, breaker_id). Raises Unavailable when the log does not answer.

        Gives none while no samples can be taken, nor in a slot where an outage is still to be written, nor for a
        damaged log: that silence is no evidence. Nor for a time so far ahead that what comes now would not count behind
        it: whoever asks goes by a clock that is wrong. Each answer stands for itself, so many are given in slices, and
        what is left after half of the time that callers wait in one go."""

        async def advance(some: Sequence[tuple[str, str]], _: int) -> list[WatermarkAnswer]:
            now = self._clock.now_ms()
            if self._outages.away_since(now) is not None or self._ahead.is_far(upto_ms, now):
                return [UNAVAILABLE] * len(some)
            asked = {i: router for i, _ in some if (router := self._owned.by_id.get(i))}
            silent = {r.id for r in asked.values() if r.damage or self._outages.owed.is_owed(r.slot)}
            async for lost in self._watermarks.advance([r for r in asked.values() if r.id not in silent], upto_ms):
                self._owned.lose(lost)
            return [UNAVAILABLE if i in silent else self._owned.watermark(i, b) for i, b in some]

        loop, answers = asyncio.get_running_loop(), WatermarkAnswers()
        until = loop.time() + self._settings.owner_timeout_ms / 2_000
        while len(answers) < len(pairs):
            upto = len(answers) + WATERMARKS_AT_ONCE if loop.time() < until else len(pairs)
            answers += await self._in_turn("advance_watermark", partial(advance, pairs[len(answers) : upto]))
        return answers

    async def release(self, router_ids: Sequence[str]) -> None:
        """Routers that were deleted, or go to another owner: nothing is appended here any more."""
        await self._in_turn("release", partial(self._let_go, router_ids))

    async def trim(self, floors: Sequence[LogFloor], gone: Sequence[tuple[str, str]]) -> int:
        """Drops what is older than the retention (earlier near the byte bound) and nobody needs any more, and routers
        [(slot, router_id)] that are gone for good; answers how many records went. Also drops duplicate keys that were
        forgotten early: a log keeps as many as its owner holds, and what came since the last call."""
        await self._owned.drop_keys()
        return await self._owned.retention.run(floors, gone, self._clock.now_ms())

    async def note_damage(self, found: Sequence[FoundDamage]) -> list[str]:
        """Readers found logs damaged: nothing is taken into those any more that are owned here; answers which."""

        async def note(_: int) -> list[str]:
            mine = [one for one in found if one.router_id in self._owned.by_id]
            for one in mine:
                if not self._owned.by_id[one.router_id].damage:  # else it is known
                    self._owned.note_damage(one.router_id, one.words, one.offset)
            return [one.router_id for one in mine]

        return await self._in_turn("note_damage", note)

    async def check_subscriptions(self, owner: str, subscribers: Mapping[str, Subscribers]) -> SubscriptionCheck:
        """Compares the subscriptions of an owner's breakers with what it believes, by router."""
        not_owned, mismatched = self._owned.check_subscriptions(owner, subscribers)
        return SubscriptionCheck(incarnation=self.incarnation, not_owned=not_owned, mismatched=mismatched)

    async def status(self) -> RouterFigures:
        sizes = {slot: await self._log.size_bytes(slot) for slot in self._owned.slots()}
        ahead = self._ahead.routers()
        return RouterFigures(
            routers=len(self._owned.by_id),
            waiting=self._work.weight,
            log_bytes=sizes,
            limits=self._owned.retention.limits(),
            damaged=tuple(sorted(r.id for r in self._owned.by_id.values() if r.damage))[:DAMAGED_TOLD_MAX],
            fault=self._appends.fault if self._owned.by_id else "",
            logs_ahead=tuple(sorted(ahead))[:DAMAGED_TOLD_MAX],
            ahead_ms=max(ahead.values(), default=0),
            clock_doubted_ms=doubted_ms(self._clock),
        )

    async def incarnation_id(self) -> str:
        return self.incarnation

    async def report(self) -> ActorReport:
        """Returns this process's incarnation and the routers that it owns, with epochs."""
        epochs = {r.id: r.epoch for r in self._owned.by_id.values()}
        return ActorReport(incarnation=self.incarnation, epochs=epochs)

    # ------------------------------------------------------------------ the group

    async def _in_turn(self, name: str, step: Callable[[int], Awaitable[T]]) -> T:
        """The answer of a step that no append runs beside. Raises Unavailable when the log does not answer."""
        answer: T = await self._work.put(_Step(name, step), _STEPS)
        return answer

    async def _run(self, items: list[_Item]) -> list[Any]:
        """One group: samples and changes in one log transaction, those of a router in arrival order, then the steps."""
        reached, changed = False, set[str]()
        for item in items:
            if isinstance(item, Parts) or item is _PING:
                reached = True
            elif isinstance(item, Change):
                changed.add(item.row.router_id)
            elif item is _SETTLE:
                self._is_settling = False
        if self._appends.is_doubtful:
            await self._takeover.reread()
        now = self._clock.now_ms()
        self._outages.note(self._owned.by_id, changed, reached, now)
        group = self._group(now)
        if self._outages.owed:
            group.settle(self._outages.owed.slice(self._owned.by_id))
        begins, n = list[int](), 0
        for item in items:
            begins.append(n)
            if isinstance(item, Parts):
                for part in item.parts:
                    group.add(n, part)
                    n += 1
            elif isinstance(item, Change):
                group.add(n, item)
                n += 1
        staged = group.close()
        if group.duplicate_parts:
            self.meters.count("breakers_duplicate_parts_total", group.duplicate_parts)
            self.meters.count("breakers_duplicate_samples_total", group.duplicate_samples)
        outcomes = group.outcomes | await self._appends.write(staged) if staged else group.outcomes
        if self._appends.is_doubtful:
            return [_told(item, begin, outcomes) for item, begin in zip(items, begins, strict=True)]
        results: list[Any] = []
        for item, begin in zip(items, begins, strict=True):
            results.append(await _answer(item, now) if isinstance(item, _Step) else _told(item, begin, outcomes))
        self._owned.fanout.flush()
        self._settle_soon()
        return results

    def _group(self, now: int) -> Group:
        owned = self._owned
        gap = self._outages.owed.of
        return Group(owned.by_id, owned.retention.refusal, now, gap, self._asides, self._ahead.max_ms)

    def _settle_soon(self) -> None:
        """Owed gaps are written a slice with each group, and there is one until none is owed. After a failed write the
        next that comes begins anew."""
        if self._outages.owed and not self._appends.is_doubtful and not self._is_settling:
            self._is_settling = True
            self._work.put(_SETTLE, _STEPS)

    async def _settle(self, router_ids: Sequence[str], now: int) -> None:
        """Writes gaps that are owed. When the log does not answer, they are still owed."""
        group = self._group(now)
        group.settle(router_ids)
        if staged := group.close():
            await self._appends.write(staged)

    async def _let_go(self, router_ids: Sequence[str], now: int) -> None:
        """Notes that samples could be taken until now: the next owner's gap, if there has to be one, begins here."""
        owed = self._outages.owed
        await self._settle([i for i in router_ids if owed.of(i)], now)
        is_away = self._outages.away_since(now) is not None
        alive = [slot for slot in self._owned.slots(router_ids) if not is_away and not owed.is_owed(slot)]
        for router_id in router_ids:
            self._owned.forget(router_id)
        with contextlib.suppress(BreakersError):
            for slot in alive:
                await self._log.alive(slot, self.incarnation, now)

    # ------------------------------------------------------------------ the heartbeat

    async def _beat(self) -> None:
        """Every heartbeat_interval_ms: notes in the log's store that samples could be taken until now."""
        while True:
            await asyncio.sleep(self._settings.heartbeat_interval_ms / 1000)
            await run_supervised("router heartbeat", self._beat_once())

    async def _beat_once(self) -> None:
        await self._directory.report_asides(self._asides)
        with contextlib.suppress(BreakersError):
            await self._work.put(_BEAT, _STEPS)
            now = self._clock.now_ms()
            if self._outages.away_since(now) is not None:
                return
            for slot in self._owned.slots():
                if not self._outages.owed.is_owed(slot):
                    await self._appends.noting(self._log.alive(slot, self.incarnation, now))
            self._outages.worked(self._clock.now_ms())

    def _look(self) -> None:
        """How things stand (see Meters.watch)."""
        self._appends.look()
        self._owned.look()
        self._ahead.look(self.meters)
        self.meters.gauge("breakers_lane_waiting", self._work.weight, lane="log")
        self.meters.total("breakers_lane_calls_total", self._work.calls, lane="log")


async def _outcomes(future: asyncio.Future[list[AppendResult]], n: int) -> list[AppendResult]:
    try:
        return await future
    except BreakersError:
        return [_FAILED] * n


async def _answer(step: _Step, now: int) -> Any:
    """What a step answers; a bug in it does not take the answers of its group along."""
    try:
        return await step.do(now)
    except BreakersError as error:
        return error
    except Exception as error:
        log.error("control_failed", item=step.name, error=repr(error))
        return Unavailable(f"unexpected {type(error).__name__}")


def _told(item: _Item, begin: int, outcomes: Mapping[int, AppendResult]) -> Any:
    """What became of an item, whose outcomes are numbered from `begin` on. The log may or may not have what has none:
    samples and changes are sent again, the rest is asked again."""
    if isinstance(item, Parts):
        return [outcomes.get(n, _FAILED) for n in range(begin, begin + len(item.parts))]
    return outcomes.get(begin, _FAILED) if isinstance(item, Change) else Unavailable("the sample log does not answer")
