"""The history of state changes, page by page."""

from __future__ import annotations

import msgspec
from quart import Blueprint, Response, request

from api.context.current import authorized_project, tell
from api.context.replica import replica
from api.wire import responses as bodies
from api.wire.query import cursor_after, events_query

blueprint = Blueprint("events", __name__, url_prefix="/v1/projects/<project_id>/events")


@blueprint.get("")
async def list_events(project_id: str) -> Response:
    project, store = await authorized_project(project_id, "manage"), replica().events
    query = events_query(project.id, request.args)
    # One row more than the page tells whether there is another page.
    rows = await store.events(msgspec.structs.replace(query, limit=query.limit + 1))
    page = rows[: query.limit]
    cursor = cursor_after(query, page[-1]) if len(rows) > query.limit else None
    response = await tell(page, bodies.event, bodies.EventList, next_cursor=cursor)
    newest_ms = await store.latest_event_ms(msgspec.structs.replace(query, before=None, after_sequence=None))
    if newest_ms is not None:
        response.headers["X-Latest-Timestamp"] = str(newest_ms)
    return response
