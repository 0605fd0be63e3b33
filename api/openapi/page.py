"""The description as one HTML page with search, try-it and samples of code: RapiDoc, which lies in `vendor`.

RapiDoc 9.3.8 from npm (MIT, its licence beside it), chosen of three by size: 218 KB compressed, where Swagger UI has
460 and Scalar 990. It is a file of its own that browsers keep; the page asks for it, for /openapi.json, for what its
reader tries, and for nothing of any other host.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from functools import cache
from pathlib import Path

RAPIDOC_VERSION = "9.3.8"
RAPIDOC = Path(__file__).parent / "vendor" / "rapidoc-min.js"
OPTIONS = (
    'spec-url="/openapi.json" load-fonts="false" render-style="focused" show-header="false" allow-try="true"'
    ' allow-search="true" allow-advanced-search="true" allow-server-selection="false" allow-spec-url-load="false"'
    ' allow-spec-file-load="false" persist-auth="false" schema-style="table" show-method-in-nav-bar="as-colored-text"'
)
HEAD = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Circuit breakers: API</title>'


SCRIPT_PATH = "/docs/rapidoc.js"


@cache
def page() -> bytes:
    """The whole page; the address of its script changes with it."""
    found = hashlib.sha256(script())
    address, digest = f"{SCRIPT_PATH}?v={found.hexdigest()[:16]}", base64.b64encode(found.digest()).decode()
    tag = f'<script src="{address}" integrity="sha256-{digest}" defer></script>'
    body = f"<body><rapi-doc {OPTIONS}></rapi-doc></body>"
    return f'<!doctype html><html lang="en"><head>{HEAD}{tag}</head>{body}</html>'.encode()


@cache
def script() -> bytes:
    """RapiDoc; 0.9 MB."""
    return RAPIDOC.read_bytes()


@cache
def packed() -> bytes:
    """The same, compressed with gzip."""
    return gzip.compress(script(), mtime=0)


def policy() -> str:
    """The page's Content-Security-Policy: scripts of this host, styles of its own making, requests to this host."""
    return (
        "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
