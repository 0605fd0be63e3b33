"""The breakers of a project that matchers match, looked through in slices between which others have their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from api.context.current import spend_reads
from api.context.replica import replica
from breaker_actors.store.mutes.matching import BreakerFacts, Matcher, matches_breaker

AT_ONCE = 500
"""Breakers that are looked at before others have their turn."""


async def breaker_facts(project_id: str) -> Sequence[BreakerFacts]:
    """What matchers look at; counts in the project's budget of reads."""
    spend_reads(project_id, 0)
    found = await replica().mutes.muted_breakers(project_id)
    spend_reads(project_id, len(found))
    return found


async def matching(matchers: Sequence[Matcher], breakers: Sequence[BreakerFacts]) -> list[BreakerFacts]:
    """Those of the breakers that matchers match; what they say of channels is left out."""
    found: list[BreakerFacts] = []
    for start in range(0, len(breakers), AT_ONCE):
        found += [one for one in breakers[start : start + AT_ONCE] if matches_breaker(matchers, one)]
        await asyncio.sleep(0)
    return found


def open_ones(breakers: Sequence[BreakerFacts]) -> int:
    """How many of them are open."""
    return sum(breaker.open for breaker in breakers)
