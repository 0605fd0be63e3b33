"""How far breakers are behind: what their routers' owners have sent them, against what they have applied."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from breaker_actors.errors import BreakersError
from breaker_actors.held import Held
from breaker_actors.messages import BreakerFigures
from breaker_actors.net import Net, RouterPeer

NO_PROMISE = 0


async def figures(net: Net, breakers: Collection[Held], unheard: int, now_ms: int) -> BreakerFigures:
    """Asks every router's owner once. A breaker that nobody serves counts among the `unheard`, not as behind."""
    pairs: dict[str, list[tuple[str, str]]] = {}
    for held in breakers:
        for router in held.routers.values():
            pairs.setdefault(router.owner, []).append((router.router_id, held.id))
    sent: dict[tuple[str, str], int] = {}
    for answer in await asyncio.gather(*(_sent(net, owner, wanted) for owner, wanted in pairs.items())):
        sent.update(answer)
    lags = [lag for held in breakers if (lag := _lag(held, sent)) > 0]
    wakes = [wake for held in breakers if held.breaker is not None and (wake := held.breaker.next_wake()) is not None]
    return BreakerFigures(
        breakers=len(breakers),
        starting=sum(not held.ready for held in breakers),
        behind=len(lags),
        lag=max(lags, default=0),
        unheard=unheard,
        overdue_ms=max(0, now_ms - min(wakes, default=now_ms)),
    )


def _lag(held: Held, sent: dict[tuple[str, str], int]) -> int:
    return max((sent.get((router_id, held.id), 0) - held.cut[router_id] for router_id in held.routers), default=0)


async def _sent(net: Net, owner: str, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Up to which offset each breaker has been sent what concerns it."""
    try:
        answers = await RouterPeer(net, owner).promise(NO_PROMISE, pairs)
    except BreakersError:
        return {}
    return {pair: sent for pair, (sent, _) in zip(pairs, answers, strict=True)}
