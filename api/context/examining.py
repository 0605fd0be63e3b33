"""Looks at addresses of channels that only the library of their kind can read: a process forks for each request that
has some, so each project has a budget of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from api.context.replica import replica
from breaker_actors.errors import Overloaded
from breaker_actors.notify.model import Destination
from breaker_actors.store.rows import ChannelKind, ProjectRow

SETTING = "BREAKERS_RATE_EXAMINED_PER_MINUTE"


async def examine(project: ProjectRow, channels: Sequence[tuple[ChannelKind, Mapping[str, Any]]]) -> list[str]:
    """What is wrong with the address of each of these channels, by kind and config; "" where nothing is known to be.
    Raises Overloaded where the project's budget is spent, or its organisation has too many looked at already."""
    many = [
        Destination(channel_id="", kind=kind, config=dict(config), org_id=project.org_id) for kind, config in channels
    ]
    n, meters = sum(kind == "apprise" for kind, _ in channels), replica().meters
    try:
        _spend(project.id, n)
        found = await replica().sender.examine(project.org_id, many)
    except Overloaded:
        meters.count("breakers_addresses_examined_total", n, outcome="refused")
        raise
    for to, problem in zip(many, found, strict=True):
        if to.kind == "apprise":
            outcome = "unknown" if problem is None else "bad" if problem else "fine"
            meters.count("breakers_addresses_examined_total", outcome=outcome)
    return [problem or "" for problem in found]


def _spend(project_id: str, n: int) -> None:
    """Counts addresses before they are looked at."""
    parts = replica()
    if n and (wait_s := parts.examined.spend(project_id, n, parts.clock.monotonic())):
        rate = parts.settings.rate_examined_per_minute
        words = (
            f"More than {rate} addresses of this project's channels looked at a minute: this is what {SETTING} allows."
        )
        raise Overloaded(words, {"limit": SETTING, "retry_after_s": math.ceil(wait_s)})
