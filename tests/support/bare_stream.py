"""A bare Quart app in a process of its own, served as a Serve replica serves its app (uvicorn on uvloop): one stream
that sends a comment now and then. What it costs to hold a client is the yardstick for the real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
from collections.abc import AsyncGenerator, Iterator
from multiprocessing.connection import Connection

from api.launch.processes import raise_file_limit
from api.stream.sse import HEARTBEAT, StreamTiming

PATH = "/stream"


@contextlib.contextmanager
def bare_stream() -> Iterator[tuple[int, tuple[str, int]]]:
    """Process id and address of the app, which ends with the block."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        assert process.pid is not None
        yield process.pid, ours.recv()
    finally:
        process.kill()
        process.join()


def _child(pipe: Connection) -> None:
    import uvicorn
    from quart import Quart, Response

    app = Quart("bare")

    @app.get(PATH)
    async def stream() -> Response:
        response = Response(_comments(), headers={"Content-Type": "text/event-stream"})
        response.timeout = None
        return response

    raise_file_limit()
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(2_048)
    pipe.send(sock.getsockname())
    config = uvicorn.Config(app, lifespan="off", access_log=False, log_level=None, log_config=None)
    uvicorn.Server(config).run([sock])


async def _comments() -> AsyncGenerator[bytes, None]:
    while True:
        yield HEARTBEAT
        await asyncio.sleep(StreamTiming().heartbeat_s)
