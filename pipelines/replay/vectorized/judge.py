"""One breaker after the other over the same samples in memory, each as far as it is worth following.

What the columns, the windows of one length and the order statistics cost is paid once for all breakers. The machine is
the one of `pipelines.replay.vectorized.breaker`, so the outcome is that of a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from breaker_actors.core.machine import SAMPLES_MAX
from breaker_actors.core.model import Effect, Rule, Transition
from pipelines.columns import Chunk, Samples
from pipelines.replay.scoring import Tally
from pipelines.replay.vectorized.aggregates import RANKED
from pipelines.replay.vectorized.breach_search import Streaks, Windows
from pipelines.replay.vectorized.breach_tests import breach_test_of
from pipelines.replay.vectorized.breaker import VectorizedBreaker
from pipelines.replay.vectorized.exact_sums import TooWide
from pipelines.replay.vectorized.order_statistics import Cuts, cut_of
from pipelines.replay.vectorized.prefix_columns import PrefixColumns
from pipelines.replay.vectorized.window_bounds import NotVectorizable, WindowBounds


class GivenUp(Exception):
    """The caller has seen enough of the breaker."""


class Judge:
    """Samples, at least one, in order of arrival; and the windows over them that were asked for. `watch` is called
    again and again while it works, and may stop that by an exception."""

    def __init__(
        self, samples: Samples, window_samples_max: int = SAMPLES_MAX, watch: Callable[[], None] | None = None
    ) -> None:
        self.watch = watch
        self.chunk, self._max = Chunk(samples, 0), window_samples_max
        self.first_ms, self.last_ms = int(self.chunk.times[0]), int(self.chunk.times[-1])
        self.prefixes = PrefixColumns(self.chunk.eff, self.chunk.value, self.chunk.ok, self.chunk.in_order)
        self._bounds: dict[int, WindowBounds | None] = {}

    def bounds(self, window_ms: int) -> WindowBounds | None:
        """The windows of one length; None where they can't be told by prefix sums."""
        if window_ms not in self._bounds:
            try:
                found = WindowBounds(self.chunk, window_ms, self._max, self.prefixes)
            except NotVectorizable:
                found = None
            self._bounds[window_ms] = found
        return self._bounds[window_ms]

    def cuts(self, rules: Sequence[Rule]) -> Cuts | None:
        """What rules share that differ in their threshold alone; None where that is nothing."""
        ranked = rules[0].kind in RANKED
        return Cuts([cut_of(rule.op, rule.threshold) for rule in rules]) if ranked else None

    def follow(
        self, rule: Rule, tally: Tally, cuts: Cuts | None = None, enough: Callable[[int], bool] | None = None
    ) -> bool:
        """Fills the tally in. False: `enough`, asked after each move with its time, gave the breaker up; the tally then
        tells how it was until then. `cuts`: of this rule and others."""

        def tell(effects: Iterable[Effect]) -> None:
            tally.tell(effects)
            for effect in effects:
                if enough is not None and isinstance(effect, Transition) and enough(effect.ts_ms):
                    raise GivenUp

        walker = VectorizedBreaker(rule, tell, False, self._max, watch=self.watch)
        tally.begin(self.first_ms)
        try:
            walker.create(self.first_ms, 0, None)
            self._walk(walker, rule, cuts)
            walker.advance(self.last_ms)
        except GivenUp:
            return False
        tally.finish(self.last_ms)
        return True

    def _walk(self, walker: VectorizedBreaker, rule: Rule, cuts: Cuts | None) -> None:
        if self.chunk.count is not None:
            walker.step_through(self.chunk)
            return
        if rule.kind == "consecutive_failures":
            walker.walk(self.chunk, Streaks(rule, self.chunk, walker.evidence), None)
            return
        bounds = self.bounds(rule.window_ms)
        try:
            if bounds is None:
                raise TooWide
            test = breach_test_of(rule, bounds, self.cuts([rule]) if cuts is None else cuts)
            walker.walk(self.chunk, Windows(rule, bounds, test), bounds)
        except TooWide:
            walker.step_through(self.chunk)
