"""Answers on the wire: JSON bodies, conditional reads, request ids. Knows HTTP and nothing of breakers."""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Any

import msgspec
from quart import Response, g, request

from breaker_actors import logs

_plain = msgspec.json.Encoder()
_canonical = msgspec.json.Encoder(order="sorted")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/@+=,-]{1,128}")


def json_response(body: Any, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(_plain.encode(body), status=status, content_type="application/json")


def no_content(status: int = 204) -> Response:
    """An answer that must not have a body, hence no length and no type either."""
    response = Response(b"", status=status)
    del response.headers["Content-Length"]
    del response.headers["Content-Type"]
    return response


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value: equal content, equal hash."""
    return hashlib.sha256(_canonical.encode(value)).hexdigest()


def conditional(body: Any, content_hash: str) -> Response:
    """200 with a weak ETag, or an empty 304 when the caller already holds this content."""
    tag = f'W/"{content_hash}"'
    held = matches(request.headers.get("If-None-Match"), content_hash)
    response = no_content(304) if held else json_response(body)
    response.headers["ETag"] = tag
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
