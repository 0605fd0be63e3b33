"""One request on its connection: what it brings in and takes out counts from here on, and ends with it."""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast

from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope
from quart import Quart, Request
from quart.asgi import ASGIHTTPConnection, _handle_exception
from quart.utils import encode_headers, raise_task_exceptions
from quart.wrappers.request import Body
from werkzeug.wrappers import Response as WerkzeugResponse

from api.admission.intake import Arrival
from api.admission.outgoing import DEPARTURE, Departure
from api.context.current import ARRIVAL
from api.context.replica import EXTENSION, Replica
from api.wire.http import READS


class NoBody(Body):
    """In the place of Quart's, which nobody fills: its two Events would be 1.5 KB of each request."""

    def __init__(self, expected_content_length: int | None, max_content_length: int | None) -> None:
        self._must_raise = RuntimeError("bodies come by api.context.current.raw_body")


class Asked(Request):
    """A request without a buffer for its body."""

    body_class = NoBody


class Connection(ASGIHTTPConnection):
    """Ends both of Quart's tasks when the server cancels the request.

    Quart waits for them in asyncio.wait, which leaves its children running: a stream whose client is gone would live on
    for ever. Bodies are not buffered by Quart but received when a handler asks (api/admission/intake.py). A double
    slash, which clients make of a base URL that ends in one, is read as a single one.
    """

    def __init__(self, app: Quart, scope: HTTPScope) -> None:
        path = re.sub("//+", "/", scope["path"])
        super().__init__(app, scope if path == scope["path"] else cast(HTTPScope, {**scope, "path": path}))

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        asked = self._create_request_from_scope(send)
        parts: Replica = self.app.extensions[EXTENSION]
        arrival = Arrival(parts.intake, receive, asked.method not in READS)
        departure = Departure(parts.intake.outlet, cast(Any, send))
        cast(dict[str, Any], asked.scope).update({ARRIVAL: arrival, DEPARTURE: departure})
        tasks = {
            asyncio.create_task(arrival.left()),
            asyncio.create_task(self.handle_request(asked, departure.send)),
        }
        del asked
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            departure.close()
            arrival.close()
        raise_task_exceptions(done)

    async def handle_request(self, request: Request, send: ASGISendCallable) -> None:
        """As Quart's, but request and answer go before all is sent: of a stream they would stay as long as it lives,
        some 5 KB of each. RESPONSE_TIMEOUT is not asked for, there is none."""
        try:
            response = await self.app.handle_request(request)
        except Exception as error:
            response = await _handle_exception(self.app, error)
        del request
        if isinstance(response, WerkzeugResponse):
            return await self._send_response(send, response)
        head = {"status": response.status_code, "headers": encode_headers(response.headers)}
        await send(cast(Any, {"type": "http.response.start", **head}))
        body = response.response
        del response, head
        async with body as pieces:
            async for piece in pieces:
                data = piece.encode() if isinstance(piece, str) else piece
                await send(cast(Any, {"type": "http.response.body", "body": data, "more_body": True}))
        await send(cast(Any, {"type": "http.response.body", "body": b"", "more_body": False}))
