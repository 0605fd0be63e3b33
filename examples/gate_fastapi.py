# /// script
# requires-python = ">=3.11"
# dependencies = ["fastapi", "uvicorn", "tripswitch-py>=0.2.3"]
# ///
"""A FastAPI service whose calls of a backend go through a gate.

    BREAKER=search uv run examples/gate_fastapi.py     # then: curl http://127.0.0.1:8080/search?q=x

In the directory of `breakers serve`, with a breaker of that name: README's first trip makes one. Several of one router,
all of which have to let a call pass: BREAKER=search,search-errors. While breakers is away calls pass.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import tripswitch
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse
from gate import Gate, open_gate

Backend = Callable[[str], Awaitable[str]]
RETRY_AFTER_S = 1


async def ask_backend(words: str) -> str:
    """What is protected: here, your own client's call."""
    return f"found {words}"


def create_app(
    backend: Backend = ask_backend, gates: Callable[..., AbstractAsyncContextManager[Gate]] = open_gate
) -> FastAPI:
    """The service. `gates` opens the gate of breakers by their names: BREAKER."""

    @asynccontextmanager
    async def behind_a_gate(app: FastAPI) -> AsyncIterator[None]:
        async with gates(*os.environ.get("BREAKER", "search").split(",")) as app.state.gate:
            yield

    app = FastAPI(lifespan=behind_a_gate)

    @app.get("/search", response_class=PlainTextResponse)
    async def search(q: str = "") -> str:
        async with app.state.gate.call():
            return await backend(q)

    @app.exception_handler(tripswitch.BreakerOpenError)
    async def refused(request: Request, error: tripswitch.BreakerOpenError) -> PlainTextResponse:
        """The backend gets its rest, the caller an answer at once."""
        return PlainTextResponse("search is resting", 503, {"Retry-After": str(RETRY_AFTER_S)})

    return app


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(create_app(), port=8080)
