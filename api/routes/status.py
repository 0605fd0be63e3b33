"""How many breakers of a project are in each state."""

from __future__ import annotations

from quart import Blueprint, Response

from api.context.current import authorized_project
from api.context.replica import replica
from api.wire.http import conditional, digest

blueprint = Blueprint("status", __name__, url_prefix="/v1/projects/<project_id>/status")


@blueprint.get("")
async def get_status(project_id: str) -> Response:
    project, parts = await authorized_project(project_id, "read_runtime"), replica()
    body = await parts.states.status(project.id)
    return conditional(body, digest(body))
