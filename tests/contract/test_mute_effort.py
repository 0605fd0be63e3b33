"""Store: mutes at their documented bounds cost counted work that does not grow with the rows they hold back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from breaker_actors.store.mutes import matching
from breaker_actors.store.mutes.matching import Matcher
from breaker_actors.store.mutes.schedule import WEEKDAYS, Window
from breaker_actors.store.outbox import held, judging, muting
from tests.contract.mute_world import HOUR, NAMED_A, MuteWorld
from tests.contract.store_world import World


class Counted:
    """How often something was called."""

    def __init__(self, of: Any) -> None:
        self._of = of
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self._of(*args)


@pytest.fixture
async def told(world: World) -> MuteWorld:
    told = MuteWorld(world)
    await told.open()
    return told


async def test_a_schedule_is_asked_once_for_each_mute(told: MuteWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole days, twenty times over, and many channels."""
    asked, compared = Counted(judging.stretch), Counted(matching._holds)
    channels, row = [await told.channel() for _ in range(12)], await told.breaker()
    for number in range(6):
        windows = tuple(
            Window(weekdays=WEEKDAYS, begins=f"{hour:02}:{number:02}", ends=f"{hour:02}:{number:02}")
            for hour in range(20)
        )
        await told.mute(NAMED_A, ends_ms=None, windows=windows, zone="Europe/Berlin")
    monkeypatch.setattr(judging, "stretch", asked)
    monkeypatch.setattr(matching, "_holds", compared)
    await told.moves(row.id, "open")
    assert (asked.calls, compared.calls) == (6, 1)
    assert [await told.words(channel.id) for channel in channels] == [["trip held"]] * 12
    assert await told.look() == {}
    assert (asked.calls, compared.calls) == (12, 2)


async def test_beyond_the_budget_people_hear(told: MuteWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, and nobody else's mutes are looked at less."""
    channel, rows = await told.channel(), [await told.breaker(name) for name in "ab"]
    other = MuteWorld(await told.world.neighbour("other"))
    theirs, mine = await other.channel(), await other.breaker()
    await other.mute(NAMED_A)
    for _ in range(4):
        await told.mute(*(Matcher(field="name", op="glob", value="*" + "?" * 200 + "*") for _ in range(20)))
    await told.mute(ends_ms=10)
    monkeypatch.setattr(muting, "EFFORT_MAX", 8_000)
    commits = [told.commit(row.id, "open") for row in rows]
    await told.world.take_journal()
    assert await told.world.write(*commits, other.commit(mine.id, "open")) == ["ok"] * 3
    assert await told.words(channel.id) == ["trip pending"] * 2
    assert await other.words(theirs.id) == ["trip held"]
    assert (await told.store.stored_figures()).unmuted == 2


async def test_a_look_ends_where_its_effort_does_and_goes_on_there(
    told: MuteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, rows = await told.channel(), [await told.breaker(f"b{number}") for number in range(6)]
    await told.mute(Matcher(field="name", op="glob", value="b*"))
    for row in rows:
        await told.moves(row.id, "open")
    monkeypatch.setattr(held, "EFFORT_MAX", held.LOADED + 3_000)
    first = await told.store.look_at_held(told.epoch, 10_000)
    assert first.last is not None
    numbers = [one.number for one in await told.rows(channel.id)]
    assert numbers[0] <= first.last < numbers[-1]
    assert await told.look() == {}
    monkeypatch.setattr(held, "EFFORT_MAX", 100)
    assert await told.look() == {"pending": 6}
    assert (await told.store.stored_figures()).unmuted == 6


async def test_routers_are_read_where_a_matcher_asks_and_so_many(
    told: MuteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, row = await told.channel(), await told.breaker()
    for env in ("a", "a", "b"):
        await told.world.router(row.id, metadata={"env": env})
    read = Counted(muting.Routers.of)
    monkeypatch.setattr(muting.Routers, "of", lambda self, id_: read(self, id_))
    await told.mute(NAMED_A, ends_ms=500)
    await told.mute(Matcher(field="name", op="=", value="z"), Matcher(field="router.env", op="=", value="b"))
    await told.moves(row.id, "open")
    assert read.calls == 0
    assert await told.words(channel.id) == ["trip pending"]
    await told.mute(Matcher(field="router.env", op="=", value="b"))
    await told.moves(row.id, "half_open", "open")
    assert read.calls == 1
    assert (await told.words(channel.id))[-1] == "trip held"


async def test_projects_have_their_turns(told: MuteWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    other = MuteWorld(await told.world.neighbour("other"))
    for world, count in ((told, 5), (other, 1)):
        await world.channel()
        await world.mute()
        await world.world.take_journal()
        for number in range(count):
            await world.moves((await world.breaker(f"b{number}")).id, "open")
    mine, theirs = told.world.project_id, other.world.project_id
    assert sorted(await told.store.held_projects()) == sorted([(told.world.org_id, mine), (other.world.org_id, theirs)])
    monkeypatch.setattr(held, "LOOK_MAX", 4)
    monkeypatch.setattr(held, "SHARE_MIN", 2)
    looked = await told.store.look_at_held(told.epoch, HOUR, 0, {mine: 0, theirs: 0})
    assert looked.states == {"pending": 3}
    after = looked.turns[mine]
    assert looked.turns == {mine: after, theirs: None}
    assert after is not None
    assert (await told.store.look_at_held(told.epoch, HOUR, 0, {mine: after})).states == {"pending": 3}
    assert await told.store.held_projects() == []


async def test_what_was_muted_since_it_was_decided_is_not_released(told: MuteWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    await told.mute(ends_ms=5_000)
    await told.moves(row.id, "open")
    plan = await told.store._db.read(lambda c: held.look(c, told.epoch, 6_000, 0, {}))
    await told.mute(now_ms=5_999)
    looked = await told.store._db.write(lambda c: held.carry_out(c, told.epoch, 6_000, plan))
    assert looked.states == {}
    assert await told.words(channel.id) == ["trip held"]


async def test_a_comment_is_no_news(told: MuteWorld) -> None:
    mute, before = await told.mute(), await told.store.held_news()

    async def change(**fields: Any) -> None:
        await told.store.update_mute(
            told.world.project_id, mute.id, lambda row: msgspec.structs.replace(row, **fields), 1
        )

    before = await told.store.held_news()
    await change(comment="another")
    assert await told.store.held_news() == before
    await change(comment="yet another", ends_ms=HOUR - 1)
    assert await told.store.held_news() != before
