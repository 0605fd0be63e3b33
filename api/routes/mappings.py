"""Mappings: what becomes of series of open protocols. Additions of ours."""

from __future__ import annotations

from typing import Any

import msgspec
from quart import Blueprint, Response

from api.auth import path_uuid
from api.context.current import (
    BODY_BYTES_MAX,
    authorized_project,
    configured,
    count_reads,
    current_key_id,
    expect_list,
    raw_body,
    spend_reads,
    tell,
    telling,
)
from api.context.fields import heed, sent_fields
from api.context.previewing import payload_preview, preview
from api.context.replica import replica
from api.middleware.idempotency import noted, once
from api.wire import requests_mappings as wire
from api.wire import responses_mappings as bodies
from api.wire.http import json_pieces, json_response, no_content
from api.wire.requests import decode_object
from api.wire.unknown import unknown_fields, unknown_inside
from breaker_actors.errors import NotFound, PayloadTooLarge
from breaker_actors.store.rows import MappingRow

blueprint = Blueprint("mappings", __name__, url_prefix="/v1/projects/<project_id>")

READS = 20
"""Things that a mapping in a list counts as."""


@blueprint.get("/mappings")
async def list_mappings(project_id: str) -> Response:
    project = await authorized_project(project_id, "manage")
    await expect_list(project.id)
    rows = await replica().mappings.list_mappings(project.id)
    spend_reads(project.id, READS * len(rows))
    return await tell(rows, bodies.mapping, bodies.MappingList)


@blueprint.post("/mappings")
async def create_mapping(project_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    draft = wire.mapping_draft(await _sent(wire.MappingCreate))
    asked = await once(project.org_id, bodies.mapping_single, project.id)
    row = await parts.mappings.create_mapping(project.id, draft, parts.clock.now_ms(), current_key_id(), asked)
    noted(asked)
    await configured(project.id, [])
    return json_response(bodies.mapping_single(row), 201)


@blueprint.put("/mappings")
async def replace_mappings(project_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    items = wire.mapping_items(await _sent(wire.MappingsReplace, wire.BODY_BYTES_MAX))
    rows, changed = await parts.mappings.replace_mappings(project.id, items, parts.clock.now_ms(), by=current_key_id())
    if changed:
        await configured(project.id, [])
    async with telling() as teller:
        texts = await teller.texts(rows, bodies.mapping)
        return json_pieces(await teller.body(bodies.mappings_replaced(changed, texts)))


@blueprint.post("/mappings:preview")
async def preview_mappings(project_id: str) -> Response:
    """What series, or what is in a payload of one of the protocols, would become now; nothing is kept of it."""
    project = await authorized_project(project_id, "manage")
    spend_reads(project.id, 0)
    raw = await raw_body(replica().settings.max_body_bytes)
    if (payload := await payload_preview(project.id, raw)) is not None:
        count_reads(project.id, min(len(payload.points.series), wire.PREVIEWED_MAX))
        return json_response(bodies.payload_previewed(*payload, wire.PREVIEWED_MAX))
    if len(raw) > wire.BODY_BYTES_MAX:
        raise PayloadTooLarge(f"The body has more than {wire.BODY_BYTES_MAX} bytes.")
    fields = decode_object(raw)
    heed(unknown_fields(fields, wire.MappingsPreview))
    heed(unknown_inside(fields, wire.MappingsPreview))
    series = wire.previewed_series(fields)
    spend_reads(project.id, len(series))
    outcomes, names = await preview(project.id, series)
    return json_response(bodies.previewed(series, outcomes, names))


@blueprint.get("/mappings/<mapping_id>")
async def get_mapping(project_id: str, mapping_id: str) -> Response:
    return json_response(bodies.mapping_single(await _mapping(project_id, mapping_id)))


@blueprint.patch("/mappings/<mapping_id>")
async def update_mapping(project_id: str, mapping_id: str) -> Response:
    row, parts = await _mapping(project_id, mapping_id), replica()
    edit = wire.mapping_edit(await _sent(wire.MappingPatch))
    changed = await parts.mappings.update_mapping(
        row.project_id, row.id, edit, parts.clock.now_ms(), by=current_key_id()
    )
    await configured(row.project_id, [])
    return json_response(bodies.mapping_single(changed))


@blueprint.delete("/mappings/<mapping_id>")
async def delete_mapping(project_id: str, mapping_id: str) -> Response:
    row, parts = await _mapping(project_id, mapping_id), replica()
    await parts.mappings.delete_mapping(row.project_id, row.id, parts.clock.now_ms(), by=current_key_id())
    await configured(row.project_id, [])
    return no_content()


async def _sent(kind: type[msgspec.Struct], bytes_max: int = BODY_BYTES_MAX) -> dict[str, Any]:
    """The fields of the body; what is none of it, or of what is in it, is told beside the answer, or refused."""
    fields = await sent_fields(kind, bytes_max)
    heed(unknown_inside(fields, kind))
    return fields


async def _mapping(project_id: str, mapping_id: str) -> MappingRow:
    """The mapping of a path."""
    project = await authorized_project(project_id, "manage")
    row = await replica().mappings.get_mapping(project.id, path_uuid(mapping_id))
    if row is None:
        raise NotFound("There is no such mapping.")
    return row
