"""The history of state changes, page by page."""

from __future__ import annotations

import msgspec
from quart import Blueprint, Response, request

from api import bodies
from api.context import reach, replica
from api.query import cursor_after, events_query
from api.reply import json_response

blueprint = Blueprint("events", __name__, url_prefix="/v1/projects/<project_id>/events")


@blueprint.get("")
async def list_events(project_id: str) -> Response:
    project, store = await reach(project_id, "manage"), replica().store
    query = events_query(project.id, request.args)
    # One row more than the page tells whether there is another page.
    rows = await store.events(msgspec.structs.replace(query, limit=query.limit + 1))
    page = rows[: query.limit]
    cursor = cursor_after(query, page[-1]) if len(rows) > query.limit else None
    response = json_response(bodies.event_list(page, cursor))
    newest_ms = await store.latest_event_ms(msgspec.structs.replace(query, before=None, after_sequence=None))
    if newest_ms is not None:
        response.headers["X-Latest-Timestamp"] = str(newest_ms)
    return response
