"""Routers: create, read, change, delete, and which breakers hang on them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from quart import Blueprint, Response

from api.auth import path_uuid
from api.context.current import (
    IDS_BODY_BYTES_MAX,
    authorized_project,
    configured,
    current_key_id,
    expect_answer,
    expect_list,
    spend_reads,
    tell,
    telling,
)
from api.context.fields import sent_fields
from api.context.replica import replica
from api.middleware.idempotency import noted, once, replayed
from api.wire import requests as wire
from api.wire import responses as bodies
from api.wire.http import json_pieces, no_content
from breaker_actors.errors import NotFound
from breaker_actors.store.rows import BreakerRow, Repeated, RouterRow

blueprint = Blueprint("routers", __name__, url_prefix="/v1/projects/<project_id>/routers")


@blueprint.get("")
async def list_routers(project_id: str) -> Response:
    project = await authorized_project(project_id, "manage")
    await expect_list(project.id)
    rows = await replica().config.list_routers(project.id)
    spend_reads(project.id, len(rows))
    return await tell(rows, bodies.router, bodies.RouterList)


@blueprint.post("")
async def create_router(project_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    draft = wire.router_draft(await sent_fields(wire.RouterCreate, IDS_BODY_BYTES_MAX))
    await expect_answer(project.id)
    asked = await once(project.org_id, lambda shown: router_body(*shown), project.id)
    try:
        row, change_ids = await parts.config.create_router(
            project.id, draft, parts.clock.now_ms(), current_key_id(), asked
        )
    except Repeated as repeated:
        return await _answer_again(project.id, repeated)
    noted(asked)
    await configured(project.id, change_ids)
    return await answer_router(row, 201)


@blueprint.get("/<router_id>")
async def get_router(project_id: str, router_id: str) -> Response:
    project = await authorized_project(project_id, "manage")
    await expect_answer(project.id)
    row = await replica().config.get_router(project.id, path_uuid(router_id))
    if row is None:
        raise NotFound("There is no such router.")
    return await answer_router(row)


@blueprint.patch("/<router_id>")
async def update_router(project_id: str, router_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    router_id = path_uuid(router_id)
    await expect_answer(project.id)
    edit = partial(wire.router_edit, fields=await sent_fields(wire.RouterPatch))
    row, change_ids = await parts.config.update_router(
        project.id, router_id, edit, parts.clock.now_ms(), by=current_key_id()
    )
    await configured(project.id, change_ids)
    return await answer_router(row)


@blueprint.delete("/<router_id>")
async def delete_router(project_id: str, router_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    now_ms = parts.clock.now_ms()
    await configured(
        project.id, await parts.config.delete_router(project.id, path_uuid(router_id), now_ms, by=current_key_id())
    )
    return no_content()


@blueprint.post("/<router_id>/breakers")
async def link_breakers(project_id: str, router_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    router_id = path_uuid(router_id)
    ids = wire.linked_ids(await sent_fields(wire.RouterLink, IDS_BODY_BYTES_MAX))
    await expect_answer(project.id)
    row, change_ids = await parts.config.link_breakers(
        project.id, router_id, ids, parts.clock.now_ms(), by=current_key_id()
    )
    await configured(project.id, change_ids)
    return await answer_router(row)


@blueprint.delete("/<router_id>/breakers/<breaker_id>")
async def unlink_breaker(project_id: str, router_id: str, breaker_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    pair = path_uuid(router_id), path_uuid(breaker_id)
    change_ids = await parts.config.unlink_breaker(project.id, *pair, parts.clock.now_ms(), by=current_key_id())
    await configured(project.id, change_ids)
    return no_content()


async def _answer_again(project_id: str, repeated: Repeated) -> Response:
    """The kept answer; where it was too large to keep, the router as it is now. Raises NotFound when it is gone."""
    if repeated.thing is None:
        raise repeated
    row = await replica().config.get_router(project_id, repeated.thing)
    if row is None:
        raise NotFound("The router that this request made has been deleted.", {"router_id": repeated.thing})
    return await replayed(repeated, await answer_router(row, repeated.status))


async def answer_router(row: RouterRow, status: int = 200) -> Response:
    """A router with its breakers in full."""
    ids = row.breaker_ids
    breakers = (await replica().config.list_breakers(row.project_id, ids))[0] if ids else []
    async with telling() as teller:
        texts = await teller.texts(bodies.linked_to(row, breakers), bodies.breaker)
        return json_pieces(await teller.body(bodies.router_with(row, texts)), status)


def router_body(row: RouterRow, breakers: Sequence[BreakerRow]) -> bodies.RouterSingle:
    """The same, not told in turns."""
    return bodies.router_with(row, [bodies.breaker(breaker) for breaker in bodies.linked_to(row, breakers)])
