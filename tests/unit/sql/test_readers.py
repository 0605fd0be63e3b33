"""Threads that read: no organisation has all of them, those that wait take turns, and who leaves keeps nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from breaker_actors.errors import Unavailable
from breaker_actors.sql.readers import Readers, read_for


class Desk:
    """Reads that note whose turn it was, and go on when they may."""

    def __init__(self, threads: int) -> None:
        self.readers = Readers(threads)
        self.begun: list[str] = []
        self.go_on = threading.Semaphore(0)

    def read(self, owner: str) -> asyncio.Task[str]:
        async def asked() -> str:
            read_for(owner)
            return await self.readers.run(lambda: self._work(owner))

        return asyncio.create_task(asked())

    def _work(self, owner: str) -> str:
        self.begun.append(owner)
        assert self.go_on.acquire(timeout=30)
        return owner

    async def until(self, n: int) -> None:
        async with asyncio.timeout(10):
            while len(self.begun) < n:
                await asyncio.sleep(0.001)


@contextmanager
def desk(threads: int) -> Iterator[Desk]:
    found = Desk(threads)
    try:
        yield found
    finally:
        found.go_on.release(100)
        found.readers.shutdown(wait=True)


async def test_an_organisation_leaves_a_thread_to_whoever_comes() -> None:
    with desk(3) as d:
        many = [d.read("a") for _ in range(5)]
        await d.until(2)
        other = d.read("b")
        await d.until(3)
        assert d.begun == ["a", "a", "b"]
        d.go_on.release(100)
        assert await asyncio.gather(*many, other) == ["a"] * 5 + ["b"]


async def test_those_that_wait_take_turns() -> None:
    with desk(1) as d:
        tasks = [d.read(owner) for owner in "aaabbc"]
        await asyncio.sleep(0)
        for n in range(1, 7):
            await d.until(n)
            d.go_on.release()
        await asyncio.gather(*tasks)
        assert "".join(d.begun) == "aabcab"


async def test_what_nobody_asked_for_has_all_threads() -> None:
    with desk(2) as d:
        tasks = [d.read("") for _ in range(2)]
        await d.until(2)
        d.go_on.release(100)
        await asyncio.gather(*tasks)


async def test_who_leaves_keeps_no_place_but_that_of_a_read_that_began() -> None:
    """Else who asks and leaves, again and again, would fill the threads nevertheless."""
    with desk(3) as d:
        begun = [d.read("a") for _ in range(2)]
        await d.until(2)
        waits = d.read("a")
        await asyncio.sleep(0)
        for task in (*begun, waits):
            task.cancel()
        await asyncio.gather(*begun, waits, return_exceptions=True)
        late = [d.read("a"), d.read("b")]
        await d.until(3)
        await asyncio.sleep(0.05)
        assert d.begun == ["a", "a", "b"], "the first two are at work still"
        d.go_on.release(100)
        assert await asyncio.gather(*late) == ["a", "b"]


async def test_after_the_end_nothing_is_read() -> None:
    with desk(1) as d:
        d.readers.shutdown(wait=True)
        with pytest.raises(Unavailable):
            await d.read("a")


async def test_reads_that_are_done_in_line_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop without threads, as simulations have it: the place is free before the loop goes on."""
    loop = asyncio.get_running_loop()

    def in_line(_: object, work: Callable[[], int]) -> asyncio.Future[int]:
        done: asyncio.Future[int] = loop.create_future()
        done.set_result(work())
        return done

    monkeypatch.setattr(loop, "run_in_executor", in_line)
    readers = Readers(2)
    for n in range(5):
        with pytest.raises(StopIteration) as told:
            readers.run(lambda n=n: n).__await__().__next__()  # type: ignore[misc]
        assert told.value.value == n
    readers.shutdown(wait=True)
