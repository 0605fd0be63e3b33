"""The sender of a replica: organisations share what is under way, and nobody waits for another's receivers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from breaker_actors.errors import Overloaded
from breaker_actors.notify import lazy_sender
from breaker_actors.notify.egress.http import CONNECTIONS
from breaker_actors.notify.lazy_sender import TESTS_MAX, LateSender
from breaker_actors.notify.model import Attempt, Destination, Message
from tests.unit.notify.messages import TEST

SENT = Attempt(result="sent", status=200)


class Hanging:
    """A sender whose receivers answer when they may."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.go = asyncio.Event()

    async def send(self, to: Destination, message: Message) -> Attempt:
        self.begun.put_nowait(to.org_id)
        await self.go.wait()
        return SENT

    async def examine(self, org_id: str, many: Sequence[Destination]) -> list[str | None]:
        raise NotImplementedError

    async def close(self) -> None:
        self.go.set()


def _of(org_id: str) -> Destination:
    return Destination(channel_id="c", kind="webhook", config={"url": "https://h.example/"}, org_id=org_id)


def test_each_test_finds_a_connection() -> None:
    assert TESTS_MAX <= CONNECTIONS


async def test_who_has_as_many_tests_under_way_as_are_left_free_hears_so_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lazy_sender, "TESTS_MAX", 6)
    inner = Hanging()
    late = LateSender(lambda: inner)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        busy = [tasks.create_task(late.send(_of("a"), TEST)) for _ in range(3)]
        for _ in busy:
            assert await inner.begun.get() == "a"
        with pytest.raises(Overloaded) as refusal:
            await late.send(_of("a"), TEST)
        assert refusal.value.details == {"limit": "test notifications under way", "retry_after_s": 1}
        other = tasks.create_task(late.send(_of("b"), TEST))
        assert await inner.begun.get() == "b"
        busy[0].cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        busy.append(tasks.create_task(late.send(_of("a"), TEST)))
        assert await inner.begun.get() == "a"
        inner.go.set()
    assert [task.result() for task in (*busy[1:], other)] == [SENT] * 4
    assert await late.send(_of("a"), TEST) == SENT
