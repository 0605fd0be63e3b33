"""Routers: create and read."""

from __future__ import annotations

from quart import Blueprint, Response

from api import bodies, wire
from api.auth import path_uuid
from api.context import configured, raw_body, reach, replica
from api.reply import json_response
from breaker_actors.errors import NotFound
from breaker_actors.stores.base import RouterRow

blueprint = Blueprint("routers", __name__, url_prefix="/v1/projects/<project_id>/routers")


@blueprint.get("")
async def list_routers(project_id: str) -> Response:
    project = await reach(project_id, "manage")
    return json_response(bodies.router_list(await replica().store.list_routers(project.id)))


@blueprint.post("")
async def create_router(project_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    draft = wire.router_draft(wire.decode_object(await raw_body()))
    row, change_ids = await parts.store.create_router(project.id, draft, parts.clock.now_ms())
    await configured(project.id, change_ids)
    return await _answer(row, 201)


@blueprint.get("/<router_id>")
async def get_router(project_id: str, router_id: str) -> Response:
    project = await reach(project_id, "manage")
    row = await replica().store.get_router(project.id, path_uuid(router_id))
    if row is None:
        raise NotFound("There is no such router.")
    return await _answer(row)


async def _answer(row: RouterRow, status: int = 200) -> Response:
    """A router with its breakers in full."""
    breakers = (await replica().store.list_breakers(row.project_id))[0] if row.breaker_ids else []
    return json_response(bodies.router_single(row, {breaker.id: breaker for breaker in breakers}), status)
