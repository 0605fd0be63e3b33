"""What a pass over stored things could not read: it went on with all others, and this says which were passed over."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from breaker_actors.telemetry.set_aside import Asides

NAMED_MAX = 100
"""Things that are told by name; the others only count."""
SHOWN = 3
"""Those that a line names."""


def passed_over(*parts: Asides) -> dict[str, Any]:
    """For JSON: how many things, and the first of them. `place`: of a log record its offset."""
    keys = islice((key for part in parts for key in part.known()), NAMED_MAX)
    return {
        "count": sum(part.counts.total() for part in parts),
        "things": [{"kind": kind, "thing": thing, "place": place} for kind, thing, place in keys],
    }


def told(passed: dict[str, Any]) -> str | None:
    """The same as a sentence; None where there is nothing to say."""
    count, things = passed["count"], passed["things"]
    if not count:
        return None
    more = f" and {count - SHOWN} more" if count > SHOWN else ""
    return f"{count} stored things could not be read and were passed over: {_shown(things[:SHOWN])}{more}"


def _shown(things: Sequence[dict[str, Any]]) -> str:
    return ", ".join(f"{one['kind']} {one['thing']} {one['place']}" for one in things)
