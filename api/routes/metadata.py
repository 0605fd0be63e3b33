"""Metadata of breakers and routers: lists that runtime clients poll, and merging changes for administrators.

A refusal would stop the clients' polling for good, so project keys may read the lists.
"""

from __future__ import annotations

from typing import Any

import msgspec
from quart import Blueprint, Response

from api import bodies, wire
from api.auth import path_uuid
from api.context import acting, configured, raw_body, reach, replica
from api.reply import conditional, digest, json_response
from api.routes.routers import answer_router

blueprint = Blueprint("metadata", __name__, url_prefix="/v1/projects/<project_id>")


@blueprint.get("/breakers/metadata")
async def list_breaker_metadata(project_id: str) -> Response:
    project = await reach(project_id, "read_runtime")
    rows, _ = await replica().store.list_breakers(project.id)
    body = bodies.metadata_list(project.id, "breakers", rows)
    return conditional(body, digest(body))


@blueprint.get("/routers/metadata")
async def list_router_metadata(project_id: str) -> Response:
    project = await reach(project_id, "read_runtime")
    body = bodies.metadata_list(project.id, "routers", await replica().store.list_routers(project.id))
    return conditional(body, digest(body))


@blueprint.patch("/breakers/<breaker_id>/metadata")
async def update_breaker_metadata(project_id: str, breaker_id: str) -> Response:
    project, parts = await reach(project_id, "edit_metadata"), replica()
    breaker_id, edit = path_uuid(breaker_id), await _merging()
    row, change_ids = await parts.store.update_breaker(project.id, breaker_id, edit, parts.clock.now_ms(), by=acting())
    await configured(project.id, change_ids)
    return json_response(bodies.breaker_single(row))


@blueprint.patch("/routers/<router_id>/metadata")
async def update_router_metadata(project_id: str, router_id: str) -> Response:
    project, parts = await reach(project_id, "edit_metadata"), replica()
    router_id, edit = path_uuid(router_id), await _merging()
    row, change_ids = await parts.store.update_router(project.id, router_id, edit, parts.clock.now_ms(), by=acting())
    await configured(project.id, change_ids)
    return await answer_router(row)


async def _merging() -> Any:
    """The edit of a breaker or a router that the body asks for; it is looked at only when there is such a thing."""
    fields = wire.decode_object(await raw_body())

    def edit(row: Any) -> Any:
        merged = wire.merge_metadata(row.metadata, wire.metadata_change(fields))
        return msgspec.structs.replace(row, metadata=merged)

    return edit
