"""Senders of open protocols, with an ingest token, and what of their samples came to the logs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from quart import Response

from breaker_actors.core.counters import CounterPoint, decode_points
from breaker_actors.core.log_entries import decode_samples
from breaker_actors.messages import Part
from tests.support.remote_write import V1_HEADERS, V2_HEADERS
from tests.support.web_world import World

JSON, PROTOBUF = "application/json", "application/x-protobuf"


class Sender:
    """Who sends to the project of a world."""

    def __init__(self, world: World, token: str) -> None:
        self.world = world
        self.token = token

    async def _post(self, path: str, body: bytes, headers: dict[str, str]) -> Response:
        authorized = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return await self.world.call("POST", path, None, data=body, headers=authorized | headers)

    async def remote_write(self, body: bytes, v1: bool = False, **headers: str) -> Response:
        """A body as it goes over the wire. `headers` go before those that a sender has."""
        return await self._post("remote_write", body, (V1_HEADERS if v1 else V2_HEADERS) | headers)

    async def otlp(self, body: bytes, kind: str = PROTOBUF, zipped: bool = False, **headers: str) -> Response:
        coat = {"Content-Encoding": "gzip"} if zipped else {}
        sent = gzip.compress(body, 1) if zipped else body
        return await self._post("otlp/v1/metrics", sent, {"Content-Type": kind} | coat | headers)


async def sender_of(world: World) -> Sender:
    """One with a new token."""
    _, token = await world.store.create_key(world.project.org_id, "ingest", "sender", 1, world.project.id)
    return Sender(world, token)


async def map_everything(world: World, name: str = "*", **to: Any) -> str:
    """Makes samples of all series whose name is like `name`; the id of their router."""
    router = await world.router()
    matchers = [{"field": "name", "op": "glob", "value": name}]
    body = {"matchers": matchers, "to": {"router": router.id, "series_max": 10_000} | to}
    answer = await world.call("POST", "mappings", json=body)
    assert answer.status_code == 201
    return router.id


def encoded(request: dict[str, Any], kind: str) -> bytes:
    """An OTLP request, given as its JSON, in one of its two types. Ids of traces come in protobuf's own spelling."""
    if kind == JSON:
        return json.dumps(request).encode()
    return bytes(ParseDict(request, ExportMetricsServiceRequest()).SerializeToString())


Row = tuple[str, str, int, float, bool, int]
"""Router, metric, ts_ms, value, ok, count."""


def rows_of(parts: Sequence[Part]) -> list[Row]:
    """The samples of parts."""
    found = list[Row]()
    for part in parts:
        columns = decode_samples(part.payload)
        for metric, start, stop in zip(columns.metrics, columns.starts, columns.starts[1:], strict=False):
            batch = columns.batch.slice(start, stop)
            counts = [1] * (stop - start) if batch.count is None else batch.count.tolist()
            rows = zip(batch.ts_ms.tolist(), batch.value.tolist(), batch.ok.tolist(), counts, strict=True)
            found += [(part.router_id, metric, *row) for row in rows]
    return found


def totals_of(parts: Sequence[Part]) -> list[CounterPoint]:
    """The points of cumulative series in parts."""
    return [point for part in parts if part.counters for point in decode_points(part.counters)]
