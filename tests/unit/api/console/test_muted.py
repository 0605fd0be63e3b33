"""Which breakers people do not hear of is looked for in slices: others are served in between, and it is bounded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from api.console import breaker_facts
from api.console.breaker_facts import MUTES_EFFORT, MUTES_SLICE
from breaker_actors.store.mutes.matching import BreakerFacts, Effort, Matcher, matches_breaker
from breaker_actors.store.rows import BreakerRow
from tests.support.web_world import World
from tests.unit.api.console.conftest import Visitor

VALUE = "a" * 250
GLOBS = [{"field": "metadata.k", "op": "glob", "value": "?" * n + "*"} for n in range(231, 250)]
LAST = {"field": "metadata.k", "op": "glob", "value": "?" * 249 + "b*"}


class Matched:
    """Counts what matching mutes takes between two rounds of the loop, and in all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds, self.took = 0, Counter[int]()
        monkeypatch.setattr(breaker_facts, "matches_breaker", self._matches)

    def _matches(self, matchers: Sequence[Matcher], breaker: BreakerFacts, effort: Effort) -> bool:
        left = effort.left
        try:
            return matches_breaker(matchers, breaker, effort)
        finally:
            self.took[self.rounds] += left - effort.left

    async def bystander(self) -> None:
        while True:
            self.rounds += 1
            await asyncio.sleep(0)


@pytest.fixture
async def costly(world: World) -> list[BreakerRow]:
    """Breakers of a project with mutes that look long at each, and match none."""
    rows = [await world.breaker(f"b{n}") for n in range(4)]
    for row in rows:
        patched = await world.call("PATCH", f"breakers/{row.id}", json={"metadata": {"k": VALUE}})
        assert patched.status_code == 200, await patched.get_json()
    for _ in range(5):
        mute = {"matchers": [*GLOBS, LAST], "comment": "c", "ends_ms": world.clock.ms + 3_600_000}
        assert (await world.call("POST", "mutes", json=mute)).status_code == 201
    return rows


@pytest.mark.parametrize("one", [False, True], ids=["all", "one"])
async def test_others_have_their_turn_while_mutes_are_matched(
    ann: Visitor, costly: list[BreakerRow], monkeypatch: pytest.MonkeyPatch, one: bool
) -> None:
    matched = Matched(monkeypatch)
    bystander = asyncio.create_task(matched.bystander())
    await ann.page(f"b/{costly[0].id}" if one else "")
    bystander.cancel()
    most = 100_000  # of one comparison
    assert 2 * MUTES_SLICE < matched.took.total() <= MUTES_EFFORT + most
    assert max(matched.took.values()) <= MUTES_SLICE + most
