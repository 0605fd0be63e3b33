"""Projects: their settings and their ingest secret."""

from __future__ import annotations

from quart import Blueprint, Response, request

from api.auth import uuid_or_none
from api.context.current import (
    access_changed,
    authenticate,
    authorized_project,
    callers,
    configured,
    current_key_id,
    departure,
    raw_body,
    tell,
)
from api.context.fields import sent_fields
from api.context.replica import replica
from api.middleware.idempotency import noted, once
from api.wire import requests as wire
from api.wire import responses as bodies
from api.wire.http import json_response, no_content
from api.wire.query import overlap_ms
from api.wire.requests_accounts import confirms
from breaker_actors.errors import BadRequest

blueprint = Blueprint("projects", __name__, url_prefix="/v1/projects")

PROJECT_BYTES = 800
"""About what a project takes in a list, which has it under two names."""


@blueprint.get("")
async def list_projects() -> Response:
    key = await authenticate("manage")
    rows = await replica().accounts.list_projects(key.org_id)
    if wanted := request.args.get("workspace_id"):
        rows = [row for row in rows if row.workspace_id == wanted.lower()]
    await departure().expect(callers(), PROJECT_BYTES * len(rows))
    return await tell(rows, bodies.project, bodies.ProjectList)


@blueprint.post("")
async def create_project() -> Response:
    key, parts = await authenticate("manage"), replica()
    asked = wire.shape(await sent_fields(wire.ProjectCreate, otherwise=BadRequest), wire.ProjectCreate)
    workspace_id = uuid_or_none(asked.workspace_id)
    workspace = await parts.accounts.get_workspace(workspace_id) if workspace_id else None
    if workspace is None or workspace.org_id != key.org_id:
        words = "is required" if asked.workspace_id is None else "is none of yours"
        raise wire.invalid("workspace_id", f"{words}: the id of a workspace; GET /v1/workspaces lists them")
    now_ms = parts.clock.now_ms()
    once_asked = await once(key.org_id, bodies.new_project)
    row = await parts.accounts.create_project(
        key.org_id, workspace.id, asked.name or None, now_ms, by=current_key_id(), once=once_asked
    )
    noted(once_asked)
    return json_response(bodies.new_project(row), 201)


@blueprint.get("/<project_id>")
async def get_project(project_id: str) -> Response:
    return json_response(bodies.project(await authorized_project(project_id, "manage")))


@blueprint.patch("/<project_id>")
async def update_project(project_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    patch = wire.shape(await sent_fields(wire.ProjectPatch), wire.ProjectPatch)
    fields = patch.fields(project)
    row = await parts.accounts.update_project(project.id, fields, parts.clock.now_ms(), by=current_key_id())
    if fields:
        await access_changed(project.id)
    return json_response(bodies.project(row))


@blueprint.delete("/<project_id>")
async def delete_project(project_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    confirms(await raw_body(), project.shown_name())
    change_ids = await parts.accounts.delete_project(project.id, parts.clock.now_ms(), by=current_key_id())
    await access_changed(project.id)
    await configured(project.id, change_ids)
    await parts.gateway.announce("config", [project.id])
    return no_content()


@blueprint.post("/<project_id>/ingest_secret/rotate")
async def rotate_secret(project_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    overlap = overlap_ms(request.args, parts.settings.secret_overlap_ms)
    asked = await once(project.org_id, bodies.rotated, project.id, status=200)
    row = await parts.accounts.rotate_secret(project.id, parts.clock.now_ms(), overlap, current_key_id(), asked)
    noted(asked)
    await access_changed(project.id)
    return json_response(bodies.rotated(row))
