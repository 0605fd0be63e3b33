"""How long an outage lasts, across probes that failed: out of moves of a bounded number, and told where it is seen."""

from __future__ import annotations

from typing import Any

import pytest

from api.console.outages import LOOKED_MAX, Outage, outage
from breaker_actors.store.rows import EventRow
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World as StoreWorld
from tests.contract.store_world import event
from tests.support.fake_gateway import view
from tests.support.web_world import World
from tests.unit.api.console.conftest import Visitor

OPEN, PROBE, REOPEN, CLOSE = ("closed", "open"), ("open", "half_open"), ("half_open", "open"), ("half_open", "closed")


def rows(*moves: tuple[str, str], by: str | None = None) -> list[EventRow]:
    """Newest first; each a second after the one before, from 1 s on."""
    made = list[EventRow]()
    for number, (prev, curr) in enumerate(moves, 1):
        draft = event(number, ts_ms=1_000 * number)
        fields: dict[str, Any] = {name: getattr(draft, name) for name in draft.__struct_fields__}
        fields |= {"prev": prev, "curr": curr, "by": by}
        made.append(EventRow(**fields, sequence=number, project_id="p", breaker_id="b"))
    return made[::-1]


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([OPEN], Outage(1_000, 0, False)),
        ([OPEN, PROBE], Outage(1_000, 0, False)),
        ([OPEN, PROBE, REOPEN, PROBE, REOPEN], Outage(1_000, 2, False)),
        ([OPEN, PROBE, REOPEN, PROBE, CLOSE, OPEN], Outage(6_000, 0, False)),
        ([PROBE, REOPEN], Outage(1_000, 1, True)),
        ([], Outage(9_000, 0, True)),
        ([OPEN, PROBE, CLOSE], Outage(9_000, 0, False)),  # its newest move is not stored yet
    ],
)
def test_an_outage_begins_when_it_left_closed(moves: Any, expected: Outage) -> None:
    assert outage(rows(*moves), 9_000) == expected


def test_what_a_hand_did_is_no_failed_probe() -> None:
    assert outage(rows(OPEN, PROBE, REOPEN, by="ann"), 9_000).probes == 0
    assert Outage(1, 0, True).failed == ""
    assert Outage(1, 1, False).failed == "1 failed probe"
    assert Outage(1, 7, True).failed == "at least 7 failed probes"


async def moved(world: World, breaker_id: str, *states: Any) -> None:
    store, project = world.store, world.project
    directory, journal = await store.open_directory(), await store.open_journal(project.shard)
    told = OutboxWorld(StoreWorld(store, project.org_id, project.workspace_id, project.id, directory, journal))
    await told.open()
    await told.adopt(breaker_id)
    await told.moves(breaker_id, *states)


async def test_it_is_told_of_the_breaker_and_in_the_list(world: World, ann: Visitor, guest: Visitor) -> None:
    row = await world.breaker("a")
    await moved(world, row.id, "open", *["half_open", "open"] * 3)
    newest = (await world.store.events(query_of(world, row.id)))[0]
    world.gateway.views[row.id] = view(state="open", machine_state="open", state_since_ms=newest.ts_ms, allow_rate=0.0)
    for path in (f"b/{row.id}", f"b/{row.id}", ""):  # the second time out of memory
        text = await ann.page(path)
        assert ", 3 failed probes" in text
        assert "at least <time" not in text
        assert "failed probes" not in await guest.page(path)  # who may not see events


async def test_a_bound_that_is_met_is_said(world: World, ann: Visitor) -> None:
    row = await world.breaker("a")
    await moved(world, row.id, "open", *["half_open", "open"] * (LOOKED_MAX // 2 + 5))
    world.gateway.views[row.id] = view(state="open", machine_state="open", allow_rate=0.0)
    text = await ann.page(f"b/{row.id}")
    assert "Not closed since before" in text
    assert f"at least {LOOKED_MAX // 2} failed probes" in text


def query_of(world: World, breaker_id: str) -> Any:
    from breaker_actors.store.rows import EventQuery

    return EventQuery(project_id=world.project.id, breaker_id=breaker_id)
