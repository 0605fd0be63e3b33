"""What the log says must have happened: its records through the core, and through the naive model of the tests.

Exact for a breaker that hung on one router all its life; its events must be these, live or restarted however often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from breaker_actors.core.log_entries import (
    BREAKER,
    DAMAGED,
    GAP,
    VIEW,
    BreakerSet,
    LogRecord,
    RouterView,
    SampleColumns,
    Splitter,
    decode_breaker,
    decode_gap,
    decode_lost,
    decode_view,
)
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Batch, Control, Effect, Rule, Transition
from breaker_actors.wal.reader import concerned
from tests.support.oracle import Oracle

KEEP_MS = 120_000
"""No window of the simulation is longer: what is older need not be kept by the naive model."""


class CoreModel:
    """The real core over a log."""

    def __init__(self, born: BreakerSet, now: int, samples_max: int) -> None:
        assert born.rule is not None
        self.breaker, self.effects = Breaker.create(
            born.rule, now, after_seq=born.after_seq, control=born.control, window_samples_max=samples_max
        )
        self._history: list[tuple[str, int, Batch]] = []

    def ingest(self, batch: Batch, received: int) -> None:
        self._history.append((self.breaker.rule.metric, received, batch))
        self.effects += self.breaker.ingest(batch, received)

    def gap(self, start: int, end: int) -> None:
        self.effects += self.breaker.gap(start, end)

    def advance(self, until: int) -> None:
        self.effects += self.breaker.advance(until)

    def configure(self, rule: Rule, now: int) -> None:
        self.advance(now - 1)
        if self.breaker.configure(rule, now):
            self.breaker.unload()
            for metric, received, batch in self._history:
                if metric == rule.metric and received > self.breaker.reload_after_ms:
                    self.breaker.load(batch, received)

    def control(self, control: Control, now: int) -> None:
        self.effects += self.breaker.control(control, now)


class NaiveModel:
    """The independent oracle over the same log."""

    def __init__(self, born: BreakerSet, now: int, samples_max: int) -> None:
        assert born.rule is not None
        control = born.control or Control()
        self.oracle = Oracle(born.rule, now, samples_max, seq=born.after_seq, mode=control.mode)
        self.oracle.control(control, now)

    @property
    def effects(self) -> Sequence[Effect]:
        return self.oracle.effects

    def ingest(self, batch: Batch, received: int) -> None:
        self.oracle.ingest(batch, received)
        oldest = received - KEEP_MS
        if self.oracle.samples and self.oracle.samples[0][0] < oldest:
            self.oracle.samples = [sample for sample in self.oracle.samples if sample[0] >= oldest]

    def gap(self, start: int, end: int) -> None:
        self.oracle.gap(start, end)

    def advance(self, until: int) -> None:
        self.oracle.advance(until)

    def configure(self, rule: Rule, now: int) -> None:
        self.advance(now - 1)
        self.oracle.configure(rule, now)

    def control(self, control: Control, now: int) -> None:
        self.oracle.control(control, now)


Model = CoreModel | NaiveModel


class Life:
    """One breaker from its creation in a log to its end, or to the end of the log."""

    def __init__(self, born: BreakerSet, record: LogRecord, models: list[Model]) -> None:
        self.breaker_id = born.breaker_id
        self.router_id = record.router_id
        self.born_ms = record.received_ms
        self.after_seq = born.after_seq
        self.upto_seq: int | None = None
        self.version = born.version
        self.models = models
        self.ended = False
        self.left = False
        """Whether its router left it out for a while: it then went on by itself, which no log tells."""
        self.whole_until_ms: int | None = None
        """When what comes next was received in its log, of which the rest was lost."""

    def each(self, do: Callable[[Any], None]) -> None:
        for model in self.models:
            do(model)

    def lose(self, from_ms: int) -> None:
        if self.whole_until_ms is None:
            self.whole_until_ms = from_ms

    def set(self, settings: BreakerSet, now: int) -> None:
        if settings.version <= self.version:
            return
        self.version = settings.version
        if settings.rule is None:
            self.ended = True
            self.each(lambda model: model.advance(now - 1))
        else:
            rule, control = settings.rule, settings.control or Control()
            self.each(lambda model: model.configure(rule, now))
            self.each(lambda model: model.control(control, now))


def transitions(model: Model) -> list[Transition]:
    return [effect for effect in model.effects if isinstance(effect, Transition)]


def told(move: Transition) -> tuple[Any, ...]:
    """What an event must say of a move."""
    agg = msgspec.to_builtins(move.agg)
    figures = (move.reason, move.allow_rate, move.value, agg)
    return (move.transition_seq, move.prev, move.curr, move.ts_ms, *figures, move.hidden_by, move.by, move.comment)


def lives_of(
    records: Sequence[LogRecord], samples_max: int, kinds: Sequence[Callable[[BreakerSet, int, int], Model]]
) -> list[Life]:
    """Every life that began in a router's log, led by its records."""
    lives: list[Life] = []
    living: dict[str, Life] = {}
    splitter = Splitter(RouterView(version=0))
    for record in records:
        if record.kind == BREAKER:
            _settings(decode_breaker(record.payload), record, lives, living, samples_max, kinds)
            continue
        if record.kind == DAMAGED:
            for life in living.values():
                life.lose(decode_lost(record.payload).from_ms)
            continue
        for breaker_id, body, start, stop in concerned(record, splitter):
            if breaker_id in living and living[breaker_id].whole_until_ms is None:
                _apply(living[breaker_id], record, body, start, stop)
        if record.kind == VIEW:
            splitter = Splitter(decode_view(record.payload))
    return lives


def _apply(life: Life, record: LogRecord, body: SampleColumns | bytes, start: int, stop: int) -> None:
    if isinstance(body, SampleColumns):
        batch = body.batch.slice(start, stop)
        life.each(lambda model: model.ingest(batch, record.received_ms))
    elif record.kind == GAP:
        gap = decode_gap(body)
        life.each(lambda model: model.gap(gap.from_ms, gap.to_ms))
    elif record.kind == VIEW:
        life.left = True


def _settings(
    settings: BreakerSet,
    record: LogRecord,
    lives: list[Life],
    living: dict[str, Life],
    samples_max: int,
    kinds: Sequence[Callable[[BreakerSet, int, int], Model]],
) -> None:
    life = living.get(settings.breaker_id)
    if life is not None:
        life.set(settings, record.received_ms)
        if life.ended:
            del living[settings.breaker_id]
    elif settings.created and settings.rule is not None:
        models = [kind(settings, record.received_ms, samples_max) for kind in kinds]
        life = living[settings.breaker_id] = Life(settings, record, models)
        lives.append(life)
