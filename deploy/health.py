"""Asks the service of this container whether it is ready: exit code 0, else 1 and one line that says why.

Uses the standard library alone. Reads BREAKERS_PORT, BREAKERS_TLS_CERT, and BREAKERS_HEALTH_TOKEN or the file of
BREAKERS_HEALTH_TOKEN_FILE. An answer has 4 s. It asks this machine itself, so no certificate is checked.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

ANSWER_WITHIN_S = 4.0
WORDS_MAX = 300
"""Characters of an answer that are shown."""


def request_of(environ: Mapping[str, str]) -> urllib.request.Request:
    """What to ask, with the token if there is one."""
    scheme = "https" if environ.get("BREAKERS_TLS_CERT") else "http"
    request = urllib.request.Request(f"{scheme}://127.0.0.1:{environ.get('BREAKERS_PORT', '7117')}/api/readyz")
    token = environ.get("BREAKERS_HEALTH_TOKEN")
    if path := environ.get("BREAKERS_HEALTH_TOKEN_FILE"):
        token = Path(path).read_text().removesuffix("\n").removesuffix("\r")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    return request


def complaint(environ: Mapping[str, str]) -> str | None:
    """Why the service is not ready; None: it is."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    own = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)]
    try:
        with urllib.request.build_opener(*own).open(request_of(environ), timeout=ANSWER_WITHIN_S):
            return None
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {error.read(WORDS_MAX).decode(errors='replace')}"
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__


if __name__ == "__main__":
    if why := complaint(os.environ):
        sys.exit(ascii(why)[1:-1])
