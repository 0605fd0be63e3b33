"""Holds what a breaker did in a test against what was expected."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from breaker_actors.core.model import BreakerMode, View
from pipelines.candidates import SIGNS
from pipelines.rules.model import Declared
from pipelines.ruletests.cases import Case, Course, course
from pipelines.ruletests.expectations import Expected, Got, told, wrong_in
from pipelines.ruletests.playing import Played, play

LOOKS_MAX = 1_000
"""Instants of a test at which is looked whether its rule came to a verdict."""


@dataclass(frozen=True, slots=True)
class Row:
    """What was expected and what was got, side by side; one of them may be missing. `value`, `count`: the rule's value
    and the observations of the window at that instant; `problem`: why it fails, empty where it holds."""

    expected: Expected | None
    got: Got | None
    value: float | None
    count: int | None
    problem: str

    @property
    def at_ms(self) -> int:
        at = self.expected or self.got
        assert at is not None
        return at.at_ms


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one breaker in one test. `rows`: all of them where it failed, those of states else; `moves`: what
    the breaker did."""

    case: Case
    breaker: Declared
    rows: tuple[Row, ...]
    moves: tuple[Got, ...]
    passed: bool
    took_s: float = 0.0

    @property
    def threshold(self) -> str:
        """What a value is compared with, as `> 0.05`."""
        rule = self.breaker.rule
        return "" if rule is None else f"{SIGNS[rule.op]} {rule.threshold:g}"


def mode_of(breaker: Declared) -> BreakerMode:
    """The mode that a breaker is declared with."""
    return "observe" if breaker.fields.get("mode") == "observe" else "enforce"


def looks_of(lines: Sequence[Expected]) -> list[int]:
    """The instants at which states are expected."""
    return sorted({line.at_ms for line in lines if line.kind == "state"})


def judged(case: Case, breaker: Declared, course: Course, played: Played, took_s: float = 0.0) -> Outcome:
    """The outcome of a test. Where it failed the test is played once more, for the figures where a move is missing."""
    lines = case.expect[breaker.name]
    moves = compared(lines, played)
    rows = _rows(lines, moves, played.views)
    passed = not any(row.problem for row in rows)
    if not passed:
        missing = {line.at_ms for line in lines if line.kind != "state"} | {row.at_ms for row in rows}
        looks = sorted(at_ms for at_ms in missing if case.start_ms <= at_ms <= case.until_ms)
        again = play(case, [course], mode_of(breaker), looks)[0]
        rows = _rows(lines, moves, again.views)
    return Outcome(case, breaker, rows, tuple(told(played.effects)), passed, took_s)


def judgements(one: Outcome) -> int:
    """At how many instants of a test its rule came to a verdict: of those of samples, of more than LOOKS_MAX evenly
    chosen ones, and of the end."""
    case, rule = one.case, one.breaker.rule
    assert rule is not None
    at = case.arrivals.of(rule.metric).at
    times = np.unique(at[(at >= case.start_ms) & (at <= case.until_ms)])
    looks = sorted({*times[:: len(times) // LOOKS_MAX + 1].tolist(), case.until_ms})
    played = play(case, [course(case, rule)], mode_of(one.breaker), looks)[0]
    return sum(view.verdict != "indeterminate" for view in played.views.values())


def holds_for(lines: Sequence[Expected], played: Played) -> bool:
    """Whether all lines hold; no more is asked of a mutant."""
    return not any(row.problem for row in _rows(lines, compared(lines, played), played.views))


def compared(lines: Sequence[Expected], played: Played) -> list[tuple[Expected | None, Got | None]]:
    """Moves that were expected and got, paired; those that have no counterpart are alone."""
    wanted = [line for line in lines if line.kind != "state"]
    if not wanted and lines:
        return []
    ramps = any(line.kind == "ramp" for line in wanted)
    got = [one for one in told(played.effects) if ramps or not one.words.startswith("ramp")]
    words = [line.words for line in wanted], [one.words for one in got]
    if words[0] == words[1]:
        return list(zip(wanted, got, strict=True))
    pairs: list[tuple[Expected | None, Got | None]] = []
    matcher = difflib.SequenceMatcher(None, *words, autojunk=False)
    for word, first, last, begin, end in matcher.get_opcodes():
        if word == "equal":
            pairs += zip(wanted[first:last], got[begin:end], strict=True)
        else:
            pairs += [(line, None) for line in wanted[first:last]] + [(None, one) for one in got[begin:end]]
    return pairs


def _rows(
    lines: Sequence[Expected], moves: Sequence[tuple[Expected | None, Got | None]], views: dict[int, View]
) -> tuple[Row, ...]:
    rows = [_move_row(line, got, views) for line, got in moves]
    for line in lines:
        if line.kind == "state":
            rows.append(_state_row(line, views[line.at_ms]))
    return tuple(sorted(rows, key=lambda row: row.at_ms))


def _move_row(line: Expected | None, got: Got | None, views: dict[int, View]) -> Row:
    problem = "unexpected" if line is None else "missing" if got is None else ", ".join(wrong_in(line, got))
    at = got or line
    assert at is not None
    view = views.get(at.at_ms)
    value: Any = None if view is None else view.value
    count: Any = None if view is None else view.sample_count
    if got is not None and got.figures.get("value") is not None:
        value, count = got.figures["value"], got.figures["count"]
    return Row(line, got, value, count, problem)


def _state_row(line: Expected, view: View) -> Row:
    figures: dict[str, Any] = {"value": view.value, "count": view.sample_count, "rate": view.allow_rate}
    figures |= {"verdict": view.verdict, "machine": view.machine_state}
    got = Got(line.at_ms, view.state, view.allow_rate, figures)
    problems = [] if line.words == view.state else [f"is {view.state}"]
    return Row(line, got, view.value, view.sample_count, ", ".join(problems + wrong_in(line, got)))
