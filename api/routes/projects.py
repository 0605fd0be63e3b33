"""Projects: their settings and their ingest secret."""

from __future__ import annotations

from quart import Blueprint, Response, request

from api import bodies, wire
from api.auth import uuid_or_none
from api.context import caller, raw_body, reach, replica
from api.reply import json_response
from breaker_actors.errors import BadRequest

blueprint = Blueprint("projects", __name__, url_prefix="/v1/projects")


@blueprint.get("")
async def list_projects() -> Response:
    key = await caller("manage")
    rows = await replica().store.list_projects(key.org_id)
    if wanted := request.args.get("workspace_id"):
        rows = [row for row in rows if row.workspace_id == wanted.lower()]
    return json_response(bodies.project_list(rows))


@blueprint.post("")
async def create_project() -> Response:
    key, parts = await caller("manage"), replica()
    asked = wire.shape(wire.decode_object(await raw_body(), BadRequest), wire.ProjectCreate)
    workspace_id = uuid_or_none(asked.workspace_id)
    workspace = await parts.store.get_workspace(workspace_id) if workspace_id else None
    if workspace is None or workspace.org_id != key.org_id:
        raise wire.invalid("workspace_id", "Expected the id of one of your workspaces")
    row = await parts.store.create_project(key.org_id, workspace.id, asked.name or None, parts.clock.now_ms())
    return json_response(bodies.new_project(row), 201)


@blueprint.get("/<project_id>")
async def get_project(project_id: str) -> Response:
    return json_response(bodies.project(await reach(project_id, "manage")))


@blueprint.patch("/<project_id>")
async def update_project(project_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    patch = wire.shape(wire.decode_object(await raw_body()), wire.ProjectPatch)
    row = await parts.store.update_project(project.id, patch.fields(), parts.clock.now_ms())
    parts.caches.forget_project(project.id)
    return json_response(bodies.project(row))


@blueprint.post("/<project_id>/ingest_secret/rotate")
async def rotate_secret(project_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    row = await parts.store.rotate_secret(project.id, parts.clock.now_ms())
    parts.caches.forget_project(project.id)
    return json_response({"ingest_secret": row.ingest_secret})
