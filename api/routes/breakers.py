"""Breakers: create, read, change, delete. A write answers when the routers' logs have it."""

from __future__ import annotations

from functools import partial

from quart import Blueprint, Response

from api import bodies, wire
from api.auth import path_uuid
from api.context import configured, raw_body, reach, replica
from api.reply import conditional, digest, json_response, no_content
from breaker_actors.errors import NotFound

blueprint = Blueprint("breakers", __name__, url_prefix="/v1/projects/<project_id>/breakers")


@blueprint.get("")
async def list_breakers(project_id: str) -> Response:
    project = await reach(project_id, "manage")
    rows, updated_ms = await replica().store.list_breakers(project.id)
    content_hash = digest(sorted(map(bodies.breaker, rows), key=lambda body: str(body["id"])))
    return conditional(bodies.breaker_list(rows, updated_ms, content_hash), content_hash)


@blueprint.post("")
async def create_breaker(project_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    draft = wire.breaker_draft(wire.decode_object(await raw_body()))
    row, change_ids = await parts.store.create_breaker(project.id, draft, parts.clock.now_ms())
    await configured(project.id, change_ids)
    return json_response(bodies.breaker_single(row), 201)


@blueprint.get("/<breaker_id>")
async def get_breaker(project_id: str, breaker_id: str) -> Response:
    project = await reach(project_id, "manage")
    row = await replica().store.get_breaker(project.id, path_uuid(breaker_id))
    if row is None:
        raise NotFound("There is no such breaker.")
    return json_response(bodies.breaker_single(row))


@blueprint.patch("/<breaker_id>")
async def update_breaker(project_id: str, breaker_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    breaker_id = path_uuid(breaker_id)
    edit = partial(wire.breaker_edit, fields=wire.decode_object(await raw_body()))
    row, change_ids = await parts.store.update_breaker(project.id, breaker_id, edit, parts.clock.now_ms())
    await configured(project.id, change_ids)
    return json_response(bodies.breaker_single(row))


@blueprint.delete("/<breaker_id>")
async def delete_breaker(project_id: str, breaker_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    change_ids = await parts.store.delete_breaker(project.id, path_uuid(breaker_id), parts.clock.now_ms())
    await configured(project.id, change_ids)
    return no_content()
