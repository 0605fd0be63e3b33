"""Mutes: what people don't hear of, and when. Additions of ours."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from quart import Blueprint, Response, request

from api.auth import path_uuid
from api.context.current import (
    authorized_project,
    current_actor,
    current_key_id,
    expect_list,
    spend_reads,
    tell,
)
from api.context.fields import sent_fields
from api.context.matched import TooMuchToMatch, matching, open_ones, searching
from api.context.replica import replica
from api.middleware.idempotency import noted, once
from api.wire import responses_mutes as bodies
from api.wire.http import json_response, no_content
from api.wire.query import mute_state
from api.wire.requests_mutes import (
    Bounds,
    MuteCreate,
    MutePatch,
    MutePreview,
    check_end,
    mute_draft,
    mute_edit,
    preview_of,
)
from breaker_actors.errors import NotFound
from breaker_actors.store.rows import MuteRow

blueprint = Blueprint("mutes", __name__, url_prefix="/v1/projects/<project_id>")

READS = 20
"""Things that a mute in a list counts as; what it takes to count its breakers counts besides."""


@blueprint.get("/mutes")
async def list_mutes(project_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    wanted, now = mute_state(request.args), parts.clock.now_ms()
    await expect_list(project.id)
    rows = [row for row in await parts.mutes.list_mutes(project.id) if wanted in (None, row.state(now))]
    spend_reads(project.id, READS * len(rows))
    counts = await _counts(project.id, rows, now)
    return await tell(rows, lambda row: bodies.counted(row, counts[row.id], now), bodies.MuteList)


@blueprint.post("/mutes")
async def create_mute(project_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    now = parts.clock.now_ms()
    bounds = _bounds(now)
    draft = mute_draft(await sent_fields(MuteCreate), bounds)
    check = partial(check_end, draft, bounds)

    def answer(row: MuteRow) -> bodies.MuteSingle:
        return bodies.MuteSingle(mute=bodies.mute(row, now))

    asked = await once(project.org_id, answer, project.id)
    row = await parts.mutes.create_mute(project.id, draft, now, current_key_id(), current_actor(), asked, check)
    noted(asked)
    return json_response(answer(row), 201)


@blueprint.post("/mutes:preview")
async def preview_mute(project_id: str) -> Response:
    """What a mute would match now."""
    project = await authorized_project(project_id, "manage")
    matchers = preview_of(await sent_fields(MutePreview))
    found, _ = await matching(project.id, matchers)
    return json_response(bodies.previewed(found))


@blueprint.get("/mutes/<mute_id>")
async def get_mute(project_id: str, mute_id: str) -> Response:
    row, now = await _mute(project_id, mute_id), replica().clock.now_ms()
    counts = await _counts(row.project_id, [row], now)
    return json_response(bodies.CountedMuteSingle(mute=bodies.counted(row, counts[row.id], now)))


@blueprint.patch("/mutes/<mute_id>")
async def update_mute(project_id: str, mute_id: str) -> Response:
    row, parts = await _mute(project_id, mute_id), replica()
    now = parts.clock.now_ms()
    edit = mute_edit(await sent_fields(MutePatch), _bounds(now))
    changed = await parts.mutes.update_mute(row.project_id, row.id, edit, now, by=current_key_id())
    return json_response(bodies.MuteSingle(mute=bodies.mute(changed, now)))


@blueprint.delete("/mutes/<mute_id>")
async def end_mute(project_id: str, mute_id: str) -> Response:
    """It ends now, and stays in the list as expired."""
    row, parts = await _mute(project_id, mute_id), replica()
    await parts.mutes.end_mute(row.project_id, row.id, parts.clock.now_ms(), by=current_key_id())
    return no_content()


def _bounds(now_ms: int) -> Bounds:
    return Bounds(now_ms, replica().settings.mute_max_ms)


async def _mute(project_id: str, mute_id: str) -> MuteRow:
    """The mute of a path."""
    project = await authorized_project(project_id, "manage")
    row = await replica().mutes.get_mute(project.id, path_uuid(mute_id))
    if row is None:
        raise NotFound("There is no such mute.")
    return row


async def _counts(project_id: str, rows: Sequence[MuteRow], now_ms: int) -> dict[str, bodies.MuteCounts]:
    """What each mute matches and holds; of those that have ended nothing is counted, and nothing that would be too much
    work for one request."""
    live = [row for row in rows if row.state(now_ms) != "expired"]
    holding = await replica().mutes.held_counts(project_id) if rows else {}
    counts = {row.id: bodies.MuteCounts(holding=holding.get(row.id, 0)) for row in rows}
    if not live:
        return counts
    async with searching(project_id) as search:
        for row in live:
            held = holding.get(row.id, 0)
            try:
                found = await search.find(row.matchers)
            except TooMuchToMatch:
                counts[row.id] = bodies.MuteCounts(None, None, held)
            else:
                counts[row.id] = bodies.MuteCounts(len(found), open_ones(found), held)
    return counts
