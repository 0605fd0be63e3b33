"""Breaker fields to rules: defaults, bounds, PATCH, and what is reported when something is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from breaker_actors.core.rules import derived, parse_rule
from breaker_actors.errors import Invalid

REQUIRED: dict[str, Any] = {"metric": "m", "kind": "avg", "op": "gt", "threshold": 1}


def problems(fields: dict[str, Any], **base: Any) -> dict[str, str]:
    with pytest.raises(Invalid) as caught:
        parse_rule(fields, parse_rule(REQUIRED | base) if base else None)
    return caught.value.details


def test_defaults() -> None:
    """Omitted fields take the defaults of semantics.md section 1; an integer threshold becomes a float."""
    rule = parse_rule(REQUIRED)
    assert (rule.window_ms, rule.eval_interval_ms, rule.min_count, rule.min_state_duration_ms) == (
        60000,
        10000,
        1,
        60000,
    )
    assert (rule.cooldown_ms, rule.half_open_backoff_enabled, rule.half_open_backoff_cap_ms) == (0, True, 300000)
    assert (rule.half_open_indeterminate_policy, rule.recovery_allow_rate_ramp_steps) == ("conservative", 5)
    assert rule.kind_params is None
    assert isinstance(rule.threshold, float)
    assert derived(rule) == {"half_open_confirmation_ms": 60000, "recovery_window_ms": 50000}


def test_all_problems_at_once() -> None:
    """Every bad field is named in one answer."""
    found = problems({"kind": "ratio", "op": "ge", "threshold": "1", "min_count": -1, "kind_params": [], "extra": 1})
    assert set(found) == {"metric", "kind", "op", "threshold", "min_count", "kind_params"}


@pytest.mark.parametrize("name", ["metric", "kind", "op", "threshold"])
def test_required(name: str) -> None:
    """A required field may neither be left out nor be null, and a PATCH may not make it null."""
    assert problems({k: v for k, v in REQUIRED.items() if k != name}) == {name: "is required"}
    assert problems(REQUIRED | {name: None}) == {name: "is required"}
    assert problems({name: None}, cooldown_ms=1) == {name: "is required"}


BAD: list[tuple[str, Any]] = [
    ("metric", ""), ("metric", "m" * 129), ("metric", 5), ("kind", "slope"), ("kind", 1), ("kind", ["avg"]),
    ("op", "GT"), ("op", ">"), ("threshold", True), ("threshold", "1"), ("threshold", float("nan")),
    ("threshold", float("inf")), ("threshold", 10**400),
    ("window_ms", 0), ("window_ms", -1), ("window_ms", 24 * 3_600_000 + 1), ("window_ms", 60000.0),
    ("window_ms", True), ("window_ms", "60000"),
    ("eval_interval_ms", 0), ("eval_interval_ms", 2147483648), ("eval_interval_ms", 357913942),
    ("min_count", -1), ("min_count", 1.5), ("min_count", 2147483648), ("min_count", False),
    ("min_state_duration_ms", -1), ("min_state_duration_ms", 2147483648), ("cooldown_ms", -1),
    ("cooldown_ms", 2147483648), ("half_open_backoff_enabled", 1), ("half_open_backoff_enabled", "true"),
    ("half_open_backoff_cap_ms", -1), ("half_open_backoff_cap_ms", 2147483648),
    ("half_open_indeterminate_policy", "hopeful"), ("half_open_indeterminate_policy", True),
    ("recovery_allow_rate_ramp_steps", 0), ("recovery_allow_rate_ramp_steps", 11),
    ("recovery_allow_rate_ramp_steps", 5.0), ("kind_params", "x"), ("kind_params", [1]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_out_of_bounds(name: str, value: Any) -> None:
    """A value outside its bounds is refused on create and on PATCH, under its own name."""
    assert set(problems(REQUIRED | {name: value})) == {name}
    assert set(problems({name: value}, cooldown_ms=1)) == {name}


GOOD: list[tuple[str, Any]] = [
    ("metric", "m" * 128), ("threshold", -1.5), ("threshold", 0), ("window_ms", 1), ("window_ms", 24 * 3_600_000),
    ("eval_interval_ms", 1), ("eval_interval_ms", 357913941), ("min_count", 0), ("min_count", 2147483647),
    ("min_state_duration_ms", 0), ("min_state_duration_ms", 2147483647), ("cooldown_ms", 2147483647),
    ("half_open_backoff_cap_ms", 0), ("recovery_allow_rate_ramp_steps", 1), ("recovery_allow_rate_ramp_steps", 10),
    ("kind_params", {}), ("kind_params", {"anything": [1, {"a": None}]}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_on_the_bounds(name: str, value: Any) -> None:
    """The bounds themselves are allowed."""
    assert getattr(parse_rule(REQUIRED | {name: value}), name) == value


def test_confirmation_bound_counts_steps() -> None:
    """(S + 1) x E has the same bound as every duration, whatever field breaks it."""
    parse_rule(REQUIRED | {"eval_interval_ms": 195225786, "recovery_allow_rate_ramp_steps": 10})
    assert set(problems({"recovery_allow_rate_ramp_steps": 10}, eval_interval_ms=195225787)) == {"eval_interval_ms"}


def test_patch_keeps_what_is_not_given() -> None:
    """A PATCH changes the given keys only; null goes back to the default."""
    base = parse_rule(REQUIRED | {"cooldown_ms": 5, "min_count": 9, "window_ms": 1000})
    rule = parse_rule({"threshold": 2, "min_count": None}, base)
    assert (rule.threshold, rule.cooldown_ms, rule.min_count, rule.window_ms) == (2.0, 5, 1, 1000)
    assert parse_rule({}, base) == base
    assert parse_rule({"window_ms": None}, base).window_ms == 60000


def test_window_of_consecutive_failures() -> None:
    """Never set it is 0; another kind then gets the default; 0 is allowed nowhere else."""
    streaks = REQUIRED | {"kind": "consecutive_failures"}
    never_set = parse_rule(streaks)
    assert never_set.window_ms == 0
    assert parse_rule(streaks | {"window_ms": 0}).window_ms == 0
    assert parse_rule(streaks | {"window_ms": 7000}).window_ms == 7000
    assert parse_rule({"kind": "avg"}, never_set).window_ms == 60000
    assert parse_rule({"kind": "avg", "window_ms": 5}, never_set).window_ms == 5
    assert parse_rule({"kind": "consecutive_failures"}, parse_rule(REQUIRED)).window_ms == 60000
    assert parse_rule({"window_ms": None}, parse_rule(streaks | {"window_ms": 7000})).window_ms == 0
    with pytest.raises(Invalid):
        parse_rule({"kind": "avg", "window_ms": 0}, never_set)


@pytest.mark.parametrize("params", [None, {}, {"percentile": None}])
def test_percentile_is_required(params: Any) -> None:
    """kind percentile says which one."""
    found = problems(REQUIRED | {"kind": "percentile", "kind_params": params})
    assert found == {"kind_params.percentile": "is required"}


@pytest.mark.parametrize("p", [0, -1, 100.5, 101, True, "95", float("nan"), 10**400])
def test_percentile_bounds(p: Any) -> None:
    """0 < percentile <= 100."""
    assert set(problems(REQUIRED | {"kind": "percentile", "kind_params": {"percentile": p}})) == {
        "kind_params.percentile"
    }


@pytest.mark.parametrize("p", [0.001, 50, 99.9, 100])
def test_percentile_kept(p: Any) -> None:
    """The object is kept as given, other keys included."""
    params = {"percentile": p, "note": "x"}
    assert parse_rule(REQUIRED | {"kind": "percentile", "kind_params": params}).kind_params == params


def test_change_to_percentile_needs_params() -> None:
    """A PATCH of kind alone is refused when the stored parameters don't fit the new kind."""
    assert set(problems({"kind": "percentile"}, cooldown_ms=0)) == {"kind_params.percentile"}


@pytest.mark.parametrize(
    ("params", "bad"),
    [
        ({"delta_of": "percentile"}, {"kind_params.delta_of"}),
        ({"delta_of": 1}, {"kind_params.delta_of"}),
        ({"delta_of": []}, {"kind_params.delta_of"}),
        ({"alpha": 0}, {"kind_params.alpha"}),
        ({"alpha": 1.01}, {"kind_params.alpha"}),
        ({"alpha": True}, {"kind_params.alpha"}),
        ({"alpha": "x", "delta_of": "slope"}, {"kind_params.alpha", "kind_params.delta_of"}),
    ],
)
def test_delta_params(params: Any, bad: set[str]) -> None:
    """delta_of is one of the named aggregates, alpha in (0, 1]."""
    assert set(problems(REQUIRED | {"kind": "delta", "kind_params": params})) == bad


@pytest.mark.parametrize("params", [None, {}, {"alpha": 1}, {"delta_of": "count", "alpha": 0.01}])
def test_delta_params_may_stay_implicit(params: Any) -> None:
    """Both parameters of delta have defaults."""
    assert parse_rule(REQUIRED | {"kind": "delta", "kind_params": params}).kind_params == params
