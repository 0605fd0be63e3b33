"""Rules that are allowed and hardly meant: what to tell whoever makes or tries one. Pure."""

from __future__ import annotations

from typing import NamedTuple

from breaker_actors.core.model import Rule

NEVER_MOVES, SHORT_WINDOW = "never_moves", "short_window"


class RuleRemark(NamedTuple):
    """A machine word, the field that it is about, and a sentence."""

    code: str
    field: str
    message: str


def remarks_on(rule: Rule) -> list[RuleRemark]:
    """On rules that can hardly do what was meant."""
    return [*_rate_remarks(rule), *_absence_remarks(rule), *_window_remarks(rule)]


def _rate_remarks(rule: Rule) -> list[RuleRemark]:
    """An error rate lies between 0 and 1: a threshold beyond that says always, or never."""
    if rule.kind != "error_rate":
        return []
    lowest, highest = (_holds(rule.op, share, rule.threshold) for share in (0.0, 1.0))
    if lowest != highest:
        return []
    word = "always opens" if lowest else "never opens"
    message = f"An error rate lies between 0 and 1: with {rule.op} {rule.threshold:g} this breaker {word}."
    return [RuleRemark(NEVER_MOVES, "threshold", message)]


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


def _holds(op: str, value: float, threshold: float) -> bool:
    return {"gt": value > threshold, "gte": value >= threshold, "lt": value < threshold, "lte": value <= threshold}[op]
