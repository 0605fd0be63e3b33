"""What the door without HAProxy (api/launch/serve_ingress.py) lets through to Serve's proxy, and lets wait in it.

Serve's proxy takes an answer whole from a replica and hands it on as its client reads: readers who don't read would
pile up answers in it. So answers above LARGE_BYTES count, by the length they name, until they are handed on, in the
same parts as in a replica (api/admission/shares.py); a read beyond its part is 429. Requests that show no key have a
rate for each source, as at HAProxy.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.admission.addresses import source
from api.admission.outgoing import LARGE_BYTES, AnswerShares
from api.admission.shares import Holders, asking
from api.launch.haproxy import KEYLESS_PER_S
from api.wire.http import READS

ANSWERS_BYTES_MAX = 256 << 20
"""Of all answers that wait in the proxy; of those without a key 32 MiB, of one source 16."""
SOURCES_MAX = 100_000
_INGEST = re.compile(r"/+v1/+projects/+[^/]+/+ingest", re.IGNORECASE)


class KeylessRate:
    """Requests of each source in the current second. Beyond SOURCES_MAX sources the second begins anew."""

    def __init__(self, most: int = KEYLESS_PER_S) -> None:
        self._most = most
        self._second = 0
        self._seen: dict[str, int] = {}

    def takes(self, address: str, now_s: float) -> bool:
        if int(now_s) != self._second or len(self._seen) > SOURCES_MAX:
            self._second, self._seen = int(now_s), {}
        count = self._seen.get(address, 0)
        if count < self._most:
            self._seen[address] = count + 1
        return count < self._most


class ProxyBounds:
    """The outermost part of the proxy's app. One for each process."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._rate = KeylessRate()
        self._answers = AnswerShares("bytes of answers", ANSWERS_BYTES_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        address = source((scope.get("client") or ("",))[0])
        shows_key = any(name == b"authorization" for name, _ in scope["headers"])
        is_ingest = scope["method"] == "POST" and _INGEST.fullmatch(scope["path"])
        if shows_key or is_ingest:
            holders: Holders = (("address", address),)
        elif self._rate.takes(address, asyncio.get_running_loop().time()):
            holders = asking(address)
        else:
            return await _refuse("keyless_per_s", scope, receive, send)
        answer = _Answer(self._answers, holders, scope, receive, send)
        try:
            await self._app(scope, receive, answer.send)
        finally:
            answer.close()


class _Answer:
    """One answer on its way through the proxy."""

    def __init__(self, shares: AnswerShares, holders: Holders, scope: Scope, receive: Receive, send: Send) -> None:
        self._shares = shares
        self._holders = holders
        self._request = scope, receive, send
        self._held = 0
        self._is_refused = False

    async def send(self, message: Message) -> None:
        scope, receive, send = self._request
        if message["type"] == "http.response.start":
            size = _length(message)
            if size and scope["method"] in READS and self._shares.full(self._holders, size):
                self._is_refused = True
                return await _refuse("bytes of answers", scope, receive, send)
            self._shares.add(self._holders, size)
            self._held = size
        if not self._is_refused:  # what is left of a refused one is taken in, and gone
            await send(message)

    def close(self) -> None:
        self._shares.give_back(self._holders, self._held)
        self._held = 0


def _length(message: Message) -> int:
    """What a large answer says it has; 0 for small ones, and those that have no end."""
    for name, value in message.get("headers", ()):
        if name.lower() == b"content-length" and value.isdigit():
            return int(value) if int(value) > LARGE_BYTES else 0
    return 0


async def _refuse(limit: str, scope: Scope, receive: Receive, send: Send) -> None:
    status, word = HTTPStatus.TOO_MANY_REQUESTS, "rate_limited"
    message = f"More than the door lets through of one caller: {limit}."
    details = {"limit": limit, "retry_after_s": 1}
    body = {"error": word, "code": word, "message": message, "details": details}
    headers = {"Retry-After": "1", "Connection": "close"}
    await JSONResponse(body, status, headers)(scope, receive, send)
