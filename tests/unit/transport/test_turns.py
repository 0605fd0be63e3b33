"""Turns by weight, and shares of a bound."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

import pytest

from breaker_actors.transport import turns
from breaker_actors.transport.turns import NestedShares, NestedTurns, Shares, Turns

T = TypeVar("T")


def line(*items: tuple[str, int]) -> Turns[tuple[str, int]]:
    """Of (owner, weight)."""
    made: Turns[tuple[str, int]] = Turns(lambda item: item[1])
    for owner, weight in items:
        made.append(owner, (owner, weight))
    return made


def next_of(made: Turns[T]) -> T:
    (item,) = made.take(0)
    return item


def served(made: Turns[tuple[str, int]]) -> Iterator[str]:
    while made:
        yield next_of(made)[0]


def test_owners_have_as_much_as_each_other_by_weight() -> None:
    """By items alone who sends one sample at a time would have a thousandth of what one with large items has."""
    made = line(*[("flood", 100)] * 5, *[("many", 1)] * 250)
    order = "".join("f" if owner == "flood" else "m" for owner in served(made))
    assert [len(run) for run in order.split("f")] == [0, 100, 100, 50, 0, 0]


def test_who_comes_is_next_however_long_others_were_served() -> None:
    made = line(*[("flood", 100)] * 50, *[("other", 10)] * 50)
    for _ in range(60):
        next_of(made)
    made.append("quiet", ("quiet", 1))
    assert "quiet" in [next_of(made)[0] for _ in range(2)]


def test_who_comes_again_and_again_is_not_before_those_that_wait() -> None:
    """One item at a time leaves no line behind: what it had is known all the same."""
    made, had = line(*[("quiet", 1)] * 500), Counter[str]()
    for _ in range(300):
        if "flood" not in made._lines:
            made.append("flood", ("flood", 100))
        owner, weight = next_of(made)
        had[owner] += weight
    assert had["flood"] <= had["quiet"] + 100


def test_who_does_not_fit_is_the_first_of_the_next_call() -> None:
    """However many come, it must not wait until nobody else does. Who has something in the call waits for others."""
    made = line(("quiet", 1), *[("flood", 100)] * 2)
    assert made.take(100) == [("quiet", 1)]
    made.append("quiet", ("quiet", 1))
    assert made.take(100) == [("flood", 100)]
    made.append("other", ("other", 1))
    assert made.take(100) == [("quiet", 1), ("other", 1)]
    assert made.take(100) == [("flood", 100)]


def test_nothing_is_kept_of_owners_when_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "KNOWN_MAX", 10)
    made = line(*[("flood", 1)] * 100)
    for n in range(90):
        made.append(str(n), (str(n), 1_000_000))
        while next_of(made)[0] == "flood":
            made.append("flood", ("flood", 1))
        assert len(made._had) <= 10
    list(served(made))
    assert (made._had, made._lines, made._waiting) == ({}, {}, [])


@pytest.mark.parametrize("seed", range(50))
def test_all_come_once_and_each_ones_in_order(seed: int) -> None:
    draws = random.Random(seed)
    steps = [(draws.choice("abcd"), draws.randint(1, 50)) if draws.random() < 0.6 else None for _ in range(80)]
    made: Turns[tuple[str, int, int]] = Turns(lambda item: item[1])
    put: dict[str, list[int]] = {}
    taken: dict[str, list[int]] = {}

    def take() -> None:
        owner, _, number = next_of(made)
        taken.setdefault(owner, []).append(number)

    for number, step in enumerate(steps):
        if step is not None:
            made.append(step[0], (*step, number))
            put.setdefault(step[0], []).append(number)
        elif made:
            take()
    while made:
        take()
    assert taken == put


def test_shares_of_a_bound() -> None:
    def fill(shares: Shares, *owners: str) -> list[int]:
        """What each holds once none can have one more."""
        held = dict.fromkeys(owners, 0)
        while sum(held.values()) < (more := sum(held.values()) + 1):
            for owner in owners:
                held[owner] += shares.take(owner, 1)
            if sum(held.values()) < more:
                break
        return list(held.values())

    assert fill(Shares(90), "a") == [90]
    assert fill(Shares(90), "a", "b") == [60, 60]
    assert fill(Shares(90), "a", "b", "c") == [45, 45, 45]
    shares = Shares(90)
    assert fill(shares, "a") == [90]
    assert fill(shares, "b") == [45]
    assert fill(shares, *"cdefghij")[0] > 0, "whoever comes finds room"
    assert shares.total < 180
    shares.give_back("a", 90)
    assert shares.take("a", 10)


Item = tuple[str, str, int]
"""Of an organisation's project, with a weight."""


def nested(*items: Item) -> NestedTurns[Item]:
    made: NestedTurns[Item] = NestedTurns(lambda item: item[2])
    for item in items:
        made.append(item[0], item[1], item)
    return made


def test_many_projects_of_an_organisation_get_it_no_more_than_one() -> None:
    made = nested(*[("flood", f"p{n % 40}", 100) for n in range(400)])
    for _ in range(45):
        made.take(0)
    made.append("quiet", "q", ("quiet", "q", 1))
    assert "quiet" in [made.take(0)[0][0] for _ in range(2)]


def test_projects_of_an_organisation_take_turns_by_weight() -> None:
    made = nested(*[("o", "large", 100)] * 3, *[("o", "small", 1)] * 150)
    order = "".join("L" if made.take(0)[0][1] == "large" else "s" for _ in range(153))
    assert [len(run) for run in order.split("L")] == [0, 100, 50, 0]


def test_nothing_is_kept_of_projects_that_wait_for_nothing() -> None:
    made = nested(*[(str(n), "p", 1) for n in range(20)], ("0", "q", 1))
    assert sorted(made.drain()) == sorted([*((str(n), "p", 1) for n in range(20)), ("0", "q", 1)])
    assert not made
    assert made._projects == {}


@pytest.mark.parametrize("seed", range(50))
def test_all_of_all_projects_come_once_and_each_ones_in_order(seed: int) -> None:
    draws = random.Random(seed)
    made: NestedTurns[tuple[str, str, int, int]] = NestedTurns(lambda item: item[2])
    put: dict[str, list[int]] = {}
    taken: dict[str, list[int]] = {}

    def take(weight_max: int) -> None:
        found = made.take(weight_max)
        assert len(found) == 1 or sum(item[2] for item in found) <= weight_max
        for org, project, _, number in found:
            taken.setdefault(org + project, []).append(number)

    for number in range(120):
        if draws.random() < 0.6:
            org, project, weight = draws.choice("ab"), draws.choice("pqr"), draws.randint(0, 50)
            made.append(org, project, (org, project, weight, number))
            put.setdefault(org + project, []).append(number)
        elif made:
            take(draws.choice([0, 60]))
    while made:
        take(60)
    assert taken == put


def test_many_projects_of_an_organisation_leave_room_to_others() -> None:
    """By projects alone 40 leave a newcomer a forty-first of all."""
    shares = NestedShares(90)
    for _ in range(90):
        for n in range(40):
            shares.take("flood", f"p{n}", 1)
    assert 90 < shares.total < 180
    assert shares.take("flood", "new", 1), "nor does one project keep another of its organisation out"
    assert shares.take_all("quiet", "q", 90)
    assert not shares.take_all("quiet", "q", 1), "a project has a bound of its own"
    assert shares.total < 360


def test_nested_shares_are_given_back() -> None:
    shares = NestedShares(90)
    assert shares.take("o", "p", 90)
    assert not shares.take("o", "p", 1)
    shares.give_back("o", "p", 90)
    assert (shares.total, shares._projects) == (0, {})
    assert shares.take("o", "p", 90)
    shares.clear()
    assert (shares.total, shares.take("o", "p", 90)) == (0, True)
