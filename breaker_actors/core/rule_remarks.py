"""Rules that are allowed and hardly meant: what to tell whoever makes or tries one. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from breaker_actors.core.accumulators import COMPARE
from breaker_actors.core.model import Rule

NEVER_MOVES, SHORT_WINDOW, LOW_PERCENTILE = "never_moves", "short_window", "percentile_below_1"


class RuleRemark(NamedTuple):
    """A machine word, the field that it is about, and a sentence."""

    code: str
    field: str
    message: str


def remarks_on(rule: Rule) -> list[RuleRemark]:
    """On rules that can hardly do what was meant."""
    return [
        *_range_remarks(rule),
        *_percentile_remarks(rule),
        *_absence_remarks(rule),
        *_window_remarks(rule),
    ]


def never_moves(rule: Rule) -> list[str]:
    """What keeps a rule from ever moving its breaker, or from ever letting it rest."""
    return [one.message for one in remarks_on(rule) if one.code == NEVER_MOVES]


_RANGES = {
    "error_rate": (1.0, "An error rate lies between 0 and 1"),
    "stddev": (math.inf, "A standard deviation is never below 0"),
    "count": (math.inf, "A count is never below 0"),
    "consecutive_failures": (math.inf, "A run of failures is never below 0"),
}
"""The highest value of kinds that have none below 0, and how that is said."""


def stuck(rule: Rule) -> str:
    """What a breaker does by its threshold, whatever its samples are: never opens, or always; "" of others."""
    if rule.kind not in _RANGES:
        return ""
    top = _RANGES[rule.kind][0]
    lowest, highest = (COMPARE[rule.op](value, rule.threshold) for value in (0.0, top))
    if lowest != highest:
        return ""
    return "always opens" if lowest else "never opens"


def _range_remarks(rule: Rule) -> list[RuleRemark]:
    """A threshold beyond what a kind's values can be says always, or never."""
    if not (word := stuck(rule)):
        return []
    words = _RANGES[rule.kind][1]
    return [RuleRemark(NEVER_MOVES, "threshold", f"{words}: with {rule.op} {rule.threshold:g} this breaker {word}.")]


def _percentile_remarks(rule: Rule) -> list[RuleRemark]:
    """Percentiles are in percent; 0.99 is hardly ever another one than the minimum."""
    p = (rule.kind_params or {}).get("percentile") if rule.kind == "percentile" else None
    if not isinstance(p, int | float) or p >= 1:
        return []
    message = f"Percentiles are in percent: {p:g} is below the first; did you mean {p * 100:g}?"
    return [RuleRemark(LOW_PERCENTILE, "kind_params.percentile", message)]


def _absence_remarks(rule: Rule) -> list[RuleRemark]:
    """Whoever asks for too few samples means none at all, too."""
    if rule.kind not in ("count", "sum") or rule.op not in ("lt", "lte") or rule.min_count == 0:
        return []
    samples = "1 sample" if rule.min_count == 1 else f"{rule.min_count} samples"
    message = (
        f"Below {samples} nothing is judged, so no traffic at all never opens this breaker; with min_count 0 it does."
    )
    return [RuleRemark(NEVER_MOVES, "min_count", message)]


def _window_remarks(rule: Rule) -> list[RuleRemark]:
    """Samples that leave the window before the next tick are in no evaluation of it."""
    if rule.kind == "consecutive_failures" or rule.window_ms >= rule.eval_interval_ms:
        return []
    message = (
        f"The window ({rule.window_ms} ms) is shorter than the time between ticks ({rule.eval_interval_ms} ms):"
        " recovery sees only samples right before a tick. At least three times eval_interval_ms is advised."
    )
    return [RuleRemark(SHORT_WINDOW, "window_ms", message)]
