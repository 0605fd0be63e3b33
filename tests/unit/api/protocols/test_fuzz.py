"""Mutilated and invented bodies: each decoder gives points or an error that says what is wrong, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from struct import unpack
from typing import Any

import cramjam
import pytest

from api.protocols import otlp_json, otlp_protobuf, remote_write1, remote_write2, snappy
from api.protocols.memory import Memory
from api.protocols.points import Points
from breaker_actors.errors import BadRequest, PayloadTooLarge
from tests.support.open_protocols import mutilated, otlp_request, request1, request2
from tests.unit.api.protocols.test_otlp import as_json

CASES = 25_000
PER_REQUEST = 50
BYTES_MAX = 1 << 20


def _packed(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(body))


TARGETS: dict[str, tuple[Callable[[bytes, Memory], Points], Callable[[random.Random], bytes]]] = {
    "remote-write 1.0": (remote_write1.decode, lambda rnd: request1(rnd).SerializeToString()),
    "remote-write 2.0": (remote_write2.decode, lambda rnd: request2(rnd, 4).SerializeToString()),
    "OTLP protobuf": (otlp_protobuf.decode, lambda rnd: otlp_request(rnd).SerializeToString()),
    "OTLP JSON": (otlp_json.decode, lambda rnd: as_json(otlp_request(rnd))),
    "snappy": (
        lambda body, memory: remote_write1.decode(snappy.inflate(body, BYTES_MAX), memory),
        lambda rnd: _packed(request1(rnd).SerializeToString()),
    ),
}


def holds_together(points: Points) -> None:
    rows = len(points.of)
    columns: list[Any] = [points.ts_ms, points.start_ms, points.value, points.absent]
    assert {len(column) for column in columns} == {rows}
    assert set(points.of.tolist()) == set(range(len(points.series)))
    assert len({(s.identity, s.temporality, s.monotonic, s.unit) for s in points.series}) == len(points.series)
    assert all(row < rows and not points.absent[row] for row in points.histograms)
    for histogram in points.histograms.values():
        assert all(count > 0 for _, count in histogram.observations())
        values = [value for value, _ in histogram.observations()]
        assert values == sorted(values)
        assert not values or histogram.ends == (values[0], values[-1])
        buckets = list(unpack(f"<{histogram.size}q", histogram.buckets))
        assert buckets == sorted(set(buckets))


def fuzz(name: str, seed: int, cases: int) -> int:
    """Tries so many bodies; gives how many could be read."""
    decode, make = TARGETS[name]
    rnd, memory, read = random.Random(seed), Memory(200), 0
    body, places = b"", set[Any]()
    for case in range(cases):
        if case % PER_REQUEST == 0:
            body = make(rnd)
        sent = rnd.randbytes(rnd.randint(0, 60)) if rnd.random() < 0.05 else mutilated(rnd, body)
        try:
            points = decode(sent, memory)
        except (BadRequest, PayloadTooLarge) as error:
            places.add(error.details["where"])
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}, case {case}: {sent!r}") from error
        holds_together(points)
        read += 1
    assert all(isinstance(place, str) and place for place in places)
    return read


@pytest.mark.parametrize("name", TARGETS)
def test_some_bodies(name: str) -> None:
    assert fuzz(name, 1, 300) >= (1 if name == "snappy" else 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_many_bodies(name: str) -> None:
    fuzz(name, 18, CASES)
