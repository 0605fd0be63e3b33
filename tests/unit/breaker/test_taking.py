"""A breaker that is free takes samples at once, and comes out as by way of its inbox."""

from __future__ import annotations

from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from breaker_actors.breaker import applying
from breaker_actors.breaker.applying import Applying, DecodedEntries, ReadLog
from breaker_actors.breaker.hosted import HostedBreaker, is_next
from breaker_actors.breaker.subscriptions import Subscriptions
from breaker_actors.breaker.watermarks import Watermarks
from breaker_actors.clock import SystemClock
from breaker_actors.core.log_entries import GAP, SAMPLES, BreakerSet, Gap, encode_entry, encode_samples
from breaker_actors.core.machine import Breaker
from breaker_actors.core.rules import parse_rule
from breaker_actors.messages import BreakerAssignment, DeliveredEntry, Delivery, RouterRef, Target
from breaker_actors.telemetry.meters import Meters
from breaker_actors.telemetry.set_aside import Asides

KINDS = ("avg", "sum", "p95", "max", "min", "error_rate", "count", "stddev", "consecutive_failures", "delta")
ROUTERS = ("r", "s")
OTHERS = 2


class Net:
    """Calls nobody."""

    async def call(self, actor: str, method: str, *args: Any) -> Any:
        raise AssertionError(method)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


class One:
    """One breaker, and what applies to it."""

    def __init__(self, kind: str, threshold: float, at_once: bool) -> None:
        self.at_once = at_once
        clock, meters, net = SystemClock(), Meters("breaker", "breaker-0"), Net()
        self.asides = Asides()
        watermarks = Watermarks(net, Subscriptions("breaker-0", net, {}, 1.0), 1_000, clock, meters)  # type: ignore[arg-type]
        self.applying = Applying(watermarks, self.asides, clock, meters, 100)
        rule = parse_rule(
            {
                "metric": "m",
                "kind": kind,
                "op": "gt",
                "threshold": threshold,
                "window_ms": 1_000,
                "eval_interval_ms": 100,
                "min_state_duration_ms": 0,
                "cooldown_ms": 300,
            }
        )
        refs = tuple(RouterRef(router, "router-0", "slot", 0) for router in ROUTERS)
        settings = encode_entry(BreakerSet(breaker_id="b", version=1, name="b", rule=rule, created=True))
        self.hosted = HostedBreaker(
            BreakerAssignment(
                breaker_id="b",
                project_id="p",
                shard=0,
                epoch=1,
                name="b",
                routers=refs,
                applied_offsets=dict.fromkeys(ROUTERS, 0),
                settings=settings,
            )
        )
        self.hosted.breaker, _ = Breaker.create(rule, 1_000_000, window_samples_max=100)
        assert self.applying.unblock(self.hosted) is None

    def deliver(self, delivery: Delivery) -> list[Any]:
        """What has to be done for it to go on, done at once."""
        told: list[Any] = []
        entries: DecodedEntries = [None] * len(delivery.records)
        with patch.object(applying, "is_next", is_next if self.at_once else lambda *_: False):
            for target in delivery.targets:
                todo = self.applying.accept(self.hosted, target, delivery, entries)
                while todo is not None:
                    told.append(todo)
                    if isinstance(todo, ReadLog):
                        self.hosted.skip_to(todo.router_id, todo.upto)
                    todo = self.applying.unblock(self.hosted)
        return told

    def stands(self) -> tuple[Any, ...]:
        hosted = self.hosted
        assert hosted.breaker is not None
        figures = (self.applying._applied, self.applying._samples_applied, self.asides.counts)
        return (
            (hosted.breaker.record(), hosted.breaker.next_wake(), hosted.breaker.samples_held, hosted.wake),
            (hosted.applied_offsets, hosted.blocked, len(hosted.inbox), hosted.dirty, hosted.ready, figures),
        )


def entry(draw: Random, offset: int, now_ms: int) -> tuple[DeliveredEntry, tuple[int, int]]:
    """A record of a router, and the rows that the breaker takes of it."""
    odd = draw.random()
    if odd < 0.05:
        return DeliveredEntry(offset, now_ms, GAP, encode_entry(Gap(now_ms - 40, now_ms))), (-1, -1)
    rows = draw.choice([0, 1, 1, 3, 5, 5, 8, 9, 20])
    n = rows + 2 * OTHERS
    ts = np.array([now_ms - draw.choice([0, 0, 0, 5, 90, 400, 2_000]) for _ in range(n)], np.int64)
    if draw.random() < 0.7:
        ts.sort()
    payload = encode_samples(
        ["l", "m", "n"],
        [OTHERS, rows, OTHERS],
        ts,
        np.array([draw.choice([0.1, 1.0, 2.0, 5.0, 50.0]) for _ in range(n)]),
        np.array([draw.random() < 0.8 for _ in range(n)]),
        traces=[draw.choice(["", "t"]) for _ in range(n)] if odd > 0.9 else (),
        count=np.array([draw.choice([1, 3]) for _ in range(n)], np.int64) if 0.8 < odd < 0.85 else None,
    )
    if 0.85 < odd < 0.88:
        payload = payload[:9]
    return DeliveredEntry(offset, now_ms, SAMPLES, payload), (OTHERS, OTHERS + rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_taken_at_once_as_by_way_of_the_inbox(kind: str, seed: int) -> None:
    """Whatever comes: effects, record, timers and figures are the same, with moves and holes in between."""
    draw = Random(f"{kind} {seed}")
    threshold = draw.choice([0.3, 2.5, 40.0, 1e6])
    both = One(kind, threshold, True), One(kind, threshold, False)
    now, offsets = 1_000_000, dict.fromkeys(ROUTERS, 0)
    for _ in range(80):
        delivery = Delivery([], [])
        for _ in range(draw.choice([1, 1, 1, 2])):
            router = draw.choice(ROUTERS)
            after, spans = offsets[router], []
            for _ in range(draw.choice([1, 1, 3])):
                offsets[router] += 1
                now += draw.choice([0, 1, 20, 70, 150, 1_500, 4_000])
                made, rows = entry(draw, offsets[router], now - draw.choice([0, 0, 0, 30]))
                spans.append((len(delivery.records), *rows))
                delivery.records.append(made)
            if draw.random() < 0.1:
                offsets[router] += 2
                after += 2  # something is missing before it
            elif draw.random() < 0.1:
                after -= 2  # told again
            target = Target("b", 1, router, after, offsets[router], tuple(spans))
            delivery.targets.extend([target] * draw.choice([1, 1, 1, 2]))
        assert both[0].deliver(delivery) == both[1].deliver(delivery)
        assert both[0].stands() == both[1].stands()
