"""Answers on the wire: JSON bodies, conditional reads, request ids. Knows HTTP and nothing of breakers."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import msgspec
from quart import Response, g, request

from api.admission.addresses import source
from api.admission.outgoing import DEPARTURE, Departure
from api.admission.shares import asking
from breaker_actors.telemetry import logs

_plain = msgspec.json.Encoder()
_canonical = msgspec.json.Encoder(order="sorted")
READS = ("GET", "HEAD")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/@+=,-]{1,128}")


def json_response(body: Any, status: int = 200, done: bool | None = None) -> Response:
    """A JSON answer. Raises Overloaded where its callers have too many on their way; `done`: not even then, since what
    they asked for is done. If nothing is said that is so for all but reads."""
    return json_bytes(_plain.encode(body), status, done)


def json_bytes(text: bytes, status: int = 200, done: bool | None = None) -> Response:
    """The same, encoded already."""
    text = _warned(text)
    _hold(len(text), done)
    return Response(text, status=status, content_type="application/json")


def text_bytes(text: bytes, content_type: str) -> Response:
    """A text of this type. Raises Overloaded as `json_response` does: it is counted until it has left."""
    _hold(len(text), None)
    return Response(text, content_type=content_type)


def no_content(status: int = 204) -> Response:
    """An answer that must not have a body, hence no length and no type either."""
    response = Response(b"", status=status)
    del response.headers["Content-Length"]
    del response.headers["Content-Type"]
    return response


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value: equal content, equal hash."""
    return hashlib.sha256(_canonical.encode(value)).hexdigest()


def json_pieces(pieces: Sequence[bytes], status: int = 200, done: bool | None = None) -> Response:
    """The same of an answer in pieces, which are handed on one by one and never put together."""
    if len(pieces) == 1:
        return json_bytes(pieces[0], status, done)
    pieces = [*pieces[:-1], _warned(pieces[-1])]
    size = sum(map(len, pieces))
    _hold(size, done)
    response = Response(_each(pieces), status=status, content_type="application/json")
    response.content_length = size
    return response


def _warned(end: bytes) -> bytes:
    """The end of an answer, with the warnings of the current request where it has any and the answer is an object."""
    found = g.get("warnings")
    if not found or not end.endswith(b"}"):
        return end
    return end[:-1] + b',"warnings":' + _plain.encode(found) + b"}"


def _hold(size: int, done: bool | None) -> None:
    departure: Departure = cast(dict[str, Any], request.scope)[DEPARTURE]
    found = g.get("callers")
    holders = asking(source(request.remote_addr)) if found is None else found
    departure.hold(holders, size, request.method not in READS if done is None else done)


async def _each(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def plain_text(value: Any) -> bytes:
    """The JSON of a value, as answers have it."""
    return _plain.encode(value)


def canonical_text(value: Any) -> bytes:
    """The canonical JSON of a value."""
    return _canonical.encode(value)


def conditional(body: Any, content_hash: str) -> Response:
    """200 with a weak ETag, or an empty 304 when the caller already holds this content."""
    return tagged(no_content(304) if holds(content_hash) else json_response(body), content_hash)


def holds(content_hash: str) -> bool:
    """Whether the caller already holds this content."""
    return matches(request.headers.get("If-None-Match"), content_hash)


def tagged(response: Response, content_hash: str) -> Response:
    """The answer with its content's weak ETag."""
    response.headers["ETag"] = f'W/"{content_hash}"'
    return response


def matches(header: str | None, content_hash: str) -> bool:
    """Whether a list of entity tags names this content: W/"h", "h", bare h or *, compared weakly."""
    tags = (tag.strip().removeprefix("W/").strip('"') for tag in (header or "").split(","))
    return any(tag in ("*", content_hash) for tag in tags)


async def name_request() -> None:
    """Before each request: takes the caller's X-Request-ID when it is short and harmless, else makes one. It is on
    every line logged while the request is answered."""
    given = request.headers.get("X-Request-ID", "")
    g.request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
    logs.request_id.set(g.request_id)


def request_id() -> str:
    """The id of the request being answered."""
    return str(g.get("request_id") or uuid.uuid4().hex)
