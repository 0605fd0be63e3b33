"""When a replica collects garbage: what is young as always, everything only now and then.

A collection of everything stops the process for as long as it has objects to look at: 0.6 s with 4,000 open streams,
which Python would do about twice a minute while some of them come and go. What streams leave behind is what there is
to find, so their number decides, and a limit of time for all else. Whoever opens and drops streams on and on gets no
more of it than a fiftieth of the time; and what is there from the start, modules and their like, is not looked at: that
alone takes a fifth of a second of a core.
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
REST = 50
"""So many times as long as a collection took there is no other one, however many streams end."""


async def collect_rarely(feed: Feed, clock: Clock) -> None:
    """Runs as long as the replica."""
    gc.freeze()
    young, old, _ = gc.get_threshold()
    gc.set_threshold(young, old, NEVER)
    ended, at_s, rest_s = feed.ended, clock.monotonic(), 0.0
    while True:
        await asyncio.sleep(LOOK_S)
        since_s = clock.monotonic() - at_s
        many = feed.ended - ended > max(LEAST, feed.stream_count()) and since_s >= rest_s
        if many or since_s > MOST_S:
            begun = clock.monotonic()
            gc.collect()
            ended, at_s = feed.ended, clock.monotonic()
            rest_s = REST * (at_s - begun)
