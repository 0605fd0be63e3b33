"""A threshold without labels: the far end of what is usual, and no more trips than a budget allows.

What is usual is told by quantiles alone. A mean and so many standard deviations are not asked: one incident in the
history moves both, and what is counted or timed has a long tail that they know nothing of.

1. The worst usual level: of each hour of the week the quantile USUAL_OF_HOUR of the window's value, and of these the
   largest. So a busy Monday morning is usual, and a quiet night does not hide it. Where the history has not seen every
   such hour three times, hours of the day do; where it has not seen these, all of it is one.
2. The tail beyond: the median of what peaks exceed that level by tells how fast the tail falls, as if it fell by the
   same factor with each further step. It is followed to where the budget's number of peaks a week is left.
3. The machine: from there on the lowest threshold is taken whose trips on the history stay within the budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from breaker_actors.core.model import Float64, Int64, Rule
from pipelines.replay.scoring import Tally
from pipelines.replay.vectorized.judge import Judge
from pipelines.suggest.bounds import Course, course
from pipelines.suggest.measures import Measure, thresholds

HOUR_MS, DAY_MS, WEEK_MS = 3_600_000, 86_400_000, 604_800_000
USUAL, USUAL_OF_HOUR = 0.99, 0.75
"""Of all values so many are usual; of an hour's fewer, as one incident may be a good part of what was seen of it."""
SEEN = 3
"""Times that an hour has to be seen to be told apart."""
HEADROOM = 1.0
"""At least so many times the way from the usual middle to the usual level lies between that level and the threshold."""
LADDER = 400
"""Thresholds that are tried."""
BINS = {WEEK_MS: "75 % of each hour of the week", DAY_MS: "75 % of each hour of the day", 0: "99 % of the history"}


@dataclass(frozen=True, slots=True)
class Budgeted:
    """A rule, and how it was found: the usual level (times its sign, as it is), by which bins, how many peaks lay
    beyond it, and how often it tripped."""

    rule: Rule
    usual: float
    bins: str
    peaks: int
    incidents: int
    weeks: float


def within_budget(judge: Judge, measure: Measure, trips_a_week: float) -> Budgeted | None:
    """The rule of a measure that keeps the budget. None where its value never changes, or can't be told."""
    values = course(judge, measure)
    if values is None:
        return None
    known = values.arrival & np.isfinite(values.high)
    times, extremes = values.times[known], values.high[known]
    if len(np.unique(extremes)) < 2:
        return None
    weeks = max(1, judge.last_ms - judge.first_ms) / WEEK_MS
    period_ms = _period(times)
    usual = _usual(times, extremes, period_ms)
    middle = float(np.median(extremes))
    peaks = _peaks(times, extremes, usual, measure.rule)
    least = max(_followed(usual, peaks, trips_a_week * weeks), usual + HEADROOM * max(0.0, usual - middle))
    allowed = math.floor(trips_a_week * weeks)
    for extreme in _steps(values, least):
        rule = measure.at(measure.sign * extreme)
        tally = Tally(kept=False)
        if judge.follow(rule, tally, None, partial(_too_many, tally, allowed)) and tally.incidents <= allowed:
            return Budgeted(rule, measure.sign * usual, BINS[period_ms], len(peaks), tally.incidents, weeks)
    return None


def _too_many(tally: Tally, allowed: int, now_ms: int) -> bool:
    return tally.incidents > allowed


def _period(times: Int64) -> int:
    """Of a week, or a day, where each of its hours with samples was seen often enough; else 0."""
    hours = np.unique(times // HOUR_MS)
    for period_ms in (WEEK_MS, DAY_MS):
        seen = np.unique(hours % (period_ms // HOUR_MS), return_counts=True)[1]
        if int(np.median(seen)) >= SEEN:
            return period_ms
    return 0


def _usual(times: Int64, extremes: Float64, period_ms: int) -> float:
    if not period_ms:
        return float(np.quantile(extremes, USUAL))
    hours = (times // HOUR_MS) % (period_ms // HOUR_MS)
    order = np.argsort(hours, kind="stable")
    cuts = np.flatnonzero(np.diff(hours[order])) + 1
    levels = [np.quantile(part, USUAL_OF_HOUR, method="lower") for part in np.split(extremes[order], cuts)]
    return float(np.quantile(levels, USUAL, method="lower"))


def _peaks(times: Int64, extremes: Float64, usual: float, rule: Rule) -> Float64:
    """How far each stay beyond the usual level goes beyond it. Stays are apart by more than a window."""
    beyond = np.flatnonzero(extremes > usual)
    if not len(beyond):
        return np.empty(0)
    cuts = np.flatnonzero(np.diff(times[beyond]) > rule.window_ms + rule.cooldown_ms) + 1
    return np.array([float(part.max()) - usual for part in np.split(extremes[beyond], cuts)])


def _followed(usual: float, peaks: Float64, allowed: float) -> float:
    """Where so many peaks are left of a tail that halves with each median excess."""
    if not len(peaks) or len(peaks) <= allowed:
        return usual
    return usual + float(np.median(peaks)) * math.log2(len(peaks) / max(allowed, 0.5))


def _steps(values: Course, least: float) -> list[float]:
    """Thresholds from `least` on, the lowest first; the last is never reached."""
    top = float(values.high[np.isfinite(values.high)].max())
    found = [step for step in reversed(thresholds(values.high, LADDER)) if step > least]
    return [_short(least), *found, _short(max(least, top + max(abs(top), 1.0) * 1e-3))]


def _short(value: float) -> float:
    """Three digits more than its size needs."""
    return float(f"{value:.4g}")
