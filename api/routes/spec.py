"""The description of the interface, for programs and for people. Open to all; the page asks no other host."""

from __future__ import annotations

from functools import cache

from quart import Blueprint, Response, request

from api.openapi.document import document
from api.openapi.page import SCRIPT_PATH, packed, page, policy, script
from api.wire.http import json_bytes, plain_text, text_bytes

blueprint = Blueprint("spec", __name__)


@cache
def _document() -> bytes:
    """Encoded once: it is the same for everybody as long as the service runs."""
    return plain_text(document())


@blueprint.get("/openapi.json")
async def openapi_document() -> Response:
    return json_bytes(_document())


@blueprint.get("/docs")
async def docs_page() -> Response:
    response = text_bytes(page(), "text/html; charset=utf-8")
    response.headers.update({"Referrer-Policy": "no-referrer", "Content-Security-Policy": policy()})
    return response


@blueprint.get(SCRIPT_PATH)
async def docs_script() -> Response:
    """Kept by browsers: a page of another version names another address."""
    zipped = request.accept_encodings.quality("gzip") > 0
    response = text_bytes(packed() if zipped else script(), "text/javascript; charset=utf-8")
    response.headers.update({"Vary": "Accept-Encoding", "Cache-Control": "public, max-age=31536000, immutable"})
    if zipped:
        response.headers["Content-Encoding"] = "gzip"
    return response
