"""Committed states of breakers: one, or many at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from quart import Blueprint, Response

from api import bodies, wire
from api.auth import path_uuid
from api.context import raw_body, reach, replica
from api.reply import json_response
from breaker_actors.errors import NotFound
from breaker_actors.stores.base import BreakerRow, RouterRow

blueprint = Blueprint("states", __name__, url_prefix="/v1/projects/<project_id>/breakers")


@blueprint.get("/<breaker_id>/state")
async def get_state(project_id: str, breaker_id: str) -> Response:
    project, parts = await reach(project_id, "read_runtime"), replica()
    wanted = path_uuid(breaker_id)
    row = (await parts.caches.breakers(project.id, [wanted])).get(wanted)
    readings = await parts.gateway.states(project.id, [row.id]) if row else {}
    if row is None or row.id not in readings:
        raise NotFound("There is no such breaker.")
    return json_response(bodies.state(row, readings[row.id]))


@blueprint.post("/state:batch")
async def get_states(project_id: str) -> Response:
    project, parts = await reach(project_id, "read_runtime"), replica()
    batch = wire.state_batch(wire.decode_object(await raw_body()))
    router_ids = batch.routers()
    routers = await parts.store.list_routers(project.id) if router_ids else []
    rows = await parts.caches.breakers(project.id, batch.breakers())
    chosen = choose(batch.breakers(), router_ids, rows, routers)
    readings = await parts.gateway.states(project.id, [row.id for row in chosen]) if chosen else {}
    states = [bodies.state(row, readings[row.id]) for row in chosen if row.id in readings]
    return json_response(bodies.state_list(states))


def choose(
    breaker_ids: Iterable[str], router_ids: Iterable[str], rows: Mapping[str, BreakerRow], routers: Sequence[RouterRow]
) -> list[BreakerRow]:
    """The breakers asked for by id, then those of the routers asked for; each once, unknown ones left out."""
    links = {router.id: router.breaker_ids for router in routers}
    wanted = dict.fromkeys(breaker_ids)
    for router_id in router_ids:
        wanted |= dict.fromkeys(links.get(router_id, ()))
    return [rows[breaker_id] for breaker_id in wanted if breaker_id in rows]
