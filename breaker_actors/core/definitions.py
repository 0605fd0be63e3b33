"""The aggregates of semantics.md section 4 by their definitions: a value from the samples of a window alone.

`core.aggregate` decides the same without looking at all samples; what it answers has to equal this. All values are
finite floats.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from breaker_actors.core.model import Agg, Flags, Float64, Rule
from breaker_actors.core.rule_fields import ALPHA_DEFAULT, DELTA_OF_DEFAULT

FLOAT_MAX = float(np.finfo(np.float64).max)
HUGE = 2.0**960
"""From here on a sum of a window may overflow on the way."""
WIDE = 2.0**500
"""From here on squares may overflow: deviations are then computed on values scaled by 2**-600."""
P95 = Fraction(95)


def clamp(value: float) -> float:
    """The nearest finite float: answers and events carry no infinities."""
    return max(-FLOAT_MAX, min(FLOAT_MAX, value))


def exact_total(values: list[float]) -> Fraction:
    """The sum without any rounding; for windows where `math.fsum` overflows on the way."""
    huge = [v * 2.0**-128 for v in values if abs(v) >= HUGE]
    rest = [v for v in values if abs(v) < HUGE]
    return _exact(huge) * 2**128 + _exact(rest)


def _exact(values: list[float]) -> Fraction:
    """Peels the sum off word by word: each pass takes 53 bits, so two or three passes are the rule."""
    left, total = list(values), Fraction(0)
    while word := math.fsum(left):
        total += Fraction(word)
        left.append(-word)
    return total


def total(values: list[float]) -> float:
    """The exact sum rounded once, kept within the finite floats."""
    try:
        return clamp(math.fsum(values))
    except OverflowError:
        return _rounded(exact_total(values))


def _rounded(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return FLOAT_MAX if exact > 0 else -FLOAT_MAX


def mean(values: list[float]) -> float:
    """fsum / n; where that sum overflows, the exact sum / n rounded once."""
    try:
        return clamp(math.fsum(values)) / len(values)
    except OverflowError:
        return _mean_of_huge(exact_total(values), len(values))


def _mean_of_huge(exact: Fraction, n: int) -> float:
    try:
        return float(exact) / n
    except OverflowError:
        return _rounded(exact / n)


def deviation(values: Float64) -> float:
    """Population standard deviation in two passes; see WIDE for huge values."""
    scale = 1.0
    if len(values) and max(values.max(), -values.min()) >= WIDE:
        scale, values = 2.0**600, values * 2.0**-600
    off = values - mean(values.tolist())
    return clamp(math.sqrt(math.fsum((off * off).tolist()) / len(values)) * scale)


def rank(percent: Fraction, n: int) -> int:
    """ceil(percent / 100 * n) in whole numbers: 1-based place of the nearest rank."""
    return -(-percent.numerator * n // (percent.denominator * 100))


def nearest(values: Float64, place: int) -> float:
    """The `place`-th value in ascending order, 1-based."""
    return float(np.partition(values, place - 1)[place - 1])


def exact_value(kind: str, percent: Fraction, values: Float64, ok: Flags) -> float:
    """The aggregate `kind` of a window that is not empty, from its definition."""
    n = len(values)
    match kind:
        case "error_rate":
            return (n - int(np.count_nonzero(ok))) / n
        case "count":
            return float(n)
        case "avg":
            return mean(values.tolist())
        case "sum":
            return total(values.tolist())
        case "stddev":
            return deviation(values)
        case "max":
            return float(values.max())
        case "min":
            return float(values.min())
        case _:
            return nearest(values, rank(percent, n))


def summary(values: Float64, ok: Flags) -> Agg:
    """The `agg` object of an event over these samples."""
    n = len(values)
    if not n:
        return Agg()
    errors = n - int(np.count_nonzero(ok))
    return Agg(mean(values.tolist()), n, errors, nearest(values, rank(P95, n)))


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
