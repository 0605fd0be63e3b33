"""Consumer lag of breakers: the offsets that their routers' owners have sent them, less their applied offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from breaker_actors.breaker.hosted import HostedBreaker
from breaker_actors.errors import BreakersError
from breaker_actors.messages import BreakerFigures
from breaker_actors.transport.peers import Net, RouterPeer

NO_WATERMARK = 0
"""Advances none: the answers tell only what was sent."""


async def figures(net: Net, breakers: Collection[HostedBreaker], unheard: int, now_ms: int) -> BreakerFigures:
    """Asks every router's owner once. A breaker that nobody serves counts among the `unheard`, not as behind."""
    pairs: dict[str, list[tuple[str, str]]] = {}
    for hosted in breakers:
        for router in hosted.routers.values():
            pairs.setdefault(router.owner, []).append((router.router_id, hosted.id))
    sent: dict[tuple[str, str], int] = {}
    for answer in await asyncio.gather(*(_sent(net, owner, wanted) for owner, wanted in pairs.items())):
        sent.update(answer)
    lags = [lag for hosted in breakers if (lag := _lag(hosted, sent)) > 0]
    wakes = [
        wake for hosted in breakers if hosted.breaker is not None and (wake := hosted.breaker.next_wake()) is not None
    ]
    return BreakerFigures(
        breakers=len(breakers),
        starting=sum(not hosted.ready for hosted in breakers),
        behind=len(lags),
        lag=max(lags, default=0),
        unheard=unheard,
        overdue_ms=max(0, now_ms - min(wakes, default=now_ms)),
    )


def _lag(hosted: HostedBreaker, sent: dict[tuple[str, str], int]) -> int:
    return max(
        (sent.get((router_id, hosted.id), 0) - hosted.applied_offsets[router_id] for router_id in hosted.routers),
        default=0,
    )


async def _sent(net: Net, owner: str, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Returns up to which offset each breaker has been sent what concerns it; 0 where that is not known."""
    try:
        answers = await RouterPeer(net, owner).advance_watermark(NO_WATERMARK, pairs)
    except BreakersError:
        return {}
    return {pair: answer.sent_offset for pair, answer in zip(pairs, answers, strict=True)}
