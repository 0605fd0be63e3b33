"""The aggregates of semantics.md section 4 by their definitions: a value from the samples of a window alone.

`core.accumulators` decides the same without looking at all samples; what it answers has to equal this. All values are
finite floats. A sample that stands for n observations is the same as n samples that stand for one.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from breaker_actors.core import exact_sums
from breaker_actors.core.exact_sums import FLOAT_MAX
from breaker_actors.core.model import Agg, Counts, Flags, Float64, Rule
from breaker_actors.core.rule_fields import ALPHA_DEFAULT, DELTA_OF_DEFAULT

P95 = Fraction(95)
SORTED_MAX = 10_000
"""Up to so many samples with counts are ranked by sorting them."""


def clamp(value: float) -> float:
    """The nearest finite float: answers and events carry no infinities."""
    return max(-FLOAT_MAX, min(FLOAT_MAX, value))


def observations(rows: int, counts: Counts) -> int:
    """How many observations so many samples stand for."""
    return rows if counts is None else int(counts.sum())


def total(values: Float64, counts: Counts = None) -> float:
    """The exact sum rounded once, kept within the finite floats."""
    few = _sum_of_few(values, counts)
    return exact_sums.total(exact_sums.column_sum(values, counts)) if few is None else few


def mean(values: Float64, counts: Counts = None) -> float:
    """The exact sum rounded once / n; where the sum is beyond the floats, the exact quotient rounded once."""
    n, few = observations(len(values), counts), _sum_of_few(values, counts)
    return exact_sums.mean(exact_sums.column_sum(values, counts), n) if few is None else few / n


def _sum_of_few(values: Float64, counts: Counts) -> float | None:
    """The exact sum rounded once where that is had for less; None: it is not, or overflows on the way."""
    if counts is not None or len(values) > exact_sums.FSUM_MAX:
        return None
    try:
        return math.fsum(values.tolist())
    except OverflowError:
        return None


def deviation(values: Float64, counts: Counts = None) -> float:
    """The population standard deviation, the root of the exact variance, rounded once."""
    return exact_sums.deviation(*exact_sums.column_moments(values, counts), observations(len(values), counts))


def rank(percent: Fraction, n: int) -> int:
    """ceil(percent / 100 * n) in whole numbers: 1-based place of the nearest rank."""
    return -(-percent.numerator * n // (percent.denominator * 100))


def nearest(values: Float64, place: int, counts: Counts = None) -> float:
    """The `place`-th observation in ascending order, 1-based. Of many with counts the half that does not hold it is
    left out, again and again: a third of the time that sorting all takes."""
    if counts is None:
        return float(np.partition(values, place - 1)[place - 1])
    while (n := len(values)) > SORTED_MAX:
        middle = np.partition(values, n // 2)[n // 2]
        below = int(np.dot(values < middle, counts))
        upto = below + int(np.dot(values == middle, counts))
        if below < place <= upto:
            return float(middle)
        rows = np.flatnonzero(values < middle if place <= below else values > middle)
        values, counts, place = values[rows], counts[rows], place if place <= below else place - upto
    order = np.argsort(values)
    return float(values[order[np.searchsorted(np.cumsum(counts[order]), place)]])


def failures(ok: Flags, counts: Counts = None) -> int:
    """How many observations are not ok."""
    return len(ok) - int(np.count_nonzero(ok)) if counts is None else int(counts[~ok].sum())


def exact_value(kind: str, percent: Fraction, values: Float64, ok: Flags, counts: Counts = None) -> float:
    """The aggregate `kind` of a window that is not empty, from its definition."""
    n = observations(len(values), counts)
    match kind:
        case "error_rate":
            return failures(ok, counts) / n
        case "count":
            return float(n)
        case "avg":
            return mean(values, counts)
        case "sum":
            return total(values, counts)
        case "stddev":
            return deviation(values, counts)
        case "max":
            return float(values.max())
        case "min":
            return float(values.min())
        case _:
            return nearest(values, rank(percent, n), counts)


def summary(values: Float64, ok: Flags, counts: Counts = None) -> Agg:
    """The `agg` object of an event over these samples."""
    n = observations(len(values), counts)
    if not n:
        return Agg()
    return Agg(mean(values, counts), n, failures(ok, counts), nearest(values, rank(P95, n), counts))


# -- what a rule asks for ---------------------------------------------------------------------------------------------


def percent_of(rule: Rule) -> Fraction:
    """The rule's percentile as the decimal number its author wrote."""
    return P95 if rule.kind == "p95" else Fraction(repr((rule.kind_params or {})["percentile"]))


def delta_params(rule: Rule) -> tuple[str, float]:
    """The inner aggregate and the weight of a delta rule."""
    params = rule.kind_params or {}
    return params.get("delta_of") or DELTA_OF_DEFAULT, float(params.get("alpha") or ALPHA_DEFAULT)


def need_of(rule: Rule) -> int:
    """The least number of samples that makes the rule determinate."""
    return rule.min_count if rule.kind in ("count", "sum") else max(1, rule.min_count)


def inner_kind(rule: Rule) -> str:
    """The aggregate taken over the window: the kind itself, for delta what it is a difference of."""
    return delta_params(rule)[0] if rule.kind == "delta" else rule.kind
