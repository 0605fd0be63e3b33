"""Stops of a request of an open protocol (OTLP, remote-write), from its body to the logs of the routers.

What is more than a little is inflated, and decoded on a thread, one body at a time and callers in turn; a little is
read in the loop, for some milliseconds in one round of it, however many small bodies come together. Then the series
are judged and the points taken in slices, each in its caller's turn, so that others are served between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import uuid
from collections.abc import Iterator, Sequence
from typing import TypeVar

from api.admission.intake import Turn
from api.context.appended import check_outcomes
from api.context.current import arrival, callers, raw_body
from api.context.payloads import Decode, Inflate
from api.context.replica import replica
from api.protocols.mapping import Outcome
from api.protocols.memory import Memory
from api.protocols.points import Points
from api.protocols.taking import Span, Taking, taking
from breaker_actors.errors import PayloadTooLarge
from breaker_actors.store.rows import ProjectRow

T = TypeVar("T")
LIGHT_BYTES = 1 << 12
"""Plain bodies up to this are decoded in the loop: some twenty series, or five milliseconds of histograms."""
BODIES = 4
"""A plain body has so many times BREAKERS_MAX_INFLATED_BYTES at most: 8,192 points as JSON are 5 MB."""
STEP = 500
"""Points taken at a time, about a millisecond."""
SLICE = 5
"""Series judged at a time: each takes a thousandth of a second at most."""
NO_ROOM = (
    "the router, its project or all routers of its actor keep as many cumulative series as they may"
    " (BREAKERS_COUNTER_SERIES_MAX, BREAKERS_COUNTER_SERIES_ALL_MAX)"
)


async def receive(project: ProjectRow, protocol: str, inflate: Inflate, decode: Decode) -> tuple[Taking, Points]:
    """The current request's points, what counts of them in the logs. Raises what any request may be refused for."""
    parts = replica()
    raw = await raw_body(parts.settings.max_body_bytes)
    memory = parts.memories.lend(project.org_id, project.id)
    try:
        points = await points_in(raw, inflate, decode, memory)
    finally:
        parts.memories.weigh(project.org_id, project.id, memory)
    async with Turn(parts.intake.turns, callers()) as turn:
        found = await _taken(project, points, turn)
    await _store(project, found, _keys(protocol, raw, points))
    for outcome in ("taken", "unmatched", "absent", "rejected"):
        if n := getattr(found, outcome):
            parts.meters.count("breakers_points_total", n, protocol=protocol, outcome=outcome)
    return found, points


async def points_in(raw: bytes, inflate: Inflate, decode: Decode, memory: Memory) -> Points:
    """The points of a body, decoded in a turn of the caller: more than a little on the thread, and inflated in that
    turn as well, so that what waits is as small as it was sent. Raises what is wrong with it."""
    parts, plain = replica(), None
    if len(raw) <= LIGHT_BYTES:
        with contextlib.suppress(PayloadTooLarge):
            plain = await inflate(raw, LIGHT_BYTES)
    if plain is not None:
        arrival().work += len(plain)
        async with parts.intake.small.turn(callers()):
            return decode(plain, memory)
    async with parts.intake.decodes.turn(callers()):
        plain = await inflate(raw, BODIES * parts.settings.max_inflated_bytes)
        arrival().work += len(plain)
        return await asyncio.to_thread(decode, plain, memory)


async def taken_by(points: Points, outcomes: Sequence[Outcome]) -> Taking:
    """What points come to now, by the outcomes of their series, in turns of the caller."""
    async with Turn(replica().intake.turns, callers()) as turn:
        return await _came_to(points, outcomes, turn)


async def _taken(project: ProjectRow, points: Points, turn: Turn) -> Taking:
    parts = replica()
    plan = await parts.plans.get(project.id)
    judging = parts.outcomes.judging(project.org_id, project.id, plan, points.series)
    outcomes: list[Outcome] = await _through(judging, SLICE, turn)
    return await _came_to(points, outcomes, turn)


async def _came_to(points: Points, outcomes: Sequence[Outcome], turn: Turn) -> Taking:
    parts = replica()
    now_ms, settings = parts.clock.now_ms(), parts.settings
    span = Span(now_ms, now_ms - settings.max_sample_age_ms, now_ms + settings.max_sample_ahead_ms)
    return await _through(taking(points, outcomes, span, STEP), 1, turn)


async def _through(steps: Iterator[T | None], pause: int, turn: Turn) -> T:
    """The result of steps; after so many of them the next slice waits for its turn."""
    for number, result in enumerate(steps, 1):
        if result is not None:
            return result
        if number % pause == 0:
            await turn.next()
    raise AssertionError("the last step has the result")


async def _store(project: ProjectRow, found: Taking, keys: tuple[bytes, ...]) -> None:
    parts = replica()
    routers = await parts.caches.routers(project.id, {*found.rows, *found.totals})
    splitting = {router_id for router_id, splits in routers.items() if splits}
    sent = found.parts(keys, splitting, bool(project.trace_id_url_template))
    if not sent:
        return
    outcomes = await parts.gateway.ingest(project.id, sent, project.org_id)
    parts.ingested.took(project.org_id, project.id, sent, outcomes)
    check_outcomes(outcomes)
    for part, outcome in zip(sent, outcomes, strict=True):
        if outcome.beyond:
            found.had_no_room(part.router_id, outcome.beyond, NO_ROOM)


def _keys(protocol: str, raw: bytes, points: Points) -> tuple[bytes, ...]:
    """By what the request is recognised when it is sent again: its body, which is another one where times are told."""
    if not len(points.of) or not points.ts_ms.all():
        return (uuid.uuid4().bytes,)
    digest = hashlib.blake2b(raw, digest_size=16, person=protocol.encode()[:16]).digest()
    return uuid.uuid4().bytes, digest
