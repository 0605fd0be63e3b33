"""What open pages are told: moves, settings and figures of what they show; merged, bounded, over with their session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from uuid import uuid4

import pytest

from api.stream.listeners import LOOKS_MAX, OF_SESSION_MAX, PAGES_MAX, TOLD_MAX, Listener, Listeners, News
from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import Overloaded
from breaker_actors.messages import EVERY_PROJECT, FeedEntry, StateReading
from breaker_actors.sql.readers import _OWNER
from breaker_actors.store.rows import BreakerDraft
from breaker_actors.telemetry.meters import Meters
from tests.support.fake_gateway import view
from tests.support.web_world import RULE, World, soon
from tests.unit.api.console.conftest import Visitor

KEY = ("key", "k"), ("organisation", "o")


class Sessions:
    """A store that knows which sessions live."""

    def __init__(self) -> None:
        self.live = {"token"}
        self.deleted: set[str] = set()

    async def live_sessions(self, tokens: Sequence[str], now_ms: int) -> set[str]:
        return self.live & set(tokens)

    async def live_projects(self, project_ids: Sequence[str]) -> set[str]:
        return set(project_ids) - self.deleted


class States:
    """`absent`: ids of no breaker; `slow`: projects that wait until `go`; `whose`: for which organisation each project
    is read."""

    def __init__(self) -> None:
        self.reads: list[list[str]] = []
        self.of: list[str] = []
        self.whose: set[tuple[str, str]] = set()
        self.value = 1.0
        self.absent: set[str] = set()
        self.slow: set[str] = set()
        self.broken = 0
        self.go = asyncio.Event()

    async def find(self, project_id: str, ids: Sequence[str]) -> dict[str, StateReading]:
        self.reads.append(list(ids))
        self.of.append(project_id)
        self.whose.add((project_id, _OWNER.get()))
        absent = frozenset(self.absent)
        if project_id in self.slow:
            await self.go.wait()
        if self.broken:
            self.broken -= 1
            raise ZeroDivisionError
        return {id_: StateReading(breaker_id=id_, view=view(value=self.value)) for id_ in ids if id_ not in absent}


@pytest.fixture
async def sessions() -> Sessions:
    return Sessions()


@pytest.fixture
async def states() -> States:
    return States()


@pytest.fixture
async def listeners(sessions: Sessions, states: States, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listeners]:
    monkeypatch.setattr("api.stream.listeners.TICK_S", 0.01)
    found = Listeners(sessions, states.find, lambda: 1, Meters("api", "api"))  # type: ignore[arg-type]
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


async def test_what_is_no_breaker_is_asked_for_once_until_something_is_set_otherwise(
    listeners: Listeners, states: States
) -> None:
    """Also what a page watched while it was deleted."""
    states.absent = {"b"}
    with listeners.listening("p", "token", KEY, ["a", "b"]) as page:
        await soon(lambda: len(states.reads) > 3)
        assert states.reads[0] == ["a", "b"]
        assert all(ids == ["a"] for ids in states.reads[1:])
        states.absent = {"a"}
        listeners.hear(FeedEntry(1, "config", "p"))
        await soon(lambda: states.reads[-1] == ["b"])
        n = len(states.reads)
        await soon(lambda: len(states.reads) > n + 3)
        assert all(ids == ["b"] for ids in states.reads[n:])
        states.value = 2.0
        await soon(lambda: page.news() == News(figures=("b",)))
        listeners.hear(FeedEntry(2, "config", EVERY_PROJECT))
        await soon(lambda: ["a", "b"] in states.reads[n:])
    assert not listeners._absent


async def test_a_change_that_is_heard_during_a_look_voids_what_it_did_not_find(
    listeners: Listeners, states: States
) -> None:
    states.absent, states.slow = {"a"}, {"p"}
    with listeners.listening("p", "token", KEY, ["a"]):
        await soon(lambda: states.reads)
        states.absent = set()
        listeners.hear(FeedEntry(1, "config", "p"))
        states.go.set()
        await soon(lambda: len(states.reads) > 2)


async def test_a_project_that_waits_holds_up_no_other(listeners: Listeners, states: States) -> None:
    """However many of one organisation wait: LOOKS_MAX at a time, then it is another one's turn."""
    waiting = [f"w{n}" for n in range(3 * LOOKS_MAX)]
    states.slow = set(waiting[1:])
    with ExitStack() as pages:
        pages.enter_context(listeners.listening("w0", "token", KEY, ["a"]))
        for project_id in waiting[1:LOOKS_MAX]:
            pages.enter_context(listeners.listening(project_id, "token", KEY, ["a"]))
        await soon(lambda: states.of.count("w0") > 3)
        assert max(map(states.of.count, waiting[1:LOOKS_MAX])) == 1, "one look at a time"
        for project_id in waiting[LOOKS_MAX:]:
            pages.enter_context(listeners.listening(project_id, f"token {project_id}", KEY, ["a"]))
        await soon(lambda: len(listeners._due) == len(waiting))
        other = ("key", "x"), ("organisation", "other")
        pages.enter_context(listeners.listening("other", "token 2", other, ["a"]))
        await soon(lambda: "other" in listeners._due)
        n = len(states.of)
        states.go.set()
        await soon(lambda: "other" in states.of)
        assert states.of[n:].index("other") <= 1


async def test_figures_are_read_in_their_organisations_turns(listeners: Listeners, states: States) -> None:
    other = ("key", "x"), ("organisation", "other")
    with listeners.listening("p", "token", KEY, ["a"]), listeners.listening("q", "token", other, ["b"]):
        await soon(lambda: min(map(states.of.count, "pq")) > LOOKS_MAX)
    assert states.whose == {("p", "o"), ("q", "other")}


async def test_looks_go_on_behind_a_bug(listeners: Listeners, states: States) -> None:
    states.broken = 2 * LOOKS_MAX
    with listeners.listening("p", "token", KEY, ["a"]):
        await soon(lambda: len(states.reads) > 2 * LOOKS_MAX + 2)


async def test_a_page_ends_with_its_project(listeners: Listeners, sessions: Sessions) -> None:
    """Also one that was let in just before."""
    with listeners.listening("p", "token", KEY, []) as page, listeners.listening("q", "token", KEY, []) as other:
        sessions.deleted.add("p")
        listeners.hear(FeedEntry(1, "keys", "p"))
        assert await page.waited(5.0)
        assert page.end == "gone"
        assert not await other.waited(0.05)
    with listeners.listening("p", "token", KEY, []) as late:
        assert await late.waited(5.0)
        assert late.end == "gone"


async def test_owners_are_asked_for_the_projects_own_breakers_alone(
    world: World, ann: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ids a page names."""
    row, draft = await world.breaker("a"), BreakerDraft(rule=parse_rule(RULE))
    theirs = (await world.store.create_breaker(world.other.id, draft, world.clock.now_ms()))[0]
    asked: list[str] = []

    async def read(project_id: str, ids: Sequence[str]) -> dict[str, StateReading]:
        asked.extend(ids)
        return {id_: StateReading(breaker_id=id_, view=view()) for id_ in ids}

    monkeypatch.setattr(world.gateway, "states", read)
    await ann.page()
    listeners, asked[:] = world.app.extensions["breakers"].listeners, []
    with listeners.listening(world.project.id, "token", KEY, [row.id, theirs.id, str(uuid4())]):
        await listeners._look(world.project.id)
    assert asked == [row.id]


async def test_the_stream_says_that_its_project_is_gone(world: World, ann: Visitor) -> None:
    await ann.page()
    headers = {"Cookie": f"breakers_session={ann.token}"}
    async with world.app.test_client().request(ann.path("live"), headers=headers) as stream:
        assert await stream.receive() == b"event: on\ndata: {}\n\n"
        await soon(lambda: len(world.app.extensions["breakers"].listeners) == 1)
        deleted = await world.call("DELETE", world.path)
        assert deleted.status_code == 204, await deleted.get_data()
        async with asyncio.timeout(5):
            while (word := await stream.receive()).startswith(b"event: news"):
                pass
            assert word == b"event: gone\ndata: {}\n\n"


async def test_a_page_that_was_let_in_before_its_session_was_over_is_over_too(
    listeners: Listeners, sessions: Sessions
) -> None:
    sessions.live.clear()
    listeners.hear(FeedEntry(1, "keys", "p"))
    await soon(lambda: not listeners._access_changed.is_set())
    with listeners.listening("p", "token", KEY, []) as page:
        assert await page.waited(5.0)
        assert page.end == "over"


async def test_a_page_is_over_with_its_session(listeners: Listeners, sessions: Sessions) -> None:
    with listeners.listening("p", "token", KEY, []) as page:
        listeners.hear(FeedEntry(1, "keys", "p"))
        assert not await page.waited(0.05)
        sessions.live.clear()
        listeners.hear(FeedEntry(2, "keys", "p"))
        assert await page.waited(5.0)
        assert page.end == "over"


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
