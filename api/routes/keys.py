"""Keys of a project: made for runtime clients, shown once, gone everywhere within a second of their revocation."""

from __future__ import annotations

from quart import Blueprint, Response

from api import bodies_accounts as bodies
from api.auth import path_uuid
from api.context import access_changed, acting, raw_body, reach, replica
from api.reply import json_response, no_content
from api.wire import decode_object, shape
from api.wire_accounts import KeyCreate

blueprint = Blueprint("keys", __name__, url_prefix="/v1/projects/<project_id>/keys")

NAME_DEFAULT = "default"


@blueprint.get("")
async def list_keys(project_id: str) -> Response:
    project = await reach(project_id, "manage")
    return json_response(bodies.key_list(await replica().store.list_keys(project.org_id, project.id)))


@blueprint.post("")
async def create_key(project_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    body = await raw_body()
    asked = shape({} if body.strip() == b"null" else decode_object(body), KeyCreate)
    name, now_ms = asked.name or NAME_DEFAULT, parts.clock.now_ms()
    row, text = await parts.store.create_key(project.org_id, "project", name, now_ms, project.id, by=acting())
    return json_response(bodies.new_key(row, text), 201)


@blueprint.delete("/<key_id>")
async def delete_key(project_id: str, key_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    now_ms = parts.clock.now_ms()
    await parts.store.revoke_key(project.org_id, path_uuid(key_id), now_ms, project.id, by=acting())
    await access_changed(project.id)
    return no_content()
