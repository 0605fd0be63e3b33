"""Keys of a project: made for runtime clients, or for who sends samples, shown once, gone everywhere within a second of
their revocation."""

from __future__ import annotations

from quart import Blueprint, Response

from api.auth import path_uuid
from api.context.current import (
    access_changed,
    authorized_project,
    current_key_id,
    expect_list,
    raw_body,
    spend_reads,
    tell,
)
from api.context.fields import sent_fields
from api.context.replica import replica
from api.middleware.idempotency import noted, once
from api.wire import responses_accounts as bodies
from api.wire.http import json_response, no_content
from api.wire.requests import shape
from api.wire.requests_accounts import ProjectKeyCreate
from breaker_actors.store.rows import ProjectKeyKind

blueprint = Blueprint("keys", __name__, url_prefix="/v1/projects/<project_id>/keys")

NAME_DEFAULT = "default"
KIND_DEFAULT: ProjectKeyKind = "project"


@blueprint.get("")
async def list_keys(project_id: str) -> Response:
    project = await authorized_project(project_id, "manage")
    await expect_list(project.id)
    rows = await replica().accounts.list_keys(project.org_id, project.id)
    spend_reads(project.id, len(rows))
    return await tell(rows, bodies.key, bodies.ProjectKeyList)


@blueprint.post("")
async def create_key(project_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    body = await raw_body()
    asked = shape({} if body.strip() == b"null" else await sent_fields(ProjectKeyCreate), ProjectKeyCreate)
    name, now_ms = asked.name or NAME_DEFAULT, parts.clock.now_ms()
    once_asked = await once(project.org_id, lambda made: bodies.new_key(*made), project.id)
    row, text = await parts.accounts.create_key(
        project.org_id, asked.kind or KIND_DEFAULT, name, now_ms, project.id, by=current_key_id(), once=once_asked
    )
    noted(once_asked)
    return json_response(bodies.new_key(row, text), 201)


@blueprint.delete("/<key_id>")
async def delete_key(project_id: str, key_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    now_ms = parts.clock.now_ms()
    await parts.accounts.revoke_key(project.org_id, path_uuid(key_id), now_ms, project.id, by=current_key_id())
    await access_changed(project.id)
    return no_content()
