"""What open pages are told: moves, settings and figures of what they show; merged, bounded, over with their session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack

import pytest

from api.stream.listeners import OF_SESSION_MAX, PAGES_MAX, TOLD_MAX, Listener, Listeners, News
from breaker_actors.errors import Overloaded
from breaker_actors.messages import EVERY_PROJECT, FeedEntry, StateReading
from breaker_actors.telemetry.meters import Meters
from tests.support.fake_gateway import view
from tests.support.web_world import World, soon
from tests.unit.api.console.conftest import Visitor

KEY = ("key", "k"), ("organisation", "o")


class Sessions:
    """A store that knows which sessions live."""

    def __init__(self) -> None:
        self.live = {"token"}

    async def live_sessions(self, tokens: Sequence[str], now_ms: int) -> set[str]:
        return self.live & set(tokens)


class States:
    def __init__(self) -> None:
        self.reads: list[list[str]] = []
        self.value = 1.0

    async def read(self, project_id: str, ids: Sequence[str]) -> dict[str, StateReading]:
        self.reads.append(list(ids))
        return {id_: StateReading(breaker_id=id_, view=view(value=self.value)) for id_ in ids}


@pytest.fixture
async def sessions() -> Sessions:
    return Sessions()


@pytest.fixture
async def states() -> States:
    return States()


@pytest.fixture
async def listeners(sessions: Sessions, states: States, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listeners]:
    monkeypatch.setattr("api.stream.listeners.TICK_S", 0.01)
    found = Listeners(sessions, states.read, lambda: 1, Meters("api", "api"))  # type: ignore[arg-type]
    found.start()
    yield found
    await found.stop()


def moved(project_id: str, breaker_id: str) -> FeedEntry:
    return FeedEntry(1, "state", project_id, breaker_id, "open", 0.0, 1)


async def heard(listener: Listener) -> News:
    assert await listener.waited(5.0)
    return listener.news()


async def test_a_page_hears_of_its_project_alone(listeners: Listeners) -> None:
    with listeners.listening("p", "token", KEY, []) as ours, listeners.listening("q", "token", KEY, []) as other:
        for id_ in ("a", "b", "a"):
            listeners.hear(moved("p", id_))
        assert await heard(ours) == News(moved=("a", "b"))
        listeners.hear(FeedEntry(2, "config", "p"))
        assert await heard(ours) == News(config=True)
        assert not await other.waited(0.01)
        listeners.hear(FeedEntry(3, "config", EVERY_PROJECT))
        assert (await heard(other)).config
    assert len(listeners) == 0


async def test_more_than_can_be_named_is_said_to_be_many(listeners: Listeners) -> None:
    with listeners.listening("p", "token", KEY, []) as page:
        for n in range(TOLD_MAX + 5):
            listeners.hear(moved("p", f"b{n}"))
        news = await heard(page)
        assert (len(news.moved), news.many) == (TOLD_MAX, True)


async def test_figures_are_read_once_for_all_pages_and_told_when_they_change(
    listeners: Listeners, states: States
) -> None:
    with (
        listeners.listening("p", "token", KEY, ["a", "b"]) as first,
        listeners.listening("p", "token", KEY, ["b"]) as second,
    ):
        await soon(lambda: len(states.reads) > 3)
        assert all(ids == ["a", "b"] for ids in states.reads)
        assert not await first.waited(0.05), "nothing has changed"
        states.value = 2.0
        assert await heard(first) == News(figures=("a", "b"))
        assert await heard(second) == News(figures=("b",))


async def test_a_page_that_was_let_in_before_its_session_was_over_is_over_too(
    listeners: Listeners, sessions: Sessions
) -> None:
    sessions.live.clear()
    listeners.hear(FeedEntry(1, "keys", "p"))
    await soon(lambda: not listeners._access_changed.is_set())
    with listeners.listening("p", "token", KEY, []) as page:
        assert await page.waited(5.0)
        assert page.over


async def test_a_page_is_over_with_its_session(listeners: Listeners, sessions: Sessions) -> None:
    with listeners.listening("p", "token", KEY, []) as page:
        listeners.hear(FeedEntry(1, "keys", "p"))
        assert not await page.waited(0.05)
        sessions.live.clear()
        listeners.hear(FeedEntry(2, "keys", "p"))
        assert await page.waited(5.0)
        assert page.over


async def test_one_session_has_so_many_pages(listeners: Listeners) -> None:
    pages = [listeners.listening("p", "token", KEY, []) for _ in range(OF_SESSION_MAX)]
    for page in pages:
        page.__enter__()
    with pytest.raises(Overloaded), listeners.listening("p", "token", KEY, []):
        pass
    with listeners.listening("p", "other", KEY, []):
        pass
    for page in pages:
        page.__exit__(None, None, None)


async def test_a_key_and_an_organisation_leave_pages_to_others(listeners: Listeners) -> None:
    """However many sessions they begin."""
    with ExitStack() as open_pages:

        def opened(key: str, org: str) -> int:
            for n in range(PAGES_MAX):
                holders = ("key", key), ("organisation", org)
                try:
                    open_pages.enter_context(listeners.listening("p", f"{key} {n // OF_SESSION_MAX}", holders, []))
                except Overloaded:
                    return n
            return PAGES_MAX

        assert [opened(key, "o") for key in "abc"] == [PAGES_MAX // 8, PAGES_MAX // 8, 0]
        assert opened("d", "other") == PAGES_MAX // 8
    assert opened("a", "o") == PAGES_MAX // 8


async def test_the_stream_tells_and_ends_when_its_reader_signs_out(world: World, ann: Visitor) -> None:
    row = await world.breaker("a")
    await ann.page()
    client = world.app.test_client()
    headers = {"Cookie": f"breakers_session={ann.token}"}
    async with client.request(f"{ann.path('live')}?ids={row.id}", headers=headers) as stream:
        assert await stream.receive() == b"event: on\ndata: {}\n\n"
        await soon(lambda: len(world.app.extensions["breakers"].listeners) == 1)
        world.gateway.say(moved(world.project.id, row.id))
        async with asyncio.timeout(5):
            assert await stream.receive() == b'event: news\ndata: {"moved":["' + row.id.encode() + b'"]}\n\n'
            assert (await ann.post("/console/sign-out")).status == 303
            await world.gateway.announce("keys", [""])
            assert await stream.receive() == b"event: over\ndata: {}\n\n"
