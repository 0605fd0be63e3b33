"""When everything is collected: by what streams left behind, and now and then."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from api.launch import gc_policy as garbage
from tests.support.fake_gateway import FakeClock
from tests.support.web_world import soon


class Streams:
    def __init__(self) -> None:
        self.ended = self.open = 0

    def stream_count(self) -> int:
        return self.open


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    monkeypatch.setattr(garbage, "LOOK_S", 0.001)
    thresholds, done = gc.get_threshold(), list[int]()
    monkeypatch.setattr(gc, "collect", lambda: done.append(1))
    monkeypatch.setattr(gc, "freeze", lambda: done.append(0))
    yield done
    gc.set_threshold(*thresholds)


async def test_ended_streams_and_time_decide(collections: list[int]) -> None:
    streams, clock = Streams(), FakeClock()
    task = asyncio.create_task(garbage.collect_rarely(streams, clock))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    assert gc.get_threshold()[2] == garbage.NEVER
    assert collections == [0], "what is there from the start is not looked at"
    collections.clear()
    streams.open, streams.ended = 5_000, 5_000
    await asyncio.sleep(0.05)
    assert collections == []
    streams.ended = 5_001
    await soon(lambda: collections == [1])
    streams.open, streams.ended = 0, 5_001 + garbage.LEAST
    await asyncio.sleep(0.05)
    assert collections == [1]
    clock.seconds += garbage.MOST_S + 1
    await soon(lambda: collections == [1, 1])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_streams_that_end_on_and_on_stop_the_process_for_a_part_of_the_time_only(
    collections: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, clock = Streams(), FakeClock()

    def collect() -> None:
        collections.append(1)
        clock.seconds += 2

    monkeypatch.setattr(gc, "collect", collect)
    task = asyncio.create_task(garbage.collect_rarely(streams, clock))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    streams.ended += garbage.LEAST + 1
    await soon(lambda: collections == [0, 1])
    streams.ended += garbage.LEAST + 1
    clock.seconds += 2 * garbage.REST - 1
    await asyncio.sleep(0.05)
    assert collections == [0, 1]
    clock.seconds += 1
    await soon(lambda: collections == [0, 1, 1])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
