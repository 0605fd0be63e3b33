"""Samples as columns of an Arrow stream, through the whole replica: what JSON is answered, and what columns add."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest

from api.arrow.frames import Frame
from api.routes import ingest_columns
from api.routes.ingest_columns import FILE
from api.wire import sample_columns
from api.wire.sample_columns import PIECE_ROWS, ROUND_ROWS, piece_keys
from breaker_actors.core.log_entries import decode_samples
from breaker_actors.messages import AppendResult, Part
from tests.support.arrow_streams import STREAM, of_polars
from tests.support.web_world import World, error_of, sign, soon

TYPE = {"Content-Type": STREAM}


def rows(world: World, router_id: str, n: int = 3, **columns: Any) -> pl.DataFrame:
    start = {"router_id": [router_id] * n, "metric": ["m"] * n, "ts_ms": world.clock.now_ms() - np.arange(n)[::-1]}
    return pl.DataFrame(start | {"value": np.arange(n) * 1.5} | columns)


async def post(world: World, body: bytes, query: str = "", key: str | None = None, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await world.call("POST", f"ingest{query}", key, data=body, headers=TYPE | named)


async def test_all_are_taken(world: World) -> None:
    router = await world.router()
    response = await post(world, of_polars(rows(world, router.id, ok=[True, False, True])))
    assert (response.status_code, await response.get_json()) == (202, {"accepted": 3})
    (part,) = world.gateway.parts
    columns = decode_samples(part.payload)
    assert (part.router_id, part.count, columns.metrics) == (router.id, 3, ["m"])
    assert columns.batch.value.tolist() == [0.0, 1.5, 3.0]
    assert columns.batch.ok.tolist() == [True, False, True]


async def test_each_sample_stands_alone(world: World) -> None:
    router = await world.router()
    frame = rows(world, router.id, value=[1.0, None, 2.0], metric=["m", "m", ""])
    body = await (await post(world, of_polars(frame))).get_json()
    assert (body["accepted"], body["rejected"]) == (1, 2)
    assert [(one["index"], one["field"], one["code"]) for one in body["errors"]] == [
        (1, "value", "invalid_value"),
        (2, "metric", "invalid_metric"),
    ]
    nothing = await error_of(await post(world, of_polars(frame.slice(1))), 422, "validation_failed")
    assert nothing["details"]["rejected"] == 2
    empty = await post(world, of_polars(frame.clear()))
    assert (empty.status_code, await empty.get_json()) == (202, {"accepted": 0})


async def test_a_time_that_is_missing_is_that_of_the_request(world: World) -> None:
    router = await world.router()
    frame = of_polars(rows(world, router.id).drop("ts_ms"))
    body = await error_of(await post(world, frame), 422, "validation_failed")
    assert {one["code"] for one in body["details"]["errors"]} == {"invalid_ts_ms"}
    now_ms = world.clock.now_ms()
    assert (await post(world, frame, X_EB_Timestamp=str(now_ms - 5))).status_code == 202
    assert decode_samples(world.gateway.parts[0].payload).batch.ts_ms.tolist() == [now_ms - 5] * 3


async def test_columns_that_no_sample_has(world: World) -> None:
    router = await world.router()
    frame = of_polars(rows(world, router.id, success=[True] * 3))
    body = await (await post(world, frame)).get_json()
    assert body["accepted"] == 3
    (warning,) = body["warnings"]
    assert (warning["code"], warning["field"]) == ("unknown_field", "success")
    assert "did you mean ok? Without ok a sample counts as a success." in warning["message"]
    strict = await error_of(await post(world, frame, "?strict=true"), 422, "validation_failed")
    assert [(one["index"], one["field"]) for one in strict["details"]["errors"]] == [(n, "success") for n in range(3)]


async def test_what_is_refused_as_a_whole(world: World) -> None:
    router = await world.router()
    await error_of(await post(world, b"ARROW1"), 400, "bad_request")
    words = await error_of(await post(world, of_polars(rows(world, router.id, ok=[1, 0, 1]))), 422, "validation_failed")
    assert words["details"] == {"where": "schema", "field": "ok"}
    many = rows(world, router.id, 100_001).with_columns(pl.col("router_id", "metric").cast(pl.Categorical))
    await error_of(await post(world, of_polars(many)), 413, "payload_too_large")
    await error_of(await post(world, b"", Content_Type=FILE), 415, "unsupported_media_type")
    await error_of(await post(world, b"x", Content_Encoding="br"), 400, "bad_request")
    await error_of(await post(world, b"x", Content_Encoding="gzip"), 400, "bad_request")
    assert not world.gateway.parts


async def test_gzip_around_it(world: World) -> None:
    router = await world.router()
    body = gzip.compress(of_polars(rows(world, router.id)))
    assert (await post(world, body, Content_Encoding="gzip")).status_code == 202


async def test_a_hundred_thousand_rows_with_ids_as_plain_text(world: World) -> None:
    """As polars writes them by default, and in its oldest form."""
    router = await world.router()
    frame = rows(world, router.id, 100_000, ok=[True] * 100_000, metric=["metric"] * 100_000)
    for level in (pl.CompatLevel.oldest(), pl.CompatLevel.newest()):
        body = of_polars(frame, compat_level=level)
        assert len(body) > 7_000_000
        assert await (await post(world, body)).get_json() == {"accepted": 100_000}


async def test_signed(world: World) -> None:
    router = await world.router()
    await world.store.update_project(world.project.id, {"enable_signed_ingest": True}, 0)
    body, stamp = of_polars(rows(world, router.id, 5_000)), str(world.clock.now_ms())
    await error_of(await post(world, body), 401, "unauthorized")
    signed = {"X_EB_Timestamp": stamp, "X_EB_Signature": sign(world.project.ingest_secret, stamp, body)}
    assert (await post(world, body, **signed)).status_code == 202
    await error_of(await post(world, body + b" ", **signed), 401, "unauthorized")


async def test_what_is_signed_anew_has_the_key_of_its_first_try(world: World) -> None:
    router = await world.router()
    await world.store.update_project(world.project.id, {"enable_signed_ingest": True}, 0)
    body, now_ms = of_polars(rows(world, router.id)), world.clock.now_ms()
    for stamp in (str(now_ms), str(now_ms - 1)):
        signature = sign(world.project.ingest_secret, stamp, body)
        headers = {"X_EB_Timestamp": stamp, "X_EB_Signature": signature, "Idempotency_Key": "frame-1"}
        assert (await post(world, body, **headers)).status_code == 202
    first, again = (part.keys for part in world.gateway.parts)
    assert len(first) == len(again) == 4
    assert first[2:] == again[2:], "the key with the body, and the key"
    assert not set(first[:2]) & set(again[:2])


# -- pieces


def pieces(parts: Sequence[Part]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for part in parts:
        found.setdefault(part.router_id, []).append(part.count)
    return found


async def test_a_router_gets_pieces_and_each_is_known_when_it_comes_again(world: World) -> None:
    """By keys that the body alone decides: also after rows of it became too old."""
    one, other = await world.router(), await world.router()
    frame = pl.concat([rows(world, one.id, 25_000), rows(world, other.id, 10)])
    body = of_polars(frame, compression="zstd")
    assert (await post(world, body, Idempotency_Key="k")).status_code == 202
    first, world.gateway.parts = world.gateway.parts, []
    assert pieces(first) == {one.id: [PIECE_ROWS, PIECE_ROWS, 5_000], other.id: [10]}
    keys = {part.router_id: part.keys[1:] for part in first[:2]}
    assert keys[one.id] == keys[other.id], "a small request has the keys it would have as JSON"
    assert len({key for part in first for key in part.keys[1:]}) == 6
    world.clock.ms += 3_600_000 - 15_000
    assert (await (await post(world, body, Idempotency_Key="k")).get_json())["rejected"] == 10_000 - 1
    again = world.gateway.parts
    assert pieces(again) == {one.id: [1, PIECE_ROWS, 5_000], other.id: [10]}
    assert [part.keys[1:] for part in again] == [part.keys[1:] for part in first]
    assert not {part.keys[0] for part in again} & {part.keys[0] for part in first}


def test_keys_of_pieces() -> None:
    keys = (b"a" * 16, b"b" * 16)
    assert piece_keys(keys, 0) == keys
    found = {key for number in range(3) for key in piece_keys(keys, number)}
    assert (len(found), {len(key) for key in found}) == (6, {16})


async def test_what_is_on_its_way_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And after a round that was not taken there is none."""
    sent: list[list[Part]] = []

    async def ingest(project_id: str, parts: Sequence[Part], org_id: str) -> list[AppendResult]:
        sent.append(list(parts))
        return [AppendResult("full" if len(sent) == 3 else "ok", 1)] * len(parts)

    monkeypatch.setattr(world.gateway, "ingest", ingest)
    routers = [await world.router() for _ in range(5)]
    frame = pl.concat([rows(world, router.id, 12_000) for router in routers])
    await error_of(await post(world, of_polars(frame, compression="lz4")), 429, "rate_limited")
    assert [[part.count for part in parts] for parts in sent] == [[10_000, 10_000], [10_000, 10_000], [10_000]]
    assert all(sum(part.count for part in parts) <= ROUND_ROWS for parts in sent)
    sent.clear()
    assert (await post(world, of_polars(frame[:1_000]))).status_code == 202


async def test_another_body_under_a_key_is_found_out_before_its_second_piece(world: World) -> None:
    router = await world.router()
    world.gateway.word = "reused"
    body = of_polars(rows(world, router.id, 30_000), compression="lz4")
    await error_of(await post(world, body, Idempotency_Key="k"), 422, "idempotency_key_reused")
    assert len(world.gateway.parts) == 1


async def test_metrics_keep_the_order_of_rows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_columns, "PIECE_ROWS", 7)
    one, other = await world.router(), await world.router()
    n = 100
    frame = rows(world, one.id, n).with_columns(
        pl.Series("router_id", [(one.id, other.id.upper(), other.id)[i % 3] for i in range(n)]),
        pl.Series("metric", [f"m{i % 5}" for i in range(n)]),
    )
    assert (await post(world, of_polars(frame))).status_code == 202
    found: dict[tuple[str, str], list[float]] = {}
    for part in world.gateway.parts:
        columns = decode_samples(part.payload)
        assert part.count <= 7
        for metric, start, stop in zip(columns.metrics, columns.starts, columns.starts[1:], strict=False):
            found.setdefault((part.router_id, metric), []).extend(columns.batch.value[start:stop].tolist())
    assert Counter({pair: len(values) for pair, values in found.items()}).total() == n
    assert all(values == sorted(values) for values in found.values())
    assert len(found) == 10


async def test_routers_without_end(world: World) -> None:
    """None of them is looked for where there are too many; up to that each is judged by itself."""
    names = [f"{n:08x}-0000-4000-8000-000000000000" for n in range(10_001)]
    frame = pl.DataFrame({"router_id": names, "metric": "m", "value": 1.0})
    await error_of(await post(world, of_polars(frame)), 413, "payload_too_large")
    router = await world.router()
    some = pl.concat([frame[:2_500], rows(world, router.id).drop("ts_ms")])
    body = await (await post(world, of_polars(some), X_EB_Timestamp=str(world.clock.now_ms()))).get_json()
    assert (body["accepted"], body["rejected"]) == (3, 2_500)


async def test_rows_count_also_where_they_name_too_many_routers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    async def spend(n: int) -> None:
        counted.append(n)

    monkeypatch.setattr(ingest_columns, "spend_samples", spend)
    names = [f"{n:08x}-0000-4000-8000-000000000000" for n in range(10_001)]
    frame = pl.DataFrame({"router_id": names, "metric": "m", "value": 1.0})
    await error_of(await post(world, of_polars(frame)), 413, "payload_too_large")
    assert counted == [10_001]


def test_parts_that_go_together() -> None:
    parts = [Part(str(n), (), b"", 1) for n in range(2_100)]
    assert [len(some) for some in sample_columns.rounds([parts, parts[:5]])] == [1_000, 1_000, 100, 5]


# -- beside others


async def test_who_waits_for_the_store_holds_no_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor columns: they are made again then, and but once where the routers are remembered."""
    router, read, look, goes_on = await world.router(), 0, world.store.router_modes, asyncio.Event()
    make = ingest_columns.read_frame

    def counted(plain: bytes, bytes_max: int) -> Frame:
        nonlocal read
        read += 1
        return make(plain, bytes_max)

    async def gated(project_id: str, ids: list[str] | None) -> dict[str, str]:
        if ids != [router.id]:
            await goes_on.wait()
        return await look(project_id, ids)

    monkeypatch.setattr(ingest_columns, "read_frame", counted)
    monkeypatch.setattr(world.store, "router_modes", gated)
    assert (await post(world, of_polars(rows(world, router.id)))).status_code == 202
    assert read == 2
    unknown = of_polars(rows(world, "00000000-0000-4000-8000-00000000000a"))
    waiting = [asyncio.create_task(post(world, unknown)) for _ in range(3)]
    await soon(lambda: read == 5)
    other = await asyncio.wait_for(post(world, of_polars(rows(world, router.id, 4))), 10)
    assert (other.status_code, read) == (202, 6)
    goes_on.set()
    assert [(await task).status_code for task in waiting] == [422] * 3
    assert read == 9


@pytest.mark.alone
async def test_a_small_request_beside_large_ones_is_quick(world: World) -> None:
    """The loop is free while columns are read on their thread."""
    router = await world.router()
    body = of_polars(rows(world, router.id, 100_000, ok=[True] * 100_000), compression="zstd")
    small = [{"router_id": router.id, "metric": "m", "ts_ms": world.clock.now_ms(), "value": 1}]
    large = [asyncio.create_task(post(world, body)) for _ in range(4)]
    took = []
    while not all(task.done() for task in large):
        began = time.perf_counter()
        assert (await world.call("POST", "ingest", None, json=small)).status_code == 202
        took.append(time.perf_counter() - began)
    assert [(await task).status_code for task in large] == [202] * 4
    assert sorted(took)[len(took) // 2] < 0.1
