"""Breakers: create, read, change, delete. A write answers when the routers' logs have it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from quart import Blueprint, Response, request

from api.auth import path_uuid
from api.context.current import (
    authorized_project,
    configured,
    current_actor,
    current_key_id,
    expect_list,
    remark,
    spend_reads,
    tell_tagged,
    telling,
)
from api.context.fields import sent_fields, sent_set
from api.context.replica import replica
from api.middleware.idempotency import noted, once
from api.wire import requests as wire
from api.wire import responses as bodies
from api.wire.http import json_pieces, json_response, matches, no_content, tagged
from api.wire.query import flag
from api.wire.remarks import name_remarks, now_enforced, rule_remarks
from api.wire.requests_bulk import Guard
from breaker_actors.core.model import BreakerMode
from breaker_actors.errors import ConfirmationNeeded, NotFound, PreconditionFailed
from breaker_actors.store.rows import BreakerRow

blueprint = Blueprint("breakers", __name__, url_prefix="/v1/projects/<project_id>/breakers")


@blueprint.get("")
async def list_breakers(project_id: str) -> Response:
    project = await authorized_project(project_id, "manage")
    await expect_list(project.id)
    rows, updated_ms = await replica().config.list_breakers(project.id)
    spend_reads(project.id, len(rows))
    return await tell_tagged(rows, bodies.breaker, partial(bodies.breaker_list, updated_ms))


@blueprint.post("")
async def create_breaker(project_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    draft = wire.breaker_draft(await sent_fields(wire.BreakerCreate))
    asked = await once(project.org_id, lambda made: bodies.breaker_single(made[0]), project.id)
    row, change_ids = await parts.config.create_breaker(
        project.id, draft, parts.clock.now_ms(), current_key_id(), asked
    )
    noted(asked)
    await configured(project.id, change_ids)
    await _remark(row)
    return json_response(bodies.breaker_single(row), 201)


async def _remark(row: BreakerRow) -> None:
    """On what is allowed and hardly meant."""
    remark(rule_remarks(row.rule))
    remark(name_remarks(row.name, await replica().config.named_alike(row.project_id, row.name)))


@blueprint.put("")
async def replace_breakers(project_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    begun = parts.clock.monotonic()
    items = await sent_set()
    destructive = flag("allow_destructive", request.args)
    percent_max = parts.settings.bulk_removal_percent_max
    guard = Guard(request.headers.get("If-Match"), destructive, percent_max, len(items))
    now_ms = parts.clock.now_ms()
    replaced = await parts.config.replace_breakers(project.id, items, guard.check, now_ms, by=current_key_id())
    await configured(project.id, replaced.change_ids)
    async with telling() as teller:
        told = await teller.hashed(replaced.rows, bodies.breaker)
        result = bodies.bulk_result(replaced, *told, round(1000 * (parts.clock.monotonic() - begun)))
        return json_pieces(await teller.body(result))


@blueprint.get("/<breaker_id>")
async def get_breaker(project_id: str, breaker_id: str) -> Response:
    project = await authorized_project(project_id, "manage")
    row = await replica().config.get_breaker(project.id, path_uuid(breaker_id))
    if row is None:
        raise NotFound("There is no such breaker.")
    return _shown(row)


@blueprint.patch("/<breaker_id>")
async def update_breaker(project_id: str, breaker_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    breaker_id = path_uuid(breaker_id)
    fields = await sent_fields(wire.BreakerPatch)
    await _confirm_mode(project.id, breaker_id, *wire.mode_asked(fields))
    edit = partial(_edited, fields=fields, by=current_actor(), if_match=request.headers.get("If-Match"))
    row, change_ids = await parts.config.update_breaker(
        project.id, breaker_id, edit, parts.clock.now_ms(), by=current_key_id()
    )
    await configured(project.id, change_ids)
    await _remark(row)
    return _shown(row)


def _edited(row: BreakerRow, fields: Mapping[str, Any], by: str, if_match: str | None) -> BreakerRow:
    """The row as a PATCH wants it. Raises Invalid, and PreconditionFailed where it is not what the caller knows."""
    edited = wire.breaker_edit(row, fields, by)
    if if_match is not None and not matches(if_match, known := bodies.breaker_tag(row)):
        raise PreconditionFailed(details={"breaker": known})
    return edited


def _shown(row: BreakerRow) -> Response:
    return tagged(json_response(bodies.breaker_single(row)), bodies.breaker_tag(row))


async def _confirm_mode(project_id: str, breaker_id: str, mode: BreakerMode | None, confirmed: bool) -> None:
    """Callers feel at once what a machine says that is not closed, when its breaker is enforced: that is to be meant.
    Raises ConfirmationNeeded."""
    if mode != "enforce":
        return
    reading = (await replica().states.find(project_id, [breaker_id])).get(breaker_id)
    if reading is None or reading.view.mode == "enforce" or reading.view.machine_state == "closed":
        return
    state = reading.view.machine_state
    if not confirmed:
        raise ConfirmationNeeded(details={"machine_state": state, "confirm": "Expected true"})
    remark([now_enforced(state)])


@blueprint.delete("/<breaker_id>")
async def delete_breaker(project_id: str, breaker_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    now_ms = parts.clock.now_ms()
    change_ids = await parts.config.delete_breaker(project.id, path_uuid(breaker_id), now_ms, by=current_key_id())
    await configured(project.id, change_ids)
    return no_content()
