"""The breaker by example: every cell of its tables, every kind, timers, catch-up, configuration, restore."""

from __future__ import annotations

import itertools
import time
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Agg, Batch, Effect, RateChange, Record, Rule, Transition
from breaker_actors.core.moves import TRANSITIONS, Effort
from breaker_actors.core.rules import parse_rule
from breaker_actors.core.schedule import HALF_OPEN_BETWEEN, HALF_OPEN_TICK

STATES = ["closed", "open", "half_open"]
QUICK = {"window_ms": 5000, "eval_interval_ms": 1000, "min_state_duration_ms": 0, "cooldown_ms": 2000}


def rule(kind: str = "error_rate", op: str = "gt", threshold: float = 0.5, **fields: Any) -> Rule:
    return parse_rule({"metric": "m", "kind": kind, "op": op, "threshold": threshold} | QUICK | fields)


def ok(at: int, *values: float) -> Batch:
    return Batch.of([(at, value, True) for value in values or (1.0,)])


def bad(at: int, count: int = 1) -> Batch:
    return Batch.of([(at, 1.0, False)] * count)


def new(**fields: Any) -> Breaker:
    return Breaker.create(rule(**fields), 0)[0]


def half_open(**fields: Any) -> Breaker:
    """Tripped at 100, half_open since 2100 (or as the fields say), nothing heard since."""
    breaker = new(**fields)
    breaker.ingest(bad(100, 5), 100)
    breaker.advance(2100)
    assert breaker.view(2100).state == "half_open"
    return breaker


# -- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prev", STATES)
@pytest.mark.parametrize("curr", STATES)
def test_moves(prev: Any, curr: Any) -> None:
    """The four listed moves happen with their reason; any other is a bug and raises."""
    since = Record(created_ms=0, now_ms=0, grid_ms=0, state=prev, state_since_ms=0, open_cause="threshold_exceeded")
    breaker = Breaker.restore(rule(), since)
    if (prev, curr) in TRANSITIONS:
        move = breaker._move(curr, 7)
        assert (move.prev, move.curr, move.ts_ms, move.transition_seq) == (prev, curr, 7, 1)
        assert move.reason == (TRANSITIONS[prev, curr] or "threshold_exceeded")
    else:
        with pytest.raises(AssertionError):
            breaker._move(curr, 7)


def verdict_in_half_open(word: str, age_reached: bool) -> Breaker:
    """half_open since 0 with evidence that gives the verdict; the policy words stand for no evidence."""
    fields: dict[str, Any] = {"min_state_duration_ms": 0 if age_reached else 60_000}
    if word == "unconfirmed":
        fields |= {"kind": "consecutive_failures", "op": "gte", "threshold": 3}
    elif word not in ("healthy", "breach"):
        fields |= {"half_open_indeterminate_policy": word}
    since = Record(created_ms=0, now_ms=0, grid_ms=0, state="half_open", state_since_ms=0, step=2, passes=1)
    breaker = Breaker.restore(rule(**fields), since)
    if word in ("healthy", "breach", "unconfirmed"):
        breaker.evidence.add(ok(500) if word == "healthy" else bad(500, 2), 500, 500)
    return breaker


@pytest.mark.parametrize("age_reached", [True, False])
@pytest.mark.parametrize("trigger", ["tick", "ingest", "deadline"])
@pytest.mark.parametrize("word", HALF_OPEN_TICK)
def test_half_open_cell(word: str, trigger: Any, age_reached: bool) -> None:
    """Each cell of the half_open table does what semantics.md section 3 says."""
    breaker = verdict_in_half_open(word, age_reached)
    effects = breaker.evaluate(1000, trigger)
    action = (HALF_OPEN_TICK if trigger == "tick" else HALF_OPEN_BETWEEN)[word]
    record = breaker.record()
    if action == "pass":
        assert effects == (RateChange(ts_ms=1000, allow_rate=0.6),)
        assert (record.state, record.step, record.passes) == ("half_open", 3, 2)
    elif action == "fail" and age_reached:
        assert [e.reason for e in effects if isinstance(e, Transition)] == [
            "threshold_exceeded" if word == "breach" else "insufficient_samples"
        ]
        assert (record.state, record.failed_recoveries) == ("open", 1)
    elif action == "fail":
        assert effects == (RateChange(ts_ms=1000, allow_rate=0.2),)
        assert (record.step, record.passes) == (1, 0)
    else:
        assert effects == ()
        assert (record.step, record.passes) == (2, 1)


def test_table_matches_semantics() -> None:
    """The table itself, spelled out once more."""
    assert HALF_OPEN_TICK == {
        "healthy": "pass",
        "breach": "fail",
        "unconfirmed": "hold",
        "optimistic": "pass",
        "conservative": "hold",
        "pessimistic": "fail",
    }
    assert {word for word, action in HALF_OPEN_BETWEEN.items() if action != "nothing"} == {"breach"}


# -- kinds ------------------------------------------------------------------------------------------------------------

KINDS: list[tuple[str, dict[str, Any], list[float], float]] = [
    ("avg", {}, [1, 2, 3, 6], 3.0),
    ("sum", {}, [0.1] * 10, 1.0),
    ("max", {}, [1, 9, 3], 9.0),
    ("min", {}, [4, 2, 3], 2.0),
    ("count", {}, [5, 5, 5], 3.0),
    ("stddev", {}, [2, 4, 4, 4, 5, 5, 7, 9], 2.0),
    ("stddev", {}, [3.7], 0.0),
    ("p95", {}, list(range(1, 21)), 19.0),
    ("percentile", {"percentile": 55}, list(range(1, 101)), 55.0),
    ("percentile", {"percentile": 0.5}, [3, 1, 2], 1.0),
    ("percentile", {"percentile": 100}, [3, 1, 2], 3.0),
]


@pytest.mark.parametrize(("kind", "params", "values", "value"), KINDS)
@pytest.mark.parametrize("op", ["gt", "gte", "lt", "lte"])
@pytest.mark.parametrize("off", [-0.5, 0.0, 0.5])
def test_kinds(kind: str, params: Any, values: list[float], value: float, op: str, off: float) -> None:
    """The value, and the verdict of every op below, on and above it."""
    threshold = value + off
    breaker = new(kind=kind, op=op, threshold=threshold, kind_params=params or None, min_state_duration_ms=60_000)
    breaker.ingest(ok(6000, *values), 6000)
    view = breaker.view(6000)
    expected = {"gt": value > threshold, "gte": value >= threshold, "lt": value < threshold, "lte": value <= threshold}
    assert view.value == value
    assert view.verdict == ("breach" if expected[op] else "healthy")
    assert view.held_back is expected[op]


def test_error_rate_ignores_values() -> None:
    """Only the flags count."""
    breaker = new(threshold=0.5)
    breaker.ingest(Batch.of([(1, 1e300, True), (1, -5.0, False), (1, 0.0, False), (1, 0.0, True)]), 1)
    assert (breaker.view(1).value, breaker.view(1).verdict) == (0.5, "healthy")
    breaker.ingest(bad(2), 2)
    assert breaker.view(2).state == "open"


def test_consecutive_failures_counts_the_highest_run() -> None:
    """A run that came and went inside one batch counts at its evaluation; the next tick sees the running one."""
    breaker = new(kind="consecutive_failures", op="gte", threshold=3, min_state_duration_ms=60_000)
    flags = [False] * 2 + [True] + [False] * 4 + [True] + [False]
    breaker.ingest(Batch.of([(10, 1.0, flag) for flag in flags]), 10)
    assert (breaker.view(10).value, breaker.view(10).verdict, breaker.view(10).sample_count) == (4.0, "breach", 9)
    assert breaker.next_wake() == 1000
    breaker.advance(1000)
    assert (breaker.view(1000).value, breaker.view(1000).verdict) == (1.0, "healthy")
    assert breaker.next_wake() is None


def test_consecutive_failures_event() -> None:
    """`agg` of its events: seen and the highest run; a run goes on over batches."""
    breaker = new(kind="consecutive_failures", op="gte", threshold=5)
    breaker.ingest(Batch.of([(1, 1.0, True)] + [(1, 1.0, False)] * 3), 1)
    [move] = breaker.ingest(bad(2, 2), 2)
    assert isinstance(move, Transition)
    assert (move.agg, move.value) == (Agg(avg=0.0, count=6, error_count=5, p95=0.0), 5.0)


def test_sum_of_nothing() -> None:
    """0 with min_count 0, else no value."""
    assert new(kind="sum", min_count=0).view(0).value == 0.0
    assert new(kind="sum").view(0).value is None
    assert new(kind="count").view(0).value == 0.0
    assert new(kind="avg").view(0).value is None


def test_delta_seeds_at_the_first_determinate_tick() -> None:
    """No value before the seed; the baseline moves at ticks only."""
    breaker = new(kind="delta", threshold=50, min_count=2, kind_params={"alpha": 0.5})
    breaker.ingest(ok(500, 100.0), 500)
    breaker.advance(1000)
    assert (breaker.view(1000).verdict, breaker.record().baseline) == ("indeterminate", None)
    breaker.ingest(ok(1500, 100.0), 1500)
    assert breaker.view(1500).verdict == "indeterminate"
    breaker.advance(2000)
    assert (breaker.view(2000).verdict, breaker.record().baseline) == ("indeterminate", 100.0)
    breaker.ingest(ok(2500, 130.0), 2500)
    assert (breaker.view(2500).value, breaker.record().baseline) == (10.0, 100.0)
    breaker.advance(3000)
    assert breaker.record().baseline == 105.0


@pytest.mark.parametrize(
    ("fields", "counted", "effort"),
    [
        ({"kind": "p95"}, False, 1),
        ({"kind": "delta"}, False, 1),
        ({"kind": "delta", "kind_params": {"delta_of": "stddev"}}, False, 1),
        ({"kind": "delta", "kind_params": {"delta_of": "p95"}}, False, 4),
        ({"kind": "delta", "kind_params": {"delta_of": "max"}}, True, 16),
        ({"kind": "consecutive_failures", "threshold": 3}, False, 1),
    ],
)
def test_effort_grows_with_a_window_that_is_ranked(fields: dict[str, Any], counted: bool, effort: int) -> None:
    """In ordinary evaluations: a delta of an order statistic ranks its window each time, 3,000 samples here."""
    breaker = new(**{"threshold": 1e9} | fields)
    assert breaker.effort == 1
    batch = ok(100, *range(3000))
    breaker.ingest(Batch(batch.ts_ms, batch.value, batch.ok, count=np.full(3000, 2)) if counted else batch, 100)
    assert breaker.effort == effort


def test_a_delta_that_stands_still_is_read_without_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later and later, while its samples stay: what the idle ticks would find is known."""
    breaker = new(kind="delta", threshold=50, window_ms=600_000, kind_params={"delta_of": "p95"})
    breaker.ingest(ok(100, *range(100)), 100)
    breaker.advance(5000)
    naive = breaker.evidence._recompute(breaker.evidence.window, 9000)  # type: ignore[arg-type]
    monkeypatch.setattr("breaker_actors.core.window.Window.since", None)
    monkeypatch.setattr("breaker_actors.core.window.Window.values", None)
    view = breaker.view(9000)
    assert view.last_eval_ms == 9000
    assert (view.verdict, view.value, view.sample_count) == naive == ("healthy", 0.0, 100)


# -- time -------------------------------------------------------------------------------------------------------------


def test_batch_before_timer_at_the_same_instant() -> None:
    """At equal times the batch comes first: it counts in the tick's evaluation."""
    breaker = half_open()
    breaker.ingest(ok(3100, *[1.0] * 5), 3100)
    assert breaker.view(3100).passes == 0
    assert breaker.advance(3100) == (RateChange(ts_ms=3100, allow_rate=0.4),)


def test_timers_fire_with_their_own_time() -> None:
    """What was due while nobody called happens before the next batch, stamped as due."""
    breaker = new(half_open_indeterminate_policy="optimistic", recovery_allow_rate_ramp_steps=1)
    breaker.ingest(bad(100), 100)
    effects = breaker.ingest(ok(50_000), 50_000)
    assert [(e.ts_ms, e.allow_rate) for e in effects] == [(2100, 1.0), (4100, 1.0)]
    assert breaker.view(50_000).state == "closed"


def test_no_tick_twice() -> None:
    """A tick that has fired does not fire again for a straggler, another call, or after a restore."""
    breaker = half_open(half_open_indeterminate_policy="optimistic")
    assert len(breaker.advance(3100)) == 1
    assert breaker.advance(3100) == ()
    assert breaker.ingest(bad(3000, 0), 3000) == ()
    restored = Breaker.restore(breaker.rule, breaker.record())
    assert restored.advance(3100) == ()
    assert len(restored.advance(4100)) == 1


@pytest.mark.parametrize(
    ("fields", "batch", "wake"),
    [
        ({"kind": "max", "threshold": 10}, ok(100, 5.0), None),
        ({"kind": "avg", "threshold": 10}, ok(100, 5.0), None),
        ({"kind": "avg", "threshold": 10}, ok(100, 5.0, 11.0), 6000),
        ({"kind": "error_rate", "threshold": 0.5}, ok(100), None),
        ({"kind": "count", "op": "gt", "threshold": 5}, ok(100), None),
        ({"kind": "sum", "op": "gt", "threshold": 5, "min_count": 0}, ok(100), None),
        ({"kind": "sum", "op": "gt", "threshold": 5}, ok(100, 4.0, -1.0), 6000),
        ({"kind": "count", "op": "lt", "threshold": 1, "min_count": 0}, ok(1500), 5000),
        ({"kind": "p95", "op": "lt", "threshold": 5}, ok(1900, 9.0), None),
        ({"kind": "min", "op": "gt", "threshold": 5, "min_count": 3}, ok(1900, 9.0), None),
        ({"kind": "delta", "threshold": 50}, ok(100), 1000),
    ],
)
def test_wakes_only_for_what_could_change(fields: dict[str, Any], batch: Batch, wake: int | None) -> None:
    """A closed breaker whose window can't come to breach by losing samples asks for no timer."""
    breaker = new(**fields)
    breaker.ingest(batch, int(batch.ts_ms[0]))
    assert breaker.next_wake() == wake


def test_deadline_between_ticks() -> None:
    """A standing breach is judged at the very end of the minimum duration."""
    breaker = new(min_state_duration_ms=2500)
    breaker.ingest(bad(100), 100)
    breaker.advance(2400)
    assert (breaker.view(2400).held_back, breaker.next_wake()) == (True, 2500)
    assert [e.ts_ms for e in breaker.advance(2500)] == [2500]


def test_backoff_doubles_to_its_cap() -> None:
    """Waits of failed recoveries: base, 2 x, 4 x ... up to the cap, which is never below the base."""
    breaker = new(half_open_indeterminate_policy="pessimistic", half_open_backoff_cap_ms=9000)
    breaker.ingest(bad(100), 100)
    moves = [(e.curr, e.ts_ms) for e in breaker.advance(60_000) if isinstance(e, Transition)]
    opened = [100] + [at for state, at in moves if state == "open"]
    waits = [at - since for since, (state, at) in zip(opened, [m for m in moves if m[0] == "half_open"], strict=False)]
    assert waits[:5] == [2000, 4000, 8000, 9000, 9000]


@pytest.mark.parametrize("fields", [{}, {"half_open_backoff_enabled": False}])
def test_no_wait_at_all(fields: dict[str, Any]) -> None:
    """Without cooldown and minimum duration open lasts to the next tick or batch, not less."""
    breaker = new(cooldown_ms=0, **fields)
    assert [e.ts_ms for e in breaker.ingest(bad(100), 100)] == [100]
    assert [(e.ts_ms, e.reason) for e in breaker.advance(1100) if isinstance(e, Transition)] == [
        (1100, "cooldown_elapsed")
    ]


LONG = [
    {"half_open_indeterminate_policy": "optimistic", "min_state_duration_ms": 40_000_000},
    {"half_open_indeterminate_policy": "pessimistic", "min_state_duration_ms": 40_000_000},
    {"half_open_indeterminate_policy": "conservative"},
    {"kind": "consecutive_failures", "op": "gte", "threshold": 1, "min_state_duration_ms": 40_000_000},
    {"kind": "delta", "threshold": 1e9, "window_ms": 86_400_000, "kind_params": {"alpha": 0.1}},
    {"kind": "sum", "op": "lt", "threshold": 1, "min_count": 0, "window_ms": 86_400_000},
    {"kind": "max", "threshold": 0, "min_state_duration_ms": 86_400_000, "window_ms": 86_400_000},
]


@pytest.mark.parametrize("fields", LONG)
def test_long_silence_is_caught_up_quickly(fields: dict[str, Any]) -> None:
    """A day of ticks every millisecond costs no work where they do nothing."""
    breaker = Breaker.create(rule(**({"eval_interval_ms": 1} | fields)), 0)[0]
    breaker.ingest(bad(100, 3), 100)
    start = time.perf_counter()
    breaker.advance(86_400_000)
    assert time.perf_counter() - start < 1.0
    assert breaker.view(86_400_000).last_eval_ms == 86_400_000


def test_passes_of_skipped_ticks_count() -> None:
    """Passes before the minimum duration add up one by one, however they were counted."""
    fields = {"half_open_indeterminate_policy": "optimistic", "min_state_duration_ms": 100_000}
    breaker = Breaker.create(rule(**fields), 0)[0]
    breaker.ingest(bad(100), 100)
    breaker.advance(100_000)
    breaker.ingest(bad(150_000, 0), 150_000)
    one_by_one = Breaker.restore(breaker.rule, breaker.record())
    breaker.advance(199_999)
    for at in range(150_000, 200_000, 1000):
        one_by_one.advance(at)
    one_by_one.advance(199_999)
    assert breaker.record() == one_by_one.record()


def test_skipped_passes_show_the_value_of_a_tick() -> None:
    """Passes counted in one go from the very start of half_open report what their ticks would: a count of 0."""
    fields = {"kind": "count", "op": "gt", "threshold": 2, "recovery_allow_rate_ramp_steps": 1}
    breaker = new(half_open_indeterminate_policy="optimistic", min_state_duration_ms=3000, **fields)
    breaker.ingest(bad(3100, 3), 3100)
    breaker.advance(9000)
    record = breaker.record()
    assert (record.state_since_ms, record.last_eval_ms, record.passes, record.value) == (6100, 8100, 2, 0.0)


def test_view_shows_idle_ticks() -> None:
    """A read shows the latest tick as run, its shrunken window included, and changes nothing."""
    breaker = new(kind="max", threshold=10)
    breaker.ingest(ok(500, 5.0), 500)
    breaker.ingest(ok(2500, 4.0), 2500)
    before = breaker.record()
    view = breaker.view(6700)
    assert (view.last_eval_ms, view.next_eval_ms, view.sample_count, view.value) == (6000, 7000, 1, 4.0)
    empty = breaker.view(9000)
    assert (empty.last_eval_ms, empty.verdict, empty.value) == (9000, "indeterminate", None)
    assert breaker.record() == before
    assert breaker.view(2600).value == 5.0


def test_idle_means_nothing_returned() -> None:
    """Nothing happens: the shared empty tuple comes back."""
    breaker = new()
    assert breaker.ingest(ok(1), 1) is ()  # type: ignore[comparison-overlap]  # noqa: F632
    assert breaker.advance(5000) == ()


# -- configuration, gaps, creation, restore ---------------------------------------------------------------------------


def test_configure_tells_what_must_be_loaded() -> None:
    """Only a longer window over the same evidence, or evidence never held, needs the log."""
    breaker = new(kind="avg")
    base = breaker.rule
    for fields, lacks in [
        ({"threshold": 3}, False),
        ({"window_ms": 4000}, False),
        ({"window_ms": 9000}, True),
        ({"kind": "max", "window_ms": 20_000}, False),
        ({"kind": "consecutive_failures"}, False),
        ({"kind": "sum"}, True),
        ({"metric": "n"}, True),
    ]:
        base = parse_rule(fields, base)
        assert breaker.configure(base, 10) is lacks


def test_configure_keeps_state_and_drops_evidence() -> None:
    """Another kind: state, age and failed recoveries stay, evidence starts now; another threshold keeps it all."""
    breaker = half_open()
    breaker.ingest(ok(2500, 1.0, 2.0), 2500)
    breaker.configure(parse_rule({"threshold": 0.7}, breaker.rule), 2600)
    assert (breaker.samples_held, breaker.view(2600).sample_count) == (2, 2)
    breaker.configure(parse_rule({"kind": "p95"}, breaker.rule), 2700)
    record = breaker.record()
    assert (record.state, record.state_since_ms, record.step, record.evidence_floor_ms) == ("half_open", 2100, 1, 2700)
    assert (breaker.samples_held, record.verdict, record.value, record.count) == (0, "indeterminate", None, 0)


def test_lowered_minimum_duration_is_due_at_once() -> None:
    """A deadline that a new rule puts between the last evaluation and now fires now."""
    breaker = new(min_state_duration_ms=60_000)
    breaker.ingest(bad(2100), 2100)
    breaker.configure(parse_rule({"min_state_duration_ms": 2500}, breaker.rule), 2900)
    assert breaker.next_wake() == 2900
    assert [e.ts_ms for e in breaker.advance(2900)] == [2900]


def test_fewer_steps_change_the_rate() -> None:
    """The step is cut to the new number of steps; no effect is returned for it."""
    breaker = half_open(half_open_indeterminate_policy="optimistic")
    breaker.advance(4100)
    assert breaker.view(4100).allow_rate == 0.6
    breaker.configure(parse_rule({"recovery_allow_rate_ramp_steps": 2}, breaker.rule), 4200)
    assert breaker.view(4200).allow_rate == 1.0


def test_gap_restarts_the_grid() -> None:
    """Timers up to its start fire, those inside don't, one evaluation at its end."""
    breaker = half_open(half_open_indeterminate_policy="optimistic")
    effects = breaker.gap(3100, 9050)
    assert [e.ts_ms for e in effects] == [3100]
    view = breaker.view(9050)
    assert (view.passes, view.last_eval_ms, view.next_eval_ms) == (1, 9050, 10_050)


def test_created_once_evaluated() -> None:
    """Creation is an evaluation: a rule that nothing can satisfy trips at once, numbered after the stored events."""
    breaker, [move] = Breaker.create(rule("sum", "gt", -1, min_count=0), 77, after_seq=4)
    assert (move.ts_ms, breaker.record().transition_seq) == (77, 5)
    fresh, effects = Breaker.create(rule(), 77)
    assert effects == ()
    assert (fresh.view(77).last_eval_ms, fresh.view(77).next_eval_ms) == (77, 1077)


def test_samples_of_the_floor_instant_count() -> None:
    """The batch that finds openWait elapsed belongs to the new evidence when it carries that time."""
    breaker = new(half_open_indeterminate_policy="pessimistic")
    breaker.ingest(bad(100), 100)
    [move] = breaker.ingest(ok(2100, *[1.0] * 3), 2100)
    assert (move.ts_ms, breaker.view(2100).sample_count) == (2100, 0)
    assert breaker.advance(3100) == (RateChange(ts_ms=3100, allow_rate=0.4),)


def test_restore_through_bytes() -> None:
    """Record and window from the log give the same future."""
    breaker = half_open(kind="error_rate")
    log = [(2500, ok(2500, *[1.0] * 4)), (2900, bad(2900, 2))]
    for received, batch in log:
        breaker.ingest(batch, received)
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(breaker.record()), type=Record)
    restored = Breaker.restore(breaker.rule, stored)
    for received, batch in log:
        restored.load(batch, received)
    assert restored.record() == breaker.record()
    for at in range(3000, 12_000, 700):
        assert restored.ingest(ok(at), at) == breaker.ingest(ok(at), at)
        assert restored.record() == breaker.record()


def test_bounded_window_counts_what_it_drops() -> None:
    """Beyond the bound the oldest leave early, late ones are ignored; both are counted and shown."""
    breaker = Breaker.create(rule("sum", "gt", 1e9), 0, window_samples_max=3)[0]
    breaker.ingest(Batch.of([(9000, 1.0, True), (9001, 2.0, True), (3000, 8.0, True), (9002, 4.0, True)]), 9100)
    breaker.ingest(ok(9200, 16.0), 9200)
    view = breaker.view(9200)
    assert (view.value, view.sample_count, view.late_count, view.truncated_count) == (22.0, 3, 1, 1)


@pytest.mark.parametrize("policy", ["pessimistic", "optimistic"])
@pytest.mark.parametrize("op", ["gte", "lt"])
def test_whatever_the_rule_open_lasts_100_ms(policy: str, op: str) -> None:
    """1,800 transitions a minute at most; a rule whose cooldown is 100 ms and more moves as it did without a floor."""
    eager = {"window_ms": 1, "eval_interval_ms": 1, "cooldown_ms": 0, "half_open_backoff_enabled": False}
    eager |= {"half_open_indeterminate_policy": policy, "recovery_allow_rate_ramp_steps": 1, "min_count": 0}
    moves = []
    for cooldown_ms in (0, 100):
        fields = eager | {"cooldown_ms": cooldown_ms, "min_state_duration_ms": 0}
        breaker, effects = Breaker.create(rule("count", op, 1, **fields), 0)
        effects += breaker.ingest(ok(150), 150)
        for at in range(151, 60_000, 7):
            effects += breaker.advance(at)
        moves.append([effect for effect in effects if isinstance(effect, Transition)])
    for each in moves:
        assert 3 <= len(each) <= 1_800
        stays = [(after.ts_ms - before.ts_ms, after.prev) for before, after in itertools.pairwise(each)]
        assert all(stay_ms >= 100 for stay_ms, state in stays if state == "open")
    assert abs(len(moves[0]) - len(moves[1])) <= 1


@pytest.mark.parametrize("seed", range(40))
def test_in_small_steps_as_in_one(seed: int) -> None:
    """However little effort each call may take: the same effects, and the same record; also where a restart comes
    behind any of them."""
    draw = Random(seed)
    rule = parse_rule(
        {
            "metric": "m",
            "op": draw.choice(["gt", "lt"]),
            "kind": (kind := draw.choice(["delta", "avg", "count", "consecutive_failures", "stddev"])),
            "threshold": draw.choice([0.0, 1.0, 3.0]),
            "window_ms": draw.choice([50, 3_000]),
            "eval_interval_ms": draw.choice([1, 7, 500]),
            "min_state_duration_ms": 0,
            "cooldown_ms": draw.choice([0, 700]),
            **({"kind_params": {"alpha": draw.choice([1e-7, 0.3])}} if kind == "delta" else {}),
        }
    )
    (one, first), (other, again) = Breaker.create(rule, 0), Breaker.create(rule, 0)
    assert first == again
    now, came = 0, list[tuple[Batch, int]]()
    for _ in range(6):
        now += draw.choice([3, 900, 9_000])
        whole, pieces = one.advance(now - 1), tuple[Effect, ...]()
        while other.now_ms < now:
            effort = Effort(draw.choice([1, 2, 40]))
            pieces += other.advance(now - 1, draw.choice([1, 100]), effort)
            if draw.random() < 0.2:
                restored = Breaker.restore(rule, other.record())
                for batch, received_ms in came:
                    restored.load(batch, received_ms)
                assert pieces + restored.advance(now - 1) == whole
                assert restored.record() == one.record()
        assert pieces == whole
        assert other.record() == one.record()
        batch = Batch.of([(now, draw.choice([0.5, 2.0, 9.0]), draw.random() < 0.5)])
        came.append((batch, now))
        assert one.ingest(batch, now) == other.ingest(batch, now)


def test_effort_bounds_a_step() -> None:
    """A day of ticks that each move a baseline goes in steps of some evaluations, a thousand ticks for sixty."""
    rule = {"metric": "m", "kind": "delta", "op": "gt", "threshold": 1e9, "window_ms": 86_400_000}
    breaker, _ = Breaker.create(parse_rule({**rule, "eval_interval_ms": 1, "kind_params": {"alpha": 1e-9}}), 0)
    for at, value in ((10, 1.0), (1_000, 3.0)):
        breaker.ingest(Batch.of([(at, value, True)]), at)
    breaker.advance(80_000_000, 100, effort := Effort(100))
    assert effort.left <= 0
    assert 2_000 < breaker.now_ms < 10_000
