"""Projects: their settings and their ingest secret."""

from __future__ import annotations

from quart import Blueprint, Response, request

from api import bodies, wire
from api.auth import uuid_or_none
from api.context import access_changed, acting, caller, configured, raw_body, reach, replica
from api.reply import json_response, no_content
from api.wire_accounts import confirms
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
    now_ms = parts.clock.now_ms()
    row = await parts.store.create_project(key.org_id, workspace.id, asked.name or None, now_ms, by=acting())
    return json_response(bodies.new_project(row), 201)


@blueprint.get("/<project_id>")
async def get_project(project_id: str) -> Response:
    return json_response(bodies.project(await reach(project_id, "manage")))


@blueprint.patch("/<project_id>")
async def update_project(project_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    patch = wire.shape(wire.decode_object(await raw_body()), wire.ProjectPatch)
    row = await parts.store.update_project(project.id, patch.fields(project), parts.clock.now_ms(), by=acting())
    await access_changed(project.id)
    return json_response(bodies.project(row))


@blueprint.delete("/<project_id>")
async def delete_project(project_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    confirms(await raw_body(), project.shown_name())
    change_ids = await parts.store.delete_project(project.id, parts.clock.now_ms(), by=acting())
    await access_changed(project.id)
    await configured(project.id, change_ids)
    await parts.gateway.announce("config", [project.id])
    return no_content()


@blueprint.post("/<project_id>/ingest_secret/rotate")
async def rotate_secret(project_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    overlap_ms = parts.settings.secret_overlap_ms
    row = await parts.store.rotate_secret(project.id, parts.clock.now_ms(), overlap_ms, by=acting())
    await access_changed(project.id)
    return json_response({"ingest_secret": row.ingest_secret})
