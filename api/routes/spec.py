"""The description of the interface, for programs and for people. Open to all; the page asks no other host."""

from __future__ import annotations

from functools import cache

from quart import Blueprint, Response, request

from api.openapi.document import document
from api.openapi.page import packed, page, policy
from api.wire.http import html_bytes, json_bytes, plain_text

blueprint = Blueprint("spec", __name__)

HEADERS = {"Vary": "Accept-Encoding", "Referrer-Policy": "no-referrer"}


@cache
def _document() -> bytes:
    """Encoded once: it is the same for everybody as long as the service runs."""
    return plain_text(document())


@blueprint.get("/openapi.json")
async def openapi_document() -> Response:
    return json_bytes(_document())


@blueprint.get("/docs")
async def docs_page() -> Response:
    zipped = request.accept_encodings.quality("gzip") > 0
    response = html_bytes(packed() if zipped else page())
    response.headers.update(HEADERS | {"Content-Security-Policy": policy()})
    if zipped:
        response.headers["Content-Encoding"] = "gzip"
    return response
