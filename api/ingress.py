"""Starts HAProxy in Ray Serve's place, to put two things right that Serve has no setting for.

Run as a program in front of the real one (RAY_SERVE_HAPROXY_BINARY_PATH points to a two-line script that calls this):
1. HAProxy's statistics and metrics listeners would be open on every interface of the machine; they move to loopback.
2. HAProxy would outlive a service that was killed, and keep its port; it dies with the actor that started it.
Imports the standard library only: it runs without site-packages, to cost no time.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_BIND_ALL = re.compile(r"^(\s*bind) \*?:(\d+)", re.MULTILINE)


def on_loopback(config: str) -> str:
    """The configuration with every listener that names no address moved to 127.0.0.1."""
    return _BIND_ALL.sub(r"\1 127.0.0.1:\2", config)


def main(arguments: list[str]) -> None:
    if "-f" in arguments:
        path = Path(arguments[arguments.index("-f") + 1])
        path.write_text(on_loopback(path.read_text()))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The same process goes on as HAProxy: Serve knows it by its pid and command line.
    os.execv(arguments[0], arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
