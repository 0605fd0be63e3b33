"""How much a group may write follows from how long the last ones took."""

from __future__ import annotations

import pytest

from breaker_actors.journal.group_size import LEAST_PART, LONG_S, GroupSize

MOST = 2_000


@pytest.mark.parametrize(
    ("rows", "took_s", "then"),
    [
        (MOST, LONG_S, MOST),
        (MOST, 1.2 * LONG_S, MOST // 2),
        (MOST, 4 * LONG_S, MOST // 4),
        (MOST, 100.0, MOST // LEAST_PART),
        (MOST // 2 - 1, 100.0, MOST),
        (1, 100.0, MOST),
    ],
)
def test_a_full_group_that_was_long_makes_the_next_one_smaller(rows: int, took_s: float, then: int) -> None:
    size = GroupSize(MOST)
    size.learn(rows, took_s)
    assert size.rows == then


def test_full_groups_that_are_short_make_it_larger_again() -> None:
    size = GroupSize(MOST)
    size.learn(MOST, 100.0)
    sizes = []
    while size.rows < MOST:
        size.learn(size.rows, 0.49 * LONG_S)
        sizes.append(size.rows)
    assert sizes == sorted(sizes)
    assert len(sizes) < 15
    size.learn(size.rows, 0.0)
    assert size.rows == MOST, "no more than that"


def test_what_lasts_about_as_long_as_it_may_stays() -> None:
    size = GroupSize(MOST)
    size.learn(MOST, 4 * LONG_S)
    for took_s in (LONG_S / 2, 0.9 * LONG_S, LONG_S):
        size.learn(size.rows, took_s)
        assert size.rows == MOST // 4
