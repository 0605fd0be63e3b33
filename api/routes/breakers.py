"""Breakers: create, read, change, delete. A write answers when the routers' logs have it."""

from __future__ import annotations

from functools import partial

from quart import Blueprint, Response, request

from api import bodies, wire
from api.auth import path_uuid
from api.context import acting, configured, raw_body, reach, replica
from api.query import flag
from api.reply import conditional, json_response, no_content
from api.wire_bulk import Guard, bulk_items
from breaker_actors.errors import NotFound

blueprint = Blueprint("breakers", __name__, url_prefix="/v1/projects/<project_id>/breakers")


@blueprint.get("")
async def list_breakers(project_id: str) -> Response:
    project = await reach(project_id, "manage")
    rows, updated_ms = await replica().store.list_breakers(project.id)
    content_hash = bodies.set_hash(rows)
    return conditional(bodies.breaker_list(rows, updated_ms, content_hash), content_hash)


@blueprint.post("")
async def create_breaker(project_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    draft = wire.breaker_draft(wire.decode_object(await raw_body()))
    row, change_ids = await parts.store.create_breaker(project.id, draft, parts.clock.now_ms(), by=acting())
    await configured(project.id, change_ids)
    return json_response(bodies.breaker_single(row), 201)


@blueprint.put("")
async def replace_breakers(project_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    begun = parts.clock.monotonic()
    items = bulk_items(wire.decode_object(await raw_body()))
    destructive = flag("allow_destructive", request.args)
    percent_max = parts.settings.bulk_removal_percent_max
    guard = Guard(request.headers.get("If-Match"), destructive, percent_max, len(items))
    now_ms = parts.clock.now_ms()
    replaced = await parts.store.replace_breakers(project.id, items, guard.check, now_ms, by=acting())
    await configured(project.id, replaced.change_ids)
    body = bodies.bulk_result(replaced, round(1000 * (parts.clock.monotonic() - begun)))
    return json_response(body)


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
    row, change_ids = await parts.store.update_breaker(project.id, breaker_id, edit, parts.clock.now_ms(), by=acting())
    await configured(project.id, change_ids)
    return json_response(bodies.breaker_single(row))


@blueprint.delete("/<breaker_id>")
async def delete_breaker(project_id: str, breaker_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    now_ms = parts.clock.now_ms()
    change_ids = await parts.store.delete_breaker(project.id, path_uuid(breaker_id), now_ms, by=acting())
    await configured(project.id, change_ids)
    return no_content()
