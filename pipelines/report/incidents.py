"""Incidents of a run: from a trip out of closed until the breaker is closed again. Trips on the way are re-trips."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from pipelines.replay.downsample import FINE_SPANS
from pipelines.replay.run import Run
from pipelines.replay.scoring import Labelled, belonging

Span = tuple[int, int]
"""From and to, in milliseconds."""
LENGTHS_BEFORE = 8
"""Of an incident, how many of its lengths are shown before it at most, however long the rule's window is."""
LEAST_MS = 1000


@dataclass(frozen=True, slots=True)
class Incident:
    """One stay away from closed. `trips`: times of the first trip and of the re-trips; `over`: closed again before the
    samples ended; `open_ms`: time in open."""

    start_ms: int
    end_ms: int
    over: bool
    trips: tuple[int, ...]
    open_ms: int


def incidents_of(run: Run) -> list[Incident]:
    """The incidents of a run whose effects were kept, in order of time."""
    found: list[Incident] = []
    trips: list[int] = []
    open_ms = since_ms = 0
    state = "closed"
    for at_ms, curr in run.tally.course:
        open_ms += at_ms - since_ms if state == "open" else 0
        since_ms, state = at_ms, curr
        if state == "open":
            trips.append(at_ms)
        elif state == "closed" and trips:
            found.append(Incident(trips[0], at_ms, True, tuple(trips), open_ms))
            trips, open_ms = [], 0
    if trips:
        open_ms += run.last_ms - since_ms if state == "open" else 0
        found.append(Incident(trips[0], run.last_ms, False, tuple(trips), open_ms))
    return found


def caught_by(incident: Incident, windows: Sequence[Labelled], grace_ms: int) -> list[int]:
    """Numbers of the labelled windows that the incident belongs to."""
    return belonging(windows, grace_ms, incident.start_ms, incident.end_ms + (not incident.over))


def view_of(run: Run, start_ms: int, end_ms: int) -> Span:
    """The span that shows what happened from `start_ms` to `end_ms`: the rule's window before it, too, and a little
    behind it, within the samples."""
    length_ms = max(LEAST_MS, end_ms - start_ms)
    before_ms = min(run.candidate.rule.window_ms, LENGTHS_BEFORE * length_ms) + length_ms // 4
    return max(run.first_ms, start_ms - before_ms), min(run.last_ms, end_ms + length_ms // 2)


def fine_spans(run: Run, windows: Sequence[Labelled]) -> list[Span]:
    """The spans that a chart shows finely, at most FINE_SPANS, apart and in order of time: labelled windows, then
    incidents, the earliest first."""
    wanted: list[Labelled | Incident] = [*windows, *incidents_of(run)]
    spans = (view_of(run, one.start_ms, one.end_ms) for one in wanted)
    return _merged(islice((span for span in spans if span[0] < span[1]), FINE_SPANS))


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start_ms, end_ms in sorted(spans):
        if merged and start_ms <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end_ms)
        else:
            merged.append((start_ms, end_ms))
    return merged
