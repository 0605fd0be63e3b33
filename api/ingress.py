"""Starts HAProxy in Ray Serve's place, to put four things right that Serve has no setting for.

Run as a program in front of the real one (RAY_SERVE_HAPROXY_BINARY_PATH points to a two-line script that calls this):
1. HAProxy's statistics and metrics listeners would be open on every interface of the machine; they move to loopback.
2. HAProxy would outlive a service that was killed, and keep its port; it dies with the actor that started it.
3. What HAProxy answers by itself (no replica, none in time) would be plain text; it is the Error object of the API.
4. A caller's X-Request-ID would be echoed whatever it is; one that is long or odd is replaced.
Imports the standard library only: it runs without site-packages, to cost no time.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_BIND_ALL = re.compile(r"(?<!^frontend http_frontend\n)^(\s*bind) \*?:(\d+)", re.MULTILINE)
_ERROR_FILE = re.compile(r"^\s*errorfile \d+ .*\n", re.MULTILINE)
_FRONTEND = re.compile(r"^frontend http_frontend\n(\s*bind .*\n)", re.MULTILINE)
_NO_ROUTE = re.compile(r"^(backend default_backend\n)\s*http-request return status 404 .*\n", re.MULTILINE)

# 502 and 504 become 503 on the way out. What is no HTTP at all is answered before any rule applies: 400, HTML.
STATUSES = (502, 503, 504)
NOT_READY = "The service does not answer now; send the request again."
_ID = "%[var(txn.request_id)]"  # a variable: errors are made where the request's headers are gone
# The same bounds as api/reply.py has.
_NAMED = """    unique-id-format %[uuid,regsub(-,,g)]
    acl is_named req.hdr(x-request-id) -m reg ^[A-Za-z0-9._:/@+=,-]{1,128}$
    http-request set-header x-request-id %[unique-id] unless is_named
    http-request set-var(txn.request_id) req.hdr(x-request-id)
    http-after-response set-status 503 if { status 502 504 }
"""


def on_loopback(config: str) -> str:
    """The configuration with every listener that names no address moved to 127.0.0.1; not so the interface itself,
    which is meant to be reached where BREAKERS_HOST says."""
    return _BIND_ALL.sub(r"\1 127.0.0.1:\2", config)


def with_json_errors(config: str) -> str:
    """The configuration with HAProxy's own errors as Error objects, and every request named."""
    body = json.dumps({"error": "not_ready", "code": "not_ready", "message": NOT_READY, "request_id": _ID})
    text = body.replace('"', '\\"')
    answer = f'content-type application/json lf-string "{text}" hdr X-Request-ID "{_ID}"\n'
    errors = "".join(f"    http-error status {status} {answer}" for status in STATUSES)
    config = _ERROR_FILE.sub("", config)
    config = _FRONTEND.sub(lambda found: found.group(0) + _NAMED + errors, config)
    return _NO_ROUTE.sub(lambda found: f"{found.group(1)}    http-request return status 503 {answer}", config)


def main(arguments: list[str]) -> None:
    if "-f" in arguments:
        path = Path(arguments[arguments.index("-f") + 1])
        path.write_text(with_json_errors(on_loopback(path.read_text())))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The same process goes on as HAProxy: Serve knows it by its pid and command line.
    os.execv(arguments[0], arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
