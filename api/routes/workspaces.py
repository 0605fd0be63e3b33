"""Workspaces: what an organisation sorts its projects into."""

from __future__ import annotations

from quart import Blueprint, Response

from api import bodies_accounts as bodies
from api.auth import path_uuid
from api.context import acting, caller, raw_body, replica
from api.reply import json_response, no_content
from api.wire import decode_object, shape
from api.wire_accounts import WorkspaceCreate, WorkspacePatch
from breaker_actors.errors import NotFound
from breaker_actors.stores.base import WorkspaceRow

blueprint = Blueprint("workspaces", __name__, url_prefix="/v1/workspaces")


@blueprint.get("")
async def list_workspaces() -> Response:
    key = await caller("manage")
    return json_response(bodies.workspace_list(await replica().store.list_workspaces(key.org_id)))


@blueprint.post("")
async def create_workspace() -> Response:
    key, parts = await caller("manage"), replica()
    asked = shape(decode_object(await raw_body()), WorkspaceCreate)
    now_ms = parts.clock.now_ms()
    row = await parts.store.create_workspace(key.org_id, asked.name, asked.slug, now_ms, by=acting())
    return json_response(bodies.workspace(row), 201)


@blueprint.get("/<workspace_id>")
async def get_workspace(workspace_id: str) -> Response:
    return json_response(bodies.workspace(await _reach(workspace_id)))


@blueprint.patch("/<workspace_id>")
async def update_workspace(workspace_id: str) -> Response:
    row, parts = await _reach(workspace_id), replica()
    fields = shape(decode_object(await raw_body()), WorkspacePatch).fields()
    changed = await parts.store.update_workspace(row.id, fields, parts.clock.now_ms(), by=acting())
    return json_response(bodies.workspace(changed))


@blueprint.delete("/<workspace_id>")
async def delete_workspace(workspace_id: str) -> Response:
    row, parts = await _reach(workspace_id), replica()
    await parts.store.delete_workspace(row.id, parts.clock.now_ms(), by=acting())
    return no_content()


async def _reach(workspace_id: str) -> WorkspaceRow:
    """The workspace of a path, if it is one of the caller's organisation."""
    key = await caller("manage")
    row = await replica().store.get_workspace(path_uuid(workspace_id))
    if row is None or row.org_id != key.org_id:
        raise NotFound("There is no such workspace.")
    return row
