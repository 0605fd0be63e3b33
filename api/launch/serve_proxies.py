"""Ray Serve's controller and the proxies that it starts on the nodes, HAProxy in each.

One that ends while it starts, or is too slow for Serve's patience, ends nothing: the controller starts another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

IN_USE = ("Address already in use", "cannot bind socket")
"""What HAProxy and the kernel say of a port that somebody has."""
REASON_MAX = 500
"""Characters of what Ray says when it does not start."""


def start_proxies(warn: Callable[[str], None], **options: Any) -> None:
    """`serve.start` with `options`; whoever waits for the service's answer sees whether a proxy came that had to be
    started again. Raises what Serve raises where it has no controller, or its port belongs to others."""
    from ray import serve

    try:
        serve.start(**options)
    except Exception as error:
        if port_in_use(error) or not controller_runs():
            raise
        warn(f"a proxy of Ray Serve did not start at once, and is started again: {reason(error)}")


def port_in_use(error: Exception) -> bool:
    """Whether somebody else has the port: another try would not get it."""
    return any(words in str(error) for words in IN_USE)


def controller_runs() -> bool:
    """Whether Serve's controller is there: from then on Serve starts again what of it ends."""
    import ray

    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    except ValueError:
        return False
    return True


def reason(error: Exception) -> str:
    """Why something of Ray's did not start, in one line of at most REASON_MAX characters: its cause, where the error
    is the traceback of another process."""
    return " ".join(str(getattr(error, "cause", None) or error).split())[:REASON_MAX] or type(error).__name__
