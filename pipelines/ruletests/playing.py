"""Moves breakers over the samples of a test, by the engine of backtests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from breaker_actors.core.log_entries import Gap
from breaker_actors.core.model import BreakerMode, Control, Effect, Record, View
from pipelines.columns import Samples
from pipelines.replay.vectorized.engine import FastReplay, Walk
from pipelines.ruletests.cases import Case, Course, Happening


@dataclass(slots=True)
class Played:
    """What a breaker did, and how it stood at the instants that were asked for, after all of each instant."""

    effects: list[Effect] = field(default_factory=list)
    views: dict[int, View] = field(default_factory=dict)


def play(case: Case, courses: Sequence[Course], mode: BreakerMode, looks: Sequence[int] = ()) -> list[Played]:
    """What breakers of one metric do in a test, one for each course of rules. `mode`: that they are made with;
    `looks`: instants, ascending."""
    if len(courses[0]) > 1 and len(courses) > 1:  # the engine brings one change to all
        return [played for one in courses for played in play(case, [one], mode, looks)]
    played = [Played() for _ in courses]
    walks = [Walk(one[0], mine.effects.extend, follows_log=True) for one, mine in zip(courses, played, strict=True)]
    samples = case.arrivals.of(courses[0][0].metric)
    first = int(np.searchsorted(samples.at, case.start_ms, "left"))
    engine = _begun(case, courses, walks, samples.part(0, first), mode)
    _Pass(case, engine, walks, played, courses[0], samples, first).run(looks)
    return played


def _begun(
    case: Case, courses: Sequence[Course], walks: Sequence[Walk], held: Samples, mode: BreakerMode
) -> FastReplay:
    """The engine with breakers as they stand at the start."""
    engine = FastReplay(walks)
    if len(courses[0]) > 1:
        engine.configure(courses[0][0], case.start_ms, max(rule.window_ms for rule in courses[0]))
    at, begin = case.start_ms, case.begin
    new = Record(created_ms=at, now_ms=at, grid_ms=at, state_since_ms=at, mode=mode)
    if begin is not None:
        new = replace(new, transition_seq=begin.transition_seq, mode=begin.mode, override=begin.override)
    if begin in (None, new) and not len(held):
        engine.create(at, new.transition_seq, Control(mode=new.mode, override=new.override))
    else:
        engine.resume(begin or new, held)
    return engine


@dataclass(slots=True)
class _Pass:
    """One way through a test. `row`: of the next sample."""

    case: Case
    engine: FastReplay
    walks: Sequence[Walk]
    played: Sequence[Played]
    course: Course
    samples: Samples
    row: int
    changes: int = 0

    def run(self, looks: Sequence[int]) -> None:
        waiting = list(looks)
        for one in self.case.happenings:
            while waiting and waiting[0] < one.at_ms:
                self._look(waiting.pop(0))
            self._feed(one.row(self.samples))
            self._apply(one)
        for at_ms in waiting:
            self._look(at_ms)
        self._feed(int(np.searchsorted(self.samples.at, self.case.until_ms, "right")))
        self._advance(self.case.until_ms)

    def _feed(self, stop: int) -> None:
        if stop > self.row:
            self.engine.feed(self.samples.part(self.row, stop))
            self.row = stop

    def _apply(self, happening: Happening) -> None:
        what = happening.what
        if isinstance(what, Gap):
            self.engine.gap(what.from_ms, what.to_ms)
        elif isinstance(what, Control):
            self.engine.control(what, happening.at_ms)
        elif isinstance(what, Mapping):
            self.changes += 1
            self.engine.configure(self.course[self.changes], happening.at_ms, 0)

    def _look(self, at_ms: int) -> None:
        self._feed(int(np.searchsorted(self.samples.at, at_ms, "right")))
        self._advance(at_ms)
        for walk, mine in zip(self.walks, self.played, strict=True):
            assert walk.walker is not None
            mine.views[at_ms] = walk.walker.breaker.view(at_ms)

    def _advance(self, until_ms: int) -> None:
        """Timers up to a time, behind all that was fed."""
        self.engine.finish()
        for walk in self.walks:
            assert walk.walker is not None
            walk.walker.advance(until_ms)
