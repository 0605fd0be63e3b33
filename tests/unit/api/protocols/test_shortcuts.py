"""Shortcuts and field-by-field walks give the same points, and both see what the reference parser sees."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from api.protocols import otlp_protobuf, remote_write1, remote_write2
from api.protocols.memory import Memory
from api.protocols.points import Points
from tests.support.open_protocols import (
    Request2,
    WriteRequest,
    mutilated,
    otlp_request,
    outcome,
    request1,
    request2,
)

Decoder = Callable[..., Points]
DECODERS: dict[str, tuple[Decoder, Callable[[random.Random], Any], Any]] = {
    "remote-write 1.0": (remote_write1.decode, request1, WriteRequest),
    "remote-write 2.0": (remote_write2.decode, request2, Request2),
    "OTLP": (otlp_protobuf.decode, otlp_request, ExportMetricsServiceRequest),
}
SEEDS = range(40)
UNKNOWN = b"\xf8\x01\x07"
"""A field that no message has."""


def check(name: str, seed: int, mutilations: int) -> int:
    """A request and its mutilations, each read by shortcuts (with a full memory, too), without, and as the reference
    parser understood it. Gives how many the reference parser read."""
    decode, make, reference = DECODERS[name]
    rnd, memory = random.Random(seed), Memory(50)
    request = make(rnd)
    body, read = request.SerializeToString(), 0
    for turn in range(mutilations + 2):
        sent = mutilated(rnd, body) if turn > 1 else body + UNKNOWN * turn
        careful = outcome(lambda sent=sent: decode(sent, Memory(), shortcut=False))
        for _ in range(2):
            short = outcome(lambda sent=sent: decode(sent, memory))
            assert short == careful or short[0] == careful[0] == "BadRequest"  # another of its flaws is seen first
        try:
            parsed = reference.FromString(sent)
        except DecodeError:
            continue
        parsed.DiscardUnknownFields()
        read += 1
        if careful != ("BadRequest", True):
            assert outcome(lambda parsed=parsed: decode(parsed.SerializeToString(), Memory(), False)) == careful
    return read


@pytest.mark.parametrize("name", DECODERS)
def test_shortcuts_and_the_reference_agree(name: str) -> None:
    assert sum(check(name, seed, 12) for seed in SEEDS) > 2 * len(SEEDS)
