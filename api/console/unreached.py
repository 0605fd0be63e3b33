"""Channels whose receivers can't be reached, why, and what waits for them: one query for all of a project."""

from __future__ import annotations

from typing import NamedTuple

from api.console.project import may_act
from api.context.replica import replica
from api.wire.responses_deliveries import Silence, silence
from breaker_actors.store.rows import Failing
from breaker_actors.text.escaping import for_line

OWN_SLACK = "the project's Slack address"


class Unreached(NamedTuple):
    """`pending`: how many notifications wait; `oldest_ms`: when the oldest of them happened; `why`: what the receiver
    did last."""

    channel_id: str
    name: str
    pending: int
    oldest_ms: int | None
    why: str


def failure(last_error: str | None, last_status: int | None) -> str:
    """What a receiver did last that was no success; "" where nothing is known."""
    return last_error or (f"answered {last_status}" if last_status else "")


async def silences_of(project_id: str) -> dict[str, tuple[Failing, Silence]]:
    """Channels on which nothing is tried now, by id, and why; in the order of their names."""
    parts = replica()
    found, now_ms = await parts.outbox.failing_channels(project_id), parts.clock.now_ms()
    told = ((row, silence(row.circuit, now_ms)) for row in found)
    return {row.channel_id: (row, why) for row, why in told if why is not None}


async def unreached_of(project_id: str) -> list[Unreached]:
    """Those of a project, by name; none for who may not see channels. Told wherever states are looked at."""
    if not may_act():
        return []
    return [
        Unreached(
            row.channel_id,
            for_line(row.name, 100) or OWN_SLACK,
            row.pending,
            row.oldest_ms,
            failure(why.last_error, why.last_status),
        )
        for row, why in (await silences_of(project_id)).values()
    ]
