"""Scripts and styles of the console, each under an address that changes with it, so that browsers keep it for good.

htmx 4.0.1 from npm (0BSD) lies here as it was published, its licence beside it; uPlot is the report's.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from quart import Blueprint, Response, request

import pipelines
from api.wire.http import text_bytes
from breaker_actors.errors import NotFound

STATIC = Path(__file__).parent / "static"
UPLOT = Path(pipelines.__file__).parent / "report" / "uplot"
KINDS = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
PLACES = {path.name: path for folder in (STATIC, UPLOT) for path in folder.iterdir() if path.suffix in KINDS}

blueprint = Blueprint("console_assets", __name__, url_prefix="/console/static")


class Asset(NamedTuple):
    """A file: as it is, compressed, its type, and the hash that its address and the browser's check take."""

    text: bytes
    packed: bytes
    kind: str
    sha256: bytes

    @property
    def integrity(self) -> str:
        return f"sha256-{base64.b64encode(self.sha256).decode()}"


@cache
def asset(name: str) -> Asset:
    """A file that pages use. Raises NotFound."""
    if name not in PLACES:
        raise NotFound
    text = PLACES[name].read_bytes()
    return Asset(text, gzip.compress(text, mtime=0), KINDS[Path(name).suffix], hashlib.sha256(text).digest())


def address(name: str) -> str:
    """Where a file that pages use is."""
    return f"/console/static/{name}?v={asset(name).sha256.hex()[:16]}"


@blueprint.get("/<name>")
async def static_file(name: str) -> Response:
    found = asset(name)
    zipped = request.accept_encodings.quality("gzip") > 0
    response = text_bytes(found.packed if zipped else found.text, found.kind)
    response.headers.update({"Vary": "Accept-Encoding", "Cache-Control": "public, max-age=31536000, immutable"})
    response.headers["X-Content-Type-Options"] = "nosniff"
    if zipped:
        response.headers["Content-Encoding"] = "gzip"
    return response
