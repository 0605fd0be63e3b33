"""The stream of one open page: small words of what changed, for which the page fetches its live part anew.

It is the console's own; clients' SDKs read another one (api/routes/stream.py). It ends with its session or project,
within a second, and says so; a page that is hidden closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec
from quart import Blueprint, Response, g, request

from api.admission.shares import Holders
from api.auth import uuid_or_none
from api.console import guard
from api.context.current import authorized_project, callers, session_token
from api.context.replica import Replica, replica

BEAT_S = 5.0
GATHER_S = 0.01
"""What changes within so long after the first change is told with it."""
HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}

blueprint = Blueprint("console_live", __name__, url_prefix="/console/p/<project_id>/live")
guard.install(blueprint)


@blueprint.get("")
async def live(project_id: str) -> Response:
    project, parts = await authorized_project(project_id, "read_runtime"), replica()
    watched = [id_ for text in request.args.get("ids", "").split(",") if (id_ := uuid_or_none(text))]
    parts.listeners.admit(session_token(), callers())
    response = Response(_words(parts, project.id, session_token(), callers(), watched, g.ends_ms), headers=HEADERS)
    response.timeout = None
    return response


async def _words(
    parts: Replica, project_id: str, token: str, holders: Holders, watched: list[str], ends_ms: int
) -> AsyncGenerator[bytes, None]:
    with parts.listeners.listening(project_id, token, holders, watched) as listener:
        yield b"event: on\ndata: {}\n\n"
        while not listener.end and (left_s := (ends_ms - parts.clock.now_ms()) / 1_000) > 0:
            if not await listener.waited(min(BEAT_S, left_s)):
                yield b": still here\n\n"
            elif not listener.end:
                await asyncio.sleep(GATHER_S)
                yield b"event: news\ndata: " + msgspec.json.encode(listener.news()) + b"\n\n"
        yield f"event: {listener.end or 'over'}\ndata: {{}}\n\n".encode()
