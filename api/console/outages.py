"""How long a breaker has not been closed, across probes that failed: out of its stored moves, of which so many are
looked at."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from quart import current_app

from api.console.history import moves_of
from api.console.project import may_act
from breaker_actors.errors import Overloaded
from breaker_actors.store.rows import EventQuery, EventRow

LOOKED_MAX = 200
"""Moves of one breaker that are looked at; of an outage that has more its end alone is known."""
KEPT_MAX = 2_000
EXTENSION = "breakers.console.outages"


class Outage(NamedTuple):
    """Since when callers have not seen closed, and how many recoveries failed since. `least`: it began earlier, and
    there may have been more."""

    since_ms: int
    probes: int
    least: bool

    @property
    def failed(self) -> str:
        """The failed probes in words; "" where there were none."""
        if not self.probes:
            return ""
        return f"{'at least ' if self.least else ''}{self.probes} failed probe{'' if self.probes == 1 else 's'}"


async def outage_of(project_id: str, breaker_id: str, state: str, since_ms: int) -> Outage | None:
    """The outage that a breaker is in, None where callers see it closed, for who may not see the history, and where
    nothing is left of the project's reads. `since_ms`: since when it is in `state`."""
    if state == "closed" or not may_act():
        return None
    known: OrderedDict[tuple[str, int], Outage] = current_app.extensions.setdefault(EXTENSION, OrderedDict())
    if (breaker_id, since_ms) in known:
        known.move_to_end((breaker_id, since_ms))
        return known[breaker_id, since_ms]
    query = EventQuery(project_id=project_id, breaker_id=breaker_id, hidden=False, limit=LOOKED_MAX)
    try:
        rows = await moves_of(query)
    except Overloaded:
        return None  # the page is worth more than this word on it
    found = outage(rows, since_ms)
    if rows and (rows[0].curr, rows[0].ts_ms) == (state, since_ms):  # else the newest move is not stored yet
        known[breaker_id, since_ms] = found
        while len(known) > KEPT_MAX:
            known.popitem(last=False)
    return found


def outage(rows: Sequence[EventRow], since_ms: int) -> Outage:
    """Out of moves that callers saw, newest first. Pure."""
    probes = 0
    for row in rows:
        if row.curr == "closed":
            return Outage(since_ms, probes, False)
        since_ms = min(since_ms, row.ts_ms)
        probes += (row.prev, row.curr, row.by) == ("half_open", "open", None)
        if row.prev == "closed":
            return Outage(since_ms, probes, False)
    return Outage(since_ms, probes, True)
