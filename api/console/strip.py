"""The picture of a project's timeline, out of its stored moves; kept for a moment for all who look at it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from api.console.history import moves_of
from api.console.lanes import SPANS, Picture, drawn
from api.context.replica import replica
from api.lookup.project_index import ProjectIndex
from breaker_actors.store.rows import EventQuery, EventRow, ProjectRow

DRAWN_MAX = 2_000
"""Moves of a picture."""


async def pictured(project: ProjectRow, breaker_id: str, span: str, source: str, index: ProjectIndex) -> Picture:
    """What callers saw within the last `span` of SPANS, of one breaker or, "", of all."""
    parts = replica()
    now_ms, length_ms = parts.clock.now_ms(), SPANS[span]
    query = EventQuery(
        project_id=project.id,
        breaker_id=breaker_id or None,
        since_ms=now_ms - length_ms,
        limit=DRAWN_MAX + 1,
        hidden=False,
        source="backfill" if source == "backfill" else "live",
    )
    name = f"{project.id} {breaker_id} {span} {query.source}"
    rows: Sequence[EventRow] = await parts.moves.get(name, partial(moves_of, query))
    cut = len(rows) > DRAWN_MAX
    made = None
    if query.source == "live":
        made = {row.breaker_id: index.rows[row.breaker_id].created_ms for row in rows if row.breaker_id in index.rows}
    return drawn(rows[:DRAWN_MAX], now_ms - length_ms, now_ms, cut, made)
