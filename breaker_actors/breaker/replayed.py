"""What a router's log says that its breakers did: its records through the core, from each breaker's creation on.

Exact for breakers that hung on this router alone; how the logs of several are mixed is known to no log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple

import msgspec

from breaker_actors.core.log_entries import (
    BREAKER,
    DAMAGED,
    VIEW,
    BreakerSet,
    LogRecord,
    RouterView,
    SampleColumns,
    decode_lost,
)
from breaker_actors.core.log_entries import decode_breaker as settings_of
from breaker_actors.core.log_entries import decode_gap as gap_of
from breaker_actors.core.log_entries import decode_view as view_of
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Control, Effect, Rule, Transition
from breaker_actors.messages import RouterRef
from breaker_actors.text.escaping import for_database
from breaker_actors.wal.base import SampleLog
from breaker_actors.wal.reader import LogReader, concerned

Move = tuple[Any, ...]
"""Of a transition or an event: transition_seq, prev, curr, ts_ms, reason, allow_rate, value, agg, hidden_by, by,
comment."""
END = 1 << 62


class Told(NamedTuple):
    """The last settings of a breaker in a log: where they lie, and whether they end it."""

    offset: int
    version: int
    ended: bool


class Life:
    """A breaker from its creation in a log to its end there. `moves`: what it did, at most one for each 100 ms."""

    def __init__(self, born: BreakerSet, rule: Rule, created_ms: int, samples_max: int) -> None:
        self.breaker_id = born.breaker_id
        self.after_seq = born.after_seq
        self.version = born.version
        self.left = False
        """Whether its router left it out for a while: it then went on by itself, which no log tells."""
        self.whole_until_ms: int | None = None
        """From then on some of its log is lost: how much of that it had counted no log tells."""
        self.moves: list[Move] = []
        self.breaker, effects = Breaker.create(
            rule, created_ms, after_seq=born.after_seq, control=born.control, window_samples_max=samples_max
        )
        self.note(effects)

    def note(self, effects: Iterable[Effect]) -> None:
        self.moves += (_move_of(effect) for effect in effects if isinstance(effect, Transition))

    def lose(self, from_ms: int) -> None:
        """What was received from then on is lost, as far as the next record that is read."""
        if self.whole_until_ms is None:
            self.advance(from_ms - 1)
            self.whole_until_ms = from_ms

    def advance(self, until_ms: int) -> None:
        self.note(self.breaker.advance(until_ms))

    def difference(self, stored: list[Move], ended: bool) -> str:
        """How events differ from the first moves, in words; "" when they don't. The oldest may be gone, and the newest
        not stored yet. `ended`: nothing happens to this life any more."""
        if self.whole_until_ms is not None:
            stored = [event for event in stored if event[3] < self.whole_until_ms]
        elif stored and not ended:
            self.advance(stored[-1][3])
        kept = [move for move in self.moves if stored and move[0] >= stored[0][0]]
        for event, move in zip(map(_kept, stored), kept, strict=False):
            if event != move:
                return f"event {event[0]} says {_told(event)}, by its log it is {_told(move)}"
        return f"event {stored[len(kept)][0]} is none by its log" if len(stored) > len(kept) else ""


def _move_of(move: Transition) -> Move:
    agg = msgspec.to_builtins(move.agg)
    figures = (move.reason, move.allow_rate, move.value, agg)
    return _kept(
        (move.transition_seq, move.prev, move.curr, move.ts_ms, *figures, move.hidden_by, move.by, move.comment)
    )


def _kept(move: Move) -> Move:
    """With its texts of people as rows keep them; earlier versions kept them on SQLite as they were said."""
    *rest, by, comment = move
    return (*rest, by and for_database(by), comment and for_database(comment))


def _told(move: Move) -> str:
    _, prev, curr, ts_ms, reason, allow_rate, value, _, hidden_by, by, comment = move
    seen = f", hidden by {hidden_by}" if hidden_by else ""
    seen += f", by {by}: {comment}" if by or comment else ""
    return f"{prev} to {curr} at {ts_ms} ({reason}, allow_rate {allow_rate}, value {value}{seen})"


async def configured(log: SampleLog, router: RouterRef) -> tuple[RouterView, dict[str, Told]]:
    """The last routing table in a log, and by breaker the last settings there. Raises LogDamaged."""
    view, told = RouterView(version=0), dict[str, Told]()
    async for record in LogReader(log).after(router, 0, END):
        if record.kind == BREAKER:
            settings = settings_of(record.payload)
            known = told.get(settings.breaker_id)
            if known is None or settings.version > known.version:
                told[settings.breaker_id] = Told(record.offset, settings.version, settings.rule is None)
        elif record.kind == VIEW:
            view = view_of(record.payload)
    return view, told


class Replay:
    """Of one router's log, read once; again for windows that a new rule needs filled anew."""

    def __init__(self, log: SampleLog, router: RouterRef, samples_max: int) -> None:
        self._reader = LogReader(log)
        self._router = router
        self._samples_max = samples_max
        self._living: dict[str, Life] = {}
        self.count = 0
        """Records read so far."""
        self.told: dict[str, Told] = {}
        """By breaker that the log tells of, those too that were made elsewhere, or before it begins."""
        self.view_version = 0
        """Of the last routing table."""

    async def lives(self) -> AsyncIterator[tuple[Life, bool]]:
        """Every life that begins in the log, and whether it ended there. One that begins `again` may have begun in what
        was trimmed. Raises LogDamaged."""
        async for record in self._reader.after(self._router, 0, END):
            if record.kind == BREAKER:
                ended = await self._settings(record)
                if ended is not None:
                    yield ended, True
            else:
                await self._apply(record)
            self.count += 1
        for life in self._living.values():
            yield life, False

    async def _settings(self, record: LogRecord) -> Life | None:
        """Answers the life that this record ends."""
        settings, now = settings_of(record.payload), record.received_ms
        self.told[settings.breaker_id] = Told(record.offset, settings.version, settings.rule is None)
        life = self._living.get(settings.breaker_id)
        if life is None:
            if settings.created and not settings.again and settings.rule is not None:
                self._living[settings.breaker_id] = Life(settings, settings.rule, now, self._samples_max)
            return None
        if settings.version <= life.version:
            return None
        life.version = settings.version
        life.advance(now - 1)
        if settings.rule is None:
            return self._living.pop(settings.breaker_id)
        if life.breaker.configure(settings.rule, now):
            await self._refill(life, record.offset)
        life.note(life.breaker.control(settings.control or Control(), now))
        return None

    async def _refill(self, life: Life, upto: int) -> None:
        breaker = life.breaker
        breaker.unload()
        since = breaker.reload_after_ms
        async for record in self._reader.back(self._router, upto, since):
            splitter = await self._reader.splitter(self._router, record)
            for breaker_id, body, start, stop in concerned(record, splitter):
                if breaker_id != life.breaker_id or not isinstance(body, SampleColumns):
                    continue
                if record.received_ms > since and body.metric_at(start) == breaker.rule.metric:
                    breaker.load(body.rows(start, stop), record.received_ms)

    async def _apply(self, record: LogRecord) -> None:
        if record.kind == DAMAGED:
            lost = decode_lost(record.payload)
            for each in self._living.values():
                each.lose(lost.from_ms)
            return
        if record.kind == VIEW:
            self.view_version = view_of(record.payload).version
        splitter = await self._reader.splitter(self._router, record)
        for breaker_id, body, start, stop in concerned(record, splitter):
            life = self._living.get(breaker_id)
            if life is None:
                continue
            if isinstance(body, SampleColumns):
                life.note(life.breaker.ingest(body.rows(start, stop), record.received_ms))
            elif record.kind == VIEW:
                life.left = True
            else:
                gap = gap_of(body)
                life.note(life.breaker.gap(gap.from_ms, gap.to_ms))
