"""Committed states of breakers: one, or many at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from quart import Blueprint, Response

from api.auth import path_uuid
from api.context.current import IDS_BODY_BYTES_MAX, authorized_project, callers, departure, spend_reads, tell
from api.context.fields import sent_fields
from api.context.replica import replica
from api.wire import requests as wire
from api.wire import responses as bodies
from api.wire.http import json_response
from breaker_actors.errors import NotFound

blueprint = Blueprint("states", __name__, url_prefix="/v1/projects/<project_id>/breakers")

STATE_BYTES = 1_200
"""About what a state takes in a batch, which lists it under two names."""


@blueprint.get("/<breaker_id>/state")
async def get_state(project_id: str, breaker_id: str) -> Response:
    project, parts = await authorized_project(project_id, "read_runtime"), replica()
    wanted = path_uuid(breaker_id)
    row = (await parts.caches.breakers(project.id, [wanted])).get(wanted)
    readings = await parts.gateway.states(project.id, [row.id]) if row else {}
    if row is None or row.id not in readings:
        raise NotFound("There is no such breaker.")
    return json_response(bodies.state(row, readings[row.id]))


@blueprint.post("/state:batch")
async def get_states(project_id: str) -> Response:
    project, parts = await authorized_project(project_id, "read_runtime"), replica()
    batch = wire.state_batch(await sent_fields(wire.StateBatch, IDS_BODY_BYTES_MAX))
    links = await parts.caches.links(project.id, batch.routers())
    wanted = choose(batch.breakers(), batch.routers(), links)
    rows = await parts.caches.breakers(project.id, wanted)
    chosen = [rows[breaker_id] for breaker_id in wanted if breaker_id in rows]
    await departure().expect(callers(), STATE_BYTES * len(chosen))
    spend_reads(project.id, len(chosen))
    readings = await parts.states.read(project.id, [row.id for row in chosen])
    found = [row for row in chosen if row.id in readings]
    return await tell(found, lambda row: bodies.state(row, readings[row.id]), bodies.BreakerStateList, done=False)


def choose(
    breaker_ids: Iterable[str], router_ids: Iterable[str], links: Mapping[str, Iterable[str]]
) -> Collection[str]:
    """The breakers asked for by id, then those of the routers asked for; each once."""
    wanted = dict.fromkeys(breaker_ids)
    for router_id in router_ids:
        wanted |= dict.fromkeys(links.get(router_id, ()))
    return wanted
