"""Moves the numbers of rules a little; each such mutant must make a test fail, else no test says why it is that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from breaker_actors.core.model import Rule
from breaker_actors.core.rules import parse_rule
from breaker_actors.core.schedule import OPEN_MIN_MS
from breaker_actors.errors import Invalid
from pipelines.rules.model import Declared
from pipelines.ruletests.cases import Case, Course, course
from pipelines.ruletests.outcome import holds_for, looks_of, mode_of
from pipelines.ruletests.playing import play

BY = 0.1
WHOLE = (
    "window_ms", "eval_interval_ms", "min_count", "min_state_duration_ms", "cooldown_ms", "half_open_backoff_cap_ms",
    "recovery_allow_rate_ramp_steps",
)  # fmt: skip
"""Whole numbers of a rule; they move by 1 at least."""
PARAMS = ("percentile", "alpha")
AT_ONCE = 64
"""Mutants that are played together."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule with one number moved. `killed_by`: the first test that failed with it; None: it survived."""

    breaker: Declared
    field: str
    value: float
    moved: float
    tested: bool = False
    killed_by: str | None = None


def mutated(rule: Rule, field: str, share: float) -> Rule | None:
    """The rule with a number moved by a share of it. None where that is no rule, or one that does the same."""
    value = number_of(rule, field)
    if not value or not _decides(rule, field):
        return None
    moved = value * (1 + share)
    if field in WHOLE:
        moved = value + (1 if share > 0 else -1) * max(1, round(abs(value * share)))
    changes: dict[str, Any] = {field: moved}
    if field in PARAMS:
        changes = {"kind_params": {**(rule.kind_params or {}), field: moved}}
    try:
        found = parse_rule(changes, rule)
    except Invalid:
        return None
    return None if _same(rule, found) else found


def number_of(rule: Rule, field: str) -> float | None:
    """A number of the rule, or of its kind_params."""
    found = (rule.kind_params or {}).get(field) if field in PARAMS else getattr(rule, field)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def _decides(rule: Rule, field: str) -> bool:
    """Whether a field matters to a rule at all."""
    if field == "half_open_backoff_cap_ms":
        base = max(rule.cooldown_ms, rule.min_state_duration_ms) or rule.eval_interval_ms
        return rule.half_open_backoff_enabled and rule.half_open_backoff_cap_ms * (1 + BY) > base
    if field == "window_ms":
        return rule.kind != "consecutive_failures"
    if field in PARAMS:
        return rule.kind == {"percentile": "percentile", "alpha": "delta"}[field]
    return True


def _same(rule: Rule, other: Rule) -> bool:
    """Whether two rules that differ in cooldown_ms alone wait alike in open."""
    if replace(other, cooldown_ms=rule.cooldown_ms) != rule:
        return False
    waits = [max(one.cooldown_ms, one.min_state_duration_ms, OPEN_MIN_MS) for one in (rule, other)]
    return waits[0] == waits[1]


def mutants_of(breaker: Declared) -> Iterator[tuple[Mutant, float]]:
    """Every number of a rule moved both ways, with the share."""
    rule = breaker.rule
    for field in ("threshold", *WHOLE, *PARAMS) if rule is not None else ():
        for share in (BY, -BY):
            assert rule is not None
            found = mutated(rule, field, share)
            value = number_of(rule, field)
            if found is not None and value is not None:
                yield Mutant(breaker, field, value, number_of(found, field) or 0.0), share


def mutate(tests: Sequence[tuple[Case, Declared]], breakers: Sequence[Declared]) -> list[Mutant]:
    """All mutants of the rules, each tried on the tests of its rule until one fails."""
    by_breaker: dict[int, list[Case]] = {}
    for case, one in tests:
        by_breaker.setdefault(id(one), []).append(case)
    found = list[Mutant]()
    for one in breakers:
        found += _tried(one, by_breaker.get(id(one), []))
    return found


def _tried(breaker: Declared, cases: Sequence[Case]) -> list[Mutant]:
    made = list(mutants_of(breaker))
    alive, killed = list(range(len(made))), dict[int, str]()
    for case in cases:
        for at in range(0, len(alive), AT_ONCE):
            killed |= dict.fromkeys(_killed(case, breaker, made, alive[at : at + AT_ONCE]), case.name)
        alive = [number for number in alive if number not in killed]
        if not alive:
            break
    return [
        Mutant(one.breaker, one.field, one.value, one.moved, bool(cases), killed.get(number))
        for number, (one, _) in enumerate(made)
    ]


def _killed(case: Case, breaker: Declared, made: Sequence[tuple[Mutant, float]], numbers: Sequence[int]) -> list[int]:
    """Which of some mutants fail a test."""
    assert breaker.rule is not None
    rules = course(case, breaker.rule)
    courses = {number: _course(rules, made[number][0].field, made[number][1]) for number in numbers}
    tried = {number: one for number, one in courses.items() if one is not None}
    if not tried:
        return []
    lines = case.expect[breaker.name]
    played = play(case, list(tried.values()), mode_of(breaker), looks_of(lines))
    return [number for number, one in zip(tried, played, strict=True) if not holds_for(lines, one)]


def _course(rules: Course, field: str, share: float) -> Course | None:
    """A course with the field moved in each of its rules; as it is where it can't move. None: nothing moves."""
    moved = [mutated(rule, field, share) for rule in rules]
    if not any(moved):
        return None
    return tuple(new or old for new, old in zip(moved, rules, strict=True))
