"""Subscriptions to the routers owned here, and the lanes over which they get appended records: one lane per owner."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from breaker_actors.core.log_entries import (
    BREAKER,
    GAP,
    SAMPLES,
    VIEW,
    Picked,
    RouterView,
    SampleColumns,
    decode_breaker,
    decode_view,
    encode_samples,
)
from breaker_actors.messages import Subscribers
from breaker_actors.router.delivery import DeliveryLane, Subscription, Taker
from breaker_actors.router.group import OwnedRouter, Staged
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport.peers import BreakerPeer, Net
from breaker_actors.wal.base import Append
from breaker_actors.wal.reader import unlinked

NO_ROWS = (-1, -1)
TAKERS_AT_ONCE, RECORD = 5_000, 10
"""Breakers to which records are handed on in one pass of the loop, 1 to 3 us each, and as how many a record counts."""


class FanOut:
    """The lanes of one RouterActor and the subscriptions to its routers, which nobody else writes. `rows_max`: see
    DeliveryLane; beyond it breakers read the log."""

    def __init__(self, net: Net, rows_max: int) -> None:
        self._net = net
        self._rows_max = rows_max
        self._lanes: dict[str, DeliveryLane] = {}
        self._subscriptions: dict[str, dict[str, Subscription]] = {}
        """By router and breaker."""
        self.handed = 0
        """In this pass of the loop, and RECORD for each record: from TAKERS_AT_ONCE on `rest` is due."""

    def subscribe(self, router: OwnedRouter, breaker_id: str, epoch: int, owner: str) -> None:
        """Subscribes a breaker from the log's end on, unless it is subscribed under a later epoch."""
        subscriptions = self._subscriptions.setdefault(router.id, {})
        known = subscriptions.get(breaker_id)
        if known is None or known.epoch <= epoch:
            if known is not None:
                known.live = False
            whose = (router.org_id, router.project_id)
            subscriptions[breaker_id] = Subscription(router.id, breaker_id, epoch, owner, router.offset, whose)

    def resume(self, router: OwnedRouter) -> None:
        """Queues markers for the subscribers of a router that was acquired anew: they read what was not sent."""
        for subscription in self._subscriptions.get(router.id, {}).values():
            if subscription.sent < router.offset:
                self._lane(subscription.owner).mark(subscription, router.offset)

    def forget(self, router_id: str) -> None:
        """A router is not owned here any more; what waits in the lanes is still delivered."""
        self._subscriptions.pop(router_id, None)

    def subscribers(self, router_id: str, owner: str) -> Subscribers:
        """Returns which breakers of an owner are subscribed: those of a predecessor of that process may be instead."""
        subscriptions = self._subscriptions.get(router_id, {}).values()
        epochs = [subscription.epoch for subscription in subscriptions if subscription.owner == owner]
        return Subscribers(len(epochs), sum(epochs))

    def sent(self, router_id: str, breaker_id: str) -> int | None:
        """Everything that concerns a breaker up to here is in its lane or delivered; None: it is not subscribed."""
        subscription = self._subscriptions.get(router_id, {}).get(breaker_id)
        return None if subscription is None else subscription.sent

    def look(self, meters: Meters) -> None:
        """Tells how the lanes stand (see Meters.watch)."""
        lanes = self._lanes.values()
        meters.gauge("breakers_lane_waiting", sum(lane.rows for lane in lanes), lane="delivery")
        meters.total("breakers_lane_calls_total", sum(lane.calls for lane in lanes), lane="delivery")
        meters.total("breakers_delivery_marks_total", sum(lane.marks for lane in lanes))
        meters.total("breakers_delivery_retries_total", sum(lane.retries for lane in lanes))
        meters.total("breakers_delivery_refusals_total", sum(lane.refusals for lane in lanes))

    def hand_on(self, record: Staged) -> RouterView | None:
        """Puts a record into the lane of every subscribed breaker that it concerns; call `flush` after the group.
        Answers the routing table that is in force behind it, when the record is one."""
        router, append = record.router, record.append
        self.handed += RECORD
        if append.kind == SAMPLES:
            self._hand_on_samples(record)
        elif append.kind == BREAKER:
            self._send(router, decode_breaker(append.payload).breaker_id, append, NO_ROWS)
        elif append.kind == GAP:
            self.handed += len(router.splitter.view.links)
            for link in router.splitter.view.links:
                self._send(router, link.breaker_id, append, NO_ROWS)
        elif append.kind == VIEW:
            view = decode_view(append.payload)
            self.handed += len(view.links) + len(router.splitter.view.links)
            for breaker_id in unlinked(router.splitter.view, view):
                self._send(router, breaker_id, append, NO_ROWS)
                self._subscriptions.get(router.id, {}).pop(breaker_id, None)
            return view
        return None

    def _hand_on_samples(self, record: Staged) -> None:
        router, append, columns = record.router, record.append, record.columns
        assert columns is not None
        subscriptions = self._subscriptions.get(router.id, {})
        whole: dict[str, list[Taker]] = {}
        picked, parts = Picked(columns), dict[int, Append]()
        for breaker_id, start, stop, chosen in router.splitter.split(columns, router.id, append.offset):
            subscription = subscriptions.get(breaker_id)
            if subscription is None:
                continue
            if chosen is None:
                takers = whole.get(subscription.owner)
                if takers is None:
                    takers = whole[subscription.owner] = []
                takers.append((subscription, start, stop))
            else:
                part = picked.of(start, chosen)
                if (of_part := parts.get(id(part))) is None:
                    of_part = parts[id(part)] = replace(append, payload=_encoded(part))
                self._lane(subscription.owner).add(subscription, of_part, (0, len(chosen)))
                self.handed += 1
        for owner, takers in whole.items():
            self.handed += len(takers)
            self._lane(owner).add_all(takers, append)

    async def rest(self) -> None:
        """Others go on. Between records alone: they find all in the lanes that a router's log is known to have."""
        self.flush()
        await asyncio.sleep(0)
        self.handed = 0

    def flush(self) -> None:
        for lane in self._lanes.values():
            lane.flush()

    async def close(self) -> None:
        for lane in self._lanes.values():
            await lane.close()

    def _send(self, router: OwnedRouter, breaker_id: str, append: Append, span: tuple[int, int]) -> None:
        subscription = self._subscriptions.get(router.id, {}).get(breaker_id)
        if subscription is not None:
            self._lane(subscription.owner).add(subscription, append, span)

    def _lane(self, owner: str) -> DeliveryLane:
        lane = self._lanes.get(owner)
        if lane is None:
            lane = self._lanes[owner] = DeliveryLane(BreakerPeer(self._net, owner), self._refused, self._rows_max)
        return lane

    def _refused(self, router_id: str, breaker_id: str, epoch: int) -> None:
        """The breaker is not hosted there under that epoch any more: its next owner will subscribe by itself."""
        subscriptions = self._subscriptions.get(router_id, {})
        subscription = subscriptions.get(breaker_id)
        if subscription is not None and subscription.epoch <= epoch:
            subscription.live = False
            del subscriptions[breaker_id]


def _encoded(part: SampleColumns) -> bytes:
    """Columns of one metric, as a record has them."""
    b = part.batch
    return encode_samples(part.metrics, [len(b)], b.ts_ms, b.value, b.ok, traces=part.traces, count=b.count)
