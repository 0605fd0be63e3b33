"""Columns of one request in the whole engine: pieces that come again after a kill count once, also those of which some
rows have become too old meanwhile, and breakers are where the log leads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from api.arrow.frames import read_frame
from api.wire.sample_columns import PIECE_ROWS, Judged, Pieces, judge_frame, rounds
from api.wire.samples import ValidationContext
from breaker_actors.core.log_entries import SAMPLES, decode_samples
from breaker_actors.messages import Part
from tests.support.arrow_streams import of_polars
from tests.support.cluster import FAST_RULE, service, until

AGE_MS, ROWS = 60_000, 25_000


def sent(body: bytes, router_id: str, now_ms: int, append_id: bytes) -> tuple[Judged, list[list[Part]]]:
    bounds = ValidationContext.at(now_ms, AGE_MS, 0, {router_id: False}, None)
    judged = judge_frame(read_frame(body, 1 << 24), bounds)
    pieces = Pieces(judged, bounds).parts((append_id, b"the request's own"[:16]))
    return judged, list(rounds(pieces))


async def test_pieces_that_come_again_count_once(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        row = await s.breaker(**(FAST_RULE | {"kind": "p95", "window_ms": 120_000}))
        (router_id,), now_ms = row.router_ids, s.clock.now_ms()
        times = now_ms - AGE_MS + np.arange(ROWS) % 50_000
        columns = {"router_id": router_id, "metric": "latency", "ts_ms": times, "value": np.full(ROWS, 500.0)}
        body = of_polars(pl.DataFrame(columns))
        _, first = sent(body, router_id, now_ms, b"append-id-000001")
        assert [[part.count for part in parts] for parts in first] == [[PIECE_ROWS], [PIECE_ROWS], [5_000]]
        for parts in first[:2]:
            assert [o.status for o in await s.gateway.ingest(s.project.id, parts)] == ["ok"]
        await s.net.kill("router-0")
        s.net.revive("router", "router-0")
        judged, again = sent(body, router_id, now_ms + 2_000, b"append-id-000002")
        assert judged.rejected == 2_000
        words = [o.status for parts in again for o in await s.gateway.ingest(s.project.id, parts)]
        assert words == ["duplicate", "duplicate", "ok"]
        records = await s.cluster.log.read(await s.slot(router_id), router_id, 0, 1 << 60, 1 << 30)
        found = [decode_samples(record.payload).batch.ts_ms for record in records if record.kind == SAMPLES]
        assert np.concatenate(found).tolist() == times.tolist()

        async def tripped() -> bool:
            return (await s.state(row.id)).view.state == "open"

        await until(tripped)
        await s.assert_events_equal_replay(row)
