"""The description of the interface, for programs and for people. Open to all, and no request leaves the page."""

from __future__ import annotations

from quart import Blueprint, Response

from api.reply import json_response
from api.spec.document import document
from api.spec.page import page

blueprint = Blueprint("spec", __name__)

PAGE_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


@blueprint.get("/openapi.json")
async def openapi_document() -> Response:
    return json_response(document())


@blueprint.get("/docs")
async def docs_page() -> Response:
    return Response(page(), content_type="text/html; charset=utf-8", headers=PAGE_HEADERS)
