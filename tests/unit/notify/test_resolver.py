"""Look-ups of names: those that hang hold up nobody else's, and what is remembered is judged like a new answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from breaker_actors.notify.egress.guarded_backend import GuardedBackend, NameRefused
from breaker_actors.notify.egress.resolver import KNOWN_MAX, KNOWN_S, RESOLVERS, Resolver, asked_by

OUTSIDE, INSIDE = "127.0.0.2", "127.0.0.1"


class Threads(Executor):
    """Look-ups hang until a test answers them; those of names in `known` are answered at once."""

    def __init__(self) -> None:
        self.begun: dict[str, Future[list[str]]] = {}
        self.asked: Counter[str] = Counter()
        self.known: dict[str, list[str]] = {}

    def submit(self, look_up: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        (host,) = args
        self.asked[host] += 1
        found = self.begun[host] = Future()
        assert len(self.begun) <= RESOLVERS
        if host in self.known:
            self.answer(host, *self.known[host])
        return found

    def answer(self, host: str, *addresses: str) -> None:
        found = self.begun.pop(host)
        if addresses:
            found.set_result(list(addresses))
        else:
            found.set_exception(OSError())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass


class Names:
    """A Resolver over such threads."""

    def __init__(self) -> None:
        self.threads = Threads()
        self.resolver = Resolver(lambda address: address == OUTSIDE)
        self.resolver._threads.shutdown()
        self.resolver._threads = self.threads  # type: ignore[assignment]

    def ask(self, org_id: str, host: str) -> asyncio.Task[list[str]]:
        async def ask() -> list[str]:
            with asked_by(org_id):
                return await self.resolver(host, 443)

        return asyncio.create_task(ask())

    async def ask_many(self, org_id: str, count: int) -> list[asyncio.Task[list[str]]]:
        tasks = [self.ask(org_id, f"{org_id}-{n}.example") for n in range(count)]
        await settled()
        return tasks

    def under_way(self) -> Counter[str]:
        return Counter(host.partition("-")[0] for host in self.threads.begun)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def names() -> Iterator[Names]:
    made = Names()
    yield made
    made.resolver.close()


async def test_an_organisation_whose_names_hang_holds_up_no_other(names: Names) -> None:
    """Not two either: each has as many look-ups under way as threads are free."""
    await names.ask_many("slow", 384)
    assert names.under_way() == {"slow": RESOLVERS // 2}
    await names.ask_many("slower", 384)
    assert names.under_way()["slower"] == RESOLVERS // 4
    names.threads.known["victim.example"] = [OUTSIDE]
    assert await names.ask("victim", "victim.example") == [OUTSIDE]
    assert names.under_way().total() == RESOLVERS * 3 // 4


async def test_free_threads_go_to_organisations_in_turn(names: Names) -> None:
    await names.ask_many("a", 384)
    await names.ask_many("b", 384)
    for n in range(RESOLVERS // 2 - 1):
        names.threads.answer(f"a-{n}.example")
        await settled()
    found = names.under_way()
    assert abs(found["a"] - found["b"]) <= 1
    assert found.total() >= RESOLVERS * 2 // 3 - 1


async def test_what_nobody_waits_for_any_more_is_not_looked_up(names: Names) -> None:
    """What has begun can't be stopped; the next one who asks gets its answer."""
    tasks = await names.ask_many("o", 384)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    late = names.ask("o", "late.example")
    again = names.ask("o", "o-0.example")
    await settled()
    names.threads.answer("o-1.example", OUTSIDE)
    await settled()
    assert "late.example" in names.threads.begun
    assert names.threads.asked.total() == RESOLVERS // 2 + 1
    names.threads.answer("late.example")
    with pytest.raises(OSError):  # noqa: PT011 - none has words
        await late
    names.threads.answer("o-0.example", OUTSIDE)
    assert await again == [OUTSIDE]
    assert names.threads.asked["o-0.example"] == 1


async def test_one_look_up_for_all_of_an_organisation_that_ask_for_a_name(names: Names) -> None:
    first, second, other = names.ask("o", "x.example"), names.ask("o", "x.example"), names.ask("p", "x.example")
    await settled()
    assert names.threads.asked["x.example"] == 2
    first.cancel()
    names.threads.answer("x.example", OUTSIDE)  # the later one's, p's
    assert await other == [OUTSIDE]
    assert not second.done()


async def test_an_answer_is_remembered_for_a_while_and_for_who_asked(names: Names) -> None:
    names.threads.known["x.example"] = [OUTSIDE]
    for _ in range(3):
        assert await names.ask("o", "x.example") == [OUTSIDE]
        await asyncio.sleep(KNOWN_S / 4)
    assert names.threads.asked["x.example"] == 1
    assert await names.ask("p", "x.example") == [OUTSIDE]
    assert names.threads.asked["x.example"] == 2
    await asyncio.sleep(KNOWN_S / 4)
    names.threads.known["x.example"] = ["127.0.0.9"]
    assert await names.ask("o", "x.example") == ["127.0.0.9"]


async def test_what_leads_inside_or_nowhere_is_asked_for_each_time(names: Names) -> None:
    """So that the time does not tell one from the other."""
    names.threads.known["inside.example"] = [INSIDE]
    for _ in range(2):
        assert await names.ask("o", "inside.example") == [INSIDE]
        unknown = names.ask("o", "unknown.example")
        await settled()
        names.threads.answer("unknown.example")
        with pytest.raises(OSError):  # noqa: PT011
            await unknown
    assert names.threads.asked == {"inside.example": 2, "unknown.example": 2}


async def test_memory_has_a_bound(names: Names) -> None:
    for n in range(KNOWN_MAX + 5):
        names.threads.known[f"{n}.example"] = [OUTSIDE]
        await names.ask("o", f"{n}.example")
    assert len(names.resolver._known) == KNOWN_MAX
    await asyncio.sleep(KNOWN_S)
    await names.ask("o", "0.example")
    assert len(names.resolver._known) == 1


async def test_a_remembered_address_is_judged_and_the_judged_one_dialled(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is bound anew leads nowhere else while it is remembered, and is judged when it no longer is; nor is
    an address dialled that was allowed once and is no more."""
    dialled: list[str] = []
    allowed = {OUTSIDE}
    backend = GuardedBackend(names.resolver, allowed.__contains__, lambda port: True)

    async def dial(addresses: list[str], port: int, within_s: float) -> Any:
        dialled.extend(addresses)

    monkeypatch.setattr(backend, "_dial", dial)
    names.threads.known["x.example"] = [OUTSIDE, INSIDE]
    await backend.connect_tcp("x.example", 443)
    names.threads.known["x.example"] = [INSIDE]
    await backend.connect_tcp("x.example", 443)
    allowed.clear()
    with pytest.raises(NameRefused):
        await backend.connect_tcp("x.example", 443)
    allowed.add(OUTSIDE)
    await asyncio.sleep(KNOWN_S)
    with pytest.raises(NameRefused):
        await backend.connect_tcp("x.example", 443)
    assert dialled == [OUTSIDE, OUTSIDE]
