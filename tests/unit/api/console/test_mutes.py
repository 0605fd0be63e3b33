"""Mutes on the console: made after a look at what they match, changed, ended, and made again."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest

from api.console.mute_forms import matcher_words, window_words
from breaker_actors.store.rows import MuteRow
from tests.support.asgi import Reply
from tests.support.fake_gateway import NOW_MS
from tests.support.web_world import World
from tests.unit.api.console.conftest import Visitor, sign_in

HOUR_MS = 3_600_000
MATCHER = {"field-0": "name", "op-0": "glob", "value-0": "check*"}


async def mutes_of(world: World) -> list[MuteRow]:
    return list(await world.store.list_mutes(world.project.id))


async def make(ann: Visitor, comment: str = "work", **fields: str) -> MuteRow:
    given = {"comment": comment, "lasts": str(HOUR_MS), "zone": "UTC"} | (fields or MATCHER)
    reply = await ann.post("mutes/new", **given)
    assert reply.status == 200, reply
    found = re.fullmatch(r".*/mutes/(\S+)\?said=made", reply.headers["hx-redirect"])
    assert found is not None
    row = await ann.world.store.get_mute(ann.world.project.id, found[1])
    assert row is not None
    return row


def wrong_at(reply: Reply, place: str) -> str:
    assert reply.status == 422, reply
    return reply.body.decode().split(f'id="at-{place}" hx-swap-oob="true">')[1].partition("</p>")[0]


def undo_of(reply: Reply) -> dict[str, Any]:
    (text,) = re.findall(r'name="mute" value="([^"]*)"', reply.body.decode())
    return dict(json.loads(html.unescape(text)))


async def test_one_is_made_for_a_time(world: World, ann: Visitor) -> None:
    row = await make(
        ann, "<b>work</b>", **MATCHER, **{"field-7": "channel", "op-7": "!=", "value-7": "x", "value-9": ""}
    )
    assert [(one.field, one.op, one.value) for one in row.matchers] == [
        ("name", "glob", "check*"),
        ("channel", "!=", "x"),
    ]
    assert (row.starts_ms, row.ends_ms, row.created_name) == (NOW_MS, NOW_MS + HOUR_MS, "u")
    for path in ("mutes", f"mutes/{row.id}"):
        text = await ann.page(path)
        assert "<b>" not in text
        assert "&lt;b&gt;work" in text
        assert "name is like check*" in text
        assert "channel is not x" in text
        assert "Callers do not feel it" in text
    assert "mute.create" in await ann.page("audit")


async def test_windows_recur_in_their_zone(world: World, ann: Visitor) -> None:
    window = {"mon-3": "on", "tue-3": "on", "wed-3": "on", "from-3": "22:00", "to-3": "06:00"}
    row = await make(ann, all="on", lasts="ever", zone="Europe/Berlin", **window)
    assert (row.all, row.ends_ms, row.zone) == (True, None, "Europe/Berlin")
    text = await ann.page("mutes")
    assert "Mon–Wed from 22:00 to 06:00 of the next day" in text
    assert "Europe/Berlin" in text
    assert "for ever" in text
    assert "everything of this project" in text


async def test_times_are_of_the_wall_of_the_zone(world: World, ann: Visitor) -> None:
    times = {"starts": "2030-01-31T09:30", "ends": "2030-01-31T10:30", "lasts": "until", "zone": "Europe/Berlin"}
    row = await make(ann, **MATCHER, **times)
    assert (row.starts_ms, row.ends_ms) == (1_896_078_600_000, 1_896_078_600_000 + HOUR_MS)
    text = await ann.page(f"mutes/{row.id}")
    assert 'value="2030-01-31T09:30"' in text
    assert 'value="2030-01-31T10:30"' in text


@pytest.mark.parametrize(
    ("fields", "place", "words"),
    [
        ({"comment": ""}, "comment", "length"),
        ({"value-0": ""}, "matchers", "is required"),
        ({"field-0": "colour"}, "matchers-0", "Expected name, id"),
        ({"field-5": "name", "op-5": "glob", "value-5": "*********"}, "matchers-5", "at most 8 stars"),
        ({"zone": "Nowhere/At_All"}, "zone", "no zone"),
        ({"starts": "yesterday"}, "starts-ms", "no time"),
        ({"lasts": "until", "ends": ""}, "ends-ms", "until when"),
        ({"lasts": "until", "ends": "2001-01-01T00:00"}, "ends-ms", "later than now"),
        ({"lasts": "ever"}, "ends-ms", "unless there are windows"),
        ({"mon-4": "on", "from-4": "25:00", "to-4": "26:00"}, "windows-4", "from"),
    ],
)
async def test_what_is_wrong_stands_at_its_row(
    world: World, ann: Visitor, fields: dict[str, str], place: str, words: str
) -> None:
    given = {"comment": "c", "lasts": str(HOUR_MS), "zone": "UTC"} | MATCHER | fields
    assert words in wrong_at(await ann.post("mutes/new", **given), place)
    assert await mutes_of(world) == []


async def test_a_preview_says_how_many_it_matches(world: World, ann: Visitor) -> None:
    for name in ("check <i>out</i>", "checkin", "search"):
        await world.breaker(name)
    text = (await ann.post("mutes/preview", **MATCHER)).body.decode()
    assert "2 breakers</strong> now, <strong>0</strong> of them open" in text
    assert "<i>" not in text
    assert "check &lt;i&gt;out" in text
    assert "3 breakers" in (await ann.post("mutes/preview", all="on")).body.decode()
    assert "say what it matches" in (await ann.post("mutes/preview")).body.decode()
    odd = await ann.post("mutes/preview", **{"field-0": "x", "op-0": "=", "value-0": "y"})
    assert "Expected name" in odd.body.decode()
    assert await mutes_of(world) == []


async def test_a_form_that_is_sent_twice_makes_one(world: World, ann: Visitor) -> None:
    for _ in range(2):
        await ann.post("mutes/new", comment="c", lasts=str(HOUR_MS), once="3" * 32, **MATCHER)
    assert len(await mutes_of(world)) == 1


async def test_one_is_ended_and_made_again_with_the_rest(world: World, ann: Visitor) -> None:
    row = await make(ann)
    world.clock.ms += 60_000
    reply = await ann.post(f"mutes/{row.id}/end")
    assert "people hear again" in reply.body.decode()
    (ended,) = await mutes_of(world)
    assert ended.ended_reason == "deleted"
    assert "work" not in (await ann.page("mutes")).partition('id="live"')[2]
    assert "somebody ended it" in await ann.page("mutes?state=expired")
    again = await ann.post("mutes/again", mute=json.dumps(undo_of(reply)))
    assert "made again" in again.body.decode()
    (new,) = [one for one in await mutes_of(world) if one.ended_ms is None]
    assert (new.matchers, new.comment, new.ends_ms) == (row.matchers, row.comment, row.ends_ms)
    assert new.starts_ms == NOW_MS + 60_000
    assert (await ann.post("mutes/again", mute="{")).status == 422


async def test_a_change_keeps_what_the_form_left_and_can_be_undone(world: World, ann: Visitor) -> None:
    row = await make(ann)
    page = await ann.page(f"mutes/{row.id}")
    (ends,) = re.findall(r'name="ends" type="datetime-local" value="([^"]+)"', page)
    form = {"comment": "longer", "lasts": "until", "ends": ends, "zone": "UTC"} | MATCHER | {"op-0": "="}
    reply = await ann.post(f"mutes/{row.id}", **form)
    (changed,) = await mutes_of(world)
    assert (changed.comment, changed.ends_ms, changed.starts_ms) == ("longer", row.ends_ms, row.starts_ms)
    assert changed.matchers[0].op == "="
    restored = await ann.post(f"mutes/{row.id}/restore", mute=json.dumps(undo_of(reply)))
    assert restored.status == 200
    (back,) = await mutes_of(world)
    assert (back.comment, back.matchers, back.ends_ms) == (row.comment, row.matchers, row.ends_ms)
    assert wrong_at(await ann.post(f"mutes/{row.id}", **form | {"comment": ""}), "comment")


async def test_many_are_paged_active_ones_first(world: World, ann: Visitor) -> None:
    for number in range(52):
        world.clock.ms += 1
        await make(ann, f"zed-{number:02}", **MATCHER, starts="" if number else "2026-11-21T12:00")
    first, second = await ann.page("mutes"), await ann.page("mutes?page=2")
    assert "Page 1 of 2" in first
    assert ("zed-51" in first, "zed-01" in first, "zed-01" in second, "zed-00" in second) == (True, False, True, True)
    assert "zed-00" in await ann.page("mutes?state=pending", part=True)
    assert "zed-01" not in await ann.page("mutes?state=pending", part=True)


async def test_who_may_not_mutes_nothing(world: World, ann: Visitor, guest: Visitor) -> None:
    row, stranger = await make(ann), await sign_in(world, "stranger")
    for path in ("mutes", "mutes/new", f"mutes/{row.id}"):
        assert (await guest.get(path)).status == 403
        assert (await stranger.get(path)).status == 404
    for path in ("new", "preview", "again", row.id, f"{row.id}/end", f"{row.id}/restore"):
        assert (await guest.post(f"mutes/{path}", comment="x", lasts="1", mute="{}")).status == 403
        assert (await stranger.post(f"mutes/{path}", comment="x", lasts="1", mute="{}")).status == 404
    assert await mutes_of(world) == [row]


@pytest.mark.parametrize(
    ("window", "words"),
    [
        ({"weekdays": ["mon"], "from": "01:00", "to": "02:00"}, "Mon from 01:00 to 02:00"),
        ({"weekdays": ["sun", "sat"], "from": "00:00", "to": "24:00"}, "Sat, Sun from 00:00 to 24:00"),
        ({"weekdays": ["fri", "mon", "wed"], "from": "3", "to": "2"}, "Mon, Wed, Fri from 3 to 2 of the next day"),
    ],
)
def test_windows_have_words(window: dict[str, Any], words: str) -> None:
    assert window_words(window) == words


def test_matchers_have_words() -> None:
    week = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
    assert window_words({"weekdays": week[:4], "from": "0", "to": "1"}) == "Mon–Thu from 0 to 1"
    assert window_words({"weekdays": week, "from": "0", "to": "1"}) == "every day from 0 to 1"
    assert matcher_words({"field": "metadata.team", "op": "=", "value": "a"}) == "label team is a"
    assert matcher_words({"field": "router.zone", "op": "!=", "value": ""}) == "its router's label zone is not empty"
