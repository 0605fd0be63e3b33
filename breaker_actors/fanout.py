"""Hands appended records to the owners of the breakers that they concern, one lane per owner."""

from __future__ import annotations

from msgspec.structs import replace

from breaker_actors.core.records import BREAKER, GAP, SAMPLES, VIEW, decode_breaker, decode_view, encode_samples
from breaker_actors.delivery import DeliveryLane, Subscription
from breaker_actors.logreader import unlinked
from breaker_actors.meters import Meters
from breaker_actors.net import BreakerPeer, Net
from breaker_actors.staging import OwnedRouter, Staged
from breaker_actors.stores.samplelog import Append

NO_ROWS = (-1, -1)


class FanOut:
    """The lanes of one RouterActor. `rows_max`: samples waiting in one lane; beyond it breakers read the log."""

    def __init__(self, net: Net, routers: dict[str, OwnedRouter], rows_max: int) -> None:
        self._net = net
        self._routers = routers
        self._rows_max = rows_max
        self._lanes: dict[str, DeliveryLane] = {}

    def look(self, meters: Meters) -> None:
        """Tells how the lanes stand (see Meters.watch)."""
        lanes = self._lanes.values()
        meters.gauge("breakers_lane_waiting", sum(lane.rows for lane in lanes), lane="delivery")
        meters.total("breakers_lane_calls_total", sum(lane.calls for lane in lanes), lane="delivery")
        meters.total("breakers_delivery_marks_total", sum(lane.marks for lane in lanes))
        meters.total("breakers_delivery_retries_total", sum(lane.retries for lane in lanes))
        meters.total("breakers_delivery_refusals_total", sum(lane.refusals for lane in lanes))

    def hand_on(self, record: Staged) -> None:
        """Puts a record into the lane of every subscribed breaker that it concerns; call `flush` after the group."""
        router, append = record.router, record.append
        if append.kind == SAMPLES:
            self._hand_on_samples(record)
        elif append.kind == BREAKER:
            self._send(router, decode_breaker(append.payload).breaker_id, append, NO_ROWS)
        elif append.kind == GAP:
            for link in router.splitter.view.links:
                self._send(router, link.breaker_id, append, NO_ROWS)
        elif append.kind == VIEW:
            view = decode_view(append.payload)
            for breaker_id in unlinked(router.splitter.view, view):
                self._send(router, breaker_id, append, NO_ROWS)
                router.subscriptions.pop(breaker_id, None)
            router.set_view(append.offset, view)

    def _hand_on_samples(self, record: Staged) -> None:
        router, append, columns = record.router, record.append, record.columns
        assert columns is not None
        for breaker_id, start, stop, chosen in router.splitter.split(columns, router.id, append.offset):
            if chosen is None:
                self._send(router, breaker_id, append, (start, stop))
            elif breaker_id in router.subscriptions:
                part = columns.pick(start, chosen)
                b = part.batch
                payload = encode_samples(part.metrics, [len(chosen)], b.ts_ms, b.value, b.ok, traces=part.traces)
                self._send(router, breaker_id, replace(append, payload=payload), (0, len(chosen)))

    def mark(self, subscription: Subscription, upto: int) -> None:
        """Tells a breaker to read the log up to an offset."""
        self._lane(subscription.owner).mark(subscription, upto)

    def flush(self) -> None:
        for lane in self._lanes.values():
            lane.flush()

    async def close(self) -> None:
        for lane in self._lanes.values():
            await lane.close()

    def _send(self, router: OwnedRouter, breaker_id: str, append: Append, span: tuple[int, int]) -> None:
        subscription = router.subscriptions.get(breaker_id)
        if subscription is not None:
            self._lane(subscription.owner).add(subscription, append, span)

    def _lane(self, owner: str) -> DeliveryLane:
        lane = self._lanes.get(owner)
        if lane is None:
            lane = self._lanes[owner] = DeliveryLane(BreakerPeer(self._net, owner), self._refused, self._rows_max)
        return lane

    def _refused(self, router_id: str, breaker_id: str, epoch: int) -> None:
        """The breaker is not held there under that epoch any more: its next owner will attach by itself."""
        router = self._routers.get(router_id)
        subscription = None if router is None else router.subscriptions.get(breaker_id)
        if router is not None and subscription is not None and subscription.epoch <= epoch:
            subscription.live = False
            del router.subscriptions[breaker_id]
