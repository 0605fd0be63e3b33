"""What goes to whom of a record, and how often its rows travel."""

from __future__ import annotations

from typing import Any

import numpy as np

from breaker_actors.core.log_entries import SAMPLES, Link, RouterView, decode_samples, encode_samples
from breaker_actors.messages import Delivery
from breaker_actors.router.fanout import FanOut
from breaker_actors.router.group import OwnedRouter, Staged
from breaker_actors.wal.base import Append
from tests.support.owned import owned_router


class Net:
    """Records deliveries."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []

    async def call(self, actor: str, method: str, *args: Any) -> Any:
        assert method == "deliver"
        self.deliveries.append(args[0])
        return []

    def spawn(self, kind: Any, name: str) -> None:
        raise AssertionError


def staged(router: OwnedRouter, offset: int, rows: int) -> Staged:
    payload = encode_samples(["m"], [rows], np.arange(rows), np.ones(rows), np.ones(rows, bool))
    append = Append(router.id, 1, offset, 1_000 + offset, SAMPLES, 1, payload)
    return Staged(router, append, [], decode_samples(payload))


async def settled(fanout: FanOut) -> None:
    fanout.flush()
    for lane in fanout._lanes.values():
        while lane._pump is not None:
            await lane._pump


async def test_breakers_with_one_share_get_the_rows_once() -> None:
    """Each had a copy of its own: one record of 10,000 rows came to gigabytes."""
    links = tuple(Link(str(i), "m", 50.0) for i in range(300))
    router, net = owned_router(view=RouterView(version=1, mode="canary", links=links)), Net()
    fanout = FanOut(net, rows_max=1_000_000)
    for link in links:
        fanout.subscribe(router, link.breaker_id, 1, "breaker-0")
    fanout.hand_on(staged(router, 2, 100))
    await settled(fanout)
    records = [record for delivery in net.deliveries for record in delivery.records]
    targets = [target for delivery in net.deliveries for target in delivery.targets]
    assert len(targets) == 300
    assert len({id(record.payload) for record in records}) == 1
