"""The description as one HTML page with search, try-it and samples of code: RapiDoc, which lies in `vendor`.

RapiDoc 9.3.8 from npm (MIT, its licence beside it), chosen of three by size: 218 KB compressed, where Swagger UI has
460 and Scalar 990. It is in the page itself, allowed by its hash alone; the page asks for /openapi.json, for what its
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


@cache
def page() -> bytes:
    """The whole page; 0.9 MB."""
    begin = f'<!doctype html><html lang="en"><head>{HEAD}<script>'
    end = f"</script></head><body><rapi-doc {OPTIONS}></rapi-doc></body></html>"
    return begin.encode() + script() + end.encode()


@cache
def script() -> bytes:
    """RapiDoc as it may stand in a page: a `<script` within would change where it ends."""
    return RAPIDOC.read_bytes().replace(b"<script", rb"\x3cscript")


@cache
def packed() -> bytes:
    """The same, compressed with gzip."""
    return gzip.compress(page(), mtime=0)


@cache
def policy() -> str:
    """The page's Content-Security-Policy: this one script, styles of its own making, requests to this host."""
    allowed = base64.b64encode(hashlib.sha256(script()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{allowed}'; style-src 'unsafe-inline'; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
