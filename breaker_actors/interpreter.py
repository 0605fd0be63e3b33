"""How the threads of a process share the interpreter."""

from __future__ import annotations

import sys

SWITCH_S = 0.0005
"""A loop asks for the interpreter anew after each system call, several times a request. While a thread beside it
computes rows it waits this long each time; Python's 5 ms made 30 to 80 of a request beside large sets."""


def share_finely() -> None:
    """Threads that compute keep the loop of this process waiting for SWITCH_S at a time."""
    sys.setswitchinterval(SWITCH_S)
