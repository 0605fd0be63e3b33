"""Lanes: one call in flight, the rest rides in the next; bounds; callers that leave; calls that get lost."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from breaker_actors.core.log_entries import SAMPLES, decode_samples, encode_samples
from breaker_actors.errors import Overloaded, Unavailable
from breaker_actors.messages import BreakerEpoch, DeliveredEntry, Delivery, Target
from breaker_actors.router import delivery
from breaker_actors.router.delivery import DeliveryLane, Subscription
from breaker_actors.transport.lane import Lane
from breaker_actors.transport.peers import BreakerPeer
from breaker_actors.wal.base import Append


class Slow:
    """A far end that answers when told to."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def send(self, items: list[int]) -> Sequence[int]:
        self.calls.append(items)
        await self.go.wait()
        if self.error:
            raise self.error
        return [i * 10 for i in items]


async def test_what_arrives_during_a_call_rides_in_the_next() -> None:
    far = Slow()
    lane: Lane[int, int] = Lane(far.send)
    first = lane.put(1)
    await asyncio.sleep(0)
    rest = [lane.put(i) for i in range(2, 6)]
    assert far.calls == [[1]]
    far.go.set()
    assert await asyncio.gather(first, *rest) == [10, 20, 30, 40, 50]
    assert far.calls == [[1], [2, 3, 4, 5]]


async def test_a_full_lane_says_so_and_takes_nothing() -> None:
    far = Slow()
    lane: Lane[int, int] = Lane(far.send, weigh=lambda i: i, weight_max=10)
    sent = [lane.put(8)]
    with pytest.raises(Overloaded):
        lane.put(3)
    sent.append(lane.put(2))
    sent.append(lane.put(0))  # weightless items are always taken
    far.go.set()
    assert await asyncio.gather(*sent) == [80, 20, 0]
    assert lane.weight == 0


async def test_a_caller_that_leaves_does_not_disturb_the_others() -> None:
    far = Slow()
    lane: Lane[int, int] = Lane(far.send)

    async def ask(i: int) -> int:
        return await lane.put(i)

    tasks = [asyncio.create_task(ask(i)) for i in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[2].cancel()
    far.go.set()
    assert await tasks[1] == 10
    assert await lane.put(7) == 70


async def test_a_failed_call_fails_its_own_items_only() -> None:
    far = Slow()
    lane: Lane[int, int] = Lane(far.send)
    far.error = Unavailable("away")
    far.go.set()
    with pytest.raises(Unavailable):
        await lane.put(1)
    far.error = ValueError("a bug")
    with pytest.raises(Unavailable, match="a bug"):
        await lane.put(1)
    far.error = None
    assert await lane.put(2) == 20


async def test_one_call_carries_at_most_its_weight() -> None:
    far = Slow()
    far.go.set()
    lane: Lane[int, int] = Lane(far.send, weigh=lambda i: i, call_weight_max=10)
    await asyncio.gather(*(lane.put(4) for _ in range(6)), lane.put(50))
    assert far.calls == [[4, 4], [4, 4], [4, 4], [50]]


class Net:
    """Records deliveries; fails as often as told."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.fail = 0
        self.refuse: list[BreakerEpoch] = []

    async def call(self, actor: str, method: str, *args: Any) -> Any:
        assert (actor, method) == ("breaker-0", "deliver")
        if self.fail:
            self.fail -= 1
            raise Unavailable("away")
        self.deliveries.append(args[0])
        return self.refuse

    def spawn(self, kind: Any, name: str) -> None:
        raise AssertionError


def samples(offset: int, rows: int) -> Append:
    payload = encode_samples(["m"], [rows], np.zeros(rows, np.int64), np.zeros(rows), np.ones(rows, bool))
    return Append("r", 1, offset, 1_000 + offset, SAMPLES, 1, payload)


def lane_to(net: Net, rows_max: int = 1_000) -> tuple[DeliveryLane, list[tuple[str, str, int]]]:
    refused: list[tuple[str, str, int]] = []
    return DeliveryLane(BreakerPeer(net, "breaker-0"), lambda *who: refused.append(who), rows_max), refused


async def settled(lane: DeliveryLane) -> None:
    lane.flush()
    while lane._pump is not None:
        await lane._pump


async def test_a_record_for_many_breakers_is_carried_once() -> None:
    net = Net()
    lane, _ = lane_to(net)
    record = samples(1, 5)
    for name in ("a", "b"):
        lane.add(Subscription("r", name, 1, "breaker-0", 0), record, (0, 5))
    await settled(lane)
    (delivery,) = net.deliveries
    assert len(delivery.records) == 1
    assert [(t.breaker_id, t.after, t.upto, t.spans) for t in delivery.targets] == [
        ("a", 0, 1, ((0, 0, 5),)),
        ("b", 0, 1, ((0, 0, 5),)),
    ]


async def test_what_does_not_fit_becomes_a_mark_and_nothing_is_dropped() -> None:
    net = Net()
    lane, _ = lane_to(net, rows_max=10)
    subscription = Subscription("r", "a", 1, "breaker-0", 4)
    for offset in (5, 7, 9):
        lane.add(subscription, samples(offset, 6), (0, 6))
    await settled(lane)
    (target,) = net.deliveries[0].targets
    assert (target.after, target.upto, target.spans) == (4, 9, None)
    assert subscription.sent == 9


async def test_a_lost_call_is_repeated_as_marks_that_take_in_what_came_since() -> None:
    net = Net()
    lane, _ = lane_to(net)
    subscription = Subscription("r", "a", 1, "breaker-0", 0)
    net.fail = 1
    lane.add(subscription, samples(1, 3), (0, 3))
    lane.flush()
    await asyncio.sleep(0)
    lane.add(subscription, samples(2, 3), (0, 3))
    await settled(lane)
    targets = [t for d in net.deliveries for t in d.targets]
    assert [(t.after, t.upto, t.spans) for t in targets] == [(0, 2, None)]


async def test_for_an_owner_that_does_not_answer_marks_are_kept_and_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "RETRY_S", 0.0)
    net = Net()
    lane, _ = lane_to(net, rows_max=100)
    subscriptions = [Subscription("r", name, 1, "breaker-0", 0) for name in "abc"]
    held = []
    net.fail = 1_000
    for offset in range(1, 301):
        lane.add(subscriptions[offset % 3], samples(offset, 10), (0, 10))
        lane.flush()
        await asyncio.sleep(0)
        held.append(sum(len(pack.records) for pack in lane._filling.values()))
    assert net.fail < 950, "it was asked again and again"
    assert max(held) <= 10, "as many as rows_max allows"
    net.fail = 0
    await settled(lane)
    targets = [t for d in net.deliveries for t in d.targets]
    assert sorted((t.breaker_id, t.after, t.upto, t.spans) for t in targets) == [
        ("a", 0, 300, None),
        ("b", 0, 298, None),
        ("c", 0, 299, None),
    ]
    assert lane.rows == 0


async def test_a_refused_breaker_is_reported_and_a_dead_subscription_is_not_sent() -> None:
    net = Net()
    lane, refused = lane_to(net)
    net.refuse = [BreakerEpoch("a", 1)]
    subscription = Subscription("r", "a", 1, "breaker-0", 0)
    lane.add(subscription, samples(1, 1), (0, 1))
    await settled(lane)
    assert refused == [("r", "a", 1)]
    subscription.live = False
    lane.add(subscription, samples(2, 1), (0, 1))
    await settled(lane)
    assert len(net.deliveries) == 1


async def test_owners_take_turns() -> None:
    """And each one's come in order."""
    far = Slow()
    lane: Lane[int, int] = Lane(far.send, call_weight_max=3)
    sent = [lane.put(i, str(i // 10)) for i in (11, 12, 13, 14, 21, 22, 31)]
    far.go.set()
    assert await asyncio.gather(*sent) == [110, 120, 130, 140, 210, 220, 310]
    assert far.calls == [[11, 21, 31], [12, 22, 13], [14]]


async def test_an_owner_alone_fills_the_lane_and_another_finds_room() -> None:
    far = Slow()
    lane: Lane[int, int] = Lane(far.send, weigh=lambda i: i, weight_max=100)
    sent = [lane.put(10, "o", "flood") for _ in range(10)]
    with pytest.raises(Overloaded):
        lane.put(1, "o", "flood")
    sent += [lane.put(10, "o", "quiet") for _ in range(5)]
    with pytest.raises(Overloaded):
        lane.put(1, "o", "quiet")
    sent.append(lane.put(10, "o", "third"))
    sent += [lane.put(10, "another", "fourth") for _ in range(10)]
    assert lane.weight == 260
    far.go.set()
    await asyncio.gather(*sent)
    assert lane.weight == 0


async def test_an_owner_waits_for_no_more_than_a_call_of_another() -> None:
    far = Slow()
    lane: Lane[int, int] = Lane(far.send, weigh=lambda i: i, call_weight_max=10)
    sent = [lane.put(10, "flood") for _ in range(20)]
    await asyncio.sleep(0)
    sent.append(lane.put(1, "quiet"))
    far.go.set()
    await asyncio.gather(*sent)
    assert far.calls[:2] == [[10], [1]]
    assert far.calls[2:] == [[10]] * 19


async def test_what_does_not_fit_is_in_the_next_call_however_many_come() -> None:
    far = Slow()
    far.go.set()
    lane: Lane[int, int] = Lane(far.send, weigh=lambda i: i, call_weight_max=10)
    sent = [lane.put(1, "a"), lane.put(10, "large")]
    for n in range(50):
        await asyncio.sleep(0)
        sent.append(lane.put(1, f"b{n}"))
    await asyncio.gather(*sent)
    assert [10] in far.calls[:3]


def of_project(project_id: str, router_id: str, breaker_id: str) -> Subscription:
    return Subscription(router_id, breaker_id, 1, "breaker-0", 0, ("", project_id))


async def test_one_projects_records_make_no_marks_of_anothers() -> None:
    """And theirs ride in the next call, though the lane is full of others'."""
    net = Net()
    lane, _ = lane_to(net, rows_max=200_000)
    many = [of_project("flood", "r", str(n)) for n in range(9_000)]
    for offset in (1, 2, 3):
        record = samples(offset, 10)
        for subscription in many:
            lane.add(subscription, record, (0, 10))
    assert lane.rows == 200_000, "alone it has the whole bound"
    marks = lane.marks
    assert marks > 0
    quiet = of_project("quiet", "q", "b")
    for offset in range(1, 101):
        lane.add(quiet, replace(samples(offset, 10), router_id="q"), (0, 10))
    assert lane.marks == marks
    await settled(lane)
    place = [n for n, one in enumerate(net.deliveries) if any(t.breaker_id == "b" for t in one.targets)]
    assert place == [1]
    mine = [(one, t) for one in net.deliveries for t in one.targets if t.breaker_id == "b"]
    (delivery, target), spans = mine[0], mine[0][1].spans
    assert (target.after, target.upto) == (0, 100)
    assert spans is not None
    assert [delivery.records[index].offset for index, *_ in spans] == list(range(1, 101))
    assert lane.rows == 0


async def test_records_of_many_projects_ride_in_one_call() -> None:
    net = Net()
    lane, _ = lane_to(net)
    for n in range(50):
        lane.add(of_project(f"p{n}", f"r{n}", f"b{n}"), replace(samples(1, n + 1), router_id=f"r{n}"), (0, n + 1))
    await settled(lane)
    (delivery,) = net.deliveries
    found = {
        t.breaker_id: [(len(decode_samples(delivery.records[i].payload).batch), b) for i, _, b in t.spans or ()]
        for t in delivery.targets
    }
    assert found == {f"b{n}": [(n + 1, n + 1)] for n in range(50)}


async def test_a_lost_call_is_repeated_for_each_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "RETRY_S", 0.0)
    net = Net()
    lane, _ = lane_to(net)
    net.fail = 3
    subscriptions = [of_project(f"p{n % 2}", f"r{n}", f"b{n}") for n in range(4)]
    for offset in range(1, 11):
        for subscription in subscriptions:
            lane.add(subscription, replace(samples(offset, 3), router_id=subscription.router_id), (0, 3))
        lane.flush()
        await asyncio.sleep(0)
    await settled(lane)
    reached: dict[str, int] = {}
    for target in (t for one in net.deliveries for t in one.targets):
        assert target.after <= reached.get(target.breaker_id, 0)
        reached[target.breaker_id] = target.upto
    assert reached == {f"b{n}": 10 for n in range(4)}
    assert (lane.rows, lane._filling) == (0, {})


@pytest.mark.parametrize("seed", range(20))
async def test_many_breakers_of_a_record_are_queued_as_one_by_one(seed: int) -> None:
    """Calls, marks and what waits are the same, also where a call or the lane is full."""
    draw, nets = Random(seed), (Net(), Net())
    rows_max = draw.choice([40, 25_000])
    lanes = [lane_to(net, rows_max)[0] for net in nets]
    made = [[Subscription("r", str(n), 1, "breaker-0", 0, ("o", "p")) for n in range(12)] for _ in lanes]
    for offset in range(1, 40):
        append = samples(offset, 5)
        takers = [(n, draw.choice([1, 3, 900 if rows_max > 900 else 9])) for n in range(12) if draw.random() < 0.7]
        if takers:
            lanes[0].add_all([(made[0][n], 0, rows) for n, rows in takers], append)
            for n, rows in takers:
                lanes[1].add(made[1][n], append, (0, rows))
        if draw.random() < 0.1:
            for lane, known in zip(lanes, made, strict=True):
                lane.mark(known[3], offset)
        if draw.random() < 0.1:
            for known in made:
                known[5].live = False
                known[5] = Subscription("r", "5", offset, "breaker-0", offset, ("o", "p"))
        assert (lanes[0].rows, lanes[0].marks) == (lanes[1].rows, lanes[1].marks)
        if draw.random() < 0.3:
            nets[0].fail = nets[1].fail = int(draw.random() < 0.2)
            await asyncio.gather(*map(settled, lanes))
    await asyncio.gather(*map(settled, lanes))
    assert nets[0].deliveries == nets[1].deliveries
    assert lanes[0].rows == lanes[1].rows == 0


def test_a_delivery_crosses_processes_in_one_piece() -> None:
    """As bytes that the release before can read: it knows the class and how msgspec reads one."""
    delivery = Delivery(
        [DeliveredEntry(7, 1_700_000_000_000, 1, b"\x00\xff" * 9)],
        [Target("b", 3, "r", 5, 7, ((0, 0, 5), (0, -1, -1))), Target("c", 1 << 40, "r", 0, 1 << 62, None)],
    )
    pickled = pickle.dumps((delivery,), protocol=5)
    assert pickle.loads(pickled) == (delivery,)
    assert b"_read_delivery" not in pickled
    assert pickled.count(b"Target") == 0
