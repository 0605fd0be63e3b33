"""OTLP over HTTP: what becomes of points, what their sender is told, and in which words it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from quart import Response

from api.context import receiving
from api.context.replica import EXTENSION
from api.routes import otlp as route
from breaker_actors.settings import Settings
from tests.bench.protocols import otlp_request
from tests.support.fake_gateway import NOW_MS
from tests.support.senders import JSON, PROTOBUF, Sender, encoded, map_everything, rows_of, sender_of
from tests.support.web_world import World
from tests.unit.api.protocols.test_otlp import OFFICIAL, attribute, point, request_of

KINDS = [JSON, PROTOBUF]
STORED_NOT = ("failed", "not_owner", "not_configured", "damaged", "clock_behind", "full", "log_full", "share_full")
GAUGE = {"name": "g", "gauge": {"dataPoints": [point(asInt="3", timeUnixNano=str(NOW_MS * 1_000_000))]}}


def recent(request: dict[str, Any]) -> dict[str, Any]:
    """The request with points of now."""
    text = json.dumps(request)
    for moment in {*_moments(request)}:
        text = text.replace(f'"timeUnixNano": {moment}', f'"timeUnixNano": {NOW_MS * 1_000_000}')
    found: dict[str, Any] = json.loads(text)
    return found


def _moments(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_moments, value))
    if not isinstance(value, dict):
        return set()
    own = {json.dumps(value["timeUnixNano"])} if "timeUnixNano" in value else set()
    return own.union(*map(_moments, value.values()))


async def response_of(answer: Response, kind: str) -> ExportMetricsServiceResponse:
    """The body of a 200, checked to be in the type that was sent."""
    body = await answer.get_data()
    assert (answer.status_code, answer.content_type) == (200, kind), body
    if kind == JSON:
        return ParseDict(json.loads(body), ExportMetricsServiceResponse())
    return ExportMetricsServiceResponse.FromString(body)


async def status_of(answer: Response, status: int, kind: str, code: int) -> Status:
    """The body of an error, checked to be what a sender of this type can read, and to say when to come again where it
    should."""
    body = await answer.get_data()
    assert (answer.status_code, answer.content_type) == (status, kind), body
    found = ParseDict(json.loads(body), Status()) if kind == JSON else Status.FromString(body)
    assert found.code == code
    assert found.message
    assert ("Retry-After" in answer.headers) == (status in (429, 503))
    assert int(answer.headers.get("Retry-After", 1)) >= 1
    return found


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_the_official_example_comes_into_the_log(world: World, kind: str, zipped: bool) -> None:
    sender, router_id = await sender_of(world), await map_everything(world)
    answer = await sender.otlp(encoded(recent(OFFICIAL), kind), kind, zipped)
    assert not (await response_of(answer, kind)).HasField("partial_success")
    assert await answer.get_data() == (b"{}" if kind == JSON else b"")
    assert rows_of(world.gateway.parts) == [
        (router_id, "my.counter", NOW_MS, 1.0, True, 5),
        (router_id, "my.gauge", NOW_MS, 10.0, True, 1),
        (router_id, "my.histogram", NOW_MS, 0.5, True, 1),
        (router_id, "my.histogram", NOW_MS, 1.5, True, 1),
        (router_id, "my.exponential.histogram", NOW_MS, 0.0, True, 1),
        (router_id, "my.exponential.histogram", NOW_MS, pytest.approx(20**0.5), True, 2),
    ]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_nobody_takes_is_a_success_with_a_word(world: World, kind: str) -> None:
    sender = await sender_of(world)
    partial = (await response_of(await sender.otlp(encoded(OFFICIAL, kind), kind), kind)).partial_success
    assert partial.rejected_data_points == 0
    assert "No mapping takes any of these 4 points" in partial.error_message
    assert world.gateway.parts == []


@pytest.mark.parametrize("kind", KINDS)
async def test_an_empty_request_is_a_success(world: World, kind: str) -> None:
    sender = await sender_of(world)
    for request in ({}, {"resourceMetrics": []}, request_of()):
        answer = await sender.otlp(encoded(request, kind), kind)
        assert not (await response_of(answer, kind)).HasField("partial_success")


@pytest.mark.parametrize("kind", KINDS)
async def test_rejected_points_are_counted_and_the_first_named(world: World, kind: str) -> None:
    sender, _ = await sender_of(world), await map_everything(world, scale=1e300)
    quantiles = {"name": "s", "summary": {"dataPoints": [{"timeUnixNano": NOW_MS * 1_000_000}] * 2}}
    old = {"name": "old", "gauge": {"dataPoints": [point(asInt="1")]}}
    absent = {"name": "a", "gauge": {"dataPoints": [point(flags=1, timeUnixNano=NOW_MS * 1_000_000)]}}
    large = {"name": "l", "gauge": {"dataPoints": [point(asDouble=1e99, timeUnixNano=NOW_MS * 1_000_000)]}}
    answer = await sender.otlp(encoded(request_of(GAUGE, quantiles, old, absent, large), kind), kind)
    partial = (await response_of(answer, kind)).partial_success
    assert partial.rejected_data_points == 4
    for word in ("summary_unsupported", "ts_ms_too_old", "invalid_value", "metrics[1].summary.dataPoints[0]"):
        assert word in partial.error_message
    assert [row[1:] for row in rows_of(world.gateway.parts)] == [("g", NOW_MS, 3e300, True, 1)]


async def test_unknown_fields_are_passed_over(world: World) -> None:
    sender, _ = await sender_of(world), await map_everything(world)
    request = request_of(GAUGE | {"later": [{"a": 1}]}) | {"future": {"b": [None, 2.5]}}
    assert not (await response_of(await sender.otlp(encoded(request, JSON), JSON), JSON)).HasField("partial_success")
    assert len(rows_of(world.gateway.parts)) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_points_of_no_time_are_of_now_and_never_a_repeat(world: World, kind: str) -> None:
    sender, _ = await sender_of(world), await map_everything(world)
    body = encoded(request_of({"name": "g", "gauge": {"dataPoints": [{"asInt": "1"}]}}), kind)
    for _ in range(2):
        await response_of(await sender.otlp(body, kind), kind)
    assert [row[2] for row in rows_of(world.gateway.parts)] == [NOW_MS] * 2
    first, again = (set(part.keys) for part in world.gateway.parts)
    assert not first & again


async def test_a_request_sent_again_has_the_key_of_its_first(world: World) -> None:
    sender, _ = await sender_of(world), await map_everything(world)
    body = encoded(request_of(GAUGE), PROTOBUF)
    for sent in (body, body, body + b"\x7a\x00"):
        await response_of(await sender.otlp(sent), PROTOBUF)
    first, again, other = (set(part.keys) for part in world.gateway.parts)
    assert len(first & again) == 1
    assert not first & other


@pytest.mark.parametrize("kind", KINDS)
class TestRefusals:
    """In the type that was sent: google.rpc.Status."""

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return Settings(data_dir=tmp_path, max_body_bytes=50_000, max_inflated_bytes=20_000, rate_ingest_per_s=20)

    async def test_bodies(self, world: World, kind: str) -> None:
        sender = await sender_of(world)
        good = encoded(request_of(GAUGE), kind)
        await status_of(await sender.otlp(b"\xff" + good, kind), 400, kind, 3)
        await status_of(await sender.otlp(good, kind, **{"Content-Encoding": "gzip"}), 400, kind, 3)
        await status_of(await sender.otlp(good, kind, **{"Content-Encoding": "deflate"}), 415, kind, 3)
        await status_of(await sender.otlp(bytes(60_000), kind), 413, kind, 8)
        await status_of(await sender.otlp(bytes(100_000), kind, zipped=True), 413, kind, 8)

    async def test_callers(self, world: World, kind: str) -> None:
        body = encoded(request_of(GAUGE), kind)
        for token, status, code in (("", 401, 16), ("wrong", 401, 16), (world.keys["user"], 403, 7)):
            await status_of(await Sender(world, token).otlp(body, kind), status, kind, code)
        _, foreign = await world.store.create_key(world.other.org_id, "ingest", "f", 1, world.other.id)
        await status_of(await Sender(world, foreign).otlp(body, kind), 404, kind, 5)

    async def test_too_often(self, world: World, kind: str) -> None:
        sender, answers = await sender_of(world), []
        while not answers or answers[-1].status_code == 200:
            answers.append(await sender.otlp(encoded({}, kind), kind))
            assert len(answers) < 100
        await status_of(answers[-1], 429, kind, 8)

    async def test_what_is_not_stored_is_to_be_sent_again(self, world: World, kind: str) -> None:
        """Also where it can't be for longer, and where a router was deleted in that moment."""
        sender, _ = await sender_of(world), await map_everything(world)
        for word in STORED_NOT:
            world.gateway.word = word
            full = word.endswith("full")
            answer = await sender.otlp(encoded(request_of(GAUGE), kind), kind)
            await status_of(answer, 429 if full else 503, kind, 8 if full else 14)

    async def test_a_failure_of_ours_loses_nothing(
        self, world: World, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(*args: object) -> None:
            raise RuntimeError("secret")

        sender = await sender_of(world)
        monkeypatch.setattr(receiving, "taking", fails)
        words = await status_of(await sender.otlp(encoded(request_of(GAUGE), kind), kind), 503, kind, 14)
        assert "secret" not in words.message


@pytest.mark.parametrize("sent", ["text/plain", "application/grpc", "", "multipart/form-data"])
async def test_other_types_are_refused_in_protobuf(world: World, sent: str) -> None:
    await status_of(await (await sender_of(world)).otlp(b"", sent), 415, PROTOBUF, 3)


async def test_a_whole_batch_of_a_collector_is_taken(world: World) -> None:
    """8,192 points, however well they shrink."""
    sender, _ = await sender_of(world), await map_everything(world)
    points = [
        point(asInt=str(n), timeUnixNano=str(NOW_MS * 1_000_000), attributes=[attribute("n", {"intValue": n % 99})])
        for n in range(8192)
    ]
    content = {"aggregationTemporality": 2, "isMonotonic": True, "dataPoints": points}
    spelled = encoded(request_of({"name": "requests", "sum": content}), JSON)
    for body, kind in ((otlp_request("sum", 1024, 0).SerializeToString() * 8, PROTOBUF), (spelled, JSON)):
        world.gateway.parts.clear()
        answer = await sender.otlp(body, kind, zipped=True)
        assert not (await response_of(answer, kind)).HasField("partial_success")
        assert sum(part.count for part in world.gateway.parts) == 8192


async def test_a_router_of_earlier_rejects_what_was_its_own(world: World) -> None:
    """It was deleted: the mapping stays, and says why."""
    sender, router_id = await sender_of(world), await map_everything(world)
    body = encoded(request_of(GAUGE), PROTOBUF)
    await response_of(await sender.otlp(body), PROTOBUF)
    assert (await world.call("DELETE", f"routers/{router_id}")).status_code == 204
    partial = (await response_of(await sender.otlp(body), PROTOBUF)).partial_success
    assert partial.rejected_data_points == 1
    assert "router_not_found" in partial.error_message
    assert len(world.gateway.parts) == 1


def test_every_status_has_its_code() -> None:
    assert set(route.CODES) >= {400, 401, 403, 404, 413, 415, 429, 503}


async def test_points_are_counted_by_what_became_of_them(world: World) -> None:
    sender, _ = await sender_of(world), await map_everything(world, name="g")
    await sender.otlp(encoded(request_of(GAUGE, {"name": "o", "gauge": {"dataPoints": [point(asInt=1)]}}), JSON), JSON)
    meters = world.app.extensions[EXTENSION].meters
    found = {labels: n for labels, n in meters.counted().values.items() if labels[0] == "breakers_points_total" and n}
    assert found == {(labels[0], "otlp", outcome): 1 for labels in found for outcome in ("taken", "unmatched")}
