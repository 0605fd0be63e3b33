"""A breaker that walks over columns: the core's own machine and timers, over windows that are looked up.

Only the evaluations that may change something are run; `pipelines.fast.outlook` tells where the next one is. No rule of
semantics.md is repeated here but one: which evaluations can't change anything, given where breaches are.

- closed: none before the minimum duration is over, from then on all that find no breach. For delta, ticks are run.
- open: none before its wait is over.
- half_open: ticks are run; between them none that finds no breach, and while nothing can be lost (first step, no
  passes) none before the minimum duration is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Batch, Effect, Int64, Record, Rule, Transition
from pipelines.columns import Chunk
from pipelines.fast.lookup import Lookup, Sight
from pipelines.fast.outlook import Floor, Outlook
from pipelines.fast.tracks import Track

SEARCH_FIRST, SEARCH_MOST = 1 << 10, 1 << 18
"""Arrivals looked at in one go; the longer nothing is found, the more."""
BUSY_LEGS, BUSY_ARRIVALS, STRETCH_FIRST = 32, 12, 1 << 12
"""A walk that takes more than one leg for so many arrivals is left to a breaker of the core for a stretch of them."""


class Walker(Breaker):
    """One breaker, moved from chunk to chunk. `tell` gets its effects in order."""

    __slots__ = (
        "_chunk",
        "_counted",
        "_floors",
        "_look",
        "_looks",
        "_outlook",
        "_row",
        "_samples_max",
        "_tell",
        "_times",
    )

    _evidence: Sight

    def __init__(self, rule: Rule, record: Record, window_samples_max: int) -> None:
        super().__init__(rule, record, window_samples_max)
        self._evidence = Sight(rule, record, window_samples_max)
        self._samples_max = window_samples_max
        self._tell: Callable[[Iterable[Effect]], None] = lambda effects: None
        self._look: Callable[[int, float | None], None] = lambda now_ms, value: None
        self._looks: list[int] = []
        self._row, self._floors = 0, [Floor(record.evidence_floor_ms, 0, False)]

    def bind(self, tell: Callable[[Iterable[Effect]], None], figures: bool) -> None:
        """Who gets the effects, and whether events are to say value and agg."""
        self._tell, self._evidence.figures = tell, figures

    def watch(self, look: Callable[[int, float | None], None], instants: Int64, chunk: Chunk) -> None:
        """`look` is told the value found at the last arrival before each of these instants, within the next chunk."""
        arrivals = np.searchsorted(chunk.times, instants, "right") - 1
        self._look, self._looks = look, np.unique(arrivals[arrivals >= 0]).tolist()

    @property
    def sight(self) -> Sight:
        """What is known of the samples."""
        return self._evidence

    def walk(self, chunk: Chunk, outlook: Outlook, track: Track | None) -> None:
        """Takes the chunk's arrivals; ends right after the last one."""
        self._enter(chunk, track)
        self._outlook = outlook
        self._fire_before(0)
        arrival = 0
        for look in self._looks:
            arrival = self._walk_to(look + 1, arrival, track)
            self._look(self._now, self._evidence.value())
        self._walk_to(len(chunk.times), arrival, track)
        self._count_lost(len(chunk.at), track)
        self._looks = []
        del self._outlook  # with all that was worked out for the windows of this chunk

    def _walk_to(self, stop: int, arrival: int, track: Track | None) -> int:
        """Takes the arrivals up to `stop`."""
        stretch = STRETCH_FIRST
        while arrival < stop:
            begun = arrival
            for _ in range(BUSY_LEGS):
                arrival = self._leg(arrival, stop) if arrival < stop else stop
            if arrival == stop or arrival - begun > BUSY_LEGS * BUSY_ARRIVALS:
                stretch = STRETCH_FIRST
                continue
            until = min(stop, arrival + max(stretch, 4 * self.held))
            self._plod(arrival, until, track)
            self._fire_before(until)
            arrival, stretch = until, 2 * stretch
        return stop

    def plod(self, chunk: Chunk) -> None:
        """The same, one arrival after the other, as the core does it."""
        self._enter(chunk, None)
        arrival = 0
        for stop in [*(look + 1 for look in self._looks), len(chunk.times)]:
            if arrival < stop:
                self._plod(arrival, stop, None)
            self._look(self._now, self._evidence.value())
            arrival = stop
        self._looks = []

    def _enter(self, chunk: Chunk, track: Track | None) -> None:
        """Stands at the start of the chunk, with what was seen before."""
        self._chunk, self._times = chunk, chunk.times
        self._row = self._counted = chunk.start
        self._floors = [Floor(self._record.evidence_floor_ms, chunk.start, False)]
        window = self._evidence.window
        if isinstance(window, Lookup):
            window.place(chunk, track.flow if track is not None and chunk.in_order else None)

    def _plod(self, start: int, stop: int, track: Track | None) -> None:
        """The arrivals start..stop-1 by a breaker that keeps its window."""
        chunk, old = self._chunk, self._evidence
        self._tell(self.advance(int(self._times[start]) - 1))
        self._count_lost(chunk.begin(start), track)
        breaker = Breaker.restore(self._rule, self.record(), window_samples_max=self._samples_max)
        breaker._evidence.trace = old.trace
        held = slice(0, chunk.begin(start))
        breaker.load(Batch(chunk.eff[held], chunk.value[held], chunk.ok[held]), self._now)
        for arrival, time in enumerate(self._times[start:stop].tolist(), start):
            effects = breaker.ingest(chunk.batch(arrival), time)
            if effects:
                self._note_floors(effects, arrival)
                self._tell(effects)
        self._row = self._counted = int(chunk.ends[stop - 1])
        self._take_over(breaker, old)

    def _note_floors(self, effects: Iterable[Effect], arrival: int) -> None:
        """Evidence starts anew before an arrival, or with it when that is what ended the wait."""
        for effect in effects:
            if isinstance(effect, Transition) and effect.curr == "half_open":
                with_it = effect.ts_ms == self._times[arrival]
                row = int(self._chunk.ends[arrival]) if with_it else self._chunk.begin(arrival)
                self._floors.append(Floor(effect.ts_ms, row, True))

    def _take_over(self, breaker: Breaker, old: Sight) -> None:
        """Goes on where the breaker is, at the current row."""
        self._record = record = breaker.record()
        self._now, self._last_eval = record.now_ms, record.last_eval_ms
        self._evidence = evidence = Sight(self._rule, record, self._samples_max)
        evidence.figures, evidence.trace = old.figures, breaker._evidence.trace
        if isinstance(evidence.window, Lookup) and isinstance(old.window, Lookup):
            evidence.window.place(self._chunk, old.window.flow)
            evidence.window.stand(self._row)
        self._use(self._rule)

    def _leg(self, arrival: int, total: int) -> int:
        """To the next evaluation that may change something; every timer before `arrival` has fired. Where to go on."""
        to, comes, clear = self._next(arrival, total)
        if to > arrival:
            self._stand_after(to - 1, clear and to < total)
        self._fire_before(to)
        if not comes:
            return to
        self._row = int(self._chunk.ends[to])
        self._tell(self.ingest(self._chunk.batch(to), int(self._times[to])))
        self._fire_before(to + 1)
        return to + 1

    def _fire_before(self, arrival: int) -> None:
        """The timers before an arrival; behind the last one they wait for what comes next."""
        if arrival < len(self._times):
            self._tell(self._fire(int(self._times[arrival]) - 1))

    def _stand_after(self, arrival: int, clear: bool) -> None:
        """As if each arrival up to this one had been evaluated. `clear`: the last one found no breach."""
        evidence, row, now = self._evidence, int(self._chunk.ends[arrival]), int(self._times[arrival])
        evidence.see(self._chunk.newest_trace(self._row, row))
        self._row = row
        if isinstance(evidence.window, Lookup):
            evidence.window.stand(row)
        self._outlook.stand(arrival, evidence, self._floors[-1])
        self._now = now
        evidence.expire(now)
        if clear:
            self._pass_by(now)
        else:
            effects = self._evaluate(now, "ingest")
            assert not effects, "an evaluation passed by would have changed something"

    def _pass_by(self, now: int) -> None:
        """An evaluation that found no breach and changed nothing. The next tick is run whatever it finds."""
        evidence = self._evidence
        evidence.verdict, evidence.peak = "healthy", evidence.streak
        self._clean, self._last_eval, self._due = False, now, now
        if now > self._next_tick:
            self._next_tick = self._tick_from(now)

    # -- where to go next ---------------------------------------------------------------------------------------------

    def _next(self, start: int, total: int) -> tuple[int, bool, bool]:
        """(arrival, whether it is evaluated itself or only timers right before it, whether the one before is clear)."""
        record, evidence = self._record, self._evidence
        if record.state == "open":
            return self._end_of_open(start, total)
        half_open, ripe_ms = record.state == "half_open", record.state_since_ms + self._rule.min_state_duration_ms
        first, stop = start, total
        if half_open or evidence.is_delta:
            tick_ms = max(self._next_tick, self._tick_from(int(self._times[start])))
            stop = min(stop, self._after(tick_ms, start))
        nothing_to_lose = not half_open or (record.step == 1 and not record.passes)
        young = ripe_ms >= self._times[start]
        if nothing_to_lose and young:
            stop = min(stop, self._after(ripe_ms, start))
            first = min(stop, self._at(ripe_ms, start))
        ticks_pass = not (half_open or evidence.is_delta or young)
        if evidence.ready_ms > self._times[start]:
            # Nothing is a breach before that; what is, shows at the next timer or arrival.
            return min(stop, self._at(evidence.ready_ms, start)), False, True
        to, comes = self._first_breach(first, stop, ripe_ms if ticks_pass else None)
        return to, comes, to - 1 >= first

    def _end_of_open(self, start: int, total: int) -> tuple[int, bool, bool]:
        due = self._deadline()
        if due is None:
            return start, True, True
        to = min(total, self._at(due, start))
        return to, to < total and int(self._times[to]) == due, True

    def _at(self, instant_ms: int, start: int) -> int:
        """The first arrival from `start` on that is not before the instant."""
        return start + int(np.searchsorted(self._times[start:], instant_ms, "left"))

    def _after(self, instant_ms: int, start: int) -> int:
        """The first arrival from `start` on that is after the instant."""
        return start + int(np.searchsorted(self._times[start:], instant_ms, "right"))

    def _first_breach(self, start: int, stop: int, ripe_ms: int | None) -> tuple[int, bool]:
        """(the first breaching arrival in start..stop-1, True), or (`stop`, False); with `ripe_ms` also ticks from then
        on between the arrivals: then (the arrival after the tick, False)."""
        evidence, floor, size = self._evidence, self._floors[-1], SEARCH_FIRST
        while start < stop:
            end = min(start + size, stop)
            hits = self._outlook.breaches(start, end, evidence, floor)
            found = int(hits.argmax())
            hit = start + found if hits[found] else None
            if ripe_ms is not None:
                tick = self._outlook.tick(start, end, self._record.grid_ms, ripe_ms, floor)
                if tick is not None and (hit is None or tick <= hit):
                    return tick, False
            if hit is not None:
                return hit, True
            start, size = end, min(size * 8, SEARCH_MOST)
        return stop, False

    # -- what else the machine does -----------------------------------------------------------------------------------

    def _half_open(self, now: int) -> Transition:
        moved = super()._half_open(now)
        self._floors.append(Floor(now, self._row, True))
        return moved

    def _count_lost(self, stop: int, track: Track | None) -> None:
        """Samples before row `stop`, from the last count on, that came too late, or left early because more than
        `samples_max` would be held."""
        chunk, evidence = self._chunk, self._evidence
        edges = [floor.row for floor in self._floors[1:]] + [stop]
        for floor, edge in zip(self._floors, edges, strict=True):
            rows = slice(max(floor.row, self._counted), min(edge, stop))
            if track is None or rows.start >= rows.stop:
                continue
            if chunk.eff is not chunk.at:
                low = np.maximum(chunk.at[rows] - track.window_ms, floor.ms - 1)
                evidence.late += int(np.count_nonzero(chunk.eff[rows] <= low))
            if track.truncated:
                evidence.truncated += track.truncated_between(rows.start, rows.stop, floor.ms)
        self._counted = stop
