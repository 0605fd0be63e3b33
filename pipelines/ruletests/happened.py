"""The events of a breaker, out of the store of a service."""

from __future__ import annotations

from breaker_actors.core.model import Agg, Transition
from breaker_actors.errors import Invalid
from breaker_actors.persistence import make_store
from breaker_actors.store.rows import EventQuery, EventRow
from pipelines.sources.service_log import OwnLoop, Recorded

PAGE = 500
EVENTS_MAX = 10_000
"""Events of one breaker in one test; more are refused."""
BEFORE_MAX = 100
"""Events before a slice that are looked at, where the log does not go back to the breaker's creation."""


def events_of(log: Recorded, from_ms: int, to_ms: int) -> list[EventRow]:
    """The breaker's events up to an instant, newest first: those of the slice, and some before it."""

    async def read() -> list[EventRow]:
        store, found = make_store(log.settings), list[EventRow]()
        await store.open()
        try:
            while len(found) <= EVENTS_MAX and sum(event.ts_ms < from_ms for event in found) < BEFORE_MAX:
                before = (found[-1].ts_ms, found[-1].sequence) if found else None
                of = EventQuery(
                    project_id=log.row.project_id, breaker_id=log.row.id, until_ms=to_ms, before=before, limit=PAGE
                )
                page = await store.events(of)
                found += page
                if len(page) < PAGE:
                    break
        finally:
            await store.close()
        return found

    with OwnLoop() as loop:
        found = loop.run(read())
    if len(found) > EVENTS_MAX:
        raise Invalid(f"{log.row.name} moved more than {EVENTS_MAX} times; take less of it")
    return found


def move_of(event: EventRow) -> Transition:
    """The move that an event tells of."""
    return Transition(
        prev=event.prev,
        curr=event.curr,
        ts_ms=event.ts_ms,
        transition_seq=event.transition_seq,
        reason=event.reason,
        allow_rate=event.allow_rate,
        value=event.value,
        agg=Agg(**event.agg),
        hidden_by=event.hidden_by,
        by=event.by,
        comment=event.comment,
    )
