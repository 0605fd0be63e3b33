"""The benchmark's score against values worked out by hand from its formula, 2 / (1 + e^(5x)) - 1."""

from __future__ import annotations

import json

import pytest

from tests.bench import nab
from tests.support.nab_scoring import PROFILES, Profile, normalised, probation, raw, scaled

STANDARD = PROFILES["standard"]
WINDOW = [(1000, 1009)]


def test_the_sigmoid_has_the_values_of_the_paper() -> None:
    assert scaled(-1.0) == pytest.approx(0.98661, abs=1e-5)
    assert scaled(-0.5) == pytest.approx(0.84828, abs=1e-5)
    assert scaled(0.0) == 0.0
    assert scaled(1.0) == pytest.approx(-0.98661, abs=1e-5)
    assert scaled(3.0) == -1.0


def test_probation_is_fifteen_percent_of_at_most_5000_rows() -> None:
    assert (probation(4032), probation(5000), probation(22695)) == (604, 750, 750)


@pytest.mark.parametrize(
    ("detections", "expected"),
    [
        ([], -1.0),  # missed
        ([1000], 1.0),  # the first row: as good as can be
        ([1005, 1000, 1009], 1.0),  # the earliest counts
        ([1005], 0.84828 / 0.98661),  # five of ten rows are left: x = -0.5
        ([1009], 0.24492 / 0.98661),  # the last row: x = -0.1
        ([100], -1.0),  # probation counts for nothing
        ([700], -1.0 - 0.11),  # nothing before it: x = 3
        ([1000, 1018], 1.0 - 0.11 * 0.98661),  # nine rows behind a window of ten: x = 1
        ([1000, 1100], 1.0 - 0.11),  # more than three widths behind
    ],
)
def test_one_window(detections: list[int], expected: float) -> None:
    assert raw(4032, WINDOW, detections, STANDARD) == pytest.approx(expected, abs=1e-4)


def test_profiles_weigh_what_is_false() -> None:
    assert raw(4032, WINDOW, [700], PROFILES["low FP"]) == pytest.approx(-1.22)
    assert raw(4032, WINDOW, [], Profile(1.0, 0.11, 2.0)) == -2.0


def test_nothing_is_0_and_perfect_is_100() -> None:
    for profile in PROFILES.values():
        nothing = raw(4032, WINDOW, [], profile)
        assert normalised(nothing, 1, profile) == 0
        assert normalised(raw(4032, WINDOW, [1000], profile), 1, profile) == pytest.approx(100)


@pytest.mark.slow
def test_the_shared_series_reach_the_goals() -> None:
    """On three series, which is no proof for the whole corpus: a global rule 39.6, unlabelled 54.6 at least."""
    figures = nab.measure(nab.shared())
    assert json.dumps(figures)
    assert figures["standard: one global rule"] >= 39.6
    assert figures["standard: unlabelled, first 15 %"] >= 54.6
    assert figures["standard: fitted to the labels"] >= 60
