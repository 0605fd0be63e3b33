"""Metadata lists that runtime clients poll. A refusal would stop their polling for good, so project keys may read."""

from __future__ import annotations

from quart import Blueprint, Response

from api import bodies
from api.context import reach, replica
from api.reply import conditional, digest

blueprint = Blueprint("metadata", __name__, url_prefix="/v1/projects/<project_id>")


@blueprint.get("/breakers/metadata")
async def list_breaker_metadata(project_id: str) -> Response:
    project = await reach(project_id, "read_runtime")
    rows, _ = await replica().store.list_breakers(project.id)
    body = bodies.metadata_list(project.id, "breakers", rows)
    return conditional(body, digest(body))


@blueprint.get("/routers/metadata")
async def list_router_metadata(project_id: str) -> Response:
    project = await reach(project_id, "read_runtime")
    body = bodies.metadata_list(project.id, "routers", await replica().store.list_routers(project.id))
    return conditional(body, digest(body))
