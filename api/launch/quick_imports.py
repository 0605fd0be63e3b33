"""How processes of a service that starts import faster. Most of what a start costs are imports, in a dozen processes.

- Modules that nothing in them uses stay out: pandas, which Serve imports in case a deployment is called with a frame,
  and rich, which structlog and httpx import in case somebody reads what they print.
- The garbage collector holds back: it would look again and again through modules and classes, which are there to stay.

Nothing is imported here but the standard library: every worker imports this first.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

UNUSED = ("pandas", "rich")
YOUNG_MAX = 100_000
"""Objects that may lie there unlooked at meanwhile; Python says 700."""
IMPORTING_S = 10.0
"""How long that is so in a worker: on a busy machine it takes most of this until all is imported."""


def begin() -> None:
    """What a worker of Ray's does before it imports anything."""
    modules: dict[str, Any] = sys.modules
    for name in UNUSED:
        modules.setdefault(name, None)  # to who imports it, it is not installed
    usual = gc.get_threshold()[0]
    _look_at(YOUNG_MAX)
    later = threading.Timer(IMPORTING_S, _look_at, (usual,))
    later.daemon = True
    later.start()


def _look_at(young: int) -> None:
    """Sets how many young objects are worth a look, and nothing else: see api/launch/gc_policy.py."""
    gc.set_threshold(young, *gc.get_threshold()[1:])


@contextmanager
def absent(name: str) -> Iterator[None]:
    """Within, a module that was not imported yet is not installed."""
    modules: dict[str, Any] = sys.modules
    if name in modules:
        yield
        return
    modules[name] = None
    try:
        yield
    finally:
        del modules[name]


@contextmanager
def uncollected() -> Iterator[None]:
    """Within, no garbage is collected."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
