"""The aggregates of semantics.md section 4 by their definitions: a value from the samples of a window alone.

`core.accumulators` decides the same without looking at all samples; what it answers has to equal this. All values are
finite floats. A sample that stands for n observations is the same as n samples that stand for one.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from breaker_actors.core.model import Agg, Counts, Flags, Float64, Rule
from breaker_actors.core.rule_fields import ALPHA_DEFAULT, DELTA_OF_DEFAULT

FLOAT_MAX = float(np.finfo(np.float64).max)
HUGE = 2.0**960
"""From here on a sum of a window may overflow on the way."""
WIDE = 2.0**480
"""From here on sums of squares may overflow: deviations are then computed on values scaled by 2**-600."""
P95 = Fraction(95)
_UPPER = np.uint64(0xFFFF_FFFF_F800_0000)
"""Sign, exponent and the upper 26 of a float's 53 digits."""


def clamp(value: float) -> float:
    """The nearest finite float: answers and events carry no infinities."""
    return max(-FLOAT_MAX, min(FLOAT_MAX, value))


def observations(rows: int, counts: Counts) -> int:
    """How many observations so many samples stand for."""
    return rows if counts is None else int(counts.sum())


def terms(values: Float64, counts: Counts) -> list[float]:
    """Floats whose sum is exactly that of all observations, for values below HUGE. Where samples stand for several, a
    value is split in two halves of its 53 digits: each half times a count of at most 24 digits is exact."""
    if counts is None:
        each: list[float] = values.tolist()
        return each
    upper = (values.view(np.uint64) & _UPPER).view(np.float64)
    return [*(upper * counts).tolist(), *((values - upper) * counts).tolist()]


def exact_total(values: Float64, counts: Counts = None) -> Fraction:
    """The sum without any rounding; for windows where `math.fsum` overflows on the way."""
    huge = np.abs(values) >= HUGE
    many, few = (None, None) if counts is None else (counts[huge], counts[~huge])
    return _exact(terms(values[huge] * 2.0**-128, many)) * 2**128 + _exact(terms(values[~huge], few))


def _exact(values: list[float]) -> Fraction:
    """Peels the sum off word by word: each pass takes 53 bits, so two or three passes are the rule."""
    left, total = list(values), Fraction(0)
    while word := math.fsum(left):
        total += Fraction(word)
        left.append(-word)
    return total


def total(values: Float64, counts: Counts = None) -> float:
    """The exact sum rounded once, kept within the finite floats."""
    try:
        return clamp(_sum(values, counts))
    except OverflowError:
        return _rounded(exact_total(values, counts))


def _sum(values: Float64, counts: Counts) -> float:
    """fsum of all observations; raises OverflowError where it, or a product, overflows on the way."""
    if counts is not None and len(values) and max(values.max(), -values.min()) >= HUGE:
        raise OverflowError
    return math.fsum(terms(values, counts))


def _rounded(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return FLOAT_MAX if exact > 0 else -FLOAT_MAX


def mean(values: Float64, counts: Counts = None) -> float:
    """fsum / n; where that sum overflows, the exact sum / n rounded once."""
    n = observations(len(values), counts)
    try:
        return clamp(_sum(values, counts)) / n
    except OverflowError:
        return _mean_of_huge(exact_total(values, counts), n)


def _mean_of_huge(exact: Fraction, n: int) -> float:
    try:
        return float(exact) / n
    except OverflowError:
        return _rounded(exact / n)


def deviation(values: Float64, counts: Counts = None) -> float:
    """Population standard deviation in two passes; see WIDE for huge values."""
    scale = 1.0
    if len(values) and max(values.max(), -values.min()) >= WIDE:
        scale, values = 2.0**600, values * 2.0**-600
    off = values - mean(values, counts)
    return clamp(math.sqrt(math.fsum(terms(off * off, counts)) / observations(len(values), counts)) * scale)


def rank(percent: Fraction, n: int) -> int:
    """ceil(percent / 100 * n) in whole numbers: 1-based place of the nearest rank."""
    return -(-percent.numerator * n // (percent.denominator * 100))


def nearest(values: Float64, place: int, counts: Counts = None) -> float:
    """The `place`-th observation in ascending order, 1-based."""
    if counts is None:
        return float(np.partition(values, place - 1)[place - 1])
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
