"""The screen of one breaker, and what operators do there: all of it through the API, in words, and taken back."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from api.console.guard import csrf_of
from breaker_actors.core.model import Override
from breaker_actors.store.rows import BreakerRow, ChannelDraft
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World as StoreWorld
from tests.contract.store_world import event
from tests.support.fake_gateway import NOW_MS, view
from tests.support.web_world import RULE, World

HOUR_MS = 3_600_000
HOSTILE = "<script>alert(1)</script>\"'{{7*7}}"
FORCE = {"kind": "force_open", "reason": "it is being moved", "lasts": str(HOUR_MS), "tag": 'W/"0"'}


@dataclass
class Reader:
    """Somebody at the console of a world's project."""

    world: World
    token: str

    async def get(self, path: str, part: bool = False) -> tuple[int, str]:
        headers = {"Cookie": f"breakers_session={self.token}"} | ({"HX-Request": "true"} if part else {})
        response = await self.world.app.test_client().get(self._full(path), headers=headers)
        return response.status_code, await response.get_data(as_text=True)

    async def post(self, path: str, fields: Any, csrf: str | None = None) -> Any:
        sent = [("csrf", csrf_of(self.token) if csrf is None else csrf), *(getattr(fields, "items", lambda: fields)())]
        headers = {"Cookie": f"breakers_session={self.token}", "HX-Request": "true"}
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        return await self.world.app.test_client().post(self._full(path), headers=headers, data=urlencode(sent))

    async def say(self, path: str, fields: Any, status: int = 200) -> str:
        """What the page says of it, as text."""
        response = await self.post(path, fields)
        body = await response.get_data(as_text=True)
        assert response.status_code == status, body
        return body

    def _full(self, path: str) -> str:
        return path if path.startswith("/") else f"/console/p/{self.world.project.id}/{path}"


async def sign_in(world: World, kind: str = "user") -> Reader:
    key = await world.store.find_key(world.keys[kind])
    assert key is not None
    now_ms = world.clock.now_ms()
    await world.store.create_session(key.id, f"t-{kind}", now_ms, now_ms + HOUR_MS)
    return Reader(world, f"t-{kind}")


@pytest.fixture
async def ann(world: World) -> Reader:
    return await sign_in(world)


async def override_of(world: World, breaker_id: str) -> Override | None:
    row = await world.store.get_breaker(world.project.id, breaker_id)
    assert row is not None
    override = row.controls.override
    return override if override is not None and override.until_ms > world.clock.now_ms() else None


def undo_in(text: str) -> tuple[str, dict[str, str]]:
    """Where the notice's form leads, and its fields but the proof."""
    action = re.search(r'<form hx-post="([^"]+)"', text)
    assert action is not None, text
    fields = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', text[action.start() :])
    return html.unescape(action[1]), {name: html.unescape(value) for name, value in fields if name != "csrf"}


async def actions(world: World) -> list[str]:
    return [entry.action for entry in await world.store.audit(world.project.id, 50)]


async def moves(world: World, breaker_id: str, *states: Any) -> OutboxWorld:
    directory, journal = await world.store.open_directory(), await world.store.open_journal(world.project.shard)
    project = world.project
    store = StoreWorld(world.store, project.org_id, project.workspace_id, project.id, directory, journal)
    told = OutboxWorld(store)
    await told.open()
    await told.adopt(breaker_id)
    if states:
        await told.moves(breaker_id, *states)
    return told


# ------------------------------------------------------------------ what is shown


async def test_it_shows_state_rule_and_figures(world: World, ann: Reader) -> None:
    row = await world.breaker("checkout", threshold=500)
    since_ms = NOW_MS - 60_000
    world.gateway.views[row.id] = view(
        state="open", machine_state="open", state_since_ms=since_ms, allow_rate=0.0, value=812.5, sample_count=9,
        verdict="breach", open_cause="threshold_exceeded", deadline_ms=NOW_MS + 12_000,
    )  # fmt: skip
    status, text = await ann.get(f"b/{row.id}")
    assert status == 200
    for words in (
        "checkout",
        "average of latency above 500",
        "probe ",
        "in 12 s",
        "812.5",
        "0 %",
        "data-lasting>1 min<",
    ):
        assert words in text, words
    assert "the threshold was exceeded" in text
    assert f"/audit?target={row.id}" in text
    assert f"/routers/{row.router_ids[0]}" in text
    assert f"/b/{row.id}/edit" in text
    assert 'data-dialog="#force_open"' in text
    assert 'disabled title="No override is in force."' in text


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"verdict": "indeterminate", "sample_count": 1}, "too few samples, 1 of 5 in the last 1 minute"),
        ({"verdict": "indeterminate", "sample_count": 0}, "no samples in the last 1 minute; it has never moved"),
        ({"held_back": True, "verdict": "breach", "deadline_ms": NOW_MS + 5_000}, "Held back: a breach stands"),
        ({"late_count": 3}, "came too late to count: 3"),
        ({"truncated_count": 1_200}, "left the window early: 1,200"),
    ],
)
async def test_it_says_why_it_is_not_evaluated(world: World, ann: Reader, seen: Any, words: str) -> None:
    row = await world.breaker("a", min_count=5)
    world.gateway.views[row.id] = view(**seen)
    assert words in (await ann.get(f"b/{row.id}"))[1]


async def test_runs_of_failures_have_no_window_and_stand(world: World, ann: Reader) -> None:
    row = await world.breaker("a", kind="consecutive_failures", threshold=3, window_ms=10_000, min_count=3)
    world.gateway.views[row.id] = view(value=0.0, sample_count=2_210, verdict="healthy")
    text = (await ann.get(f"b/{row.id}"))[1]
    assert "/ 3, no window" in text
    assert "without samples it stays so" in text


async def test_idle_ticks_go_on_without_news(world: World, ann: Reader) -> None:
    """The page's script tells the last and the next of them."""
    row = await world.breaker("a", eval_interval_ms=1_000)
    world.gateway.views[row.id] = view(last_eval_ms=NOW_MS - 300, next_eval_ms=NOW_MS + 700)
    text = (await ann.get(f"b/{row.id}"))[1]
    grid = f'data-next="{NOW_MS + 700}" data-every="1000"'
    assert f"{grid} data-relative>300 ms ago<" in text
    assert f"{grid} data-ahead>in 700 ms<" in text


async def test_a_stale_state_and_one_without_routers_say_so(world: World, ann: Reader) -> None:
    row = await world.breaker("a")
    await world.call("DELETE", f"routers/{row.router_ids[0]}/breakers/{row.id}")
    world.gateway.stale.add(row.id)
    text = (await ann.get(f"b/{row.id}"))[1]
    assert "Its owner did not answer" in text
    assert "It hangs on no router" in text


async def test_badges_of_observing_and_of_a_mute(world: World, ann: Reader) -> None:
    row = await world.breaker("a")
    world.gateway.views[row.id] = view(mode="observe", machine_state="open")
    await world.call("PATCH", f"breakers/{row.id}", json={"mode": "observe"})
    for matchers in ([{"field": "name", "op": "=", "value": "a"}], [{"field": "name", "op": "=", "value": "b"}]):
        await world.call(
            "POST",
            "mutes",
            json={"matchers": matchers, "ends_ms": NOW_MS + 5_000, "comment": f"of {matchers[0]['value']}"},
        )
    text = (await ann.get(f"b/{row.id}"))[1]
    assert "machine: open" in text
    assert "callers see it closed" in text
    assert "of a</a>" in text
    assert "of b" not in text
    assert 'data-dialog="#enforce"' in text
    assert 'data-dialog="#observe"' not in text


async def test_a_mute_that_asks_for_routers_is_found(world: World, ann: Reader) -> None:
    row = await world.breaker("a")
    await world.call("PATCH", f"routers/{row.router_ids[0]}", json={"metadata": {"team": "pay"}})
    draft = {"field": "router.team", "op": "=", "value": "pay"}, {"field": "channel", "op": "=", "value": "slack"}
    await world.call("POST", "mutes", json={"matchers": draft, "ends_ms": NOW_MS + 5_000, "comment": "quiet"})
    assert "people do not hear of it on some channels" in (await ann.get(f"b/{row.id}"))[1]


async def test_its_moves_are_paged_in_words(world: World, ann: Reader) -> None:
    """With those of a backfill, newest first."""
    row = await world.breaker("a")
    await moves(world, row.id, *["open", "half_open"] * 12)
    past = event(1, ts_ms=10)
    await world.store.add_backfill_events(world.project.id, "run-1", [(row.id, past)], NOW_MS)
    text = (await ann.get(f"b/{row.id}"))[1]
    assert text.count('<tr class="') == 20
    assert "the threshold was exceeded" in text
    assert "backfilled" not in text
    more = re.search(r'href="([^"]+cursor=[^"]+)#moves" rel="next"', text)
    assert more is not None
    older = (await ann.get(more[1]))[1]
    assert older.count('<tr class="') == 5
    assert "backfilled" in older
    assert ">Newest<" in older
    assert 'rel="next"' not in older


async def test_a_move_by_hand_says_who_and_why(world: World, ann: Reader) -> None:
    row = await world.breaker("a")
    told = await moves(world, row.id)
    hand = msgspec.structs.replace(
        event(1), reason="forced_open", by=HOSTILE, comment="x" * 500, value=None, hidden_by=None
    )
    hidden = msgspec.structs.replace(event(2, "open", "half_open"), hidden_by="override")
    commit = told.world.commit(row.id, told.epochs[row.id], hand, hidden)
    assert await told.world.write(commit) == ["ok"]
    text = (await ann.get(f"b/{row.id}"))[1]
    assert "forced open" in text
    assert "&lt;script&gt;" in text
    assert "<script>alert" not in text
    assert "hidden: override" in text


async def test_a_trace_is_linked_where_the_project_has_a_template(world: World, ann: Reader) -> None:
    """Out of what was told of the move; a template that makes no link makes none here either."""
    row = await world.breaker("a")
    await world.call("PATCH", world.path, json={"trace_id_url_template": "https://traces.example/{{value}}"})
    channel = await world.store.create_channel(
        world.project.id, ChannelDraft(channel="webhook", config={"url": "https://hook.example/"}), NOW_MS
    )
    told = await moves(world, row.id)
    traced = msgspec.structs.replace(event(1), trace_id="a b/c")
    assert await told.world.write(told.world.commit(row.id, told.epochs[row.id], traced)) == ["ok"]
    text = (await ann.get(f"b/{row.id}"))[1]
    assert 'href="https://traces.example/a%20b%2Fc"' in text
    assert 'rel="noreferrer noopener"' in text
    assert f"/channels/{channel.id}/deliveries" in text


async def test_it_says_who_was_told_of_a_move(world: World, ann: Reader) -> None:
    row = await world.breaker("a")
    told = await moves(world, row.id, "open")
    assert "Nobody was told: there is no channel" in (await ann.get(f"b/{row.id}"))[1]
    draft = ChannelDraft(name="<b>hook", channel="webhook", config={"url": "https://hook.example/"})
    channel = await world.store.create_channel(world.project.id, draft, NOW_MS)
    await told.moves(row.id, "half_open", "closed")
    text = (await ann.get(f"b/{row.id}"))[1]
    assert re.search(rf'/channels/{channel.id}/deliveries">&lt;b&gt;hook</a> <span class="dim">pending', text)
    assert "Nobody is told of half_open" in text
    assert "Nobody was told: there was no channel yet" in text
    assert re.search(rf"timeline\?breaker={row.id}[^\"]*#m-live-\d+", text)


async def test_an_outage_that_nobody_was_told_of_says_so(world: World, ann: Reader) -> None:
    row = await world.breaker("a")
    world.gateway.views[row.id] = view(state="open", machine_state="open")
    draft = ChannelDraft(name="<b>hook", channel="webhook", config={"url": "https://hook.example/"})
    channel = await world.store.create_channel(world.project.id, draft, NOW_MS)
    told = await moves(world, row.id, "open")
    words = "Nobody was told of this outage"
    assert words not in (await ann.get(f"b/{row.id}"))[1], "it waits to be sent"
    await told.send_all(channel.id, "dead", status=404, error="answered 404 <i>Not Found")
    text = (await ann.get(f"b/{row.id}"))[1]
    link = rf'/channels/{channel.id}/deliveries\?state=dead">&lt;b&gt;hook</a> answered 404 &lt;i&gt;Not Found'
    assert re.search(rf"{words}: <a[^>]*{link}\.", text)
    world.gateway.views[row.id] = view(state="closed", machine_state="closed")
    assert words not in (await ann.get(f"b/{row.id}"))[1]
    world.gateway.views[row.id] = view(state="open", machine_state="open")
    await told.moves(row.id, "half_open", "open")
    await told.send_all(channel.id)
    assert words not in (await ann.get(f"b/{row.id}"))[1], "a later trip of it was sent"


async def test_a_shadow_is_shown_beside_what_it_watches(world: World, ann: Reader) -> None:
    watched = await world.breaker("real")
    made = await world.call("POST", "breakers", json={**RULE, "name": "try", "shadow_of": watched.id})
    shadow_id = (await made.get_json())["id"]
    for text in [(await ann.get(f"b/{id_}"))[1] for id_ in (shadow_id, watched.id)]:
        assert "Shadow and what it watches" in text
        assert f'/b/{shadow_id}">try</a>' in text
        assert f'/b/{watched.id}">real</a>' in text
        assert "1 d" in text
    assert "Shadow and what it watches" not in (await ann.get(f"b/{watched.id}", part=True))[1]


async def test_the_live_part_has_no_form(world: World, ann: Reader) -> None:
    row = await world.breaker("a")
    status, text = await ann.get(f"b/{row.id}", part=True)
    assert status == 200
    assert text.lstrip().startswith('<div id="live"')
    assert f'data-ids="{row.id}"' in text
    assert "<form" not in text
    assert "<dialog" not in text


async def test_hostile_texts_are_shown_as_they_are(world: World, ann: Reader) -> None:
    made = await world.call(
        "POST", "breakers", json={**RULE, "name": HOSTILE, "metric": "<b>m</b>", "metadata": {"<i>k</i>": "<u>v</u>\n"}}
    )
    text = (await ann.get(f"b/{(await made.get_json())['id']}"))[1]
    for bad in ("<script>alert", "<b>m", "<i>k", "<u>v"):
        assert bad not in text
    assert "&lt;i&gt;k" in text


# ------------------------------------------------------------------ who may


async def test_a_project_key_sees_the_state_alone(world: World) -> None:
    row = await world.breaker("a", metric="hush")
    guest = await sign_in(world, "project")
    status, text = await guest.get(f"b/{row.id}")
    assert status == 200
    assert ">a</h1>" in text
    for word in ("hush", "<dialog", "data-dialog", "/routers/", "/audit", "/channels/", "Moves</h2>", "force"):
        assert word not in text, word


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("override", FORCE),
        ("override/end", {"tag": 'W/"0"'}),
        ("mode", {"mode": "observe"}),
        ("delete", {"name": "a"}),
    ],
)
async def test_a_project_key_changes_nothing(world: World, path: str, fields: dict[str, str]) -> None:
    row = await world.breaker("a")
    before = await world.store.list_breakers(world.project.id)
    guest = await sign_in(world, "project")
    assert (await guest.post(f"b/{row.id}/{path}", fields)).status_code == 403
    assert await world.store.list_breakers(world.project.id) == before


@pytest.mark.parametrize("name", ["nothing", "00000000-0000-4000-8000-000000000000", "x%3Fy%3D"])
async def test_there_is_no_such_breaker(world: World, ann: Reader, name: str) -> None:
    assert (await ann.get(f"b/{name}"))[0] == 404
    assert (await ann.post(f"b/{name}/override", FORCE)).status_code == 404


async def test_strangers_see_nothing(world: World) -> None:
    row = await world.breaker("a")
    stranger = await sign_in(world, "stranger")
    assert (await stranger.get(f"b/{row.id}"))[0] == 404
    assert (await stranger.post(f"b/{row.id}/override", FORCE)).status_code == 404


async def test_a_form_without_proof_does_nothing(world: World, ann: Reader) -> None:
    row = await world.breaker("a")
    assert (await ann.post(f"b/{row.id}/override", FORCE, csrf="x")).status_code == 403
    assert await override_of(world, row.id) is None


# ------------------------------------------------------------------ overrides


@pytest.mark.parametrize(
    ("kind", "more", "words"),
    [
        ("force_open", {}, "Callers see open: 0 % of calls are let through."),
        ("force_closed", {"then": "half_open"}, "Callers see closed: 100 % of calls are let through."),
        ("throttle", {"percent": "12.5"}, "Callers see half_open: 12.5 % of calls are let through."),
    ],
)
async def test_it_overrides_and_says_what_callers_see(
    world: World, ann: Reader, kind: str, more: dict[str, str], words: str
) -> None:
    row = await world.breaker("a")
    text = await ann.say(f"b/{row.id}/override", FORCE | {"kind": kind} | more)
    assert words in text
    assert "for 1 h" in text
    override = await override_of(world, row.id)
    assert override is not None
    assert (override.kind, override.by, override.until_ms) == (kind, "u", NOW_MS + HOUR_MS)
    assert override.then == more.get("then")
    assert override.allow_rate == (0.125 if kind == "throttle" else None)
    assert "override.set" in await actions(world)
    shown = (await ann.get(f"b/{row.id}"))[1]
    assert "it is being moved" in shown
    assert 'data-dialog="#end"' in shown


async def test_undo_ends_the_first_and_restores_the_one_before(world: World, ann: Reader) -> None:
    row = await world.breaker("a")
    first = await ann.say(f"b/{row.id}/override", FORCE | {"kind": "throttle", "percent": "30", "then": "half_open"})
    before = await override_of(world, row.id)
    assert before is not None
    tag = f'W/"{before.version}"'
    second = await ann.say(f"b/{row.id}/override", FORCE | {"reason": "worse", "lasts": "longest", "tag": tag})
    longest = await override_of(world, row.id)
    assert longest is not None
    assert longest.until_ms == NOW_MS + 24 * HOUR_MS
    await ann.say(*undo_in(second))
    restored = await override_of(world, row.id)
    assert restored is not None
    for name in ("kind", "reason", "until_ms", "allow_rate", "then"):
        assert getattr(restored, name) == getattr(before, name), name
    await ann.say(*undo_in(first), status=412)  # another one is in force by now
    text = await ann.say(f"b/{row.id}/override/end", {"tag": f'W/"{restored.version}"', "reason": "enough"})
    assert await override_of(world, row.id) is None
    await ann.say(*undo_in(text))
    assert (await override_of(world, row.id)) is not None


async def test_undo_of_the_first_one_ends_it(world: World, ann: Reader) -> None:
    row = await world.breaker("a")
    world.gateway.views[row.id] = view(state="open", machine_state="half_open")
    text = await ann.say(f"b/{row.id}/override", FORCE)
    ended = await ann.say(*undo_in(text))
    assert "Its machine is half_open, which lets a part of the calls through" in ended
    assert await override_of(world, row.id) is None


async def test_it_says_what_an_observing_breaker_does_underneath(world: World, ann: Reader) -> None:
    row = await world.breaker("a")
    world.gateway.views[row.id] = view(mode="observe", machine_state="open")
    await ann.say(f"b/{row.id}/override", FORCE)
    override = await override_of(world, row.id)
    assert override is not None
    text = await ann.say(f"b/{row.id}/override/end", {"tag": f'W/"{override.version}"'})
    assert "It observes: callers see closed, which lets 100 % of calls through. Its machine is open." in text


async def test_who_was_quicker_is_told(world: World, ann: Reader) -> None:
    row = await world.breaker("a")
    bob = await sign_in(world, "admin")
    await bob.say(f"b/{row.id}/override", FORCE | {"reason": HOSTILE})
    world.clock.ms += 3_000
    text = await ann.say(f"b/{row.id}/override", FORCE | {"kind": "force_closed"}, 412)
    assert "Somebody was quicker. a has forced open this breaker 3 s ago" in text
    assert "<script>alert" not in text
    override = await override_of(world, row.id)
    assert override is not None
    assert override.kind == "force_open"
    tag = f'W/"{override.version}"'
    await bob.say(f"b/{row.id}/override/end", {"tag": tag})
    text = await ann.say(f"b/{row.id}/override/end", {"tag": tag}, 412)
    assert "a ended it. There is no override now." in text


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"reason": "  "}, "reason"),
        ({"kind": "shut"}, "kind"),
        ({"lasts": "7"}, "lasts"),
        ({"lasts": "at"}, "until"),
        ({"lasts": "at", "until_ms": "1"}, "until_ms"),
        ({"lasts": "at", "until_ms": "9" * 15}, "until_ms"),
        ({"kind": "throttle", "percent": "much"}, "percent"),
        ({"kind": "throttle", "percent": "nan"}, "percent"),
        ({"kind": "throttle", "percent": "101"}, "percent"),
        ({"tag": ""}, "tag"),
    ],
)
async def test_what_is_refused_says_why(world: World, ann: Reader, fields: dict[str, str], field: str) -> None:
    row = await world.breaker("a")
    text = await ann.say(f"b/{row.id}/override", FORCE | fields, 422)
    assert f"<code>{field}</code>" in text
    assert await override_of(world, row.id) is None


async def test_a_project_offers_no_more_than_it_allows(world: World, ann: Reader) -> None:
    row = await world.breaker("a")
    assert "in 4 h<" in (await ann.get(f"b/{row.id}"))[1]
    await world.call("PATCH", world.path, json={"override_max_ms": 1_800_000})
    text = (await ann.get(f"b/{row.id}"))[1]
    assert "in 15 min<" in text
    assert '<option value="longest" selected>in 30 min, the most there may be' in text
    assert "in 1 h<" not in text
    await ann.say(f"b/{row.id}/override", FORCE | {"lasts": "longest"})
    override = await override_of(world, row.id)
    assert override is not None
    assert override.until_ms == NOW_MS + 1_800_000


# ------------------------------------------------------------------ modes, and the end


async def mode_of(world: World, row: BreakerRow) -> str:
    stored = await world.store.get_breaker(world.project.id, row.id)
    assert stored is not None
    return stored.controls.mode


async def test_observing_and_back(world: World, ann: Reader) -> None:
    """Back asks again where callers would feel it."""
    row = await world.breaker("a")
    text = await ann.say(f"b/{row.id}/mode", {"mode": "observe"})
    assert "callers see closed, and 100 % of calls are let through" in text
    assert await mode_of(world, row) == "observe"
    world.gateway.views[row.id] = view(mode="observe", machine_state="open")
    asked = await ann.say(*undo_in(text), status=409)
    assert "its machine is open, which lets 0 % of calls through" in asked
    assert "Enforce 1 breaker all the same" in asked
    assert await mode_of(world, row) == "observe"
    done = await ann.say(*undo_in(asked))
    assert await mode_of(world, row) == "enforce"
    assert "Its machine is open, which lets 0 % of calls through." in done
    assert "callers see that from now on" in done
    await ann.say(f"b/{row.id}/mode", {"mode": ""}, 422)


async def test_it_is_deleted_by_its_name_alone(world: World, ann: Reader) -> None:
    row = await world.breaker("a <b>")
    await ann.say(f"b/{row.id}/delete", {"name": "a"}, 422)
    assert await world.store.get_breaker(world.project.id, row.id) is not None
    response = await ann.post(f"b/{row.id}/delete", {"name": "a <b>"})
    assert response.headers["HX-Redirect"] == f"/console/p/{world.project.id}"
    assert await world.store.get_breaker(world.project.id, row.id) is None
    assert "breaker.delete" in await actions(world)


async def test_a_name_that_nobody_can_type_is_typed_as_it_is_shown(world: World, ann: Reader) -> None:
    odd = await world.breaker("two\nlines \u202e")
    blank = await world.breaker("\u202e\u200f")
    assert "There is no undo" in (await ann.get(f"b/{odd.id}"))[1]
    assert (await ann.post(f"b/{odd.id}/delete", {"name": "two lines"})).status_code == 200
    assert (await ann.post(f"b/{blank.id}/delete", {"name": ""})).status_code == 422
    assert (await ann.post(f"b/{blank.id}/delete", {"name": blank.id})).status_code == 200
