"""What speaks for a suggestion, in a sentence or two."""

from __future__ import annotations

from collections.abc import Sequence

from breaker_actors.core.model import Rule
from breaker_actors.text.counting import counted
from pipelines.candidates import SIGNS
from pipelines.suggest.bounds import UNTOLD
from pipelines.suggest.budget import Budgeted
from pipelines.suggest.measures import Measure
from pipelines.suggest.search import Found


def why_found(found: Found, tried: int) -> str:
    done, rule = found.outcome, found.outcome.rule
    plateau = f"any threshold from {found.from_threshold:.5g} to {found.to_threshold:.5g} catches as much"
    if found.from_threshold == found.to_threshold and not found.cut_short:
        plateau = "no threshold beside it does as well: it stands on a narrow ridge"
    after = "" if done.latency_ms is None else f", {_span(done.latency_ms)} after they began on average"
    end = f"none catches more, and none as many with fewer false trips; {found.judged} had to be judged."
    if found.cut_short:
        end = f"{found.judged} were judged when the time limit was met: others may be better, and the plateau wider."
    failures, false = counted(done.windows, "labelled failure"), counted(done.false_trips, "false trip")
    return (
        f"{_said(rule)} catches {done.caught} of {failures}{after}, with {false}, and is open for "
        f"{_span(done.open_ms)}; {plateau}. Of {found.settings:,} settings of {tried} measures {end}"
    )


def why_budget(found: Budgeted, trips_a_week: float) -> str:
    rule, side = found.rule, "above" if found.rule.op in ("gt", "gte") else "below"
    peaks, trips = counted(found.peaks, "time"), counted(found.incidents, "time")
    return (
        f"{_said(rule)}: the usual level ends at {found.usual:.5g} ({found.bins}); the value went {side} it "
        f"{peaks}. On this history of {found.weeks:.2g} weeks it trips {trips}; {trips_a_week:g} a week are allowed."
    )


def why_none(found: Sequence[Budgeted], tried: Sequence[Measure]) -> str:
    if any(measure.rule.kind in UNTOLD for measure in tried):
        return f"kind {tried[0].rule.kind} needs labelled failures: its value hangs on more than its window"
    if found:
        return "what is usual reaches so far that no value beyond it can come"
    return "the value never changes, so no threshold tells anything apart"


def why_waits(rule: Rule, at_first_step: float) -> list[str]:
    """That a recovery can't come to enough samples, where it is so. `at_first_step`: samples of a window then."""
    if rule.kind == "consecutive_failures" or rule.min_count <= at_first_step:
        return []
    return [
        "Where this breaker lets calls through, half_open waits without end: its first step lets 1 of "
        f"{rule.recovery_allow_rate_ramp_steps} of them, some {at_first_step:.2g} samples in {_span(rule.window_ms)}, "
        f"and min_count is {rule.min_count}."
    ]


def _said(rule: Rule) -> str:
    return f"{rule.kind} of {rule.metric} over {_span(rule.window_ms)} {SIGNS[rule.op]} {rule.threshold:.6g}"


def _span(ms: float) -> str:
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if ms >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms / 1000:.3g} s"
