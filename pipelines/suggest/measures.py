"""What could be watched: kinds, sides and windows that fit the samples, each with the thresholds that tell them apart.

A measure is a rule but for its threshold. Its thresholds lie between the values that its window took, every one near
the extreme and ever fewer towards the middle, so no two of the densest part behave alike by chance of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from breaker_actors.core.model import Float64, Rule
from breaker_actors.core.rules import DEFAULTS, parse_rule
from pipelines.columns import Samples

SETTINGS = 10_000
"""Settings of a dense grid, shared out to the measures."""
UNIT_MS, WINDOW_MOST_MS = 10_000, 86_400_000
LENGTHS = (1, 3, 6, 12, 36, 144)
"""Windows that are tried, in units of the usual distance of samples, or UNIT_MS where they come more often."""
SPAN_PARTS = 4
"""A window is at most such a part of the history."""
RANKED_MIN, COUNTED_MIN = 20, 3
"""Samples in a usual window from which a p95 is more than the largest, and a count says something."""
USUAL_WINDOWS = 4
"""Without labels the fourth of the windows that could be tried is taken, or the longest there is."""
FIRST_SHARE = 1 / int(str(DEFAULTS["recovery_allow_rate_ramp_steps"]))
"""Of the calls that the first step of half_open lets through."""
TAIL = 0.5
"""Half of the thresholds are the outermost ones; the others thin out towards the middle."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A rule whose threshold is open. `sign`: 1 where large values are bad, else -1."""

    rule: Rule

    @property
    def sign(self) -> int:
        return 1 if self.rule.op in ("gt", "gte") else -1

    @property
    def family(self) -> tuple[str, str, str]:
        """What measures share that differ in their window alone."""
        return self.rule.kind, self.rule.op, str(self.rule.kind_params)

    def at(self, threshold: float) -> Rule:
        """The rule with a threshold."""
        return parse_rule({"threshold": threshold}, self.rule)


def spacing_ms(samples: Samples) -> int:
    """The usual time between samples, at least 1."""
    apart = np.diff(samples.at)
    apart = apart[apart > 0]
    return max(1, int(np.median(apart))) if len(apart) else UNIT_MS


def windows_of(samples: Samples) -> list[int]:
    """Lengths of windows worth trying, in milliseconds; at least one."""
    unit, span = max(UNIT_MS, spacing_ms(samples)), int(samples.at[-1] - samples.at[0])
    found = [unit * length for length in LENGTHS if unit * length <= min(WINDOW_MOST_MS, span // SPAN_PARTS)]
    return found or [min(unit, WINDOW_MOST_MS)]


def measures(samples: Samples, metric: str, base: Mapping[str, Any] | None = None) -> list[Measure]:
    """What is tried: the kinds that fit the samples, or those windows of the rule given, whose other fields stay."""
    if base is not None:
        return [Measure(parse_rule(timed(window_ms) | dict(base) | {"window_ms": window_ms, "threshold": 0.0}))
                for window_ms in windows_for(samples, base)]  # fmt: skip
    found = []
    for window_ms in windows_of(samples):
        usual = usual_in(window_ms, samples)
        for kind, op, fields in kinds_of(samples, usual):
            rule = {"metric": metric, "kind": kind, "op": op, "threshold": 0.0, "window_ms": window_ms}
            found.append(Measure(parse_rule(rule | timed(window_ms) | fields)))
    return found


def windows_for(samples: Samples, base: Mapping[str, Any]) -> list[int]:
    """Windows for a rule given: its own where it names one."""
    given = base.get("window_ms")
    return [int(given)] if given else windows_of(samples)


def timed(window_ms: int) -> dict[str, int]:
    """Times that go with a window. Ticks come so often that all of half_open is as long as the window: a breaker that
    has closed sees whole windows. It stays open until what tripped it has left."""
    steps = int(str(DEFAULTS["recovery_allow_rate_ramp_steps"])) + 1
    interval_ms = max(min(1000, window_ms), -(-window_ms // steps))
    return {"eval_interval_ms": interval_ms, "min_state_duration_ms": 0, "cooldown_ms": window_ms}


def kinds_of(samples: Samples, usual: float) -> list[tuple[str, str, dict[str, Any]]]:
    """Kinds with their operators, for windows that usually hold so many samples. Three quarters of what comes
    at the first step of a recovery are needed: where the breaker lets calls through, only its share of them makes
    samples, and half_open would wait without end for more."""
    enough: dict[str, Any] = {"min_count": max(1, int(usual * FIRST_SHARE * 0.75))}
    found: list[tuple[str, str, dict[str, Any]]] = [("max", "gt", enough), ("min", "lt", enough)]
    if usual >= 2:
        found += [("avg", "gt", enough), ("avg", "lt", enough), ("stddev", "gt", enough)]
    if usual >= RANKED_MIN:
        found.append(("p95", "gt", enough))
    if usual >= COUNTED_MIN:
        found.append(("count", "lt", {"min_count": 0}))
    if not samples.ok.all() and samples.ok.any():
        found.append(("error_rate", "gt", enough))
    return found


def thresholds(extremes: Float64, count: int) -> list[float]:
    """At most `count` thresholds for the values a measure took, times its sign, the strictest first: between values
    next to each other, so that what they tell apart is clear. None where it never changes."""
    distinct = np.unique(extremes[np.isfinite(extremes)])[::-1]
    if len(distinct) < 2:
        return []
    scale = max(abs(float(distinct[0])), abs(float(distinct[-1])), 1e-300)
    places = np.flatnonzero(distinct[:-1] - distinct[1:] > 1e-9 * scale)
    if len(places) > count:
        outer = max(1, int(count * TAIL))
        spread = np.geomspace(outer, len(places) - 1, count - outer)
        places = places[np.unique(np.concatenate([np.arange(outer), spread.astype(np.int64)]))]
    return [float(one) for one in (distinct[places] + distinct[places + 1]) / 2]


def usual_measures(history: Samples, metric: str, fields: Mapping[str, Any] | None) -> list[Measure]:
    """Without labels: the far ends of what comes, on both sides; or the rule given."""
    lengths = windows_of(history)
    window_ms = lengths[min(USUAL_WINDOWS, len(lengths)) - 1]
    if fields is not None:
        return measures(history, metric, {"window_ms": window_ms} | dict(fields))
    usual = usual_in(window_ms, history)
    wanted = {("p95", "gt"), ("avg", "lt")} if usual >= RANKED_MIN * USUAL_WINDOWS else {("max", "gt"), ("min", "lt")}
    wanted.add(("error_rate", "gt"))
    kinds = [one for one in kinds_of(history, usual) if one[:2] in wanted]
    base = {"metric": metric, "window_ms": window_ms}
    return [measures(history, metric, base | {"kind": kind, "op": op} | more)[0] for kind, op, more in kinds]


def usual_in(window_ms: int, history: Samples) -> float:
    """How many samples a window usually holds."""
    return len(history) * window_ms / max(1, int(history.at[-1] - history.at[0]))


def at_first_step(rule: Rule, history: Samples) -> float:
    """How many samples a window usually holds at the first step of a recovery, where only calls that the breaker lets
    through make samples."""
    return usual_in(rule.window_ms, history) / rule.recovery_allow_rate_ramp_steps


def reachable(rule: Rule, history: Samples) -> bool:
    """Whether a value that never was below 0, or is a share, could get there."""
    if rule.op == "lt":
        return rule.threshold > 0 or bool((history.value < 0).any())
    return rule.kind != "error_rate" or rule.threshold < 1
