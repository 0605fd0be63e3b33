"""The app behind a real server, for clients that need a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn

from tests.support.web_world import World


@asynccontextmanager
async def on_uvicorn(world: World) -> AsyncIterator[int]:
    """The app of a world behind uvicorn on a port of 127.0.0.1, which is given."""
    config = uvicorn.Config(world.app, port=0, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task
