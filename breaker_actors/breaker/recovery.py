"""What breakers read from routers' logs: their windows after a restore, and everything they have not been sent.

Reads are repeated until the log answers, so a breaker that reads stays blocked meanwhile and nothing is lost. Where a
log is not as it was written, the breakers that need it stand still, and its owner takes nothing into it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from breaker_actors.breaker.damages import DamagedLogs
from breaker_actors.breaker.hosted import END_OF_LOG, HostedBreaker, Item, leave_ended
from breaker_actors.breaker.slices import ENTRY_ROWS, MOVED_ROWS, Slice, Slices
from breaker_actors.core.log_entries import BREAKER, DAMAGED, SampleColumns, Splitter, decode_breaker
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Control, Record
from breaker_actors.core.overlay import in_force
from breaker_actors.errors import BreakersError, LogDamaged
from breaker_actors.messages import BreakerAssignment, RouterRef
from breaker_actors.telemetry.set_aside import Asides
from breaker_actors.transport.peers import Net
from breaker_actors.wal.base import SampleLog
from breaker_actors.wal.reader import AT_ONCE, NOBODY, Begun, Concern, LogReader

T = TypeVar("T")

RETRY_S = 0.2

Entries = AsyncGenerator[tuple[HostedBreaker, Item], None]

_decode_record = msgspec.msgpack.Decoder(Record).decode


def host_breaker(assignment: BreakerAssignment, asides: Asides) -> HostedBreaker:
    """Set aside as a whole when its settings, or how far it has read, are not known."""
    if assignment.aside:
        return HostedBreaker.unreadable(assignment)
    where = (assignment.breaker_id, assignment.settings or b"", 0, assignment.project_id)
    return asides.attempt(partial(HostedBreaker, assignment), "state", *where) or HostedBreaker.unreadable(assignment)


def restore_record(
    hosted: HostedBreaker, assignment: BreakerAssignment, now: int, window_samples_max: int, asides: Asides
) -> None:
    """The breaker from its stored record, if it has one; where that can't be read, or is not what was written, from the
    state that is stored beside it, as of now: its timers begin anew, and its window is filled from the log as ever."""
    if assignment.record is None or hosted.settings is None or hosted.settings.rule is None:
        return
    rule, encoded, control = hosted.settings.rule, assignment.record, hosted.settings.control or Control()
    where = (hosted.id, encoded, 0, hosted.project_id)

    def stored() -> Record:
        if assignment.damaged:
            raise ValueError("the stored record is not what was written")
        return _decode_record(encoded)

    def restored(record: Record) -> Breaker:
        breaker = Breaker.restore(rule, record, window_samples_max=window_samples_max)
        breaker.record()
        breaker.view(now)
        return breaker

    hosted.breaker = asides.attempt(lambda: restored(stored()), "state", *where)
    if hosted.breaker is None:
        override = in_force(control, now)
        is_shown = override is None and control.mode == "enforce"  # else the machine's own state is not known: closed
        bare = Record(
            created_ms=now,
            now_ms=now,
            grid_ms=now,
            state=assignment.state if is_shown else "closed",
            state_since_ms=now,
            transition_seq=assignment.transition_seq,
            last_eval_ms=now,
            mode=control.mode,
            override=override,
        )
        hosted.breaker = restored(bare)
        hosted.dirty = True
    if (losses := hosted.losses()) != hosted.losses_reported:  # else what all have alike stays
        hosted.losses_reported = losses
    hosted.note_committed()


class Recovery:
    """Yields (breaker, entry): the next one is asked for once an entry was applied and its effects are durable."""

    def __init__(self, log: SampleLog, net: Net, asides: Asides, slices: Slices, owner_timeout_s: float = 1.0) -> None:
        self._slices = slices
        self._reader = LogReader(log, asides)
        self.damages = DamagedLogs(net, owner_timeout_s)
        self._asides = asides

    async def refill(self, group: list[HostedBreaker]) -> None:
        """Fills windows of breakers of one project from what the log has at and below each one's cut."""
        while left := [hosted for hosted in group if not hosted.dropped]:
            try:
                return await self._refill(left)
            except LogDamaged as error:
                self._stand_still(group, error)
            except BreakersError:
                await asyncio.sleep(RETRY_S)

    async def read(
        self, router_id: str, group: Sequence[HostedBreaker], upto: int, begun: Begun | None = None
    ) -> Entries:
        """A router's log after the cuts of blocked breakers, in order, up to an offset. `begun`: what was read ahead of
        it."""
        while True:
            try:
                async for entry in self._read(router_id, group, upto, begun):
                    yield entry
                return
            except LogDamaged as error:
                self._stand_still(group, error)
                return
            except BreakersError:
                begun = None
                await asyncio.sleep(RETRY_S)

    def _stand_still(self, group: Sequence[HostedBreaker], error: LogDamaged) -> None:
        """Sets those aside that read a damaged log; who owns it is told soon."""
        found = self.damages.note(error)
        router_id, offset = found.router_id, found.offset
        for hosted in group:
            if not hosted.dropped and router_id in hosted.routers.keys() | hosted.ended_links.keys():
                self._asides.note("log", router_id, error, b"", offset, hosted.project_id)
                hosted.set_aside()

    async def read_all(self, group: list[HostedBreaker]) -> Entries:
        """All logs of blocked breakers to their ends. What brings a breaker to life is read first."""
        born = [(hosted, await self._birthplace(hosted)) for hosted in group if hosted.breaker is None]
        rest = [(hosted, router_id) for hosted in group for router_id in list(hosted.routers)]
        for pairs in (born, rest):
            by_router: dict[str, list[HostedBreaker]] = {}
            for hosted, router_id in pairs:
                by_router.setdefault(router_id, []).append(hosted)
            for some in _in_parts(list(by_router.items())):
                for (router_id, listeners), begun in zip(some, await self._begin(some), strict=True):
                    async for entry in self.read(router_id, listeners, END_OF_LOG, begun):
                        yield entry
        for hosted in group:
            if hosted.breaker is not None:
                leave_ended(hosted)  # the view that ended a link may be lost, or come before what brought it to life

    async def _begin(self, some: Sequence[tuple[str, list[HostedBreaker]]]) -> list[Begun | None]:
        """Reads logs ahead: of thousands of routers most have nothing, or little, and each would be a read."""
        groups = [_listening(router_id, group) for router_id, group in some]
        places = [i for i, group in enumerate(groups) if group]
        wanted = [(_router_of(some[i][0], groups[i]), _start(some[i][0], groups[i]), END_OF_LOG) for i in places]
        found: list[Begun | None] = [None] * len(some)
        for i, begun in zip(places, await self._reader.begin(wanted), strict=True):
            found[i] = begun
        return found

    async def _birthplace(self, hosted: HostedBreaker) -> str:
        """The router whose log holds the creation of a breaker: the first record of the link that it was made with."""
        for router in hosted.routers.values() if len(hosted.routers) > 1 else ():
            while True:
                try:
                    record = await self._reader.at(router, router.since_offset + 1)
                    break
                except LogDamaged as error:
                    self._stand_still([hosted], error)
                    return ""
                except BreakersError:
                    await asyncio.sleep(RETRY_S)
            if record is not None and record.kind == BREAKER:
                told = self._reader.attempt(partial(decode_breaker, record.payload), record)
                if told is not None and told.breaker_id == hosted.id and told.created:
                    return router.router_id
        return next(iter(hosted.routers), "")

    async def _refill(self, group: list[HostedBreaker]) -> None:
        """May be repeated: begins with empty windows. Links that have ended count as long as a window reaches them."""
        work = self._slices.work(group)
        for each in group:
            if each.breaker is not None:
                each.breaker.unload()
        for some in _in_parts(_by_router(group)):
            spans = [(router, _upto(router, listeners), _since(listeners)) for router, listeners in some]
            for (router, listeners), begun in zip(some, await self._reader.begin_back(spans), strict=True):
                await self._refill_from(router, listeners, begun, work)

    async def _refill_from(
        self, router: RouterRef, listeners: Sequence[HostedBreaker], begun: Begun, work: Slice
    ) -> None:
        uptos = {h.id: h.applied_offsets.get(router.router_id, 0) for h in listeners}
        since = {h.id: h.breaker.reload_after_ms for h in listeners if h.breaker is not None}
        by_id = {h.id: h for h in listeners}
        splits = _Splits(by_id)
        async for record in self._reader.back(router, _upto(router, listeners), _since(listeners), begun):
            splitter = splits.of(await self._reader.splitter(router, record))
            for breaker_id, body, start, stop in self._reader.concerned(record, splitter):
                hosted = by_id.get(breaker_id)
                if hosted is None or hosted.breaker is None or record.offset > uptos[breaker_id]:
                    continue
                if not isinstance(body, SampleColumns) or record.received_ms <= since[breaker_id]:
                    continue
                if body.metric_at(start) == hosted.breaker.rule.metric:  # it may have had another one then
                    load = partial(hosted.breaker.load, body.rows(start, stop), record.received_ms)
                    self._reader.attempt(load, record)
                    await work.worked(ENTRY_ROWS + stop - start + hosted.breaker.take_moved() // MOVED_ROWS)
            await work.worked(ENTRY_ROWS)

    async def _read(
        self, router_id: str, group: Sequence[HostedBreaker], upto: int, begun: Begun | None = None
    ) -> Entries:
        listeners = {h.id: h for h in _listening(router_id, group)}
        if not listeners:
            return
        router = _router_of(router_id, list(listeners.values()))
        last = start = _start(router_id, listeners.values())
        splits = _Splits(listeners)
        async for record in self._reader.after(router, start, upto, begun):
            if record.kind == DAMAGED:
                concerned: Sequence[Concern] = [(breaker_id, record.payload, -1, -1) for breaker_id in listeners]
            else:
                splitter = splits.of(await self._reader.splitter(router, record))
                concerned = self._reader.concerned(record, splitter)
            for breaker_id, body, first, stop in concerned:
                hosted = listeners.get(breaker_id)
                if hosted is not None and hosted.wants(router_id, record.offset):
                    yield hosted, Item(router_id, 0, record.offset, record.received_ms, record.kind, body, first, stop)
            last = record.offset
        for hosted in listeners.values():
            hosted.skip_to(router_id, last)


class _Splits:
    """How records are split among those that read them: the other breakers of their router, thousands maybe, are left
    out of each record."""

    def __init__(self, only: Container[str]) -> None:
        self._only = only
        self._of: tuple[Splitter, Splitter] | None = None

    def of(self, splitter: Splitter) -> Splitter:
        if splitter is NOBODY:
            return NOBODY
        if self._of is None or self._of[0] is not splitter:
            self._of = splitter, Splitter(splitter.view, self._only)
        return self._of[1]


def _by_router(group: Iterable[HostedBreaker]) -> list[tuple[RouterRef, list[HostedBreaker]]]:
    found: dict[str, tuple[RouterRef, list[HostedBreaker]]] = {}
    for hosted in group:
        for router in {**hosted.ended_links, **hosted.routers}.values():
            found.setdefault(router.router_id, (router, []))[1].append(hosted)
    return list(found.values())


def _in_parts(all_: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(all_), AT_ONCE):
        yield all_[first : first + AT_ONCE]


def _listening(router_id: str, group: Iterable[HostedBreaker]) -> list[HostedBreaker]:
    return [hosted for hosted in group if not hosted.dropped and router_id in hosted.routers]


def _router_of(router_id: str, listeners: Sequence[HostedBreaker]) -> RouterRef:
    return listeners[0].routers[router_id]


def _start(router_id: str, listeners: Iterable[HostedBreaker]) -> int:
    """Where reading has to begin for all of them."""
    return min(hosted.applied_offsets[router_id] for hosted in listeners)


def _upto(router: RouterRef, listeners: Iterable[HostedBreaker]) -> int:
    """What they have applied, at most."""
    return max(hosted.applied_offsets.get(router.router_id, 0) for hosted in listeners)


def _since(listeners: Iterable[HostedBreaker]) -> int:
    """What was received up to then is in none of their windows."""
    return min((h.breaker.reload_after_ms for h in listeners if h.breaker is not None), default=0)
