"""The lane from a router's owner to a breaker's owner: one call in flight, ranges of the log, not messages.

Organisations and their projects take turns, and each may have as many rows wait as others leave free (see
`transport.turns`). What does not fit is sent as a catch-up marker ("read the log up to this offset"), never dropped and
never pushed back on ingest. A call that failed is repeated as markers until the breaker's owner answers or subscribes
anew. What one breaker gets stays in the order of the log: all of it is of one project.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from breaker_actors.errors import BreakersError
from breaker_actors.messages import BreakerEpoch, DeliveredEntry, Delivery, Target
from breaker_actors.transport.peers import BreakerPeer
from breaker_actors.transport.turns import NestedShares, NestedTurns
from breaker_actors.wal.base import Append

CALL_ROWS_MAX, ROW_BYTES = 10_000, 1 << 10
"""What a call carries, of several records: rows that are taken, and each record, once, as many more as it has KiBs."""
RETRY_S = 0.2


class Subscription:
    """One breaker subscribed to one router, and its organisation and project. `sent`: everything that concerns it up to
    here is in the lane or delivered.

    `live` ends when the breaker subscribed anew or was refused; what waits for a dead one is not sent any more."""

    __slots__ = ("breaker_id", "epoch", "live", "owner", "router_id", "sent", "whose")

    def __init__(
        self, router_id: str, breaker_id: str, epoch: int, owner: str, sent: int, whose: tuple[str, str] = ("", "")
    ) -> None:
        self.router_id = router_id
        self.breaker_id = breaker_id
        self.epoch = epoch
        self.owner = owner
        self.sent = sent
        self.whose = whose
        self.live = True


Taker = tuple[Subscription, int, int]
"""A breaker, and the first and last+1 row that it takes of a record."""


class _Waiting:
    """What waits for one breaker: a range of the log, and its rows while there is room for them."""

    __slots__ = ("after", "spans", "subscription", "upto")

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.after = subscription.sent
        self.upto = subscription.sent
        self.spans: list[tuple[int, int, int]] | None = []


class _Pack:
    """What waits of one project, at most as much as a call carries: records once each, however many breakers take
    them."""

    def __init__(self, whose: tuple[str, str]) -> None:
        self.whose = whose
        self.records: list[DeliveredEntry] = []
        self.index: dict[int, int] = {}
        self.appends: list[Append] = []
        self.waiting: dict[Subscription, _Waiting] = {}
        self.rows = self.load = 0
        self.has_marks = False
        """Whether some of it is to be read from the log. `load`: what it counts in a call, rows and markers."""

    def mark(self, waiting: _Waiting) -> None:
        """What waits for one breaker is to be read from the log."""
        if waiting.spans is not None:
            waiting.spans = None
            self.load += 1
        self.has_marks = True

    def weight(self, append: Append) -> int:
        """What a record weighs beside the rows that are taken of it, in rows; nothing when it is there."""
        return 0 if id(append) in self.index else len(append.payload) // ROW_BYTES

    def record(self, append: Append) -> int:
        at = self.index.get(id(append))
        if at is None:
            at = self.index[id(append)] = len(self.records)
            self.appends.append(append)  # keeps its id taken
            self.records.append(DeliveredEntry(append.offset, append.received_ms, append.kind, append.payload))
        return at

    def targets(self, base: int) -> list[Target]:
        """Who takes what of it, in a call that carries so many records before its own."""
        return [
            Target(s.breaker_id, s.epoch, s.router_id, w.after, w.upto, _placed(w.spans, base))
            for s, w in self.waiting.items()
            if s.live
        ]


def _placed(spans: list[tuple[int, int, int]] | None, base: int) -> tuple[tuple[int, int, int], ...] | None:
    if not base or spans is None:
        return None if spans is None else tuple(spans)
    return tuple((index + base, start, stop) for index, start, stop in spans)


class DeliveryLane:
    """`rows_max`: rows that wait of a project that is alone; of all together less than four times as many.

    `refused(router_id, breaker_id, epoch)` is called for each breaker that is not hosted there any more."""

    def __init__(self, peer: BreakerPeer, refused: Callable[[str, str, int], None], rows_max: int) -> None:
        self._peer = peer
        self._refused = refused
        self._rows_max = rows_max
        self._shares = NestedShares(rows_max)
        self._packs: NestedTurns[_Pack] = NestedTurns(attrgetter("load"))
        self._filling: dict[tuple[str, str], _Pack] = {}
        """By organisation and project: its last pack in the line."""
        self._pump: asyncio.Task[None] | None = None
        self.marks = self.calls = self.retries = self.refusals = 0

    @property
    def rows(self) -> int:
        """What waits."""
        return self._shares.total

    def add(self, subscription: Subscription, append: Append, span: tuple[int, int]) -> None:
        """Queues a record for a breaker; call `flush` when a group is through."""
        pack = self._pack(subscription.whose)
        waiting = self._waiting(pack, subscription)
        rows = max(1, span[1] - span[0]) + pack.weight(append)
        if waiting.spans is not None and rows <= self._rows_max and self._shares.take(*pack.whose, rows):
            waiting.spans.append((pack.record(append), *span))
            pack.rows += rows
            pack.load += rows
        else:
            pack.mark(waiting)
            self.marks += 1
        waiting.upto = subscription.sent = append.offset

    def add_all(self, takers: Sequence[Taker], append: Append) -> None:
        """Queues a record for many breakers of one router, as `add` would one by one: at once where all have room."""
        whose = takers[0][0].whose
        pack = self._pack(whose)
        rows = sum([stop - start if stop > start else 1 for _, start, stop in takers]) + pack.weight(append)
        fits = not pack.has_marks and pack.rows + rows <= CALL_ROWS_MAX and rows <= self._rows_max
        if not fits or not self._shares.take_all(*whose, rows):
            for subscription, start, stop in takers:
                self.add(subscription, append, (start, stop))
            return
        pack.rows += rows
        pack.load += rows
        index, offset, all_waiting = pack.record(append), append.offset, pack.waiting
        for subscription, start, stop in takers:
            waiting = all_waiting.get(subscription)
            if waiting is None:
                waiting = all_waiting[subscription] = _Waiting(subscription)
            assert waiting.spans is not None
            waiting.spans.append((index, start, stop))
            waiting.upto = subscription.sent = offset

    def mark(self, subscription: Subscription, upto: int) -> None:
        """Queues a catch-up marker: the breaker is to read the log up to an offset."""
        pack = self._pack(subscription.whose)
        waiting = self._waiting(pack, subscription)
        pack.mark(waiting)
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

    def _pack(self, whose: tuple[str, str]) -> _Pack:
        pack = self._filling.get(whose)
        if pack is None or pack.rows >= CALL_ROWS_MAX:
            pack = self._filling[whose] = _Pack(whose)
            self._packs.append(*whose, pack)
        return pack

    @staticmethod
    def _waiting(pack: _Pack, subscription: Subscription) -> _Waiting:
        waiting = pack.waiting.get(subscription)
        if waiting is None:
            waiting = pack.waiting[subscription] = _Waiting(subscription)
        return waiting

    async def _run(self) -> None:
        try:
            while self._packs:
                await self._carry(self._freed(self._packs.take(CALL_ROWS_MAX)))
        finally:
            self._pump = None

    def _freed(self, taken: list[_Pack]) -> list[_Pack]:
        """The same ones, which wait no more."""
        for pack in taken:
            if self._filling.get(pack.whose) is pack:
                del self._filling[pack.whose]
            if pack.rows:
                self._shares.give_back(*pack.whose, pack.rows)
        return taken

    async def _carry(self, packs: list[_Pack]) -> None:
        delivery = _delivery(packs)
        if not delivery.targets:
            return
        self.calls += 1
        try:
            refused = await self._peer.deliver(delivery)
        except BreakersError:
            self.retries += 1
            await asyncio.sleep(RETRY_S)
            self._repeat(packs)
            return
        gone = set(refused)
        for target in delivery.targets:
            if gone and BreakerEpoch(target.breaker_id, target.epoch) in gone:
                self.refusals += 1
                self._refused(target.router_id, target.breaker_id, target.epoch)

    def _repeat(self, packs: list[_Pack]) -> None:
        """The call may or may not have arrived: its ranges go again, as markers, and with them what came since, so that
        no record is kept for an owner that does not answer."""
        for earlier in packs + self._freed(list(self._packs.drain())):
            for subscription, waiting in earlier.waiting.items():
                if not subscription.live:
                    continue
                again = self._pack(earlier.whose)
                known = again.waiting.get(subscription)
                if known is not None:
                    known.upto = waiting.upto
                else:
                    waiting.spans = []
                    again.mark(waiting)
                    again.waiting[subscription] = waiting


def _delivery(packs: Iterable[_Pack]) -> Delivery:
    """One call with all of them."""
    delivery = Delivery([], [])
    for pack in packs:
        if targets := pack.targets(len(delivery.records)):
            delivery.targets.extend(targets)
            delivery.records.extend(pack.records)
    return delivery
