"""What a breaker of a service did: its events, out of the store. Of samples of history it made none; what it would have
done is worked out, as backtests do it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import polars as pl

from breaker_actors.clock import rfc3339
from breaker_actors.core.model import Agg, Effect, Transition
from breaker_actors.errors import Invalid
from breaker_actors.persistence import make_store
from breaker_actors.store.rows import EventQuery, EventRow
from breaker_actors.text.counting import counted
from pipelines.replay.run import samples_of
from pipelines.replay.vectorized.engine import FastReplay, Walk
from pipelines.sources.files import InForce
from pipelines.sources.service_log import OwnLoop, Recorded

PAGE = 500
EVENTS_MAX = 10_000
"""Events of one breaker in one test; more are refused."""
BEFORE_MAX = 100
"""Events before a slice that are looked at, where the log does not go back to the breaker's creation."""


class Happened(NamedTuple):
    """What a breaker got, and did from then on. `events`: newest first, those of the slice and some before it; none of
    history. `moves`: the oldest first."""

    source: Recorded
    events: list[EventRow]
    moves: list[Transition]


def happened(log: Recorded, from_ms: int, to_ms: int) -> Happened:
    """What a breaker did from one instant to another, both in it: by its log, or where history has samples of then, by
    these alone. Raises Invalid for what is partly of one, partly of the other."""
    events, begins_ms = events_of(log, from_ms, to_ms), log.begins_ms()
    live = [move_of(event) for event in reversed(events) if from_ms <= event.ts_ms]
    until_ms = to_ms + 1 if begins_ms is None else min(to_ms + 1, begins_ms)
    if until_ms <= from_ms or not log.has_history(from_ms, until_ms):
        return Happened(log.only("log"), events, live)
    if begins_ms is not None and begins_ms <= to_ms:
        at = rfc3339(begins_ms)
        words = f"its log begins at {at}, samples from before that are history: end it before that, or begin it then"
        raise Invalid(f"{log.row.name}: {words}")
    if live:
        words = f"{counted(len(live), 'event')} of then came of samples that the log has no more: history has others"
        raise Invalid(f"{log.row.name}: {words}")
    history = log.only("history", to_ms=until_ms)
    return Happened(history, [], [move for move in _moves(history) if from_ms <= move.ts_ms])


def _moves(history: Recorded) -> list[Transition]:
    """What the breaker does, created with the first sample; up to the last one."""
    moves = list[Transition]()

    def tell(effects: Iterable[Effect]) -> None:
        moves.extend(effect for effect in effects if isinstance(effect, Transition))

    walk = Walk(history.row.rule, tell, follows_log=True)
    engine = FastReplay([walk], window_samples_max=history.window_samples_max)
    for item in history.items():
        if isinstance(item, InForce):
            engine.configure(item.rule, item.at_ms, item.longest_ms)
        elif isinstance(item, pl.DataFrame) and len(item):
            engine.feed(samples_of(item))
    engine.finish()
    return moves


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
