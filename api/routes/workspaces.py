"""Workspaces: what an organisation sorts its projects into."""

from __future__ import annotations

from quart import Blueprint, Response

from api.auth import path_uuid
from api.context.current import authenticate, callers, current_key_id, departure, tell
from api.context.fields import sent_fields
from api.context.replica import replica
from api.middleware.idempotency import noted, once
from api.wire import responses_accounts as bodies
from api.wire.http import json_response, no_content
from api.wire.requests import shape
from api.wire.requests_accounts import WorkspaceCreate, WorkspacePatch
from breaker_actors.errors import NotFound
from breaker_actors.store.rows import WorkspaceRow

blueprint = Blueprint("workspaces", __name__, url_prefix="/v1/workspaces")

WORKSPACE_BYTES = 600
"""About what a workspace takes in a list, which has it under two names."""


@blueprint.get("")
async def list_workspaces() -> Response:
    key = await authenticate("manage")
    rows = await replica().accounts.list_workspaces(key.org_id)
    await departure().expect(callers(), WORKSPACE_BYTES * len(rows))
    return await tell(rows, bodies.workspace, bodies.WorkspaceList)


@blueprint.post("")
async def create_workspace() -> Response:
    key, parts = await authenticate("manage"), replica()
    asked = shape(await sent_fields(WorkspaceCreate), WorkspaceCreate)
    now_ms = parts.clock.now_ms()
    once_asked = await once(key.org_id, bodies.workspace)
    row = await parts.accounts.create_workspace(
        key.org_id, asked.name, asked.slug, now_ms, current_key_id(), once_asked
    )
    noted(once_asked)
    return json_response(bodies.workspace(row), 201)


@blueprint.get("/<workspace_id>")
async def get_workspace(workspace_id: str) -> Response:
    return json_response(bodies.workspace(await _reach(workspace_id)))


@blueprint.patch("/<workspace_id>")
async def update_workspace(workspace_id: str) -> Response:
    row, parts = await _reach(workspace_id), replica()
    fields = shape(await sent_fields(WorkspacePatch), WorkspacePatch).fields()
    changed = await parts.accounts.update_workspace(row.id, fields, parts.clock.now_ms(), by=current_key_id())
    return json_response(bodies.workspace(changed))


@blueprint.delete("/<workspace_id>")
async def delete_workspace(workspace_id: str) -> Response:
    row, parts = await _reach(workspace_id), replica()
    await parts.accounts.delete_workspace(row.id, parts.clock.now_ms(), by=current_key_id())
    return no_content()


async def _reach(workspace_id: str) -> WorkspaceRow:
    """The workspace of a path, if it is one of the caller's organisation."""
    key = await authenticate("manage")
    row = await replica().accounts.get_workspace(path_uuid(workspace_id))
    if row is None or row.org_id != key.org_id:
        raise NotFound("There is no such workspace.")
    return row
