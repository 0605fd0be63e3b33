"""Stop 15 of a sample's life: states of a project as server-sent events, for as long as the client stays.

Nothing is registered before the generator runs, and everything is unregistered in its finally: whoever leaves, however
early, leaves nothing behind. There is no clean end; see feed.Subscriber.cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

from quart import Blueprint, Response, request

from api.admission.outgoing import DIRECT, Direct
from api.context.current import authorized_project, current_key_id
from api.context.replica import replica
from api.stream.feed import Feed
from api.stream.sse import first_pause_s
from breaker_actors.errors import Forbidden, NotFound, Unauthorized
from breaker_actors.store.rows import ProjectRow

blueprint = Blueprint("stream", __name__, url_prefix="/v1/projects/<project_id>/breakers")

HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "Connection": "keep-alive"}


@blueprint.get("/state:stream")
async def stream_states(project_id: str) -> Response:
    project, parts = await _reach_slowly(project_id), replica()
    parts.feed.admit(project.id, project.org_id)
    parts.feed.follow(project.shard)
    pause_s = first_pause_s(parts.timing, request.headers.get("User-Agent"))
    direct: Direct | None = cast(dict[str, Any], request.scope).get(DIRECT)
    messages = follow(parts.feed, project.id, pause_s, (project.org_id, current_key_id()), direct)
    response = Response(b"" if request.method == "HEAD" else messages, headers=HEADERS)
    response.timeout = None
    del response.headers["Content-Length"]
    return response


async def _reach_slowly(project_id: str) -> ProjectRow:
    """Refuses after a pause: one public client asks again at once, for ever."""
    try:
        return await authorized_project(project_id, "read_runtime")
    except (Unauthorized, Forbidden, NotFound):
        await asyncio.sleep(replica().timing.refusal_s)
        raise


async def follow(
    feed: Feed,
    project_id: str,
    pause_s: float,
    key: tuple[str, str] | None = None,
    direct: Direct | None = None,
) -> AsyncGenerator[bytes, None]:
    """The bytes of one client's stream: all states `pause_s` after the headers, then every change, but for what the
    feed writes to `direct` between two pieces."""
    subscriber = None
    try:
        subscriber = feed.subscribe(project_id, key, direct)
        await asyncio.sleep(pause_s)
        yield await feed.snapshot(project_id, subscriber)
        while True:
            yield await subscriber.next()
    finally:
        if subscriber is not None:
            feed.unsubscribe(project_id, subscriber)
