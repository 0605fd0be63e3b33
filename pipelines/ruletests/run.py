"""Runs tests of rules.

from pipelines.ruletests.run import test

run = test("rules/")          # files, or folders with *.test.yaml below them
run.tests                     # a polars frame: one row per test and breaker
run.rows                      # expected and got, with the figures at each instant
run.coverage                  # edges of each rule's state machine, and how often tests took them
test("rules/", mutate=True).mutants   # numbers moved by 10 %, and which test noticed
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from breaker_actors.clock import Clock, SystemClock
from breaker_actors.errors import Invalid
from breaker_actors.text.counting import counted
from pipelines.frames import to_pandas
from pipelines.rules.model import Declared
from pipelines.ruletests.cases import Case, course
from pipelines.ruletests.coverage import coverage
from pipelines.ruletests.expectations import Expected, Got
from pipelines.ruletests.files import Suite, read_tests
from pipelines.ruletests.mutation import Mutant, mutate
from pipelines.ruletests.outcome import Outcome, judged, looks_of, mode_of
from pipelines.ruletests.playing import play

__all__ = ["Invalid", "TestRun", "test"]

Schema = dict[str, pl.DataType | type[pl.DataType]]
INSTANT = pl.Datetime("ms", "UTC")
TESTS: Schema = {
    "file": pl.String, "line": pl.Int64, "test": pl.String, "breaker": pl.String, "passed": pl.Boolean,
    "samples": pl.Int64, "moves": pl.Int64, "took_ms": pl.Float64,
}  # fmt: skip
ROWS: Schema = {
    "file": pl.String, "line": pl.Int64, "test": pl.String, "breaker": pl.String, "problem": pl.String,
    "expected_ms": pl.Int64, "expected": pl.String, "got_ms": pl.Int64, "got": pl.String, "value": pl.Float64,
    "count": pl.Int64, "threshold": pl.Float64, "ts": INSTANT,
}  # fmt: skip
MUTANTS: Schema = {
    "breaker": pl.String, "file": pl.String, "line": pl.Int64, "field": pl.String, "value": pl.Float64,
    "moved": pl.Float64, "tested": pl.Boolean, "killed_by": pl.String,
}  # fmt: skip


@dataclass(slots=True, repr=False)
class TestRun:
    """What came of tests, as polars frames; times are Unix milliseconds, and `ts` as Datetime, UTC.

    - `tests`: file, line, test, breaker, passed, samples, moves, took_ms.
    - `rows`: expectations and moves side by side: file, line, test, breaker, problem (empty where it holds),
      expected_ms, expected, got_ms, got, value and count of the window then, threshold, ts.
    - `coverage`: breaker, file, line, edge, reason, times, tests: a row for each edge of each rule.
    - `mutants`: breaker, file, line, field, value, moved, tested, killed_by (null: it survived); None unless asked for.
    """

    __test__ = False
    outcomes: list[Outcome]
    breakers: tuple[Declared, ...]
    mutants_tried: list[Mutant] | None = None

    @property
    def passed(self) -> bool:
        """Whether every test passed, and no mutant survived where these were asked for."""
        return all(one.passed for one in self.outcomes) and not self.survivors

    @property
    def failures(self) -> list[Outcome]:
        return [one for one in self.outcomes if not one.passed]

    @property
    def survivors(self) -> list[Mutant]:
        return [one for one in self.mutants_tried or () if one.killed_by is None]

    @property
    def tests(self) -> pl.DataFrame:
        rows = [
            (*_head(one), one.passed, len(one.case.arrivals), len(one.moves), one.took_s * 1000)
            for one in self.outcomes
        ]
        return pl.DataFrame(rows, TESTS, orient="row")

    @property
    def rows(self) -> pl.DataFrame:
        rows = []
        for one in self.outcomes:
            threshold = None if one.breaker.rule is None else one.breaker.rule.threshold
            for row in one.rows:
                sides = (*_side(row.expected), *_side(row.got))
                rows.append((*_head(one), row.problem, *sides, row.value, row.count, threshold, row.at_ms))
        return pl.DataFrame(rows, ROWS, orient="row")

    @property
    def coverage(self) -> pl.DataFrame:
        return coverage(self.breakers, self.outcomes)

    @property
    def mutants(self) -> pl.DataFrame | None:
        if self.mutants_tried is None:
            return None
        rows = [
            (
                one.breaker.name, one.breaker.place.file, one.breaker.place.line, one.field, one.value, one.moved,
                one.tested, one.killed_by,
            )
            for one in self.mutants_tried
        ]  # fmt: skip
        return pl.DataFrame(rows, MUTANTS, orient="row")

    def to_pandas(self) -> dict[str, Any]:
        """The frames by name, for pandas."""
        frames = {"tests": self.tests, "rows": self.rows, "coverage": self.coverage, "mutants": self.mutants}
        return {name: to_pandas(frame) for name, frame in frames.items() if frame is not None}

    def to_dict(self, *, with_coverage: bool = False) -> dict[str, Any]:
        """Plain values for JSON."""
        failed = len(self.failures)
        found: dict[str, Any] = {"passed": len(self.outcomes) - failed, "failed": failed}
        found |= {"tests": self.tests.to_dicts(), "rows": self.rows.drop("ts").to_dicts()}
        if with_coverage:
            found["coverage"] = self.coverage.to_dicts()
        if (mutants := self.mutants) is not None:
            found |= {"mutants": mutants.to_dicts(), "survivors": len(self.survivors)}
        return found

    def __repr__(self) -> str:
        return f"TestRun({counted(len(self.outcomes), 'test')}, {len(self.failures)} failed)\n{self.tests}"


def _head(one: Outcome) -> tuple[str, int, str, str]:
    return one.case.place.file, one.case.place.line, one.case.name, one.breaker.name


def _side(one: Expected | Got | None) -> tuple[int | None, str | None]:
    if one is None:
        return None, None
    return one.at_ms, one.words if one.rate is None or "half_open" not in one.words else f"{one.words} {one.rate}"


def test(
    paths: Iterable[str | Path] | str | Path, *, mutate: bool = False, matching: str = "", clock: Clock | None = None
) -> TestRun:
    """Runs the tests of files and folders. Raises Invalid with every problem of the files.

    `mutate`: also move the numbers of the rules by 10 % both ways, which must make a test fail; `matching`: only tests
    with this text in their name; `clock`: of how long each takes."""
    return run_suite(read_tests(paths), mutated=mutate, matching=matching, clock=clock)


test.__test__ = False  # type: ignore[attr-defined] # it is called test, and is none of pytest's


def run_suite(suite: Suite, *, mutated: bool = False, matching: str = "", clock: Clock | None = None) -> TestRun:
    """The same of tests that were read."""
    clock = clock or SystemClock()
    cases = [case for case in suite.cases if matching in case.name]
    if not cases:
        raise Invalid(f"no test has {matching!r} in its name")
    outcomes = [_run(case, breaker, clock) for case in cases for breaker in case.breakers]
    return TestRun(outcomes, suite.breakers, _mutants(outcomes, suite.breakers) if mutated else None)


def _mutants(outcomes: Sequence[Outcome], breakers: Sequence[Declared]) -> list[Mutant]:
    """What fails without any mutant can tell nothing of one."""
    return mutate([(one.case, one.breaker) for one in outcomes if one.passed], breakers)


def _run(case: Case, breaker: Declared, clock: Clock) -> Outcome:
    assert breaker.rule is not None
    begun_s = clock.monotonic()
    rules = course(case, breaker.rule)
    played = play(case, [rules], mode_of(breaker), looks_of(case.expect[breaker.name]))[0]
    return judged(case, breaker, rules, played, clock.monotonic() - begun_s)
