"""Deliveries of a notification channel: what was sent, what waits, what could not be sent; and sending that again.

Additions of ours. The project's own id in place of a channel's stands for its slack_webhook_url.
"""

from __future__ import annotations

import msgspec
from quart import Blueprint, Response, request

from api.auth import path_uuid
from api.context.current import authorized_project, current_key_id, tell
from api.context.replica import replica
from api.wire.query import deliveries_query, number_cursor
from api.wire.responses_deliveries import DeliveryList, delivery, silence
from breaker_actors.errors import NotFound
from breaker_actors.store.rows import ProjectRow

blueprint = Blueprint(
    "deliveries", __name__, url_prefix="/v1/projects/<project_id>/notification-channels/<channel_id>/deliveries"
)


@blueprint.get("")
async def list_deliveries(project_id: str, channel_id: str) -> Response:
    project, parts = await _channel(project_id, channel_id), replica()
    query = deliveries_query(project.id, channel_id, request.args)
    # One row more than the page tells whether there is another page.
    rows = await parts.outbox.deliveries(msgspec.structs.replace(query, limit=query.limit + 1))
    page = rows[: query.limit]
    cursor = number_cursor(page[-1].number) if len(rows) > query.limit else None
    failing = {row.channel_id: row.circuit for row in await parts.outbox.failing_channels(project.id)}
    quiet = silence(failing.get(channel_id), parts.clock.now_ms())
    return await tell(page, delivery, DeliveryList, next_cursor=cursor, silence=quiet)


@blueprint.post("/<delivery_id>/redrive")
async def redrive_delivery(project_id: str, channel_id: str, delivery_id: str) -> Response:
    project, parts = await _channel(project_id, channel_id), replica()
    now = parts.clock.now_ms()
    rows = await parts.outbox.redrive_delivery(project.id, channel_id, path_uuid(delivery_id), now, by=current_key_id())
    response = await tell(rows, delivery, DeliveryList, silence=None)
    response.status_code = 202
    return response


async def _channel(project_id: str, channel_id: str) -> ProjectRow:
    """The project of a path whose channel there is."""
    project = await authorized_project(project_id, "manage")
    if channel_id != project.id and await replica().config.get_channel(project.id, channel_id) is None:
        raise NotFound("There is no such notification channel.")
    return project
