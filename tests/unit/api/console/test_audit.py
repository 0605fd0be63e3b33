"""The audit log on the console: who changed what, field by field, of a project and of its organisation."""

from __future__ import annotations

import asyncio
import re
import tracemalloc
from typing import Any

import pytest

from api.console.audit import Entry, changes_of, entry_of, shortened
from tests.support.web_world import World
from tests.unit.api.console.conftest import Visitor, sign_in

HOSTILE = "<script>alert(1)</script>\n" + "x" * 10_000


async def test_a_change_is_told_by_its_fields(world: World, ann: Visitor) -> None:
    row = await world.breaker("before")
    await world.call("PATCH", f"breakers/{row.id}", json={"threshold": 7.5, "name": "<b>after</b>"})
    text = await ann.page("audit?action=breaker.update")
    entry = text.partition('<ol class="log">')[2]
    assert re.search(r"rule\.threshold</th><td>\s*500(\.0)?\s*</td><td>\s*7\.5\s*</td>", entry)
    assert "rule.window_ms" not in entry
    assert "&lt;b&gt;after&lt;/b&gt;" in entry
    assert "<b>after" not in text
    assert f'href="{ann.path("")}/b/{row.id}"' in entry
    assert re.search(r"<strong>u</strong> changed the breaker\s+<a [^>]+>&lt;b&gt;after", entry)
    assert "breaker.create" not in entry


async def test_an_override_is_told_as_a_sentence(world: World, ann: Visitor) -> None:
    row = await world.breaker("checkout")
    force = {"kind": "force_open", "reason": "it is <i>moved</i>", "for_ms": 3_600_000}
    await world.call("PUT", f"breakers/{row.id}/override", json=force)
    await world.call("DELETE", f"breakers/{row.id}/override?reason=done")
    await world.call("PATCH", f"breakers/{row.id}", json={"mode": "observe"})
    text = " ".join(re.sub(r"<[^>]+>", " ", await ann.page(f"audit?target={row.id}")).split())
    assert "u forced open the breaker checkout for 1 h: it is &lt;i&gt;moved&lt;/i&gt;" in text
    assert "u ended the override of checkout" in text
    assert "u changed the breaker checkout to observe" in text
    assert re.search(r"What was changed: \d+ fields", text)


def test_every_action_has_words() -> None:
    for action in ("breaker.create", "override.set", "mute.end", "something.new"):
        entry = entry_of({"action": action, "target_id": "1", "before": None, "after": {"name": "x"}}, "")
        assert (entry.did, entry.name) != ("", "")


async def test_what_was_made_is_folded_and_what_is_gone_has_no_link(world: World, ann: Visitor) -> None:
    row = await world.breaker("gone")
    await world.call("DELETE", f"breakers/{row.id}")
    entries = (await ann.page(f"audit?target={row.id}")).partition('<ol class="log">')[2].split("<li ")[1:]
    assert ["breaker.delete" in entries[0], "breaker.create" in entries[1]] == [True, True]
    assert f"/b/{row.id}" not in entries[0]
    assert "What it was" in entries[0]
    assert "What was made" in entries[1]


async def test_long_and_hostile_values_are_folded_and_escaped(world: World, ann: Visitor) -> None:
    row = await world.breaker("a")
    await world.call("PATCH", f"breakers/{row.id}", json={"actions": {"<i>k</i>": HOSTILE}})
    text = await ann.page("audit")
    assert "<script>alert" not in text
    assert "<i>" not in text
    assert "characters more; the API tells them all" in text
    assert len(text) < 60_000


async def test_secrets_are_in_no_entry(world: World, ann: Visitor) -> None:
    config = {"url": "https://hook.example/verysecret", "secret": "s3cr3t-of-ours", "headers": {"A": "h3ader-secret"}}
    await world.call("POST", "notification-channels", json={"channel": "webhook", "config": config})
    text = await ann.page("audit")
    assert "channel.create" in text
    assert not any(secret in text for secret in ("verysecret", "s3cr3t-of-ours", "h3ader-secret"))


async def test_the_organisation_has_a_log_of_its_own(world: World, ann: Visitor) -> None:
    await world.call("POST", "/v1/workspaces", json={"name": "<u>ws</u>", "slug": "ws"})
    text = await ann.page("audit?of=organisation")
    assert "workspace.create" in text
    assert "<u>" not in text
    assert "console.sign_in" in text
    said = [
        " ".join(re.sub(r"<[^>]+>", " ", one).split()) for one in re.findall(r'<p class="said">(.*?)</p>', text, re.S)
    ]
    assert "u signed in to the console" in said
    assert "workspace.create" not in await ann.page("audit")
    assert "workspace.create" not in await ann.page("audit?of=organisation&action=key.")
    stranger = await sign_in(world, "stranger")
    other = await stranger.page(f"/console/p/{world.other.id}/audit?of=organisation")
    assert "&lt;u&gt;ws" in text
    assert "&lt;u&gt;ws" not in other


async def test_older_entries_are_on_the_next_page_of_the_same_filter(world: World, ann: Visitor) -> None:
    for number in range(30):
        await world.breaker(f"zed-{number:02}")
    text = await ann.page("audit?action=breaker.")
    (older,) = re.findall(r'href="([^"]+)" rel="next"', text)
    assert "action=breaker." in older
    rest = await ann.page(older.replace("&amp;", "&"))
    assert (text.count('<li class="card"'), rest.count('<li class="card"')) == (25, 5)
    assert ("zed-29" in text, "zed-00" in text, "zed-00" in rest) == (True, False, True)
    assert ">Newest<" in rest


@pytest.mark.parametrize("query", ["action=%3Cb%3E", "target=x", "cursor=odd"])
async def test_an_odd_filter_is_refused_in_words(ann: Visitor, query: str) -> None:
    reply = await ann.get(f"audit?{query}")
    assert reply.status == 400
    assert "<b>" not in reply.body.decode()


async def test_who_may_not_reads_no_log(world: World, guest: Visitor) -> None:
    stranger = await sign_in(world, "stranger")
    for query in ("", "?of=organisation"):
        assert (await guest.get(f"audit{query}")).status == 403
        assert (await stranger.get(f"audit{query}")).status == 404


def test_only_what_differs_is_a_change() -> None:
    before = {"name": "a", "updated_ms": 1, "rule": {"threshold": 1, "op": "gt"}, "gone": [1], "same": {}}
    after = {"name": "a", "updated_ms": 2, "rule": {"threshold": 2, "op": "gt"}, "new": "", "same": {}}
    changes, more = changes_of(before, after)
    found = {change.field: tuple(side and side.short for side in change[1:]) for change in changes}
    assert found == {"rule.threshold": ("1", "2"), "gone": ("[1]", None), "new": (None, "empty")}
    assert more == 0
    assert changes_of(None, None) == ([], 0)


def test_times_are_told_as_times_and_spans_as_figures() -> None:
    (at, span), _ = changes_of(
        {"ends_ms": None, "window_ms": 10_000}, {"ends_ms": 1_795_242_600_000, "window_ms": 20_000}
    )
    assert at.new is not None
    assert span.new is not None
    assert (at.new.ms, span.new.short) == (1_795_242_600_000, "20000")


def test_values_are_shortened_at_bounds() -> None:
    assert shortened("a" * 60) == ("a" * 60, "", 0, None)
    assert shortened("a" * 61) == ("a" * 60 + "…", "a" * 61, 0, None)
    assert shortened("a\nb") == ("a b…", "a\nb", 0, None)
    assert shortened("a" * 4_001).more == 1


def test_an_entry_lists_so_many_fields_at_most() -> None:
    row = {"action": "breaker.create", "target_id": "1", "before": None, "after": {f"f{n}": n for n in range(99)}}
    entry = entry_of(row, "/p")
    assert (len(entry.changes), entry.more, entry.place) == (60, 39, "/p/b/1")
    assert entry_of(row, "").place is None


def test_names_of_fields_take_no_more_than_is_shown_of_them() -> None:
    """However long the key is that a thousand fields are in: their whole names would be 40 MB."""
    before, after = ({"actions": {"k" * 20_000: {f"{n}": n + side for n in range(990)}}} for side in (0, 1))
    row = {"action": "breaker.update", "target_id": "1", "before": before, "after": after}
    tracemalloc.start()
    entry = entry_of(row, "")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    assert (len(entry.changes), entry.more) == (60, 930)
    assert entry.changes[0].field == f"actions.{'k' * 52}…"


def test_a_change_of_mode_is_told_however_much_else_was_changed() -> None:
    before, after = ({"actions": {f"{n}": side for n in range(99)}, "control": {"mode": side}} for side in ("a", "b"))
    entry = entry_of({"action": "breaker.update", "target_id": "1", "before": before, "after": after}, "")
    assert (entry.did, entry.then, entry.more) == ("changed the breaker", "to b", 40)


async def test_others_are_served_between_two_entries(
    world: World, ann: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        await world.breaker(f"b{number}")
    rounds, told = [0], list[int]()

    async def bystander() -> None:
        while True:
            rounds[0] += 1
            await asyncio.sleep(0)

    def entry_in_a_round(*given: Any) -> Entry:
        told.append(rounds[0])
        return entry_of(*given)

    monkeypatch.setattr("api.console.audit.entry_of", entry_in_a_round)
    task = asyncio.create_task(bystander())
    await ann.page("audit")
    task.cancel()
    assert len(told) >= 4
    assert len(set(told)) == len(told)


def test_links_of_many_breakers_are_compared_once() -> None:
    """Each id with all others would be seconds of work for a page of the largest entries."""
    hashed = 0

    class Id(str):
        def __hash__(self) -> int:
            nonlocal hashed
            hashed += 1
            return super().__hash__()

    old, new = ([Id(f"{n:032}") for n in range(first, first + 500)] for first in (0, 250))
    sides = {"before": {"breaker_ids": old}, "after": {"breaker_ids": new}}
    (change,) = entry_of({"action": "router.link", "target_id": "1"} | sides, "").changes
    assert change.old is not None
    assert change.old.short.startswith(f"{0:032}, ")
    assert hashed <= 4 * 1_000


async def test_links_are_told_by_the_names_of_what_came_and_went(world: World, ann: Visitor) -> None:
    first, second = await world.breaker("checkout errors"), await world.breaker("checkout latency")
    router_id = first.router_ids[0]
    await world.call("POST", f"routers/{router_id}/breakers", json={"breaker_ids": [second.id]})
    await world.call("DELETE", f"routers/{router_id}/breakers/{first.id}")
    text = (await ann.page("audit?action=router.")).partition('<ol class="log">')[2]
    unlinked, linked = (one for one in text.split("<li ")[1:] if "router.link" in one or "router.unlink" in one)
    name = "checkout errors"  # a router that came with a breaker has its name
    assert re.search(rf"linked breakers to the router\s+<a [^>]+routers/{router_id}\">{name}</a>", linked)
    assert re.search(r"breakers</th><td>\s*<span class=\"dim\">not there</span>\s*</td><td>\s*checkout latency\s*</td>", linked)  # fmt: skip  # noqa: E501
    assert re.search(r"breakers</th><td>\s*checkout errors\s*</td><td>\s*<span class=\"dim\">not there", unlinked)
    assert first.id not in unlinked.partition("<table")[2]
