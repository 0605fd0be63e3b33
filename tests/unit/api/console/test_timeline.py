"""The timeline: rows, filters, pages and the picture."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

from api.console import finding, history, timeline
from api.console.lanes import COLUMNS, LANES_MAX, drawn
from breaker_actors.errors import Overloaded
from breaker_actors.messages import Commit, EventDraft
from breaker_actors.store.rows import EventQuery, EventRow
from tests.contract.store_world import event
from tests.support.fake_gateway import NOW_MS
from tests.support.web_world import World
from tests.unit.api.console.conftest import Visitor

HOSTILE = "<script>alert(1)</script>\n" + "x" * 5_000


async def write(world: World, breaker_id: str, *drafts: EventDraft) -> None:
    """As the Journal does: moves of a breaker, numbered from 1."""
    store = world.store
    epoch = (await store.claim(await store.open_directory(), "breaker", {breaker_id: "b-0"}))[breaker_id]
    head = await store.open_journal(world.project.shard)
    last = drafts[-1]
    commit = Commit(
        breaker_id=breaker_id,
        project_id=world.project.id,
        epoch=epoch,
        events=drafts,
        state=last.curr,
        allow_rate=0.0,
        transition_seq=last.transition_seq,
        record=b"r",
        applied_offsets={},
    )
    assert (await store.commit(head, [commit]))[1] == ["ok"]


def move(seq: int, prev: Any = "closed", curr: Any = "open", **more: Any) -> EventDraft:
    made = event(seq, prev, curr, NOW_MS - 600_000 + 1_000 * seq)
    return msgspec.structs.replace(made, rule={"kind": "avg", "metric": "latency", "threshold": 500.0}, **more)


def outages(n: int) -> list[EventDraft]:
    """So many trips, each with its way back."""
    ways = [("closed", "open", "threshold_exceeded"), ("open", "half_open", "cooldown_elapsed"), ("half_open", "closed", "recovered")]  # fmt: skip  # noqa: E501
    return [move(3 * k + i + 1, *ways[i][:2], reason=ways[i][2]) for k in range(n) for i in range(3)]


def rows(text: str) -> list[str]:
    return re.findall(r'<tr id="m-[a-z]+-(\d+)"', text)


async def test_newest_first_with_reason_value_and_breaker(world: World, ann: Visitor) -> None:
    row = await world.breaker("checkout")
    await write(world, row.id, *outages(1))
    text = await ann.page("timeline")
    assert rows(text) == sorted(rows(text), key=int, reverse=True)
    assert len(rows(text)) == 3
    assert "the recovery was confirmed" in text
    assert f'href="/console/p/{world.project.id}/b/{row.id}">a</a>' in text
    assert "512.5" in text
    assert "/ 500" in text
    assert text.count("■") >= 2
    assert 'aria-current="page"' in text


async def test_who_moved_it_and_why(world: World, ann: Visitor) -> None:
    row = await world.breaker("a")
    await write(world, row.id, move(1, reason="forced_open", by="ann", comment="a <b>deploy</b>"))
    text = await ann.page("timeline")
    assert "<strong>ann</strong>: a &lt;b&gt;deploy&lt;/b&gt;" in text
    assert "forced open" in text


async def test_observed_ones_are_told_apart(world: World, ann: Visitor) -> None:
    row, other = await world.breaker("seen"), await world.breaker("unseen")
    await write(world, row.id, move(1))
    await write(world, other.id, move(1, hidden_by="observe"))
    text = await ann.page("timeline")
    assert text.count(">observed</span>") == 1
    await write(world, other.id, move(2, hidden_by="override"))
    assert (await ann.page("timeline")).count(">hidden: override</span>") == 1
    assert f'id="lane-{row.id}"' in text
    assert f'id="lane-{other.id}"' not in text  # callers did not see it
    assert len(rows(await ann.page("timeline?kind=observed"))) == 2
    assert len(rows(await ann.page("timeline?kind=trips"))) == 1


@pytest.mark.parametrize(
    ("query", "n"),
    [("", 9), ("kind=trips", 3), ("kind=recoveries", 3), ("reason=cooldown_elapsed", 3), ("source=backfill", 0),
     ("source=all", 9), ("reason=nonsense&kind=x&span=y&source=z", 9), ("breaker=b", 0), ("span=week", 9)],
)  # fmt: skip
async def test_filters(world: World, ann: Visitor, query: str, n: int) -> None:
    row = await world.breaker("a")
    await world.breaker("b")
    await write(world, row.id, *outages(3))
    assert len(rows(await ann.page(f"timeline?{query}"))) == n


async def test_what_a_backfill_found_has_a_badge(world: World, ann: Visitor) -> None:
    row = await world.breaker("a")
    await world.store.add_backfill_events(world.project.id, "run", [(row.id, move(1))], NOW_MS)
    assert rows(await ann.page("timeline")) == []
    text = await ann.page("timeline?source=backfill")
    assert ">backfill</span>" in text
    assert f'id="lane-{row.id}"' in text


async def test_pages_by_cursor(world: World, ann: Visitor) -> None:
    row = await world.breaker("a")
    await write(world, row.id, *outages(40))
    seen, query = list[str](), ""
    for _ in range(3):
        text = await ann.page(f"timeline{query}")
        seen += rows(text)
        found = re.search(r'href="[^"?]+(\?[^"]+)" rel="next"', text)
        query = found[1].replace("&amp;", "&") if found else ""
    assert len(seen) == len(set(seen)) == 120
    assert query == ""


async def test_a_filter_looks_through_a_bounded_number_of_moves(
    world: World, ann: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "SCANNED_MAX", 10)
    row = await world.breaker("a")
    await write(world, row.id, move(1, reason="forced_open"), *(move(n) for n in range(2, 16)))
    text = await ann.page("timeline?reason=forced_open")
    assert rows(text) == []
    found = re.search(r'href="[^"?]+(\?[^"]+)" rel="next"', text)
    assert found
    assert len(rows(await ann.page(f"timeline{found[1].replace('&amp;', '&')}"))) == 1


async def test_a_full_page_of_a_filter_goes_on_where_it_ends(
    world: World, ann: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "ROWS", 2)
    row = await world.breaker("a")
    await write(world, row.id, *outages(3))
    text = await ann.page("timeline?kind=trips")
    found = re.search(r'href="[^"?]+(\?[^"]+)" rel="next"', text)
    assert found
    more = await ann.page(f"timeline{found[1].replace('&amp;', '&')}")
    assert [len(rows(text)), len(rows(more))] == [2, 1]


async def test_a_name_that_is_not_clear_is_asked_for(world: World, ann: Visitor) -> None:
    one, _ = await world.breaker("checkout a"), await world.breaker("checkout b")
    await write(world, one.id, move(1))
    text = await ann.page("timeline?breaker=checkout")
    assert "More than one breaker" in text
    assert f"breaker={one.id}" in text
    assert len(rows(await ann.page("timeline?breaker=checkout+a"))) == 1
    assert len(rows(await ann.page(f"timeline?breaker={one.id}"))) == 1
    assert "No breaker is like that" in await ann.page("timeline?breaker=zzz")


async def test_hostile_texts_are_text(world: World, ann: Visitor) -> None:
    row = await world.breaker("a")
    await write(world, row.id, move(1, name=HOSTILE, reason=HOSTILE, by=HOSTILE, comment=HOSTILE))
    text = await ann.page("timeline?breaker=" + row.id)
    assert "<script>alert" not in text
    assert " style=" not in text
    assert " onclick=" not in text
    assert "&lt;script&gt;" in text


async def test_a_wrong_cursor_is_refused(ann: Visitor) -> None:
    assert (await ann.get("timeline?cursor=nonsense")).status == 400


async def test_only_who_may_see_history(world: World, guest: Visitor) -> None:
    assert (await guest.get("timeline")).status == 403
    assert (await guest.get(f"/console/p/{world.other.id}/timeline")).status == 404


async def test_the_live_part_comes_alone(ann: Visitor) -> None:
    text = await ann.page("timeline", part=True)
    assert text.lstrip().startswith('<div id="live"')


async def test_traces_come_from_what_channels_were_told(world: World, ann: Visitor) -> None:
    from breaker_actors.store.rows import ChannelDraft

    fields = {"trace_id_url_template": "https://traces.example/{{value}}"}
    await world.store.update_project(world.project.id, fields, NOW_MS)
    world.app.extensions["breakers"].caches.forget_access()
    draft = ChannelDraft(name="c", channel="webhook", config={"url": "https://x.example/"}, enabled=True)
    await world.store.create_channel(world.project.id, draft, NOW_MS)
    row = await world.breaker("a")
    await write(world, row.id, move(1, trace_id="t/1"))
    assert 'href="https://traces.example/t%2F1"' in await ann.page("timeline")


# the picture


def placed(breaker: str, ts_ms: int, prev: Any, curr: Any) -> EventRow:
    fields = msgspec.structs.asdict(event(1, prev, curr, ts_ms)) | {"name": breaker}
    return EventRow(**fields, sequence=ts_ms, project_id="p", breaker_id=breaker)


def test_a_lane_shows_each_state_where_it_was() -> None:
    moves = [placed("a", 900, "half_open", "closed"), placed("a", 600, "open", "half_open"), placed("a", 300, "closed", "open")]  # fmt: skip  # noqa: E501
    (lane,) = drawn(moves, 0, 1_200, False).lanes
    assert [(band.state, band.width // 10) for band in lane.bands] == [
        ("closed", 15), ("open", 15), ("half_open", 15), ("closed", 14)
    ]  # fmt: skip
    assert sum(band.width for band in lane.bands) == COLUMNS
    assert len({band.height for band in lane.bands}) == 3
    assert (lane.trips, lane.open_ms, lane.last) == (1, 300, "closed")


def test_the_busiest_lanes_come_first_and_not_too_many() -> None:
    moves = [placed(f"b{n}", 1_000 - k, "closed", "open") for n in range(LANES_MAX + 5) for k in range(1 + n % 7)]
    picture = drawn(sorted(moves, key=lambda row: -row.ts_ms), 0, 2_000, False)
    assert (len(picture.lanes), picture.there) == (LANES_MAX, LANES_MAX + 5)
    assert [lane.moves for lane in picture.lanes] == sorted((lane.moves for lane in picture.lanes), reverse=True)


def test_what_is_cut_begins_with_the_oldest_move() -> None:
    picture = drawn([placed("a", 900, "closed", "open")], 0, 1_000, True)
    assert picture.since_ms == 900
    assert picture.lanes[0].bands[0].state == "open"


def test_moves_beyond_its_ends_and_none_at_all() -> None:
    assert drawn([], 0, 1, True).lanes == []
    (lane,) = drawn([placed("a", 5_000, "closed", "open")], 0, 1_000, False).lanes
    assert sum(band.width for band in lane.bands) == COLUMNS


def test_there_is_nothing_before_a_breaker_was_made_nor_after_it_was_deleted() -> None:
    moves = [placed("gone", 1_000, "open", "closed"), placed("new", 900, "closed", "open"), placed("gone", 400, "closed", "open")]  # fmt: skip  # noqa: E501
    gone, new = drawn(moves, 0, 1_200, False, {"new": 600}).lanes
    assert [(band.state, band.x, band.width // 10) for band in new.bands] == [("closed", 300, 15), ("open", 450, 15)]
    assert [(band.state, band.x, band.width // 10) for band in gone.bands] == [("open", 200, 30)]


# what it may cost


async def test_whoever_asks_without_a_pause_is_refused(
    world: World, ann: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the moves that are looked at, of which a picture that is kept has none."""
    row = await world.breaker("a")
    await write(world, row.id, *outages(3))
    parts = world.app.extensions["breakers"]
    monkeypatch.setattr(history, "READS", 2 * parts.settings.breakers_per_project_max // 36)
    seen = [(await ann.get("timeline?kind=trips")).status for _ in range(5)]
    assert seen == [200, 200, 200, 200, 429]  # 9 moves and the picture's 9, then 9 each time; 35 are less than all
    assert (await ann.get(f"b/{row.id}/chart")).status == 429
    assert (await world.call("GET", f"breakers/{row.id}/state")).status_code == 200
    world.clock.seconds += 1.01
    assert (await ann.get("timeline?kind=trips")).status == 200


async def test_people_look_at_short_histories_as_often_as_they_like(world: World, ann: Visitor) -> None:
    row = await world.breaker("a")
    await write(world, row.id, *outages(3))
    for n in range(30):
        assert (await ann.get(f"timeline?kind=trips&span={('hour', 'day', 'week')[n % 3]}")).status == 200


async def test_many_at_once_read_no_more_than_is_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a query may find counts before it is read."""
    query, reads = EventQuery(project_id=world.project.id, limit=1_001), 0

    async def events(_: EventQuery) -> list[EventRow]:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0)
        return [placed("a", 1, "closed", "open")] * 1_001

    monkeypatch.setattr(world.store, "events", events)
    async with world.app.app_context():
        found = await asyncio.gather(*(history.moves_of(query) for _ in range(20)), return_exceptions=True)
    assert reads == sum(isinstance(one, list) for one in found) == 4
    assert sum(isinstance(one, Overloaded) for one in found) == 16


async def test_no_names_are_gathered_for_the_live_part(
    world: World, ann: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "NAMES_MAX", 1)
    for name in ("b", "a"):
        await world.breaker(name)
    assert '<datalist id="names"><option value="a"></option></datalist>' in await ann.page("timeline")
    monkeypatch.setattr(timeline, "nsmallest", lambda *_: pytest.fail("nobody sees them"))
    await ann.page("timeline", part=True)


async def test_a_value_beyond_its_threshold_is_told_apart(world: World, ann: Visitor) -> None:
    row = await world.breaker("a")
    await write(world, row.id, *outages(1))
    trip, probe, end = (await ann.page("timeline?kind=trips"), await ann.page("timeline?reason=cooldown_elapsed"), await ann.page("timeline?kind=recoveries"))  # fmt: skip  # noqa: E501
    assert ["gauge over" in text for text in (trip, probe, end)] == [True, False, False]
