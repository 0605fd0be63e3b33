"""Stored moves, as the screens read them: as many as a query may find count in the project's budget of reads before
they are read, and what it did not find is given back. Who looks at a page is hardly ever refused, who asks for one
after the other without a pause is."""

from __future__ import annotations

from api.context.current import spend_reads
from api.context.replica import replica
from breaker_actors.store.rows import EventQuery, EventRow

READS = 5
"""A move counts as so many things: as many moves a second are read as the API's history tells one key."""


async def moves_of(query: EventQuery) -> list[EventRow]:
    """Newest first. Raises Overloaded where nothing is left of the project's reads."""
    spend_reads(query.project_id, READS * query.limit)
    rows = list(await replica().events.events(query))
    replica().reads.give_back(query.project_id, READS * (query.limit - len(rows)))
    return rows
