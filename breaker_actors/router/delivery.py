"""The lane from a router's owner to a breaker's owner: one call in flight, ranges of the log, not messages.

Bounded: what does not fit is sent as a catch-up marker ("read the log up to this offset"), never dropped and never
pushed back on ingest. A call that failed is repeated as markers until the breaker's owner answers or subscribes anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from breaker_actors.errors import BreakersError
from breaker_actors.messages import BreakerEpoch, DeliveredEntry, Delivery, Target
from breaker_actors.transport.peers import BreakerPeer
from breaker_actors.wal.base import Append

CALL_ROWS_MAX = 10_000
RETRY_S = 0.2


class Subscription:
    """One breaker subscribed to one router. `sent`: everything that concerns it up to here is in the lane or delivered.

    `live` ends when the breaker subscribed anew or was refused; what waits for a dead one is not sent any more."""

    __slots__ = ("breaker_id", "epoch", "live", "owner", "router_id", "sent")

    def __init__(self, router_id: str, breaker_id: str, epoch: int, owner: str, sent: int) -> None:
        self.router_id = router_id
        self.breaker_id = breaker_id
        self.epoch = epoch
        self.owner = owner
        self.sent = sent
        self.live = True


class _Waiting:
    """What waits for one breaker: a range of the log, and its rows while there is room for them."""

    __slots__ = ("after", "rows", "spans", "subscription", "upto")

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.after = subscription.sent
        self.upto = subscription.sent
        self.spans: list[tuple[int, int, int]] | None = []
        self.rows = 0


class _Pack:
    """One call being filled: records once each, however many breakers take them."""

    def __init__(self) -> None:
        self.records: list[DeliveredEntry] = []
        self.index: dict[int, int] = {}
        self.appends: list[Append] = []
        self.waiting: dict[tuple[str, str], _Waiting] = {}
        self.rows = 0

    def record(self, append: Append) -> int:
        at = self.index.get(id(append))
        if at is None:
            at = self.index[id(append)] = len(self.records)
            self.appends.append(append)  # keeps its id taken
            self.records.append(DeliveredEntry(append.offset, append.received_ms, append.kind, append.payload))
        return at


class DeliveryLane:
    """`refused(router_id, breaker_id, epoch)` is called for each breaker that is not hosted there any more."""

    def __init__(self, peer: BreakerPeer, refused: Callable[[str, str, int], None], rows_max: int) -> None:
        self._peer = peer
        self._refused = refused
        self._rows_max = rows_max
        self._packs: list[_Pack] = []
        self.rows = 0
        self._pump: asyncio.Task[None] | None = None
        self.marks = self.calls = self.retries = self.refusals = 0

    def add(self, subscription: Subscription, append: Append, span: tuple[int, int]) -> None:
        """Queues a record for a breaker; call `flush` when a group is through."""
        pack = self._pack()
        waiting = self._waiting(pack, subscription)
        rows = max(1, span[1] - span[0])
        if waiting.spans is not None and self.rows + rows <= self._rows_max:
            waiting.spans.append((pack.record(append), *span))
            waiting.rows += rows
            pack.rows += rows
            self.rows += rows
        else:
            waiting.spans = None
            self.marks += 1
        waiting.upto = subscription.sent = append.offset

    def mark(self, subscription: Subscription, upto: int) -> None:
        """Queues a catch-up marker: the breaker is to read the log up to an offset."""
        waiting = self._waiting(self._pack(), subscription)
        waiting.spans = None
        waiting.upto = subscription.sent = upto
        self.marks += 1

    def flush(self) -> None:
        """Sends what waits unless a call is in flight already (then it rides in the next)."""
        if self._pump is None and self._packs:
            self._pump = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)

    def _pack(self) -> _Pack:
        if not self._packs or self._packs[-1].rows >= CALL_ROWS_MAX:
            self._packs.append(_Pack())
        return self._packs[-1]

    @staticmethod
    def _waiting(pack: _Pack, subscription: Subscription) -> _Waiting:
        key = (subscription.router_id, subscription.breaker_id)
        waiting = pack.waiting.get(key)
        if waiting is None or waiting.subscription is not subscription:
            waiting = pack.waiting[key] = _Waiting(subscription)
        return waiting

    async def _run(self) -> None:
        try:
            while self._packs:
                pack = self._packs.pop(0)
                self.rows -= pack.rows
                await self._carry(pack)
        finally:
            self._pump = None

    async def _carry(self, pack: _Pack) -> None:
        targets = [
            Target(s.breaker_id, s.epoch, s.router_id, w.after, w.upto, None if w.spans is None else tuple(w.spans))
            for w in pack.waiting.values()
            for s in (w.subscription,)
            if s.live
        ]
        if not targets:
            return
        self.calls += 1
        try:
            refused = await self._peer.deliver(Delivery(pack.records, targets))
        except BreakersError:
            self.retries += 1
            await asyncio.sleep(RETRY_S)
            self._repeat(pack)
            return
        gone = set(refused)
        for target in targets:
            if BreakerEpoch(target.breaker_id, target.epoch) in gone:
                self.refusals += 1
                self._refused(target.router_id, target.breaker_id, target.epoch)

    def _repeat(self, pack: _Pack) -> None:
        """The call may or may not have arrived: its ranges go again, as markers, and with them what came since, so that
        no record is kept for an owner that does not answer."""
        again = _Pack()
        for earlier in (pack, *self._packs):
            for key, waiting in earlier.waiting.items():
                if not waiting.subscription.live:
                    continue
                known = again.waiting.get(key)
                if known is not None and known.subscription is waiting.subscription:
                    known.upto = waiting.upto
                else:
                    waiting.spans = None
                    again.waiting[key] = waiting
        self._packs, self.rows = [again], 0
