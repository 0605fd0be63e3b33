"""Store: mutes at their documented bounds cost counted work that does not grow with the rows they hold back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sqlalchemy.event import listens_for

from breaker_actors.store.mutes import matching
from breaker_actors.store.mutes.matching import Matcher
from breaker_actors.store.mutes.schedule import WEEKDAYS, Window
from breaker_actors.store.outbox import held, judges, judging, muting
from breaker_actors.store.outbox.muting import told_late
from breaker_actors.text import globs
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


SLOW = tuple(Matcher(field="name", op="glob", value="*" + "?" * 200 + "*") for _ in range(20))


async def slow_to_match(told: MuteWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project whose mutes take more effort than a transaction has."""
    for _ in range(4):
        await told.mute(*SLOW)
    monkeypatch.setattr(judges, "EFFORT_MAX", 400 + 8 * judging.LOADED + 8_000)
    monkeypatch.setattr(judges, "PART_MIN", 1_000)


async def test_beyond_the_effort_trips_are_held_until_the_notifier_has_decided(
    told: MuteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else's mutes are looked at less."""
    channel, rows = await told.channel(), [await told.breaker(name) for name in "ab"]
    other = MuteWorld(await told.world.neighbour("other"))
    theirs, mine = await other.channel(), await other.breaker()
    await other.mute(NAMED_A)
    await told.mute(Matcher(field="name", op="=", value="b"), ends_ms=HOUR // 2)
    await slow_to_match(told, monkeypatch)
    commits = [told.commit(row.id, "open") for row in rows]
    await told.world.take_journal()
    assert await told.world.write(*commits, other.commit(mine.id, "open")) == ["ok"] * 3
    assert await told.words(channel.id) == ["trip held"] * 2
    assert await told.mutes_of(channel.id) == [None, None]
    assert await other.words(theirs.id) == ["trip held"]
    assert await other.mutes_of(theirs.id) != [None]
    assert await told.look() == {"pending": 1}
    assert await told.words(channel.id) == ["trip pending", "trip held"]
    assert None not in (await told.mutes_of(channel.id))[1:]
    assert (await told.take(channel.id))[0].told.muted_by is None
    assert (await told.store.stored_figures()).unmuted == 0


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(("muted", "spent"), [(False, True), (False, False), (True, False)])
async def test_a_recovery_decides_about_its_trip_where_nobody_has(
    told: MuteWorld, monkeypatch: pytest.MonkeyPatch, apart: bool, muted: bool, spent: bool
) -> None:
    """As of the trip's time. Where there is no effort for it both go out, counted: better heard than lost."""
    monkeypatch.setattr(judges, "EFFORT_MAX", 0)
    await told.mute(NAMED_A, starts_ms=0 if muted else 1_500)
    ends = ["trip suppressed", "recover suppressed"] if muted and apart else ["trip pending", "recover pending"]
    channel, row = await told.channel(), await told.breaker()
    first, then = told.commit(row.id, "open"), told.commit(row.id, "half_open", "closed")
    if apart:
        assert await told.world.write(first) == ["ok"]
        assert await told.words(channel.id) == ["trip held"]
        if not spent:
            monkeypatch.setattr(judges, "EFFORT_MAX", judging.EFFORT_MAX)
        assert await told.world.write(then) == ["ok"]
    else:
        assert await told.world.write(first, then) == ["ok"] * 2
    assert await told.words(channel.id) == ends
    assert (await told.store.stored_figures()).unmuted == (2 if spent or not apart else 0)
    assert await told.look() == {}


async def test_one_effort_serves_all_projects_of_a_commit(told: MuteWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading mutes is a part of it: what is loaded and compared does not grow with the projects."""
    worlds = [MuteWorld(await told.world.neighbour(f"o{number}")) for number in range(12)]
    rows = []
    for one in worlds:
        await one.channel()
        rows.append(await one.breaker())
        for _ in range(2):
            await one.mute(*(Matcher(field="name", op="glob", value="*a*") for _ in range(20)))
    await told.world.take_journal()
    monkeypatch.setattr(judges, "EFFORT_MAX", 12 * judging.LOADED)
    monkeypatch.setattr(judges, "PART_MIN", 1_000)
    loaded, compared = Counted(muting.mute_of), Counted(globs.matches)
    monkeypatch.setattr(muting, "mute_of", loaded)
    monkeypatch.setattr(globs, "matches", compared)
    commits = [one.commit(row.id, "open") for one, row in zip(worlds, rows, strict=True)]
    assert await told.world.write(*commits) == ["ok"] * 12
    assert loaded.calls == 6
    assert globs.BEGIN * compared.calls <= 12 * judging.LOADED
    held_back = [await one.words((await one.store.list_channels(one.world.project_id))[0].id) for one in worlds]
    assert held_back == [["trip held"]] * 12


def test_who_takes_little_leaves_the_rest_to_others() -> None:
    effort = matching.Effort(100)
    given = {}
    for key, part in judges.divided(effort, {"large": 9, "small": 1, "larger": 10}):
        given[key] = part.left
        part.left -= 4 if key == "small" else part.left
    assert (given, effort.left) == ({"small": 33, "large": 48, "larger": 48}, 0)
    parts = [part.left for _, part in judges.divided(matching.Effort(100), dict.fromkeys("abcdef", 1), 40)]
    assert parts == [40, 40, 40, 40, 50, 100], "none spent anything"


async def test_a_look_ends_where_its_effort_does_and_goes_on_there(
    told: MuteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, rows = await told.channel(), [await told.breaker(f"b{number}") for number in range(6)]
    await told.mute(Matcher(field="name", op="glob", value="b*"))
    for row in rows:
        await told.moves(row.id, "open")
    monkeypatch.setattr(held, "EFFORT_MAX", judging.LOADED + 3_000)
    first = await told.store.look_at_held(told.epoch, 10_000)
    assert first.last is not None
    numbers = [one.number for one in await told.rows(channel.id)]
    assert numbers[0] <= first.last < numbers[-1]
    assert await told.look() == {}
    monkeypatch.setattr(held, "EFFORT_MAX", 100)
    assert await told.look() == {"pending": 6}
    assert (await told.store.stored_figures()).unmuted == 6


@pytest.mark.parametrize("ended", [False, True])
async def test_what_takes_the_place_of_held_ones_costs_as_many_statements(
    told: MuteWorld, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """However many breakers and channels: inside a mute, and after it, before the look that lets go."""
    statements: list[str] = []
    for engine in {told.store._db._engines.serial, told.store._db._engines.rows}:

        @listens_for(engine, "before_cursor_execute")
        def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
            statements.append(statement)

    async def counted(breakers: int, channels: int) -> int:
        one = MuteWorld(await told.world.neighbour(f"{breakers} x {channels}"))
        await one.open()
        ids = [(await one.channel()).id for _ in range(channels)]
        rows = [await one.breaker(f"b{number}") for number in range(breakers)]
        mute = await one.mute(ends_ms=None)
        assert await one.world.write(*(one.commit(row.id, "open") for row in rows)) == ["ok"] * breakers
        assert await one.world.write(*(one.commit(row.id, "half_open") for row in rows)) == ["ok"] * breakers
        if ended:
            await one.end(mute, 2_500)
        late = Counted(told_late)
        monkeypatch.setattr(muting, "told_late", late)
        statements.clear()
        assert await one.world.write(*(one.commit(row.id, "open") for row in rows)) == ["ok"] * breakers
        count = len(statements)
        words = ["trip suppressed", "trip pending" if ended else "trip held"] * breakers
        assert [sorted(await one.words(id_)) for id_ in ids] == [sorted(words)] * channels
        assert late.calls == (breakers if ended else 0)
        newest = [(await one.rows(id_))[-1] for id_ in ids]
        assert [row.told.muted_by is not None for row in newest] == [ended] * channels
        return count

    assert await counted(6, 9) == await counted(2, 1)


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
