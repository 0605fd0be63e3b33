"""What matchers match is looked for in slices: each value is compared once, others are served in between, and what one
request may cost is bounded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.admission.intake import Turn, Turns
from api.admission.shares import asking
from api.context import matched
from api.context.matched import COMPARING, SLICE_WORK, Search, TooMuchToMatch
from api.context.replica import EXTENSION
from breaker_actors.store.mutes.matching import BreakerFacts, Matcher, matches_breaker
from tests.support.web_world import World, error_of

GLOBS = [{"field": f"router.{n % 2}", "op": "glob", "value": f"*{n}*"} for n in range(20)]
HOUR_MS = 3_600_000


def facts(n: int, routers: Sequence[dict[str, str]] = (), **more: Any) -> list[BreakerFacts]:
    return [
        BreakerFacts(id=f"i{i}", name=f"b{i}", metric="m", kind="avg", metadata={}, routers=tuple(routers), **more)
        for i in range(n)
    ]


def worst(breakers: int = 40, routers: int = 1_000) -> list[BreakerFacts]:
    return facts(breakers, [{"0": f"{n:0255}", "1": f"{n:0255}"} for n in range(routers)])


def look(world: World, found: list[BreakerFacts], monkeypatch: pytest.MonkeyPatch) -> None:
    """The project has these breakers."""

    async def muted_breakers(_: str) -> list[BreakerFacts]:
        return found

    monkeypatch.setattr(world.app.extensions[EXTENSION].mutes, "muted_breakers", muted_breakers)


class Compared:
    """Counts what is looked at between two rounds of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.values, self.rounds, self.most, self._n = Counter[tuple[Matcher, str]](), 0, 0, 0
        monkeypatch.setattr(matched, "matches_breaker", self._matches)

    def _matches(self, matchers: Sequence[Matcher], breaker: BreakerFacts) -> bool:
        for matcher in matchers:
            seen = [text for metadata in breaker.routers for text in metadata.values()]
            self.values.update((matcher, text) for text in seen)
            self._n += len(seen)
        self.most = max(self.most, self._n)
        return matches_breaker(matchers, breaker)

    async def bystander(self) -> None:
        while True:
            self._n = 0
            self.rounds += 1
            await asyncio.sleep(0)


@pytest.mark.parametrize("path", ["mutes:preview", "overrides:preview", "overrides:end"])
async def test_others_have_their_turn_while_the_worst_is_looked_for(
    world: World, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """However many routers a breaker hangs on: a slice is the same work, and a value is compared once."""
    look(world, worst(), monkeypatch)
    compared = Compared(monkeypatch)
    bystander = asyncio.create_task(compared.bystander())
    answer = await world.call("POST", path, json={"matchers": GLOBS})
    bystander.cancel()
    assert answer.status_code == 200, await answer.get_json()
    assert compared.most <= SLICE_WORK / COMPARING
    assert set(compared.values.values()) == {1}


async def test_those_who_look_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many at once: behind the first slice of each there is one in each round of the loop."""
    compared, turns, breakers = Compared(monkeypatch), Turns(), worst(2, 1_000)

    async def search(name: str) -> None:
        async with Turn(turns, asking(name)) as turn:
            await Search(breakers, turn, lambda _: None).find([Matcher(**one) for one in GLOBS])

    searches = [asyncio.create_task(search(f"s{n}")) for n in range(6)]
    for _ in range(3):
        await asyncio.sleep(0)
    compared.most = compared._n = 0
    bystander = asyncio.create_task(compared.bystander())
    await asyncio.gather(*searches)
    bystander.cancel()
    assert 0 < compared.most <= SLICE_WORK / COMPARING


TEXT = st.text("ab", max_size=3)
METADATA = st.dictionaries(st.sampled_from("kl"), TEXT, max_size=2)
FACTS = st.builds(
    BreakerFacts, id=TEXT, name=TEXT, metric=TEXT, kind=TEXT, metadata=METADATA, routers=st.lists(METADATA).map(tuple)
)
FIELDS = st.sampled_from(["id", "name", "metric", "kind", "metadata.k", "router.k", "router.l", "channel"])
MATCHERS = st.builds(Matcher, field=FIELDS, op=st.sampled_from(["=", "!=", "glob"]), value=st.text("ab*?", max_size=4))


@settings(deadline=None)
@given(st.lists(MATCHERS, max_size=4), st.lists(FACTS, max_size=6))
async def test_it_finds_what_each_by_itself_says(matchers: list[Matcher], breakers: list[BreakerFacts]) -> None:
    async with Turn(Turns(), asking("a")) as turn:
        found = await Search(breakers, turn, lambda _: None).find(matchers)
    assert found == [one for one in breakers if matches_breaker(matchers, one)]


async def test_work_is_counted_before_it_is_done_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound nothing is compared; what is less goes on after it."""
    compared, counted = Compared(monkeypatch), list[int]()
    globs = [Matcher(**one) for one in GLOBS]
    async with Turn(Turns(), asking("a")) as turn:
        search = Search(worst(2, 1_000), turn, counted.append)
        await search.find(globs)
        assert sum(counted) == search.work // matched.READ_WORK
        assert search.work >= COMPARING * len(compared.values)
        monkeypatch.setattr(matched, "WORK_MAX", search.work + COMPARING)
        n = len(compared.values)
        with pytest.raises(TooMuchToMatch):
            await search.find(globs)
        assert len(compared.values) == n
        assert await search.find([Matcher(field="router.0", op="=", value="x")]) == []


async def test_too_much_is_refused_and_a_list_leaves_it_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    end = {"ends_ms": world.clock.now_ms() + HOUR_MS, "comment": "c"}
    for matchers in ([{"field": "name", "op": "=", "value": "b1"}], GLOBS):
        made = await world.call("POST", "mutes", json={"matchers": matchers} | end)
        assert made.status_code == 201
    mute = (await made.get_json())["mute"]
    look(world, worst(4, 100) + facts(1), monkeypatch)
    shown = (await (await world.call("GET", "mutes")).get_json())["mutes"]
    assert [(one["matches"], one["open"]) for one in shown] == [(1, 0), (4, 0)]
    monkeypatch.setattr(matched, "WORK_MAX", 1_000)
    shown = (await (await world.call("GET", "mutes")).get_json())["mutes"]
    assert [(one["matches"], one["open"]) for one in shown] == [(1, 0), (None, None)]
    alone = await (await world.call("GET", f"mutes/{mute['id']}")).get_json()
    assert alone["mute"]["matches"] is None
    override = {"kind": "force_open", "reason": "drill"}
    for path, more in (
        ("mutes:preview", {}),
        ("overrides:preview", {}),
        ("overrides:end", {}),
        ("overrides", override),
    ):
        refused = await world.call("POST", path, json={"matchers": GLOBS} | more)
        assert "matchers" in (await error_of(refused, 422, "validation_failed"))["details"]


async def test_the_work_counts_in_the_budget_of_reads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has begun is finished, and the next one waits."""
    look(world, worst(2, 100), monkeypatch)
    reads = world.app.extensions[EXTENSION].reads
    monkeypatch.setattr(reads, "_burst", 3)
    assert (await world.call("POST", "mutes:preview", json={"matchers": GLOBS})).status_code == 200
    await error_of(await world.call("POST", "mutes:preview", json={"matchers": GLOBS}), 429, "rate_limited")
