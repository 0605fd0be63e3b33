"""Quantiles of a histogram as it is scraped."""

from __future__ import annotations

import pytest

from tests.support.scraping import gained, quantile

LAG = "breakers_evaluation_lag_seconds"
"""Its bounds: 0.001, 0.0025, 0.005, ... 10."""


def test_a_quantile_lies_in_its_bucket_by_rank() -> None:
    counts = [0.0, 10.0, 20.0, *[20.0] * 11]
    assert quantile(LAG, counts, 0.75) == (pytest.approx(0.00375), 0.0025, 0.005)
    assert quantile(LAG, counts, 0.5) == (0.0025, 0.001, 0.0025)


def test_above_the_last_bound_it_is_that_bound() -> None:
    assert quantile(LAG, [*[0.0] * 13, 4.0], 0.99) == (10.0, 10.0, float("inf"))


def test_only_what_came_since_counts() -> None:
    before = {f"{LAG}_bucket_total": {("0.001",): 3.0, ("+Inf",): 5.0}}
    after = {f"{LAG}_bucket_total": {("0.001",): 4.0, ("+Inf",): 9.0}}
    counts = gained(before, after, LAG)
    assert (len(counts), counts[0], counts[-1]) == (14, 1.0, 4.0)
