"""What tests made breakers do: of each rule, the edges of its state machine that were taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import polars as pl

from breaker_actors.core.model import Rule
from breaker_actors.core.moves import TRANSITIONS
from pipelines.rules.model import Declared
from pipelines.ruletests.outcome import Outcome

SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "breaker": pl.String,
    "file": pl.String,
    "line": pl.Int64,
    "edge": pl.String,
    "reason": pl.String,
    "times": pl.Int64,
    "tests": pl.Int64,
}


def edges_of(rule: Rule) -> list[tuple[str, str]]:
    """The moves that a breaker of this rule can make by itself, each with its reasons."""
    found = []
    for (prev, curr), reason in TRANSITIONS.items():
        reasons = [reason or "threshold_exceeded"]
        if prev == "half_open" and curr == "open" and rule.half_open_indeterminate_policy == "pessimistic":
            reasons.append("insufficient_samples")
        found += [(f"{prev} -> {curr}", one) for one in reasons]
    return found


def coverage(breakers: Sequence[Declared], outcomes: Iterable[Outcome]) -> pl.DataFrame:
    """One row for each edge of each rule: how often it was taken, and in how many tests. A rule without a test has
    `tests` 0 throughout."""
    times, tests = Counter[tuple[str, int, str, str, str]](), Counter[tuple[str, int, str, str, str]]()
    for outcome in outcomes:
        place = outcome.breaker.place
        taken = [(one.words.removeprefix("hidden "), str(one.figures.get("reason"))) for one in outcome.moves]
        keys = [(place.file, place.line, outcome.breaker.name, *edge) for edge in taken]
        times.update(keys)
        tests.update(set(keys))
    rows = []
    for one in breakers:
        for edge in edges_of(one.rule) if one.rule is not None else ():
            key = (one.place.file, one.place.line, one.name, *edge)
            rows.append((one.name, one.place.file, one.place.line, *edge, times[key], tests[key]))
    return pl.DataFrame(rows, SCHEMA, orient="row")
