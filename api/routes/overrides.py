"""Overrides: what callers see of a breaker, by an operator's word and for a time (semantics.md section 12)."""

from __future__ import annotations

from quart import Blueprint, Response, request

from api.auth import path_uuid
from api.context.current import authorized_project, configured, current_actor, current_key_id
from api.context.fields import sent_fields
from api.context.replica import replica
from api.wire import overrides as wire
from api.wire.http import json_response, no_content, tagged
from api.wire.query import comment
from breaker_actors.errors import NotFound
from breaker_actors.store.base import Edit
from breaker_actors.store.rows import BreakerRow, ProjectRow

blueprint = Blueprint("overrides", __name__, url_prefix="/v1/projects/<project_id>/breakers/<breaker_id>/override")


@blueprint.get("")
async def get_override(project_id: str, breaker_id: str) -> Response:
    project = await authorized_project(project_id, "manage")
    row = await replica().config.get_breaker(project.id, path_uuid(breaker_id))
    if row is None:
        raise NotFound("There is no such breaker.")
    return _shown(row)


@blueprint.put("")
async def set_override(project_id: str, breaker_id: str) -> Response:
    project, now_ms = await authorized_project(project_id, "manage"), replica().clock.now_ms()
    fields = await sent_fields(wire.OverrideSet)
    asked = wire.asked_override(fields, current_actor(), now_ms, override_max_ms(project))
    edit = wire.setting(asked, request.headers.get("If-Match"), now_ms)
    return _shown(await _change(project, breaker_id, edit, now_ms))


@blueprint.delete("")
async def end_override(project_id: str, breaker_id: str) -> Response:
    project, now_ms = await authorized_project(project_id, "manage"), replica().clock.now_ms()
    why = comment("reason", request.args, wire.REASON_CHARS_MAX)
    edit = wire.ending(request.headers.get("If-Match"), current_actor(), why, now_ms)
    await _change(project, breaker_id, edit, now_ms)
    return no_content()


def override_max_ms(project: ProjectRow) -> int:
    """How long an override of its breakers may last."""
    return project.override_max_ms or replica().settings.override_max_ms


async def _change(project: ProjectRow, breaker_id: str, edit: Edit, now_ms: int) -> BreakerRow:
    row, change_ids = await replica().config.update_breaker(
        project.id, path_uuid(breaker_id), edit, now_ms, by=current_key_id()
    )
    await configured(project.id, change_ids)
    return row


def _shown(row: BreakerRow) -> Response:
    now_ms = replica().clock.now_ms()
    body = wire.breaker_override(row, now_ms)
    return tagged(json_response(body), wire.override_tag(wire.active(row, now_ms)))
