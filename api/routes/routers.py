"""Routers: create, read, change, delete, and which breakers hang on them."""

from __future__ import annotations

from functools import partial

from quart import Blueprint, Response

from api import bodies, wire
from api.auth import path_uuid
from api.context import acting, configured, raw_body, reach, replica
from api.reply import json_response, no_content
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
    row, change_ids = await parts.store.create_router(project.id, draft, parts.clock.now_ms(), by=acting())
    await configured(project.id, change_ids)
    return await answer_router(row, 201)


@blueprint.get("/<router_id>")
async def get_router(project_id: str, router_id: str) -> Response:
    project = await reach(project_id, "manage")
    row = await replica().store.get_router(project.id, path_uuid(router_id))
    if row is None:
        raise NotFound("There is no such router.")
    return await answer_router(row)


@blueprint.patch("/<router_id>")
async def update_router(project_id: str, router_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    router_id = path_uuid(router_id)
    edit = partial(wire.router_edit, fields=wire.decode_object(await raw_body()))
    row, change_ids = await parts.store.update_router(project.id, router_id, edit, parts.clock.now_ms(), by=acting())
    await configured(project.id, change_ids)
    return await answer_router(row)


@blueprint.delete("/<router_id>")
async def delete_router(project_id: str, router_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    now_ms = parts.clock.now_ms()
    await configured(project.id, await parts.store.delete_router(project.id, path_uuid(router_id), now_ms, by=acting()))
    return no_content()


@blueprint.post("/<router_id>/breakers")
async def link_breakers(project_id: str, router_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    router_id, ids = path_uuid(router_id), wire.linked_ids(wire.decode_object(await raw_body()))
    row, change_ids = await parts.store.link_breakers(project.id, router_id, ids, parts.clock.now_ms(), by=acting())
    await configured(project.id, change_ids)
    return await answer_router(row)


@blueprint.delete("/<router_id>/breakers/<breaker_id>")
async def unlink_breaker(project_id: str, router_id: str, breaker_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    pair = path_uuid(router_id), path_uuid(breaker_id)
    change_ids = await parts.store.unlink_breaker(project.id, *pair, parts.clock.now_ms(), by=acting())
    await configured(project.id, change_ids)
    return no_content()


async def answer_router(row: RouterRow, status: int = 200) -> Response:
    """A router with its breakers in full."""
    ids = row.breaker_ids
    breakers = (await replica().store.list_breakers(row.project_id, ids))[0] if ids else []
    return json_response(bodies.router_single(row, {breaker.id: breaker for breaker in breakers}), status)
