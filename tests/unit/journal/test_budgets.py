"""Budgets of transitions: a burst at once, then a rate, each in its turn."""

from __future__ import annotations

from breaker_actors.journal.transition_budgets import STALE_S, Budgets


def test_what_is_beyond_the_budget_gets_turns_in_order() -> None:
    budgets = Budgets(per_minute=60, burst=3)
    waits = [budgets.wait_s("p", f"b{i}", 1, 100.0) for i in range(6)]
    assert waits == [0, 0, 0, 0, 1, 2]
    assert (budgets.waiting, budgets.paced) == (2, 2)
    assert budgets.wait_s("q", "other", 1, 100.0) == 0
    assert budgets.wait_s("p", "b4", 1, 100.5) == 0.5, "a turn is kept, and charged once"
    assert budgets.wait_s("p", "b4", 1, 101.0) == 0
    assert budgets.wait_s("p", "b5", 1, 102.0) == 0
    assert budgets.wait_s("p", "b0", 1, 102.0) == 1
    assert budgets.wait_s("p", "b1", 3, 200.0) == 0, "whole again"


def test_who_waits_is_told_and_who_never_comes_is_forgotten() -> None:
    budgets = Budgets(per_minute=60, burst=1)
    for i in range(4):
        budgets.wait_s("p", f"b{i}", 1, 0.0)
    (share,) = budgets.limits(0.0)
    assert (share.project_id, share.limit, share.used, share.most) == ("p", "transitions", 4, 1)
    budgets.forget(STALE_S)
    assert budgets.waiting == 2
    budgets.forget(2 * STALE_S)
    assert budgets.limits(2 * STALE_S) == ()


def test_what_failed_is_not_charged() -> None:
    budgets = Budgets(per_minute=60, burst=1)
    for _ in range(100):
        assert budgets.wait_s("p", "b", 1, 5.0) == 0
        budgets.refund("p", 1)
