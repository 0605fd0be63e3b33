"""Walks over columns: a breaker of the core with an evidence of its own, over windows that are looked up.

Only the evaluations that may change something are run; `pipelines.replay.vectorized.breach_search` tells where the next
one is. No rule of semantics.md is repeated here but one: which evaluations can't change anything, given where breaches
are.

- closed: none before the minimum duration is over, from then on all that find no breach. For delta, ticks are run.
- open: none before its wait is over.
- half_open: ticks are run; between them none that finds no breach, and while nothing can be lost (first step, no
  passes) none before the minimum duration is over.

A walk stands still at the end of an override, so that it ends at its own time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Control, Effect, Int64, RateChange, Record, Rule, Transition
from pipelines.columns import Chunk, Samples
from pipelines.replay.vectorized.breach_search import BreachSearch, Floor
from pipelines.replay.vectorized.exact_sums import TooWide
from pipelines.replay.vectorized.window import ChunkEvidence, Lookup
from pipelines.replay.vectorized.window_bounds import WindowBounds

SEARCH_FIRST, SEARCH_MOST, SEARCH_GROWTH = 1 << 10, 1 << 20, 32
"""Arrivals looked at in one go; the longer nothing is found, the more. What can't breach is passed by in pages."""
BUSY_LEGS, BUSY_ARRIVALS, STRETCH_FIRST = 32, 12, 1 << 12
"""A walk that takes more than one leg for so many arrivals is left to a breaker of the core for a stretch of them."""


class VectorizedBreaker:
    """One breaker of the core, moved from chunk to chunk. Its effects are passed on in order.
    `evidence`: what is known of the samples of its windows."""

    __slots__ = (
        "_breaker",
        "_chunk",
        "_counted",
        "_figures",
        "_floors",
        "_kind",
        "_look",
        "_looks",
        "_row",
        "_rule",
        "_samples_max",
        "_search",
        "_steered",
        "_steers",
        "_stops",
        "_tell",
        "_times",
        "evidence",
    )

    def __init__(
        self,
        rule: Rule,
        tell: Callable[[Iterable[Effect]], None],
        figures: bool,
        samples_max: int,
        steered: Callable[[int], None] | None = None,
        watch: Callable[[], None] | None = None,
    ) -> None:
        """`tell` gets the effects; `figures`: events are to say value and agg; `steered`, `watch`: see the engine's
        Walk. Walks once `create` was called."""
        self._kind = Breaker if watch is None else _watched(watch)
        self._rule, self._tell, self._figures = rule, tell, figures
        self._samples_max = samples_max
        self._look: Callable[[int, float | None], None] = lambda now_ms, value: None
        self._looks: list[int] = []
        self._stops = -1
        self._row, self._floors = 0, [Floor(0, 0, False)]
        self._steered = steered or (lambda at_ms: None)
        self._steers: int | None = None

    def create(self, created_ms: int, after_seq: int, control: Control | None) -> None:
        """A new breaker, whose transitions are numbered from `after_seq` + 1, under a control."""
        self._breaker, effects = self._kind.create(
            self._rule,
            created_ms,
            after_seq=after_seq,
            control=control,
            window_samples_max=self._samples_max,
            evidence=self._make_evidence,
        )
        self._told(effects)

    def resume(self, record: Record, held: Samples) -> None:
        """The breaker as of a record, in the place of a new one. `held`: the samples before that may be in its window,
        in order of arrival."""
        chunk, override = Chunk(held, len(held)), record.override
        self._chunk, self._times, self._row = chunk, chunk.times, len(held)
        self._floors = [Floor(record.evidence_floor_ms, 0, False)]
        self._steers = override.until_ms if override is not None and override.then is not None else None
        self._breaker = self._kind.restore(
            self._rule, record, window_samples_max=self._samples_max, evidence=self._make_evidence
        )
        if isinstance(self.evidence.window, Lookup):
            self.evidence.window.place(chunk, None)
        self.evidence.expire(self._breaker.now_ms)

    @property
    def breaker(self) -> Breaker:
        """The breaker of the core as it stands, to be read."""
        return self._breaker

    def _make_evidence(self, rule: Rule, record: Record, samples_max: int) -> ChunkEvidence:
        self.evidence = ChunkEvidence(rule, record, samples_max, self._figures)
        return self.evidence

    def gap(self, from_ms: int, to_ms: int) -> None:
        """No sample could come in between (semantics.md section 2)."""
        self._told(self._breaker.gap(from_ms, to_ms))

    def control(self, control: Control, at_ms: int) -> None:
        """Mode and override from then on (semantics.md section 12)."""
        self.advance(at_ms - 1)
        self._told(self._breaker.control(control, at_ms))

    def configure(self, rule: Rule, now_ms: int, held: Samples) -> None:
        """Puts another rule in force, as the core does. `held`: the samples before that may be in its window; they are
        behind the last chunk."""
        self._told(self._breaker.advance(now_ms - 1))
        breaker = self._kind.restore(self._rule, self._breaker.record(), window_samples_max=self._samples_max)
        breaker.evidence.trace, rate = self.evidence.trace, breaker.allow_rate
        chunk = Chunk(held, len(held))
        window = chunk.held(len(held))
        window.trace = chunk.newest_trace(0, len(held))
        breaker.load(window, breaker.now_ms)
        if breaker.configure(rule, now_ms) and rule.metric == self._rule.metric:
            breaker.unload()
            breaker.load(window, breaker.now_ms)
        if breaker.allow_rate != rate:
            self._tell([RateChange(ts_ms=now_ms, allow_rate=breaker.allow_rate)])
        self._rule, old = rule, self.evidence
        self._chunk, self._times, self._row = chunk, chunk.times, len(held)
        self._take_over(breaker, old)
        if isinstance(self.evidence.window, Lookup):
            self.evidence.window.place(chunk, None)

    def advance(self, until_ms: int) -> None:
        """Fires what is left up to a time."""
        self._told(self._breaker.advance(until_ms))

    def _told(self, effects: Iterable[Effect]) -> None:
        """Tells effects; where evidence begins anew meanwhile, that is with the current row."""
        self._pass_on(effects, self._breaker, self._row)

    def _pass_on(self, effects: Iterable[Effect], breaker: Breaker, row: int) -> None:
        """Tells effects, and where among them the end of an override puts the machine into half_open. Evidence that
        begins anew does so with a row; the floor may then be of the very instant of the last one."""
        steered_ms, floor_ms = self._steered_at(breaker), breaker.schedule.record.evidence_floor_ms
        if steered_ms is not None or floor_ms != self._floors[-1].ms:
            self._floors.append(Floor(floor_ms, row, True))
        if steered_ms is not None:
            effects = list(effects)
            before = sum(_is_before(effect, steered_ms) for effect in effects)
            self._tell(effects[:before])
            self._steered(steered_ms)
            effects = effects[before:]
        self._tell(effects)

    def _steered_at(self, breaker: Breaker) -> int | None:
        """When an override with `then` ended since this was last asked."""
        override, until_ms = breaker.schedule.record.override, self._steers
        self._steers = override.until_ms if override is not None and override.then is not None else None
        return min(until_ms, breaker.now_ms) if until_ms is not None and override is None else None

    def watch(self, look: Callable[[int, float | None], None], instants: Int64, chunk: Chunk) -> None:
        """`look` is told the value found at the last arrival before each of these instants, within the next chunk."""
        arrivals = np.searchsorted(chunk.times, instants, "right") - 1
        self._look, self._looks = look, np.unique(arrivals[arrivals >= 0]).tolist()

    def walk(self, chunk: Chunk, search: BreachSearch, bounds: WindowBounds | None) -> None:
        """Takes the chunk's arrivals; ends right after the last one."""
        self._enter(chunk, bounds)
        self._search = search
        self._fire_before(0)
        arrival = 0
        for look in self._looks:
            self._stops = look + 1
            arrival = self._walk_to(look + 1, arrival, bounds)
            self._look(self._breaker.now_ms, self.evidence.value())
            self._stops = -1
            self._fire_before(arrival)
        self._walk_to(len(chunk.times), arrival, bounds)
        self._count_lost(len(chunk.at), bounds)
        self._looks = []
        del self._search  # with all that was worked out for the windows of this chunk

    def _walk_to(self, stop: int, arrival: int, bounds: WindowBounds | None) -> int:
        """Takes the arrivals up to `stop`."""
        stretch = STRETCH_FIRST
        while arrival < stop:
            begun = arrival
            try:
                for _ in range(BUSY_LEGS):
                    arrival = self._leg(arrival, stop) if arrival < stop else stop
            except TooWide:  # where to go next can't be told; nothing has moved since
                self._step_through(arrival, stop, bounds)
                self._fire_before(stop)
                return stop
            if arrival == stop or arrival - begun > BUSY_LEGS * BUSY_ARRIVALS:
                stretch = STRETCH_FIRST
                continue
            until = min(stop, arrival + max(stretch, 4 * self._breaker.samples_held))
            self._step_through(arrival, until, bounds)
            self._fire_before(until)
            arrival, stretch = until, 2 * stretch
        return stop

    def step_through(self, chunk: Chunk) -> None:
        """The same, one arrival after the other, as the core does it."""
        self._enter(chunk, None)
        arrival = 0
        for stop in [*(look + 1 for look in self._looks), len(chunk.times)]:
            if arrival < stop:
                self._step_through(arrival, stop, None)
            self._look(self._breaker.now_ms, self.evidence.value())
            arrival = stop
        self._looks = []

    def _enter(self, chunk: Chunk, bounds: WindowBounds | None) -> None:
        """Stands at the start of the chunk, with what was seen before."""
        self._chunk, self._times = chunk, chunk.times
        self._row = self._counted = chunk.start
        self._floors = [Floor(self._breaker.schedule.record.evidence_floor_ms, chunk.start, False)]
        window = self.evidence.window
        if isinstance(window, Lookup):
            window.place(chunk, bounds.prefixes if bounds is not None and chunk.in_order else None)

    def _step_through(self, start: int, stop: int, bounds: WindowBounds | None) -> None:
        """The arrivals start..stop-1 by a breaker that keeps its window."""
        chunk, old = self._chunk, self.evidence
        self._told(self._breaker.advance(int(self._times[start]) - 1))
        self._count_lost(chunk.begin(start), bounds)
        breaker = self._kind.restore(self._rule, self._breaker.record(), window_samples_max=self._samples_max)
        breaker.evidence.trace = old.trace
        breaker.load(chunk.held(chunk.begin(start)), breaker.now_ms)
        for arrival, time in enumerate(self._times[start:stop].tolist(), start):
            effects = breaker.ingest(chunk.batch(arrival), time)
            if effects or self._steers is not None:
                # Evidence starts anew before the arrival, or with it when that is what ended the wait.
                with_it = breaker.schedule.record.evidence_floor_ms == time
                self._pass_on(effects, breaker, int(chunk.ends[arrival]) if with_it else chunk.begin(arrival))
        self._row = self._counted = int(chunk.ends[stop - 1])
        self._take_over(breaker, old)

    def _take_over(self, breaker: Breaker, old: ChunkEvidence) -> None:
        """Goes on where the breaker is, at the current row."""
        self._breaker = self._kind.restore(
            self._rule, breaker.record(), window_samples_max=self._samples_max, evidence=self._make_evidence
        )
        evidence = self.evidence
        evidence.trace = breaker.evidence.trace
        if isinstance(evidence.window, Lookup) and isinstance(old.window, Lookup):
            evidence.window.place(self._chunk, old.window.prefixes)
            evidence.window.stand(self._row)

    def _leg(self, arrival: int, total: int) -> int:
        """To the next evaluation that may change something; every timer before `arrival` has fired. Where to go on."""
        to, comes, clear = self._next(arrival, total)
        if to > arrival:
            self._stand_after(to - 1, clear and to < total)
        self._fire_before(to)
        if not comes:
            return to
        self._row = int(self._chunk.ends[to])
        self._told(self._breaker.ingest(self._chunk.batch(to), int(self._times[to])))
        self._fire_before(to + 1)
        return to + 1

    def _fire_before(self, arrival: int) -> None:
        """The timers before an arrival; behind the last one they wait for what comes next, and before the one at which
        a walk stops to look, until it has looked: samples that leave meanwhile are in what it found."""
        if arrival < len(self._times) and arrival != self._stops:
            self._told(self._breaker.fire(int(self._times[arrival]) - 1))

    def _stand_after(self, arrival: int, clear: bool) -> None:
        """As if each arrival up to this one had been evaluated. `clear`: the last one found no breach."""
        evidence, row, now = self.evidence, int(self._chunk.ends[arrival]), int(self._times[arrival])
        evidence.see(self._chunk.newest_trace(self._row, row))
        self._row = row
        if isinstance(evidence.window, Lookup):
            evidence.window.stand(row)
        self._search.stand(arrival, evidence, self._floors[-1])
        self._breaker.schedule.now = now
        evidence.expire(now)
        if clear:
            self._breaker.pass_by(now)
        else:
            effects = self._breaker.evaluate(now, "ingest")
            assert not effects, "an evaluation passed by would have changed something"

    # -- where to go next ---------------------------------------------------------------------------------------------

    def _next(self, start: int, total: int) -> tuple[int, bool, bool]:
        """(arrival, whether it is evaluated itself or only timers right before it, whether the one before is clear)."""
        override_end = self._breaker.schedule.override_end()
        if override_end is not None:
            total = min(total, _first_behind(self._times, override_end, start))
        schedule, evidence = self._breaker.schedule, self.evidence
        record = schedule.record
        if record.state == "open":
            return _end_of_open(self._breaker, self._times, start, total)
        half_open, ripe_ms = record.state == "half_open", schedule.ripe_ms()
        first, stop = start, total
        if half_open or evidence.is_delta:
            tick_ms = max(schedule.next_tick, schedule.tick_from(int(self._times[start])))
            stop = min(stop, _first_behind(self._times, tick_ms, start))
        nothing_to_lose = not half_open or (record.step == 1 and not record.passes)
        is_unripe = ripe_ms >= self._times[start]
        if nothing_to_lose and is_unripe:
            stop = min(stop, _first_behind(self._times, ripe_ms, start))
            first = min(stop, _first(self._times, ripe_ms, start))
        ticks_pass = not (half_open or evidence.is_delta or is_unripe)
        if evidence.ready_ms > self._times[start]:
            # Nothing is a breach before that; what is, shows at the next timer or arrival.
            return min(stop, _first(self._times, evidence.ready_ms, start)), False, True
        to, comes = self._first_breach(first, stop, ripe_ms if ticks_pass else None)
        return to, comes, to - 1 >= first

    def _first_breach(self, start: int, stop: int, ripe_ms: int | None) -> tuple[int, bool]:
        """(the first breaching arrival in start..stop-1, True), or (`stop`, False); with `ripe_ms` also ticks from then
        on between the arrivals: then (the arrival after the tick, False)."""
        evidence, floor, size = self.evidence, self._floors[-1], SEARCH_FIRST
        while start < stop:
            end = min(start + size, stop)
            hit = self._search.breach(start, end, evidence, floor)
            if ripe_ms is not None:
                tick = self._search.tick(start, end, self._breaker.schedule.record.grid_ms, ripe_ms, floor)
                if tick is not None and (hit is None or tick <= hit):
                    return tick, False
            if hit is not None:
                return hit, True
            start, size = end, min(size * SEARCH_GROWTH, SEARCH_MOST)
        return stop, False

    def _count_lost(self, stop: int, bounds: WindowBounds | None) -> None:
        """Samples before row `stop`, from the last count on, that came too late, or left early because more than
        `samples_max` would be held."""
        chunk, evidence = self._chunk, self.evidence
        edges = [floor.row for floor in self._floors[1:]] + [stop]
        for floor, edge in zip(self._floors, edges, strict=True):
            rows = slice(max(floor.row, self._counted), min(edge, stop))
            if bounds is None or rows.start >= rows.stop:
                continue
            if chunk.eff is not chunk.at:
                low = np.maximum(chunk.at[rows] - bounds.window_ms, floor.ms - 1)
                evidence.late += int(np.count_nonzero(chunk.eff[rows] <= low))
            if bounds.truncated:
                evidence.truncated += bounds.truncated_between(rows.start, rows.stop, floor.ms)
        self._counted = stop


def _watched(watch: Callable[[], None]) -> type[Breaker]:
    """Breakers of the core that call `watch` with each evaluation."""

    class Watched(Breaker):
        """It may be stopped by an exception of who watches."""

        __slots__ = ()

        def evaluate(self, now: int, trigger: Any) -> tuple[Effect, ...]:
            watch()
            return super().evaluate(now, trigger)

    return Watched


def _is_before(effect: Effect, override_end_ms: int) -> bool:
    """Whether it came before the end of an override. At that instant those of batches did, hidden by it."""
    hidden = isinstance(effect, Transition) and effect.hidden_by == "override"
    return effect.ts_ms < override_end_ms or (effect.ts_ms == override_end_ms and hidden)


def _end_of_open(breaker: Breaker, times: Int64, start: int, total: int) -> tuple[int, bool, bool]:
    """Where to go on in open; see `_next`."""
    due = breaker.schedule.deadline()
    if due is None:
        return start, True, True
    to = min(total, _first(times, due, start))
    return to, to < total and int(times[to]) == due, True


def _first(times: Int64, instant_ms: int, start: int) -> int:
    """The first arrival from `start` on that is not before the instant."""
    return start + int(np.searchsorted(times[start:], instant_ms, "left"))


def _first_behind(times: Int64, instant_ms: int, start: int) -> int:
    """The first arrival from `start` on that is after the instant."""
    return start + int(np.searchsorted(times[start:], instant_ms, "right"))
