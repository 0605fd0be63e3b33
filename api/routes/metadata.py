"""Metadata of breakers and routers: lists that runtime clients poll, and merging changes for administrators.

A refusal would stop the clients' polling for good, so project keys may read the lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from quart import Blueprint, Response

from api.auth import path_uuid
from api.context.current import (
    authorized_project,
    configured,
    current_key_id,
    expect_answer,
    expect_list,
    raw_body,
    spend_reads,
    tell_tagged,
)
from api.context.fields import heed
from api.context.replica import replica
from api.routes.routers import answer_router
from api.wire import requests as wire
from api.wire import responses as bodies
from api.wire.http import json_response
from api.wire.unknown import unknown_fields
from breaker_actors.store.rows import BreakerMetadata, RouterRow

blueprint = Blueprint("metadata", __name__, url_prefix="/v1/projects/<project_id>")


@blueprint.get("/breakers/metadata")
async def list_breaker_metadata(project_id: str) -> Response:
    project = await authorized_project(project_id, "read_runtime")
    await expect_list(project.id)
    return await _metadata(project.id, bodies.BreakerMetadataList, await replica().config.breaker_metadata(project.id))


@blueprint.get("/routers/metadata")
async def list_router_metadata(project_id: str) -> Response:
    project = await authorized_project(project_id, "read_runtime")
    await expect_list(project.id)
    return await _metadata(project.id, bodies.RouterMetadataList, await replica().config.list_routers(project.id))


@blueprint.patch("/breakers/<breaker_id>/metadata")
async def update_breaker_metadata(project_id: str, breaker_id: str) -> Response:
    project, parts = await authorized_project(project_id, "edit_metadata"), replica()
    breaker_id, edit = path_uuid(breaker_id), await _merging()
    row, change_ids = await parts.config.update_breaker(
        project.id, breaker_id, edit, parts.clock.now_ms(), by=current_key_id()
    )
    await configured(project.id, change_ids)
    return json_response(bodies.breaker_single(row))


@blueprint.patch("/routers/<router_id>/metadata")
async def update_router_metadata(project_id: str, router_id: str) -> Response:
    project, parts = await authorized_project(project_id, "edit_metadata"), replica()
    router_id, edit = path_uuid(router_id), await _merging()
    await expect_answer(project.id)
    row, change_ids = await parts.config.update_router(
        project.id, router_id, edit, parts.clock.now_ms(), by=current_key_id()
    )
    await configured(project.id, change_ids)
    return await answer_router(row)


async def _metadata(
    project_id: str, kind: type[msgspec.Struct], rows: Sequence[BreakerMetadata | RouterRow]
) -> Response:
    spend_reads(project_id, len(rows))
    return await tell_tagged(rows, bodies.metadata, lambda texts, _: bodies.listing(kind, texts, project_id=project_id))


async def _merging() -> Any:
    """The edit of a breaker or a router that the body asks for; it is looked at only when there is such a thing."""
    fields = wire.decode_object(await raw_body())
    # The bare map as the whole body has no fields but metadata.
    heed(unknown_fields(fields, wire.MetadataPatch) if isinstance(fields.get("metadata"), dict) else ())

    def edit(row: Any) -> Any:
        merged = wire.merge_metadata(row.metadata, wire.metadata_change(fields))
        return msgspec.structs.replace(row, metadata=merged)

    return edit
