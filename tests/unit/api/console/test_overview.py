"""The first screen, and the index in memory that it is made from."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from uuid import uuid4

import pytest

from api.console import looks, overview
from api.lookup import project_index
from breaker_actors.core.rules import parse_rule
from breaker_actors.messages import FeedEntry
from breaker_actors.store.rows import BreakerDraft
from tests.support.fake_gateway import view
from tests.support.web_world import World, soon
from tests.unit.api.console.conftest import Visitor

RULED = {"metric": "http", "kind": "error_rate", "op": "gt", "threshold": 0.5}
HOSTILE = "<script>alert(1)</script>\"'{{7*7}}"


def names(text: str) -> list[str]:
    return re.findall(r'<th scope="row"><a href="[^"]+">([^<]+)</a>', text)


async def moved(world: World, breaker_id: str, state: str, seq: int = 1) -> None:
    """Says so in the feed, and in what the owner of the breaker answers."""
    world.gateway.views[breaker_id] = view(state=state, transition_seq=seq)
    world.gateway.say(FeedEntry(1, "state", world.project.id, breaker_id, state, 0.0, seq))  # type: ignore[arg-type]
    index = await world.app.extensions["breakers"].indexes.get(world.project.id)
    await soon(lambda: index.rows[breaker_id].state == state)


async def test_what_is_not_closed_comes_first(world: World, ann: Visitor) -> None:
    rows = [await world.breaker(name) for name in ("a", "b", "c")]
    assert names(await ann.page()) == ["a", "b", "c"]
    await moved(world, rows[2].id, "open")
    text = await ann.page()
    assert names(text) == ["c", "a", "b"]
    assert "■" in text
    await moved(world, rows[1].id, "half_open")
    assert names(await ann.page()) == ["c", "b", "a"]


async def test_what_callers_do_not_see_and_people_do_not_hear_is_marked(
    world: World, ann: Visitor, guest: Visitor
) -> None:
    row, other = await world.breaker("a"), await world.breaker("b")
    world.gateway.views[row.id] = view(mode="observe", machine_state="open")
    matchers = [{"field": "name", "op": "=", "value": "a"}]
    mute = {"matchers": matchers, "comment": "<i>deploy", "ends_ms": world.clock.ms + 3_600_000}
    assert (await world.call("POST", "mutes", json=mute)).status_code == 201
    text = await ann.page()
    marked, plain = (re.search(rf'<tr id="b-{one.id}".*?</tr>', text, re.DOTALL) for one in (row, other))
    assert marked is not None
    assert plain is not None
    assert "machine: open" in marked[0]
    assert 'title="People do not hear of it: &lt;i&gt;deploy">muted</span>' in marked[0]
    assert "muted" not in plain[0]
    assert "muted" not in await guest.page(), "a project key may not see mutes"


async def test_a_rule_that_never_opens_is_told_as_on_its_page(world: World, ann: Visitor) -> None:
    """Not as one without samples, which more of them would mend."""
    for fields in ({"name": "never", "threshold": 50}, {"name": "lonely"}):
        assert (await world.call("POST", "breakers", json=RULED | fields)).status_code == 201
    for row in (await world.store.list_breakers(world.project.id))[0]:
        world.gateway.views[row.id] = view(verdict="indeterminate", sample_count=0)
    text = await ann.page()
    assert text.count(">never opens</span>") == 1
    assert text.count(">no samples</span>") == 1


async def test_the_live_part_comes_alone_when_the_script_asks(world: World, ann: Visitor) -> None:
    row = await world.breaker("a")
    text = await ann.page(part=True)
    assert text.lstrip().startswith('<div id="live"')
    assert row.id in text
    assert "<html" not in text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("q=CHECKOUT", ["checkout errors"]),
        ("q=team=pay", ["checkout errors"]),
        ("q=latency+search", ["search latency"]),
        ("q=nothing+like+that", []),
        ("metric=lag", ["lag"]),
        ("state=open", []),
        ("special=observed", []),
        ("state=%3Cscript%3E&special=nonsense&page=x&router=y", ["checkout errors", "lag", "search latency"]),
        ("page=2", []),
    ],
)
async def test_breakers_are_looked_for(world: World, ann: Visitor, query: str, found: list[str]) -> None:
    await world.breaker("search latency")
    await world.breaker("lag", metric="lag")
    labelled = RULED | {"name": "checkout errors", "metadata": {"team": "payments"}}
    made = await world.call("POST", "breakers", json=labelled)
    assert made.status_code == 201
    assert sorted(names(await ann.page(f"?{query}"))) == found


async def test_a_breaker_of_a_router_is_found_by_its_name(world: World, ann: Visitor) -> None:
    row = await world.breaker("a")
    await world.breaker("b")
    router = await world.router(row.id)
    assert names(await ann.page(f"?router={router.id}")) == ["a"]


async def test_no_page_has_more_than_its_rows(world: World, ann: Visitor) -> None:
    for n in range(53):
        await world.breaker(f"b{n:02}")
    first, second = await ann.page(), await ann.page("?page=2&q=b")
    assert (len(names(first)), len(names(second))) == (50, 3)
    assert "Page 2 of 2" in second
    assert "q=b&amp;page=1" in second


async def test_names_do_no_harm(world: World, ann: Visitor) -> None:
    made = await world.call("POST", "breakers", json=RULED | {"name": HOSTILE, "metadata": {"k": HOSTILE}})
    assert made.status_code == 201
    text = await ann.page()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "{{7*7}}" in text


async def test_a_change_of_configuration_shows_at_once(world: World, ann: Visitor) -> None:
    row = await world.breaker("before")
    assert names(await ann.page()) == ["before"]
    assert (await world.call("PATCH", f"breakers/{row.id}", json={"name": "after"})).status_code == 200
    await world.gateway.announce("config", [world.project.id])
    index = await world.app.extensions["breakers"].indexes.get(world.project.id)
    await soon(lambda: index.stale)
    world.clock.seconds += 60
    assert names(await ann.page()) == ["after"]


async def test_a_project_key_sees_and_can_not_act(world: World, guest: Visitor) -> None:
    row = await world.breaker("a", metric="hush")
    text = await guest.page()
    assert names(text) == ["a"]
    for word in ("New breaker", "/keys", "hush", "above 500", "shadow", *row.router_ids):
        assert word not in text, word
    for asked in ("q=hush", "q=avg"):
        assert names(await guest.page(f"?{asked}")) == [], asked
    for asked in ("metric=other", f"router={uuid4()}", "special=shadow"):
        assert names(await guest.page(f"?{asked}")) == ["a"], asked


async def labelled(world: World, **metadata: dict[str, str]) -> None:
    for name, labels in metadata.items():
        draft = BreakerDraft(rule=parse_rule(RULED), name=name, metadata=labels)
        await world.store.create_breaker(world.project.id, draft, world.clock.now_ms())


async def test_a_search_goes_on_in_turns(world: World, ann: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much text and however many words there are, others are served between its slices."""
    await labelled(world, a={"k": "z" * 255}, b={"k": "y" + "z" * 200})
    monkeypatch.setattr(project_index, "LOOKED_MAX", 100)
    index = await world.app.extensions["breakers"].indexes.get(world.project.id)
    rested = 0

    async def rest() -> None:
        nonlocal rested
        rested += 1

    found = await index.find(project_index.Search(text="yzz zzz yzz"), 0, 10, 0, rest)
    assert [row.name for row in found.rows] == ["b"]
    assert rested == 2
    assert names(await ann.page("?q=yzz")) == ["b"]
    many = "+".join(f"w{n}" for n in range(project_index.WORDS_MAX)) + "+zzz"
    assert names(await ann.page(f"?q={many}")) == []


@pytest.mark.parametrize(
    ("asked", "rests", "found"),
    [({}, 3, 5), ({"state": "closed"}, 3, 5), ({"special": "observed"}, 3, 0), ({"metric": "http"}, 5, 5)],
)
async def test_a_large_project_is_gone_through_in_turns(
    world: World, monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], rests: int, found: int
) -> None:
    """Each look at 10,000 breakers takes a hundredth of a second or two: hundreds at once must not share a round of the
    loop."""
    await labelled(world, **{name: {} for name in "abcde"})
    monkeypatch.setattr(project_index, "PASSED_MAX", 2)
    index = await world.app.extensions["breakers"].indexes.get(world.project.id)
    rested = 0

    async def rest() -> None:
        nonlocal rested
        rested += 1

    seen = await index.find(project_index.Search(**asked), 0, 10, 0, rest)
    assert (len(seen.rows), seen.total, seen.there, rested) == (found, found, 5, rests)
    assert seen.states == ({"closed": found} if found else {})


async def test_of_a_long_text_the_first_part_is_searched(world: World, ann: Visitor) -> None:
    await labelled(world, a={f"k{n}": "x" * 255 for n in range(20)})
    index = await world.app.extensions["breakers"].indexes.get(world.project.id)
    (row,) = index.rows.values()
    assert len(row.text) == project_index.TEXT_MAX


async def test_a_page_is_made_in_the_turns_of_its_caller(
    world: World, ann: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, taken = world.app.extensions["breakers"].intake.turns, 0
    take = turns.take

    async def counted(*given: Any) -> None:
        nonlocal taken
        taken += 1
        await take(*given)

    monkeypatch.setattr(turns, "take", counted)
    monkeypatch.setattr(looks, "SLICE", 10)
    async with turns.turn((("key", "another"),)):
        page = asyncio.create_task(ann.page("first-run?breaker=" + (await world.breaker("a")).id))
        await soon(lambda: bool(turns._waiting))
        before = taken
        await asyncio.sleep(0.02)
        assert not page.done()
        assert taken == before
    assert "</html>" in await page
    assert taken > before + 3


async def test_not_too_many_choices_are_offered_and_none_where_nobody_sees_them(
    world: World, ann: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "CHOICES", 1)
    for name in "abc":
        await world.breaker(name, metric=f"m-{name}")
    text = await ann.page("?metric=m-b")
    assert re.findall(r"<option( selected)?>(m-.)</option>", text) == [("", "m-a"), (" selected", "m-b")]
    assert text.count("2 more: search for one by its name") == 2
    monkeypatch.setattr(overview, "islice", lambda *_: pytest.fail("nobody sees them"))
    await ann.page(part=True)


async def test_an_overview_is_not_refused_for_what_it_says_of_outages(
    world: World, ann: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = await world.breaker("a")
    await moved(world, row.id, "open")
    world.app.extensions["breakers"].reads.spend(world.project.id, 10**9, world.clock.monotonic())
    assert names(await ann.page()) == ["a"]
