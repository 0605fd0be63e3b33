# /// script
# requires-python = ">=3.11"
# dependencies = ["quart>=0.22", "tripswitch-py>=0.2.3"]
# ///
"""A Quart service whose calls of a backend go through a gate.

    BREAKER=search uv run examples/gate_quart.py       # then: curl http://127.0.0.1:8080/search?q=x

In the directory of `breakers serve`, with a breaker of that name: README's first trip makes one. Several of one router,
all of which have to let a call pass: BREAKER=search,search-errors. While breakers is away calls pass.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import tripswitch
from gate import Gate, open_gate
from quart import Quart, Response, request

Backend = Callable[[str], Awaitable[str]]
RETRY_AFTER_S = 1


async def ask_backend(words: str) -> str:
    """What is protected: here, your own client's call."""
    return f"found {words}"


def create_app(
    backend: Backend = ask_backend, gates: Callable[..., AbstractAsyncContextManager[Gate]] = open_gate
) -> Quart:
    """The service. `gates` opens the gate of breakers by their names: BREAKER."""
    app = Quart(__name__)
    gate: list[Gate] = []

    @app.while_serving
    async def behind_a_gate() -> AsyncIterator[None]:
        async with gates(*os.environ.get("BREAKER", "search").split(",")) as opened:
            gate.append(opened)
            yield
            gate.clear()

    @app.get("/search")
    async def search() -> str:
        async with gate[0].call():
            return await backend(request.args.get("q", ""))

    @app.errorhandler(tripswitch.BreakerOpenError)
    async def refused(error: tripswitch.BreakerOpenError) -> Response:
        """The backend gets its rest, the caller an answer at once."""
        return Response("search is resting", 503, {"Retry-After": str(RETRY_AFTER_S)})

    return app


if __name__ == "__main__":
    create_app().run(port=8080)
