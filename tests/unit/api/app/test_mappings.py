"""Mappings over HTTP: what a change of mappings or routers makes of the next preview."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from api.context.replica import EXTENSION
from breaker_actors.store.rows import RouterDraft
from tests.support.fake_gateway import NOW_MS
from tests.support.remote_write import V1_HEADERS, V2_HEADERS, Sent, body1, body2
from tests.support.senders import JSON, PROTOBUF, encoded, map_everything, sender_of
from tests.support.web_world import World, error_of
from tests.unit.api.protocols.test_otlp import attribute, point, request_of

NAMED = [{"field": "name", "op": "=", "value": "requests"}]
BY_LABEL = {"matchers": NAMED, "to": {"router": "label.to"}}


async def preview(world: World, *series: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await world.call("POST", "mappings:preview", json={"series": list(series)})
    assert answer.status_code == 200
    found: list[dict[str, Any]] = (await answer.get_json())["series"]
    return found


async def outcome(world: World, **labels: str) -> str:
    (found,) = await preview(world, {"name": "requests", "labels": labels})
    return str(found["router"] or found["code"] or found["outcome"])


async def router(world: World, name: str) -> str:
    answer = await world.call("POST", "routers", json={"name": name})
    return str((await answer.get_json())["id"])


async def test_each_change_is_seen_by_the_next_preview(world: World) -> None:
    assert await outcome(world, to="shop") == "unmatched"
    made = await (await world.call("POST", "mappings", json=BY_LABEL)).get_json()
    path = f"mappings/{made['mapping']['id']}"
    assert await outcome(world, to="shop") == "router_not_found"
    shop = await router(world, "shop")
    assert await outcome(world, to="shop") == "shop"
    await world.call("PATCH", f"routers/{shop}", json={"name": "store"})
    assert await outcome(world, to="shop") == "router_not_found"
    assert await outcome(world, to=shop) == "store"
    await world.call("PATCH", path, json={"enabled": False})
    assert await outcome(world, to=shop) == "unmatched"
    assert await outcome(world, router_id="store") == "store"
    await world.call("PUT", "mappings", json={"mappings": [BY_LABEL | {"name": "again"}]})
    assert await outcome(world, to=shop) == "store"
    await world.call("DELETE", f"routers/{shop}")
    assert await outcome(world, to=shop) == "router_not_found"
    again = (await (await world.call("GET", "mappings")).get_json())["mappings"][0]
    assert (await world.call("DELETE", f"mappings/{again['id']}")).status_code == 204
    assert await outcome(world, to=shop) == "unmatched"


async def test_a_router_of_another_project_is_none(world: World) -> None:
    theirs, _ = await world.store.create_router(world.other.id, RouterDraft(name="theirs"), 1)
    for name in (theirs.id, "theirs"):
        assert await outcome(world, router_id=name) == "router_not_found"
    refused = await world.call("POST", "mappings", json=BY_LABEL | {"to": {"router": theirs.id}})
    assert "to.router" in (await error_of(refused, 422, "validation_failed"))["details"]


async def test_what_a_preview_says(world: World) -> None:
    shop = await router(world, "shop")
    to = {"router": shop, "metric": "latency", "scale": 1000, "series_max": 1}
    made = await (await world.call("POST", "mappings", json={"name": "ours", "matchers": NAMED, "to": to})).get_json()
    counter = {"name": "requests", "type": "sum", "monotonic": True, "temporality": "delta"}
    first, second, same, ready = await preview(
        world,
        counter | {"labels": {"code": "503"}},
        counter | {"labels": {"code": "200"}},
        counter | {"labels": {"code": "503"}},
        {"name": "http_client_request_duration_seconds", "labels": {"server_address": "shop"}, "type": "histogram"},
    )
    id_ = made["mapping"]["id"]
    assert first == same
    assert first == {
        "name": "requests",
        "labels": {"code": "503"},
        "resource": {},
        "points": None,
        "outcome": "mapped",
        "mapping_id": id_,
        "mapping": "ours",
        "router_id": shop,
        "router": "shop",
        "metric": "latency",
        "ok": False,
        "scale": 1000.0,
        "as": "observations",
        "temporality": "delta",
        "code": None,
        "message": None,
    }
    assert (second["outcome"], second["code"], second["mapping_id"]) == ("refused", "too_many_series", id_)
    assert (ready["mapping_id"], ready["mapping"], ready["metric"]) == (
        None,
        "http.client.request.duration",
        "http_client_request_duration_seconds",
    )


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (BY_LABEL | {"to": {"router": "label.to", "scal": 2}}, "to.scal"),
        ({"mappings": [BY_LABEL | {"name": "n", "enable": True}]}, "mappings[0].enable"),
        ({"mappings": [{"name": "n", "matchers": NAMED, "to": {"router": "label.to", "As": 2}}]}, "mappings[0].to.As"),
    ],
)
async def test_fields_within_that_are_none_are_told_or_refused(world: World, body: dict[str, Any], place: str) -> None:
    method = "PUT" if "mappings" in body else "POST"
    refused = await error_of(await world.call(method, "mappings?strict=true", json=body), 422, "validation_failed")
    assert list(refused["details"]) == [place]
    told = await (await world.call(method, "mappings", json=body)).get_json()
    assert [each["field"] for each in told["warnings"]] == [place]


async def test_a_list_that_is_too_large_is_refused_unread(world: World) -> None:
    body = {"mappings": [BY_LABEL | {"name": "n" * 200}] * 5_000}
    await error_of(await world.call("PUT", "mappings", json=body), 413, "payload_too_large")


# payloads


async def preview_of(world: World, body: bytes, **headers: str) -> dict[str, Any]:
    answer = await world.call("POST", "mappings:preview", data=body, headers=headers)
    found: dict[str, Any] = await answer.get_json()
    assert answer.status_code == 200, found
    return found


async def test_a_preview_takes_a_request_of_each_protocol(world: World) -> None:
    """And says of it what its sender would be told, with nothing left behind."""
    shop = await router(world, "shop")
    labels = {"router_id": "shop", "code": "500"}
    old, moment = attribute("router_id", {"stringValue": "shop"}), str(NOW_MS * 1_000_000)
    gauge = {
        "dataPoints": [point(asInt="3", timeUnixNano=moment, attributes=[old]), point(asInt="3", attributes=[old])]
    }
    metrics = request_of({"name": "up", "gauge": gauge}, {"name": "other", "gauge": {"dataPoints": [point(asInt=1)]}})
    zipped = gzip.compress(encoded(metrics, PROTOBUF))
    found = [
        await preview_of(world, encoded(metrics, JSON), **{"Content-Type": JSON}),
        await preview_of(world, encoded(metrics, PROTOBUF), **{"Content-Type": PROTOBUF}),
        await preview_of(world, zipped, **{"Content-Type": PROTOBUF, "Content-Encoding": "gzip"}),
    ]
    assert found[0] == found[1] == found[2]
    told = found[0]["points"]
    assert (told["taken"], told["unmatched"], told["rejected"]) == (1, 1, 1)
    assert told["errors"][0]["code"] == "ts_ms_too_old"
    assert [(one["name"], one["outcome"], one["points"]) for one in found[0]["series"]] == [
        ("up", "mapped", 2),
        ("other", "unmatched", 1),
    ]
    assert found[0]["series"][0]["resource"]["service.name"] == "my.service"
    sent = Sent(labels={"__name__": "requests"} | labels, value=1.0)
    for body, headers in ((body1(sent), V1_HEADERS), (body2(sent), V2_HEADERS)):
        (one,) = (await preview_of(world, body, **headers))["series"]
        assert (one["labels"], one["router_id"], one["ok"], one["points"]) == (labels, shop, False, 1)
    assert world.gateway.parts == []
    assert world.app.extensions[EXTENSION].outcomes.of.get(world.project.id) is None


async def test_of_a_large_payload_the_first_series_are_listed(world: World) -> None:
    body = body2(*(Sent(labels={"__name__": "m", "n": str(n)}, value=1.0) for n in range(1_200)))
    found = await preview_of(world, body, **V2_HEADERS)
    assert (found["unmatched"], len(found["series"]), found["points"]["unmatched"]) == (1_200, 1_000, 1_200)


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"\xff", {"Content-Type": PROTOBUF}, 400, "bad_request"),
        (b"\xff", V2_HEADERS, 400, "bad_request"),
        (b"", V2_HEADERS | {"Content-Encoding": "gzip"}, 415, "unsupported_media_type"),
        (b"", {"Content-Type": PROTOBUF, "Content-Encoding": "br"}, 415, "unsupported_media_type"),
        (b"", {"Content-Type": f"{PROTOBUF};proto=x.Y"}, 415, "unsupported_media_type"),
        (b'{"resourceMetrics": 5}', {"Content-Type": JSON}, 400, "bad_request"),
        (b"[" * (1 << 20) + b"[", {"Content-Type": JSON}, 413, "payload_too_large"),
    ],
)
async def test_a_payload_that_is_none_is_refused_as_everywhere(
    world: World, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    answer = await world.call("POST", "mappings:preview", data=body, headers=headers)
    await error_of(answer, status, code)


async def test_a_jobs_own_counters_fail_no_push(world: World) -> None:
    """`target_label: router_id` labels all series of a job, those that add up seconds, too: they are passed over where
    no mapping asks for them. One of the project's own says what it can't use."""
    await router(world, "shop")
    rows = {"requests_total": 3.0, "process_cpu_seconds_total": 12.37, "request_seconds_sum": 7.0}
    sent = [Sent(labels={"__name__": name, "router_id": "shop"}, value=value) for name, value in rows.items()]
    found = await preview_of(world, body1(*sent), **V1_HEADERS)
    assert [found["points"][kind] for kind in ("taken", "unmatched", "rejected")] == [1, 2, 0]
    sender = await sender_of(world)
    assert (await sender.remote_write(body1(*sent), True)).status_code == 204
    answer = await sender.remote_write(body2(*sent), False)
    assert (answer.status_code, answer.headers["X-Prometheus-Remote-Write-Samples-Written"]) == (204, "3")
    assert [part.count for part in world.gateway.parts] == [1, 1]
    await map_everything(world, "*_seconds_*")
    answer = await sender.remote_write(body1(*sent), True)
    assert (answer.status_code, await answer.get_data(as_text=True)) == (
        400,
        "1 of 3 samples rejected, the others are stored: process_cpu_seconds_total: "
        "a rise of 12.37 is no whole number of observations; a mapping with as: value takes it (invalid_rise)\n",
    )
