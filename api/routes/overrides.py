"""Overrides: what callers see of a breaker, by an operator's word and for a time (semantics.md section 12)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from quart import Blueprint, Response, request

from api.auth import path_uuid
from api.context.current import (
    authorized_project,
    configured,
    current_actor,
    current_key_id,
    spend_reads,
    tell,
)
from api.context.fields import sent_fields
from api.context.matched import matching
from api.context.replica import replica
from api.wire import overrides as wire
from api.wire.comparison import EVENTS_MAX, Course, compare, course_of
from api.wire.http import json_response, no_content, tagged
from api.wire.query import comment, flag, span
from api.wire.requests_bulk import refuse_many
from api.wire.responses_mutes import previewed
from breaker_actors.errors import Invalid, NotFound
from breaker_actors.store.base import Edit
from breaker_actors.store.mutes.matching import BreakerFacts
from breaker_actors.store.rows import BreakerRow, EventQuery, ProjectRow

blueprint = Blueprint("overrides", __name__, url_prefix="/v1/projects/<project_id>")
ONE = "/breakers/<breaker_id>/override"
DAY_MS = 86_400_000
EARLIER = 50
"""Events before a span that are looked through for where the machine was."""


@blueprint.get("/overrides")
async def list_overrides(project_id: str) -> Response:
    """Those in force, the one that ends first first."""
    project, parts = await authorized_project(project_id, "manage"), replica()
    now_ms = parts.clock.now_ms()
    rows = await parts.config.controlled_breakers(project.id)
    spend_reads(project.id, len(rows))
    found = [(row, override) for row in rows if (override := wire.active(row, now_ms)) is not None]
    found.sort(key=lambda pair: pair[1].until_ms)
    return await tell(found, lambda pair: wire.override_item(*pair), wire.OverrideList)


@blueprint.post("/overrides")
async def set_overrides(project_id: str) -> Response:
    """One override for all breakers that match; a large part of a project only with `allow_destructive`."""
    project, parts = await authorized_project(project_id, "manage"), replica()
    now_ms = parts.clock.now_ms()
    fields = await sent_fields(wire.OverridesSet)
    asked = wire.asked_override(fields, current_actor(), now_ms, override_max_ms(project))
    found, there = await matching(project.id, wire.matchers_of(fields))
    if not flag("allow_destructive", request.args):
        refuse_many(len(found), there, parts.settings.bulk_removal_percent_max)
    return await _change_all(project, found, wire.setting(asked, None, now_ms), now_ms)


@blueprint.post("/overrides:preview")
async def preview_overrides(project_id: str) -> Response:
    """What an override of these matchers would concern now."""
    project = await authorized_project(project_id, "manage")
    found, _ = await matching(project.id, wire.matchers_of(await sent_fields(wire.OverrideMatch)))
    return json_response(previewed(found))


@blueprint.post("/overrides:end")
async def end_overrides(project_id: str) -> Response:
    project, now_ms = await authorized_project(project_id, "manage"), replica().clock.now_ms()
    fields = await sent_fields(wire.OverridesEnd)
    found, _ = await matching(project.id, wire.matchers_of(fields))
    edit = wire.ending(None, current_actor(), wire.end_reason(fields), now_ms)
    return await _change_all(project, found, edit, now_ms)


@blueprint.get("/breakers/<breaker_id>/comparison")
async def compare_shadow(project_id: str, breaker_id: str) -> Response:
    """A shadow beside the breaker that it watches, over a span of time in which there were both; the last day unless
    another is named."""
    project, parts = await authorized_project(project_id, "manage"), replica()
    row = await parts.config.get_breaker(project.id, path_uuid(breaker_id))
    if row is None:
        raise NotFound("There is no such breaker.")
    if row.shadow_of is None:
        raise Invalid("This breaker is no shadow of another one.", {"shadow_of": "is null"})
    since_ms, until_ms = span(request.args, parts.clock.now_ms(), DAY_MS)
    ids = (row.id, row.shadow_of)
    watched_row = await parts.config.get_breaker(project.id, row.shadow_of)
    born_ms = max(one.created_ms for one in (row, watched_row or row))
    since_ms = min(max(since_ms, born_ms), until_ms)
    shadow, watched = [await _course(project.id, id_, since_ms, until_ms) for id_ in ids]
    return json_response(compare(ids, shadow, watched, since_ms, until_ms))


async def _course(project_id: str, breaker_id: str, since_ms: int, until_ms: int) -> Course:
    store = replica().events
    query = EventQuery(project_id=project_id, breaker_id=breaker_id, since_ms=since_ms - 1, until_ms=until_ms)
    spend_reads(project_id, 0)
    rows = await store.events(msgspec.structs.replace(query, limit=EVENTS_MAX + 1))
    spend_reads(project_id, len(rows))
    if len(rows) > EVENTS_MAX:
        raise Invalid("Too many events: ask for a shorter span.", {"since_ms": f"more than {EVENTS_MAX} events"})
    earlier = msgspec.structs.replace(query, since_ms=None, until_ms=since_ms - 1, limit=EARLIER)
    return course_of(reversed(rows), await store.events(earlier), since_ms)


@blueprint.get(ONE)
async def get_override(project_id: str, breaker_id: str) -> Response:
    project = await authorized_project(project_id, "manage")
    row = await replica().config.get_breaker(project.id, path_uuid(breaker_id))
    if row is None:
        raise NotFound("There is no such breaker.")
    return _shown(row)


@blueprint.put(ONE)
async def set_override(project_id: str, breaker_id: str) -> Response:
    project, now_ms = await authorized_project(project_id, "manage"), replica().clock.now_ms()
    fields = await sent_fields(wire.OverrideSet)
    asked = wire.asked_override(fields, current_actor(), now_ms, override_max_ms(project))
    edit = wire.setting(asked, request.headers.get("If-Match"), now_ms)
    return _shown(await _change(project, breaker_id, edit, now_ms))


@blueprint.delete(ONE)
async def end_override(project_id: str, breaker_id: str) -> Response:
    project, now_ms = await authorized_project(project_id, "manage"), replica().clock.now_ms()
    why = comment("reason", request.args, wire.REASON_CHARS_MAX)
    edit = wire.ending(request.headers.get("If-Match"), current_actor(), why, now_ms)
    await _change(project, breaker_id, edit, now_ms)
    return no_content()


def override_max_ms(project: ProjectRow) -> int:
    """How long an override of its breakers may last."""
    return project.override_max_ms or replica().settings.override_max_ms


async def _change_all(project: ProjectRow, found: Sequence[BreakerFacts], edit: Edit, now_ms: int) -> Response:
    changed, change_ids = await replica().config.update_breakers(
        project.id, [breaker.id for breaker in found], edit, now_ms, by=current_key_id()
    )
    await configured(project.id, change_ids)
    return json_response(wire.OverridesChanged(matches=len(found), changed=changed))


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
