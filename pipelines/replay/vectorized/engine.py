"""Many rules over the same samples, chunk by chunk, in memory that does not grow with the input.

Rules share what they can: the columns, the windows of one length, the figures over them. Each is then walked from edge
to edge (`pipelines.replay.vectorized.breaker`). The transitions are those of `pipelines.replay.reference`, which is the
reference; tests/parity holds the two against each other. A stretch that can't be told by prefix sums is taken by the
core itself, and so is one with samples that stand for several observations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from breaker_actors.core.machine import SAMPLES_MAX
from breaker_actors.core.model import Control, Effect, Int64, Record, Rule
from breaker_actors.errors import Invalid
from pipelines.columns import Chunk, Samples
from pipelines.replay.vectorized.aggregates import RANKED
from pipelines.replay.vectorized.breach_search import Streaks, Windows
from pipelines.replay.vectorized.breach_tests import breach_test_of
from pipelines.replay.vectorized.breaker import VectorizedBreaker
from pipelines.replay.vectorized.exact_sums import TooWide
from pipelines.replay.vectorized.order_statistics import Cuts, cut_of
from pipelines.replay.vectorized.prefix_columns import PrefixColumns
from pipelines.replay.vectorized.window_bounds import NotVectorizable, WindowBounds

CHUNK_ROWS = 1 << 20
ARRIVAL_ROWS_MAX = 1 << 22
"""Samples of one arrival are held together; more of them are refused."""

Tell = Callable[[Iterable[Effect]], None]
Look = Callable[[int, float | None], None]


class WindowsTooLarge(Exception):
    """The windows hold so many samples that they don't fit into the rows allowed."""


@dataclass
class Walk:
    """One rule on its way. `tell` gets its effects in order; `figures` False: events need not say value and agg.

    `look` is told the value that the breaker found at the last arrival before each of the engine's `instants`;
    `steered`, in the order of the effects, when an override that ends puts the machine into half_open, which may be
    told by none of them. `follows_log`: its rule may change on the way. `hears`: whose gaps and settings concern it
    beside those of all, and `last_ms` the last of them. `watch` is called with each evaluation that is
    run; what it raises ends the replay."""

    rule: Rule
    tell: Tell
    figures: bool = True
    look: Look | None = None
    steered: Callable[[int], None] | None = None
    follows_log: bool = False
    watch: Callable[[], None] | None = None
    hears: str = ""
    last_ms: int = 0
    walker: VectorizedBreaker | None = None


class FastReplay:
    """Takes samples in arrival order, any number at a time, and moves the breakers over them.

    Every breaker is created at the first sample's time, or before it by `create`. Late samples and those left out by
    `window_samples_max` are counted per breaker.
    """

    def __init__(
        self,
        walks: Sequence[Walk],
        *,
        chunk_rows: int = CHUNK_ROWS,
        rows_max: int | None = None,
        window_samples_max: int = SAMPLES_MAX,
        instants: Int64 | None = None,
    ) -> None:
        """`chunk_rows`: how many new samples are walked over at a time; `rows_max`: with those that lie in windows;
        `feed` raises WindowsTooLarge when that is too little."""
        self._instants = instants
        self._walks, self._chunk_rows, self._max = walks, chunk_rows, window_samples_max
        self._rows_max = rows_max
        self._held = Samples.nothing()
        self._waiting: list[Samples] = []
        self._rows_waiting = 0
        self._last_ms: int | None = None
        self._controls: dict[str, Control] = {}
        self._longest_ms = 0
        self._group()

    def create(self, created_ms: int, after_seq: int = 0, control: Control | None = None) -> None:
        """Creates the breakers; to be called before the first sample, whose time it is otherwise. Their transitions are
        numbered from `after_seq` + 1; `control`: their mode and override from the beginning."""
        self._heard_until(created_ms)
        for walk in self._walks:
            walk.walker = VectorizedBreaker(walk.rule, walk.tell, walk.figures, self._max, walk.steered, walk.watch)
            walk.walker.create(created_ms, after_seq, self._controls.get(walk.hears, control))

    def resume(self, record: Record, held: Samples) -> None:
        """Takes the breakers up as of a record, in the place of `create`. `held`: the samples before that may lie in
        their windows, in order of arrival; they are not evaluated again."""
        self._held = held
        self._heard_until(record.now_ms)
        for walk in self._walks:
            walk.walker = VectorizedBreaker(walk.rule, walk.tell, walk.figures, self._max, walk.steered, walk.watch)
            walk.walker.resume(record, held)

    def _heard_until(self, last_ms: int) -> None:
        self._last_ms = last_ms
        for walk in self._walks:
            walk.last_ms = last_ms

    def gap(self, from_ms: int, to_ms: int, of: str = "") -> None:
        """No sample could come in between (semantics.md section 2); what was fed came before that. `of`: for the walks
        that hear of this one; "": for all."""
        self._flush(whole=True)
        if self._last_ms is None:
            return
        for walk in self._concerned(of, to_ms):
            assert walk.walker is not None
            walk.walker.gap(from_ms, to_ms)

    def control(self, control: Control, at_ms: int, of: str = "") -> None:
        """Mode and override from then on; what was fed came before that. Breakers that are not there yet begin so."""
        self._flush(whole=True)
        if self._last_ms is None:
            self._controls[of] = control
            return
        for walk in self._concerned(of, at_ms):
            assert walk.walker is not None
            walk.walker.control(control, at_ms)

    def _concerned(self, of: str, at_ms: int) -> list[Walk]:
        """The walks that hear of something that happens then."""
        found = [walk for walk in self._walks if of in ("", walk.hears)]
        for walk in found:
            walk.last_ms = max(walk.last_ms, at_ms)
        return found

    def configure(self, rule: Rule, at_ms: int, longest_ms: int, of: str = "") -> None:
        """From here on the walks that follow the log have this rule. `longest_ms`: the longest window they will have;
        told before the first sample."""
        followers = [walk for walk in self._walks if walk.follows_log and of in ("", walk.hears)]
        if not followers:
            return
        self._flush(whole=True)
        for walk in followers:
            walk.rule = rule
            if walk.walker is not None:
                walk.walker.configure(rule, at_ms, self._held)
        if self._last_ms is not None:
            self._concerned(of, at_ms)
        self._longest_ms = max(self._longest_ms, longest_ms)
        self._group()

    def _group(self) -> None:
        """Puts together the walks that share what is worked out."""
        self._by_window = _by_window(self._walks)
        self._window_ms = max([self._longest_ms, *self._by_window])
        self._cuts = _cuts_by_family([walk.rule for walk in self._walks])

    def feed(self, samples: Samples) -> None:
        """The next samples; they are walked over once there are enough of them."""
        taken = 0
        while taken < len(samples):
            until = min(len(samples), taken + max(1, self._enough() - self._rows_waiting))
            self._waiting.append(samples.part(taken, until))
            self._rows_waiting += until - taken
            taken = until
            if self._rows_waiting >= self._enough():
                self._flush(whole=False)

    def _enough(self) -> int:
        """New samples that are walked over at once. Fewer than a quarter of what windows hold would be wasteful."""
        held = len(self._held)
        if self._rows_max is None:
            return self._chunk_rows
        if held + held // 4 > self._rows_max:
            raise WindowsTooLarge(held)
        return min(self._chunk_rows, max(self._rows_max - held, held // 4))

    def finish(self) -> int | None:
        """What is left, and timers up to the time of the last sample, or end of a gap or control where that is later,
        of each walk in its `last_ms`. The last of all is returned; None: there was no sample."""
        self._flush(whole=True)
        if self._last_ms is None:
            return None
        for walk in self._walks:
            assert walk.walker is not None
            walk.walker.advance(walk.last_ms)
        return max((walk.last_ms for walk in self._walks), default=self._last_ms)

    def _flush(self, whole: bool) -> None:
        """Walks over what waits; the last arrival may go on with the next samples, so it waits on unless `whole`."""
        if not self._waiting:
            return
        held = len(self._held)
        samples = Samples.joined([self._held, *self._waiting] if held else self._waiting)
        cut = len(samples) if whole else held + int(np.searchsorted(samples.at[held:], samples.at[-1], "left"))
        if cut == held and self._rows_waiting > ARRIVAL_ROWS_MAX:
            raise Invalid(f"more than {ARRIVAL_ROWS_MAX} samples share the time {int(samples.at[-1])}")
        rest = samples.copied(cut, len(samples))
        self._waiting, self._rows_waiting = [rest] if len(rest) else [], len(rest)
        if cut > held:
            self._walk(Chunk(samples.part(0, cut), held))

    def _walk(self, chunk: Chunk) -> None:
        if self._last_ms is None:
            self.create(int(chunk.times[0]), control=self._controls.get(""))
        self._heard_until(int(chunk.times[-1]))
        prefixes = PrefixColumns(chunk.eff, chunk.value, chunk.ok, chunk.in_order)
        for window_ms, walks in self._by_window.items():
            self._walk_windows(chunk, window_ms, walks, prefixes)
        self._held = chunk.still_held(self._window_ms, self._max)

    def _walk_windows(self, chunk: Chunk, window_ms: int, walks: Sequence[Walk], prefixes: PrefixColumns) -> None:
        """All rules with windows of this length; what is worked out for them alone is gone afterwards."""
        bounds = self._bounds(chunk, window_ms, prefixes)
        for walk in walks:
            self._walk_one(walk, chunk, bounds)

    def _bounds(self, chunk: Chunk, window_ms: int, prefixes: PrefixColumns) -> WindowBounds | None:
        """The windows of one length; None where they can't be told so."""
        if not window_ms:
            return None
        try:
            return WindowBounds(chunk, window_ms, self._max, prefixes)
        except NotVectorizable:
            return None

    def _walk_one(self, walk: Walk, chunk: Chunk, bounds: WindowBounds | None) -> None:
        walker, rule = walk.walker, walk.rule
        assert walker is not None
        if walk.look is not None and self._instants is not None:
            first, last = np.searchsorted(self._instants, chunk.times[[0, -1]], "left")
            walker.watch(walk.look, self._instants[first : last + 1], chunk)
        if chunk.count is not None:
            walker.step_through(chunk)
            return
        if rule.kind == "consecutive_failures":
            walker.walk(chunk, Streaks(rule, chunk, walker.evidence), None)
            return
        try:
            if bounds is None:
                walker.step_through(chunk)
            else:
                breach_test = breach_test_of(rule, bounds, self._cuts.get(_family(rule)))
                walker.walk(chunk, Windows(rule, bounds, breach_test), bounds)
        except TooWide:
            walker.step_through(chunk)


def _by_window(walks: Sequence[Walk]) -> dict[int, list[Walk]]:
    """Rules by the length of their windows; 0 stands for none. Those that share figures are neighbours."""
    groups: dict[int, list[Walk]] = {}
    for walk in sorted(walks, key=lambda walk: (_family(walk.rule), walk.rule.eval_interval_ms, walk.rule.min_count)):
        length = 0 if walk.rule.kind == "consecutive_failures" else walk.rule.window_ms
        groups.setdefault(length, []).append(walk)
    return groups


def _family(rule: Rule) -> tuple[int, str, str]:
    """Rules whose order statistics are worked out together."""
    return rule.window_ms, rule.kind, str(rule.kind_params)


def _cuts_by_family(rules: Iterable[Rule]) -> dict[object, Cuts]:
    cuts: dict[object, list[float]] = {}
    for rule in rules:
        if rule.kind in RANKED:
            cuts.setdefault(_family(rule), []).append(cut_of(rule.op, rule.threshold))
    return {family: Cuts(those) for family, those in cuts.items()}
