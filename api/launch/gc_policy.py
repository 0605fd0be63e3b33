"""When a replica collects garbage: what is young as always, everything only now and then.

A collection of everything stops the process for as long as it has objects to look at: 0.6 s with 4,000 open streams,
which Python would do about twice a minute while some of them come and go. What streams leave behind is what there is
to find, so their number decides, and a limit of time for all else.
"""

from __future__ import annotations

import asyncio
import gc

from api.stream.feed import Feed
from breaker_actors.clock import Clock

NEVER = 1 << 30
LOOK_S = 1.0
LEAST = 2_000
"""Ended streams; so many, and as many as are open, are worth a collection."""
MOST_S = 300.0


async def collect_rarely(feed: Feed, clock: Clock) -> None:
    """Runs as long as the replica."""
    young, old, _ = gc.get_threshold()
    gc.set_threshold(young, old, NEVER)
    ended, at_s = feed.ended, clock.monotonic()
    while True:
        await asyncio.sleep(LOOK_S)
        if feed.ended - ended > max(LEAST, feed.stream_count()) or clock.monotonic() - at_s > MOST_S:
            gc.collect()
            ended, at_s = feed.ended, clock.monotonic()
