"""A shadow beside the breaker that it watches: where their machines differed over a span of time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from api.wire.responses import Answer
from api.wire.types import Count, Ms, Uuid
from breaker_actors.core.model import BY_HAND, StateWord
from breaker_actors.store.rows import EventRow

EVENTS_MAX = 5_000
"""Events of each of the two that one comparison looks at."""
DIFFERENCES_MAX = 200

Course = list[tuple[int, StateWord]]
"""From when on a machine was in a state, in order of time."""


class MachineSummary(Answer, kw_only=True):
    """What the machine of a breaker did in the span, whatever callers saw of it."""

    breaker_id: Uuid
    trips: Count
    closed_ms: Count
    half_open_ms: Count
    open_ms: Count


class Difference(Answer, kw_only=True):
    """A stretch in which the two were in different states."""

    from_ms: Ms
    to_ms: Ms
    shadow: StateWord
    watched: StateWord


class Comparison(Answer, kw_only=True):
    """`differences`: the first 200; `differing_ms`: of all."""

    since_ms: Ms
    until_ms: Ms
    shadow: MachineSummary
    watched: MachineSummary
    differing_ms: Count
    differing: Count
    differences: list[Difference]


def course_of(events: Iterable[EventRow], before: Iterable[EventRow], since_ms: int) -> Course:
    """Where a machine went: `events` in order of time within the span, `before` the last ones in front of it, newest
    first. Moves that an operator made are none of the machine's."""
    begun: StateWord = next((event.curr for event in before if event.reason not in BY_HAND), "closed")
    moves = [(event.ts_ms, event.curr) for event in events if event.reason not in BY_HAND]
    return [(since_ms, begun), *moves]


def compare(ids: tuple[str, str], shadow: Course, watched: Course, since_ms: int, until_ms: int) -> Comparison:
    """Both from `since_ms` on. `ids`: of the shadow and of the watched one."""
    edges = sorted({at for at, _ in (*shadow, *watched)} | {until_ms})
    found: list[Difference] = []
    states: dict[str, StateWord] = {}
    steps = {name: dict(course) for name, course in (("shadow", shadow), ("watched", watched))}
    for start, end in pairwise(edges):
        for name, moved in steps.items():
            states[name] = moved.get(start, states.get(name, "closed"))
        if states["shadow"] == states["watched"]:
            continue
        last = found[-1] if found else None
        if last is not None and last.to_ms == start and (last.shadow, last.watched) == tuple(states.values()):
            found[-1] = msgspec.structs.replace(last, to_ms=end)
        else:
            found.append(Difference(from_ms=start, to_ms=end, **states))
    return Comparison(
        since_ms=since_ms,
        until_ms=until_ms,
        shadow=_summary(ids[0], shadow, until_ms),
        watched=_summary(ids[1], watched, until_ms),
        differing_ms=sum(one.to_ms - one.from_ms for one in found),
        differing=len(found),
        differences=found[:DIFFERENCES_MAX],
    )


def _summary(breaker_id: str, course: Sequence[tuple[int, StateWord]], until_ms: int) -> MachineSummary:
    times: dict[StateWord, int] = {"closed": 0, "half_open": 0, "open": 0}
    for (start, state), (end, _) in pairwise([*course, (until_ms, course[-1][1])]):
        times[state] += end - start
    return MachineSummary(
        breaker_id=breaker_id,
        trips=sum(state == "open" for _, state in course[1:]),
        closed_ms=times["closed"],
        half_open_ms=times["half_open"],
        open_ms=times["open"],
    )
