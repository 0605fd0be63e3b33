"""Stop 15 of a sample's life: states of a project as server-sent events, for as long as the client stays.

Nothing is registered before the generator runs, and everything is unregistered in its finally: whoever leaves, however
early, leaves nothing behind. There is no clean end; see feed.Subscriber.cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from quart import Blueprint, Response, request

from api.context import acting, reach, replica
from api.feed import Feed
from api.sse import StreamTiming
from breaker_actors.errors import Forbidden, NotFound, Unauthorized
from breaker_actors.stores.base import ProjectRow

blueprint = Blueprint("stream", __name__, url_prefix="/v1/projects/<project_id>/breakers")

HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "Connection": "keep-alive"}


@blueprint.get("/state:stream")
async def stream_states(project_id: str) -> Response:
    project, parts = await _reach_slowly(project_id), replica()
    parts.feed.admit(project.id)
    messages = follow(parts.feed, project.id, parts.timing, (project.org_id, acting()))
    response = Response(b"" if request.method == "HEAD" else messages, headers=HEADERS)
    response.timeout = None
    del response.headers["Content-Length"]
    return response


async def _reach_slowly(project_id: str) -> ProjectRow:
    """Refuses after a pause: one public client asks again at once, for ever."""
    try:
        return await reach(project_id, "read_runtime")
    except (Unauthorized, Forbidden, NotFound):
        await asyncio.sleep(replica().timing.refusal_s)
        raise


async def follow(
    feed: Feed, project_id: str, timing: StreamTiming, key: tuple[str, str] | None = None
) -> AsyncGenerator[bytes, None]:
    """The bytes of one client's stream: all states shortly after the headers, then every change."""
    subscriber = None
    try:
        subscriber = feed.subscribe(project_id, key)
        await asyncio.sleep(timing.snapshot_s)
        yield await feed.snapshot(project_id, subscriber)
        while True:
            yield await subscriber.next()
    finally:
        if subscriber is not None:
            feed.unsubscribe(project_id, subscriber)
