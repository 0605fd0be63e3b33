"""What somebody may send to the receivers to do harm: it costs what was sent, says what is wrong, and hurts nobody."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from api.admission.inflate import Inflation
from api.admission.shares import keyless
from api.context.receiving import LIGHT_BYTES
from api.context.replica import EXTENSION
from api.protocols.bounds import ENTRIES_MAX, LABELS_MAX
from api.protocols.memory import Memory
from api.protocols.protobuf import encode_varint
from breaker_actors.settings import Settings
from tests.bench.protocols import otlp_request as batch
from tests.support.open_protocols import NOW_MS, mutilated, otlp_request, request1, request2
from tests.support.remote_write import Sent, body2, snapped
from tests.support.senders import JSON, PROTOBUF, Sender, encoded, map_everything, sender_of
from tests.support.web_world import World
from tests.unit.api.protocols.test_otlp import as_json, attribute, point, request_of

MIB = 1 << 20
LATE = "breakers_late_answers_total"
REMEMBERED = 60
GOOD = body2(Sent(labels={"__name__": "up"}, value=1.0))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, rate_ingest_per_s=100_000, rate_waste_bytes_per_s=0)


async def to_remote_write(sender: Sender, body: bytes, v1: bool = False) -> int:
    answer = await sender.remote_write(body, v1)
    words = await answer.get_data(as_text=True)
    assert bool(words) == (answer.status_code != 204)
    assert len(words) < 4_000
    return answer.status_code


async def to_otlp(sender: Sender, body: bytes, kind: str = PROTOBUF, zipped: bool = False) -> int:
    answer = await sender.otlp(body, kind, zipped)
    assert answer.content_type == kind
    assert len(await answer.get_data()) < 4_000
    return answer.status_code


@pytest.mark.parametrize("mapped", [False, True])
async def test_mutilated_requests_are_taken_or_refused(world: World, mapped: bool) -> None:
    """Some hundreds through the whole app: nothing but success and 400 or 413, and who sends what is right is served
    after them."""
    sender, rnd, seen = await sender_of(world), random.Random(7 + mapped), set[int]()
    if mapped:
        await map_everything(world)
    for case in range(50):
        first, second, otlp = request1(rnd), request2(rnd, 4), otlp_request(rnd)
        seen.add(await to_remote_write(sender, snapped(mutilated(rnd, first.SerializeToString())), v1=True))
        seen.add(await to_remote_write(sender, snapped(mutilated(rnd, second.SerializeToString()))))
        seen.add(await to_remote_write(sender, mutilated(rnd, snapped(second.SerializeToString()))))
        seen.add(await to_otlp(sender, mutilated(rnd, otlp.SerializeToString())))
        seen.add(await to_otlp(sender, mutilated(rnd, as_json(otlp)), JSON))
        seen.add(await to_otlp(sender, rnd.randbytes(rnd.randint(0, 40)), zipped=case % 2 == 0))
    assert seen <= {200, 204, 400, 413}
    assert {200, 204, 400} <= seen
    assert await to_remote_write(sender, GOOD) == 204


async def test_every_beginning_of_a_request_is_read_or_refused(world: World) -> None:
    sender, body = await sender_of(world), request2(random.Random(3), 2).SerializeToString()
    for end in range(0, len(body), max(1, len(body) // 60)):
        assert await to_remote_write(sender, snapped(body[:end])) in (204, 400)
        assert await to_otlp(sender, body[:end]) in (200, 400)
    for end in range(len(GOOD)):
        assert await to_remote_write(sender, GOOD[:end]) == 400


def bombs() -> dict[str, tuple[str, bytes]]:
    """Bodies that say they hold more than they do, or hold what costs much; with where they are sent."""
    labels = b"\x0a\x04\x08\x01\x08\x01" * 20_000
    deep: dict[str, Any] = {"stringValue": "x"}
    for _ in range(200):
        deep = {"arrayValue": {"values": [deep]}}
    nested = request_of({"name": "m", "gauge": {"dataPoints": [point(asInt=1, attributes=[attribute("a", deep)])]}})
    return {
        "snappy of 4 GiB": ("remote_write", b"\xff\xff\xff\xff\x0f" + b"\x00" * 100),
        "snappy of 1 GiB": ("remote_write", encode_varint(1 << 30) + b"\xfe\x01\x00" * 1_000),
        "snappy of more than it can hold": ("remote_write", encode_varint(10 * MIB) + GOOD[1:]),
        "snappy of zeros": ("remote_write", snapped(bytes(16 * MIB))),
        "time series without end": ("remote_write", snapped(b"\x2a\x00" * (ENTRIES_MAX + 1))),
        "symbols without end": ("remote_write", snapped(b"\x22\x00" * 300_000)),
        "labels without end": (
            "remote_write",
            snapped(b"\x2a" + encode_varint(120_002) + labels + b"\x12\x00"),
        ),
        "a size of 4 GiB": ("remote_write", snapped(b"\x2a\xff\xff\xff\xff\x0f\x00")),
        "resources without end": (PROTOBUF, b"\x0a\x00" * (ENTRIES_MAX + 1)),
        "packed counts without end": (PROTOBUF, b"\x0a\x80\x80\x80\x02\x12" + bytes(4 * MIB)),
        "gzip of zeros": ("gzip", bytes(64 * MIB)),
        "gzip of braces": ("gzip", b'{"a":[' + b"{}," * (2 * MIB) + b"{}]}"),
        "lists in lists": (JSON, encoded(nested, JSON)),
        "open brackets": (JSON, b"[" * MIB),
        "numbers that are slow": (JSON, b'{"x":[' + b"1.2345678901234567e-300," * 60_000 + b"0]}"),
    }


@pytest.mark.parametrize("name", bombs())
async def test_a_bomb_is_refused_for_little(world: World, name: str) -> None:
    sender, (where, body) = await sender_of(world), bombs()[name]
    sent = gzip.compress(body) if where == "gzip" else body
    del body
    tracemalloc.start()
    begun = time.process_time()
    try:
        if where == "remote_write":
            status = await to_remote_write(sender, sent)
        elif where == "gzip":
            answer = await sender.otlp(sent, JSON, **{"Content-Encoding": "gzip"})
            status = answer.status_code
        else:
            status = await to_otlp(sender, sent, where)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert status in ({200} if name == "lists in lists" else {400, 413})
    assert peak < 8 * Settings().max_inflated_bytes + 2 * len(sent)
    assert time.process_time() - begun < 5
    assert world.gateway.parts == []


async def test_a_flood_of_labels_is_refused_by_the_series(world: World) -> None:
    """Those beside it are stored."""
    sender, _ = await sender_of(world), await map_everything(world)
    flood = {"__name__": "flood"} | {f"l{n}": "x" for n in range(LABELS_MAX)}
    long = {"__name__": "long", "l": "x" * 5_000}
    answer = await sender.remote_write(
        body2(*(Sent(labels=one, value=1.0) for one in (flood, {"__name__": "m"}, long)))
    )
    words = await answer.get_data(as_text=True)
    assert (answer.status_code, answer.headers["X-Prometheus-Remote-Write-Samples-Written"]) == (400, "1")
    assert "too_many_labels" in words
    assert "value_too_long" in words
    assert sum(part.count for part in world.gateway.parts) == 1


class TestWaste:
    """Answers to bad bodies come late beyond a budget, which is none here."""

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return Settings(data_dir=tmp_path, rate_waste_bytes_per_s=1)

    async def test_what_is_stored_in_part_was_not_for_nothing(self, world: World) -> None:
        """A sender whose samples are rejected now and then is not held up; one of whom nothing can be used is."""
        sender, _ = await sender_of(world), await map_everything(world)
        meters = world.app.extensions[EXTENSION].meters

        def late() -> float:
            return float(sum(n for labels, n in meters.counted().values.items() if labels[0] == LATE))

        up, odd = (Sent(labels=labels, value=1.0) for labels in ({"__name__": "up"}, {"no": "name"}))
        assert await to_remote_write(sender, body2(up, odd)) == 400
        assert late() == 0
        assert await to_remote_write(sender, body2(odd)) == 400
        assert late() == 1


async def test_series_without_end_leave_bounded_traces(world: World) -> None:
    """A thousand new ones over many requests, of a replica that may remember a tenth: what decoders keep does not
    grow with them, and a mapping takes as many as it may."""
    parts = world.app.extensions[EXTENSION]
    memory, sender = Memory(REMEMBERED), await sender_of(world)
    parts.memories.of.put(world.project.org_id, world.project.id, memory, 0)
    await map_everything(world, name="flood", series_max=100)
    sizes, statuses = [], set()
    tracemalloc.start()
    try:
        for turn in range(6):
            labels = ({"__name__": "flood", "id": f"{turn}-{n}", "pod": f"web-{turn * n}"} for n in range(200))
            statuses.add(await to_remote_write(sender, body2(*(Sent(labels=one, value=1.0) for one in labels))))
            world.gateway.parts.clear()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert statuses == {400}
    for kept, most in ((memory.strings().series, 1), (memory.strings().numbers, 5), (memory.v1, 0), (memory.otlp, 0)):
        assert len(kept) <= 2 * most * REMEMBERED
    assert parts.memories.of.weight == memory.weight < 6 * MIB
    known = parts.outcomes.of.get(world.project.id)
    assert sum(known.taken.values()) == 100
    assert len(known.outcomes) <= 6 * 200
    assert sizes[-1] < 6 * MIB


async def test_a_bystander_is_served_beside_heavy_requests(world: World) -> None:
    """Whole batches of new series, histograms, and bodies that can't be read, from four at once."""
    sender, _ = await sender_of(world), await map_everything(world)
    router = await world.router()
    one = {"router_id": router.id, "metric": "m", "ts_ms": NOW_MS, "value": 1}
    small = json.dumps([one]).encode()
    histograms = batch("histogram", 800, 0).SerializeToString()
    heavy = [
        body2(*(Sent(labels={"__name__": "m", "n": f"{k}-{n}"}, value=1.0) for n in range(1_200))) for k in range(4)
    ]
    waits: list[float] = []

    async def attack(at: int) -> None:
        await to_remote_write(sender, heavy[at])
        await to_otlp(sender, histograms)
        await to_remote_write(sender, snapped(b"\x2a\x00" * (ENTRIES_MAX + 1)))

    attacks = asyncio.gather(*map(attack, range(4)))
    while not attacks.done():
        begun = time.perf_counter()
        async with asyncio.timeout(5):
            assert (await world.call("POST", "ingest", None, data=small)).status_code == 202
        waits.append(time.perf_counter() - begun)
    await attacks
    print(f"median {sorted(waits)[len(waits) // 2] * 1e3:.1f} ms, longest {max(waits) * 1e3:.0f} ms of {len(waits)}")
    assert len(waits) >= 20


async def test_bodies_wait_as_they_were_sent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that wait to be decoded none is inflated yet, and then one at a time is."""
    sender, inflating, most, step = await sender_of(world), set[int](), 0, Inflation.step

    def counted(body: Inflation, *given: int) -> None:
        nonlocal most
        inflating.add(id(body))
        most = max(most, len(inflating))
        step(body, *given)
        if body.done:
            inflating.discard(id(body))

    monkeypatch.setattr(Inflation, "step", counted)
    unknown = random.Random(1).randbytes(2 * LIGHT_BYTES) + bytes(MIB // 2)
    plain = b"\x7a" + encode_varint(len(unknown)) + unknown
    async with world.app.extensions[EXTENSION].intake.decodes.turn(keyless("10.0.0.9", "another")):
        calls = [asyncio.create_task(to_otlp(sender, plain, zipped=True)) for _ in range(6)]
        await asyncio.wait(calls, timeout=0.2)
        assert most == 0
    assert await asyncio.gather(*calls) == [200] * 6
    assert most == 1
