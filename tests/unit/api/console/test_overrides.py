"""The screen of overrides: those in force, and many breakers at once, previewed, named and confirmed."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest

from api.console import overrides as screen
from breaker_actors.messages import FeedEntry
from breaker_actors.store.rows import BreakerRow
from tests.support.fake_gateway import NOW_MS, view
from tests.support.web_world import RULE, World, soon
from tests.unit.api.console.test_breaker import HOSTILE, HOUR_MS, Reader, ann, override_of, sign_in, undo_in

__all__ = ["ann"]

PAYS = [("field", "name"), ("op", "glob"), ("value", "pay-*")]
OVERRIDE = {"kind": "force_open", "reason": "drill", "lasts": str(HOUR_MS)}


async def many(world: World, pays: int, others: int = 0) -> list[BreakerRow]:
    return [await world.breaker(f"pay-{i:02}" if i < pays else f"other-{i:02}") for i in range(pays + others)]


async def heard(world: World) -> None:
    """The console's index hears that configuration has changed."""
    index = await world.app.extensions["breakers"].indexes.get(world.project.id)
    index.stale = False
    world.gateway.say(FeedEntry(1, "config", world.project.id))
    await soon(lambda: index.stale)


async def put(world: World, row: BreakerRow, **body: Any) -> None:
    wanted = {"kind": "force_open", "reason": "r"} | body
    assert (await world.call("PUT", f"breakers/{row.id}/override", json=wanted)).status_code == 200


async def previewed(ann: Reader, fields: Any) -> tuple[str, dict[str, str]]:
    """What the preview says, and the fields of the form that it brings."""
    text = await ann.say("overrides/preview", fields)
    found = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', text))
    return text, {name: html.unescape(value) for name, value in found.items() if name != "csrf"}


def told(text: str) -> str:
    """The words of a notice, without what stands around them."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


async def test_those_in_force_the_one_that_ends_first_first(world: World, ann: Reader) -> None:
    a, b, c = [await world.breaker(name) for name in ("a", "b", "c")]
    await put(world, a, for_ms=2 * HOUR_MS, then="half_open")
    await put(world, b, kind="throttle", allow_rate=0.25, for_ms=60_000, reason=HOSTILE)
    await put(world, c, for_ms=5_000)
    world.gateway.views[b.id] = view(machine_state="open")
    world.clock.ms += 6_000
    await heard(world)
    status, text = await ann.get("overrides")
    assert status == 200
    assert re.findall(r'<th scope="row"><a href="[^"]+">([^<]+)<', text) == ["b", "a"]
    for words in (
        "2 in force",
        "25 %",
        "throttle",
        "in 54 s",
        "then half_open",
        "&lt;script&gt;",
        "Its machine is open",
    ):
        assert words in text, words
    assert "<script>alert" not in text
    assert "c</a>" not in text


async def test_one_is_ended_from_there_and_comes_back(world: World, ann: Reader) -> None:
    row = await world.breaker("a")
    await put(world, row)
    await heard(world)
    fills = re.findall(r"data-fill='([^']+)'", (await ann.get("overrides"))[1])
    fill = json.loads(html.unescape(fills[0]))
    assert fill["name"] == "a"
    text = await ann.say(fill["action"], {"tag": fill["tag"], "reason": "done"})
    assert await override_of(world, row.id) is None
    await ann.say(*undo_in(text))
    assert await override_of(world, row.id) is not None
    await ann.say(fill["action"], {"tag": fill["tag"]}, 412)


async def test_they_are_paged(world: World, ann: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "ROWS", 2)
    for row in await many(world, 5):
        await put(world, row)
    await heard(world)
    assert "Page 1 of 3" in (await ann.get("overrides"))[1]
    text = (await ann.get("overrides?page=3", part=True))[1]
    assert text.count("data-fill") == 1
    assert "There is no such page" in (await ann.get("overrides?page=9"))[1]


async def test_without_any_it_says_so(world: World, ann: Reader) -> None:
    await world.call("POST", "breakers", json={**RULE, "name": "a", "metadata": {'"><b>x': "y"}})
    text = (await ann.get("overrides"))[1]
    assert "No override is in force" in text
    assert 'value="metadata.&#34;&gt;&lt;b&gt;x"' in text


# ------------------------------------------------------------------ many


async def test_a_preview_names_what_it_would_concern(world: World, ann: Reader) -> None:
    await many(world, 25, 30)
    text, _ = await previewed(ann, [*PAYS, ("field", ""), ("op", "="), ("value", "")])
    assert "25 breakers match" in text
    assert ", 0 of them open" in text
    assert text.count("<li>") == 20
    assert "and 5 more" in text
    assert "Force open 25 breakers" in text
    none, fields = await previewed(ann, [("field", "name"), ("op", "="), ("value", HOSTILE)])
    assert "0 breakers match" in none
    assert fields == {}
    assert "55 breakers match" in (await previewed(ann, {"all": "true"}))[0]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"field": "channel", "op": "=", "value": "x"},
        {"field": "name", "op": "~", "value": "x"},
        {"field": "name", "op": "glob", "value": "*" * 9},
        [pair for _ in range(21) for pair in PAYS],
        [*PAYS, ("all", "true")],
    ],
)
async def test_matchers_that_are_none_are_refused(world: World, ann: Reader, fields: Any) -> None:
    await many(world, 2)
    assert "matchers" in await ann.say("overrides/preview", fields, 422)


async def test_many_are_overridden_and_ended_again(world: World, ann: Reader) -> None:
    rows = await many(world, 4, 8)
    text, fields = await previewed(ann, PAYS)
    assert "Throttle 4 breakers" in text
    text = await ann.say("overrides", fields | OVERRIDE | {"kind": "throttle", "percent": "20"})
    assert "4 breakers are throttled for 1 h. Callers see half_open: 20 % of calls are let through." in told(text)
    assert "End 4 overrides" in text
    overrides = [await override_of(world, row.id) for row in rows]
    assert [override is not None for override in overrides] == [True] * 4 + [False] * 8
    assert {override.by for override in overrides if override} == {"u"}
    again = await ann.say("overrides", fields | OVERRIDE | {"kind": "throttle", "percent": "20"})
    assert "4 of them were so already" in again
    ended = await ann.say(*undo_in(text))
    assert "4 overrides are ended" in ended
    assert {await override_of(world, row.id) for row in rows} == {None}
    assert "override.end" in [entry.action for entry in await world.store.audit(world.project.id, 50)]


async def test_a_large_part_is_asked_about_twice(world: World, ann: Reader) -> None:
    rows = await many(world, 8, 4)
    _, fields = await previewed(ann, PAYS)
    text = await ann.say("overrides", fields | OVERRIDE, 409)
    assert "This concerns 8 of 12 breakers" in text
    assert "Force open 8 breakers all the same" in text
    assert await override_of(world, rows[0].id) is None
    done = await ann.say(*undo_in(text))
    assert "8 breakers are forced open for 1 h" in done
    assert await override_of(world, rows[0].id) is not None


async def test_what_matches_meanwhile_is_looked_at_again(world: World, ann: Reader) -> None:
    """Nobody overrides a breaker that they were not told of."""
    await many(world, 2, 8)
    _, fields = await previewed(ann, PAYS)
    late = await world.breaker("pay-late")
    text = await ann.say("overrides", fields | OVERRIDE, 409)
    assert "2 matched when you looked, 3 do now" in text
    assert await override_of(world, late.id) is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"reason": ""}, "reason"), ({"lasts": ""}, "lasts"), ({"kind": ""}, "kind"), ({"meant": "{"}, "matchers")],
)
async def test_what_is_refused_changes_nothing(world: World, ann: Reader, fields: dict[str, str], field: str) -> None:
    (row,) = await many(world, 1)
    _, known = await previewed(ann, PAYS)
    assert f"<code>{field}</code>" in await ann.say("overrides", known | OVERRIDE | fields, 422)
    assert await override_of(world, row.id) is None


@pytest.mark.parametrize(
    "meant", ["[]", "7", '{"matchers": 7}', '{"matchers": [{"field": 1}]}', "\ud83d\x00", "[" * 5_000]
)
async def test_forged_matchers_are_refused(world: World, ann: Reader, meant: str) -> None:
    await many(world, 1)
    response = await ann.post("overrides", OVERRIDE | {"meant": meant.encode("utf-8", "replace"), "number": "1"})
    assert response.status_code == 422


async def test_one_at_a_time_is_told_with_its_time(world: World, ann: Reader) -> None:
    await many(world, 1)
    _, fields = await previewed(ann, PAYS)
    more = {"lasts": "at", "until_ms": str(NOW_MS + 90_000)}
    text = await ann.say("overrides", fields | OVERRIDE | more)
    assert "1 breaker is forced open for 1 min 30 s." in told(text)


# ------------------------------------------------------------------ who may


async def test_a_project_key_sees_and_changes_nothing(world: World) -> None:
    rows = await many(world, 1)
    guest = await sign_in(world, "project")
    assert (await guest.get("overrides"))[0] == 403
    assert (await guest.get("overrides", part=True))[0] == 403
    assert (await guest.post("overrides/preview", PAYS)).status_code == 403
    forged = OVERRIDE | {"meant": '{"all": true}', "number": "1"}
    assert (await guest.post("overrides", forged)).status_code == 403
    assert await override_of(world, rows[0].id) is None


async def test_strangers_find_nothing(world: World) -> None:
    stranger = await sign_in(world, "stranger")
    assert (await stranger.get("overrides"))[0] == 404
    assert (await stranger.post("overrides/preview", PAYS)).status_code == 404
