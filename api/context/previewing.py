"""What would become of series, and of requests of open protocols, if they came now. Nothing is kept of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from api.admission.intake import Turn
from api.context.current import callers
from api.context.payloads import previewed_payload
from api.context.receiving import SLICE, points_in, taken_by
from api.context.replica import replica
from api.protocols.mapping import Outcome, resolve_all
from api.protocols.memory import Memory
from api.protocols.points import Points, Series
from api.protocols.taking import Taking


class PayloadPreview(NamedTuple):
    """The points of a request, what becomes of each of its series, the names of routers by id, and what points come
    to."""

    points: Points
    outcomes: list[Outcome]
    router_names: Mapping[str, str]
    found: Taking


async def preview(project_id: str, series: Sequence[Series]) -> tuple[list[Outcome], Mapping[str, str]]:
    """What becomes of series, in their order and in slices, each in its caller's turn; and the names of the project's
    routers, by id."""
    plan, outcomes = await replica().plans.get(project_id), list[Outcome]()
    async with Turn(replica().intake.turns, callers()) as turn:
        for outcome in resolve_all(series, plan.mappings, plan.routers):
            outcomes.append(outcome)
            if len(outcomes) % SLICE == 0:
                await turn.next()
    return outcomes, dict(plan.routers.names)


async def payload_preview(project_id: str, raw: bytes) -> PayloadPreview | None:
    """The same of the current request's body, where that is one of an open protocol. Raises what is wrong with it."""
    payload = previewed_payload(raw)
    if payload is None:
        return None
    points = await points_in(raw, *payload, Memory())
    outcomes, names = await preview(project_id, points.series)
    return PayloadPreview(points, outcomes, names, await taken_by(points, outcomes))
