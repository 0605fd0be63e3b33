"""One request on its connection: what it brings in and takes out counts from here on, and ends with it."""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast

from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope
from quart import Quart
from quart.asgi import ASGIHTTPConnection
from quart.utils import raise_task_exceptions

from api.admission.intake import Arrival
from api.admission.outgoing import DEPARTURE, Departure
from api.context.current import ARRIVAL
from api.context.replica import EXTENSION, Replica
from api.wire.http import READS


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
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            departure.close()
            arrival.close()
        raise_task_exceptions(done)
