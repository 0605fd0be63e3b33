"""A flood of one project in the lanes to a router's log: others wait for a group or two, and find room."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from breaker_actors.core.log_entries import SAMPLES, encode_samples
from breaker_actors.messages import AppendResult, Part
from breaker_actors.router.host import RECORD_ROWS_MAX
from tests.support.cluster import Service, service
from tests.unit.engine.test_fairness import QUIET, neighbour

ROWS = RECORD_ROWS_MAX
PAYLOAD = encode_samples(["other"], [ROWS], np.zeros(ROWS, np.int64), np.zeros(ROWS), np.ones(ROWS, bool))


def part(router_id: str) -> Part:
    """As much as a group carries, which no breaker hears."""
    return Part(router_id, (os.urandom(16),), PAYLOAD, ROWS)


async def flood(s: Service, router_id: str) -> list[AppendResult]:
    """A request of 100,000 rows, two records at a time, as an Arrow stream is stored."""
    found: list[AppendResult] = []
    for _ in range(5):
        found += await s.gateway.ingest(s.project.id, [part(router_id) for _ in range(2)])
    return found


async def test_a_sample_beside_ten_floods_waits_for_a_group_or_two(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1, **QUIET) as s:
        other = await neighbour(s)
        greedy, quiet = (await s.breaker()).router_ids[0], (await other.breaker()).router_ids[0]
        router: Any = s.net.actors["router-0"]
        floods = [asyncio.create_task(flood(s, greedy)) for _ in range(10)]
        while not router._work.calls or not any(lane.weight for lane in s.gateway._lanes.values()):  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        waited = []
        for _ in range(5):
            before = router._appends._records[SAMPLES]
            assert (await other.send(quiet, [1.0])).status == "ok"
            waited.append(router._appends._records[SAMPLES] - before)
        assert max(waited) <= 4, "with its own record"
        assert {outcome.status for one in await asyncio.gather(*floods) for outcome in one} == {"ok"}


async def test_a_project_finds_room_whatever_another_sends(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1, **QUIET) as s:
        other = await neighbour(s)
        greedy, quiet = (await s.breaker()).router_ids[0], (await other.breaker()).router_ids[0]
        floods = [asyncio.create_task(s.gateway.ingest(s.project.id, [part(greedy)])) for _ in range(60)]
        await asyncio.sleep(0)
        assert (await other.send(quiet, [1.0])).status == "ok"
        words = [outcome.status for one in await asyncio.gather(*floods) for outcome in one]
        assert words.count("ok") >= 20, "one alone has the whole bound"
        assert "full" in words


async def test_in_a_routers_lane_projects_take_turns_and_each_log_stays_in_order(tmp_path: Path) -> None:
    """Steps wait for no samples, and what waited while a watermark was given is stamped behind it."""
    async with service(tmp_path, breaker_actors=1, **QUIET) as s:
        other = await neighbour(s)
        greedy, row = (await s.breaker()).router_ids[0], await other.breaker()
        quiet = row.router_ids[0]
        router: Any = s.net.actors["router-0"]
        floods = [asyncio.create_task(router.append([part(greedy)])) for _ in range(20)]
        await asyncio.sleep(0)
        before = router._appends._records[SAMPLES]
        upto = s.clock.now_ms()
        given = asyncio.create_task(router.advance_watermark(upto, [(greedy, "nobody"), (quiet, row.id)]))
        first = asyncio.create_task(router.append([Part(quiet, (os.urandom(16),), PAYLOAD, 5_000)]))
        second = asyncio.create_task(router.append([Part(quiet, (os.urandom(16),), PAYLOAD, 6_000)]))
        await given
        assert router._appends._records[SAMPLES] - before <= 2
        (one,), (two,) = await first, await second
        assert router._appends._records[SAMPLES] - before <= 5
        assert (one.status, two.status, two.offset) == ("ok", "ok", one.offset + 1)
        offsets = [outcome.offset for found in await asyncio.gather(*floods) for outcome in found]
        assert offsets == sorted(offsets)
        slot = router._owned.by_id[greedy].slot
        records = await s.cluster.log.read(slot, greedy, offsets[2], offsets[-1], 100)
        assert {record.kind for record in records} == {SAMPLES}
        assert all(record.received_ms > upto for record in records)


@pytest.mark.parametrize(("wait_ms", "least", "most"), [(10_000, 8, 10), (0, 0, 2)])
async def test_appends_go_between_watermarks_for_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_ms: int, least: int, most: int
) -> None:
    """Until half of the time is over that whoever asks for them waits."""
    monkeypatch.setattr("breaker_actors.router.host.WATERMARKS_AT_ONCE", 2)
    async with service(tmp_path, breaker_actors=1, **QUIET) as s:
        other = await neighbour(s)
        row, quiet = await s.breaker(), (await other.breaker()).router_ids[0]
        router: Any = s.net.actors["router-0"]
        router._settings = router._settings.model_copy(update={"owner_timeout_ms": wait_ms})
        pairs = [(row.router_ids[0], row.id), (quiet, "nobody")] * 10
        given, between = asyncio.create_task(router.advance_watermark(s.clock.now_ms(), pairs)), 0
        await asyncio.sleep(0)
        while not given.done():
            (outcome,) = await router.append([Part(quiet, (os.urandom(16),), PAYLOAD, ROWS)])
            assert outcome.status == "ok"
            between += 1
        assert [answer.status for answer in await given] == ["given", "not_subscribed"] * 10
        assert least <= between <= most
