"""The timeline marks when the service was away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from api.console import absences, timeline
from api.console.absences import Absence, Absences
from api.console.finding import ROWS
from api.console.lanes import COLUMNS, SHADE_MIN, Picture, shades
from breaker_actors.errors import Unavailable
from tests.support.fake_gateway import NOW_MS
from tests.support.web_world import World
from tests.unit.api.console.conftest import Visitor
from tests.unit.api.console.test_timeline import outages, rows, write
from tests.unit.api.console.test_tried import desktop, feed

AWAY = "Service away for"


def knows(monkeypatch: pytest.MonkeyPatch, *stretches: tuple[int, int], known_ms: int = 0) -> None:
    """Lets the timeline know of these."""

    async def found(*_: object) -> Absences:
        return Absences([Absence(*one) for one in stretches], known_ms)

    monkeypatch.setattr(timeline, "absences_of", found)


async def test_between_the_moves_before_and_after(world: World, ann: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    row = await world.breaker("a")
    await write(world, row.id, *outages(1))  # at -599, -598, -597 s
    assert AWAY not in await ann.page("timeline")  # there is no log in this world: it is not known
    knows(monkeypatch, (NOW_MS - 598_900, NOW_MS - 598_100), (NOW_MS - 57_000, NOW_MS - 5_000))
    text = await ann.page("timeline")
    parts = text.split('<tr id="m-')
    assert [AWAY in part for part in parts] == [True, False, True, False]
    assert "Service away for 52 s" in parts[0]
    assert "Service away for 800 ms" in parts[2]
    assert 'fill="url(#away)"' in text
    assert "was down, or restarted" in text
    assert "Known since" not in text
    assert len(rows(text)) == 3


async def test_before_all_moves_and_on_later_pages(world: World, ann: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    row = await world.breaker("a")
    await write(world, row.id, *outages(40))
    # before all moves, between the two pages, after all moves
    page_end_ms = NOW_MS - 600_000 + 1_000 * (120 - ROWS)
    between = (page_end_ms + 300, page_end_ms + 900)
    knows(monkeypatch, (NOW_MS - 900_000, NOW_MS - 800_000), between, (NOW_MS - 60_000, NOW_MS - 50_000))
    first = await ann.page("timeline")
    assert first.count(AWAY) == 1
    assert "Service away for 10 s" in first.partition('<tr id="m-')[0]
    at, pages, seen = first, 1, first.count(AWAY)
    while 'rel="next">Older' in at:
        at = await ann.page("timeline?" + at.partition('rel="next">Older')[0].rpartition("/timeline?")[2].rstrip('" ').replace("&amp;", "&"))  # fmt: skip  # noqa: E501
        pages, seen = pages + 1, seen + at.count(AWAY)
    assert pages > 1
    assert seen == 3
    assert "Service away for 1 min 40 s" in at.rpartition('<tr id="m-')[2]


async def test_of_a_backfill_nothing_is_marked(world: World, ann: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    row = await world.breaker("a")
    await write(world, row.id, *outages(1))
    knows(monkeypatch, (NOW_MS - 20_000, NOW_MS - 10_000), known_ms=NOW_MS - 30_000)
    assert AWAY not in await ann.page("timeline?source=backfill")
    assert "Known since" in await ann.page("timeline?source=all")


def test_shades_cover_what_is_seen_of_them() -> None:
    picture = Picture(since_ms=0, until_ms=60_000, lanes=[], there=0, cut=False)
    assert shades(picture, [(-10, -1), (60_000, 70_000)]) == []
    assert shades(picture, [(-10_000, 6_000)]) == [(0, COLUMNS // 10)]
    assert shades(picture, [(30_000, 30_001)]) == [(COLUMNS // 2, SHADE_MIN)]
    ((x, width),) = shades(picture, [(59_999, 60_500)])
    assert x + width == COLUMNS


async def test_a_real_log_tells_and_is_read_once_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absences, "PATIENCE_S", 20.0)
    looks = []
    look = absences._look
    monkeypatch.setattr(absences, "_look", lambda *given: looks.append(given) or look(*given))
    async with desktop(tmp_path, 3) as d:
        await d.s.net.kill("router-0")
        await asyncio.sleep(1.5)  # only a router that was away for a second writes it down
        d.s.net.revive("router", "router-0")
        await feed(d.s, d.row, 6)
        for _ in range(2):
            reply = await d.get("timeline")
            assert AWAY in reply.body.decode()
        assert len(looks) == 1
        chart = await d.chart()
        ((from_ms, to_ms),) = chart["away"]
        assert to_ms - from_ms >= 1_000
        assert len([one for one in chart["notes"] if "No samples could be taken" in one]) == 1


async def test_a_log_that_is_slow_or_elsewhere_keeps_nobody_waiting(
    world: World, ann: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = await world.breaker("a")
    await write(world, row.id, *outages(1))
    may_end = asyncio.Event()

    async def slow(*_: object) -> None:
        await may_end.wait()
        raise Unavailable("It is elsewhere.")

    monkeypatch.setattr(absences, "PATIENCE_S", 0.01)
    monkeypatch.setattr(absences, "_look", slow)
    assert len(rows(await ann.page("timeline"))) == 3
    may_end.set()
    assert len(rows(await ann.page("timeline?span=day"))) == 3
