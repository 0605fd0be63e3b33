"""How many breakers of a project are closed or open."""

from __future__ import annotations

from quart import Blueprint, Response

from api import bodies
from api.context import reach, replica
from api.reply import conditional, digest

blueprint = Blueprint("status", __name__, url_prefix="/v1/projects/<project_id>/status")


@blueprint.get("")
async def get_status(project_id: str) -> Response:
    project, parts = await reach(project_id, "read_runtime"), replica()
    rows = await parts.caches.breakers(project.id)
    readings = await parts.gateway.states(project.id, list(rows)) if rows else {}
    body = bodies.project_status(list(readings.values()))
    return conditional(body, digest(body))
