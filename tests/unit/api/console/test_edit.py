"""The forms that make and change a breaker: what they send, what they show of a refusal, and that nobody's change is
written over unseen."""

from __future__ import annotations

import gzip
import html
import re
import subprocess
import sys
import threading
from typing import Any

import msgspec
import pytest

from api.console import assets, doubts, drafts, edit, tried
from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import Invalid
from breaker_actors.store.rows import BreakerRow, EventQuery
from tests.support.web_world import World
from tests.unit.api.console.conftest import Visitor

HOSTILE = "<script>alert(1)</script>\n" + "x" * 100
RULED = {"metric": "http", "kind": "error_rate", "op": "gt", "threshold": 0.5}


def fields_of(page: str) -> dict[str, Any]:
    """What a browser would send of a form, as it was rendered."""
    found: dict[str, Any] = {"meta_key": [], "meta_value": []}
    for tag in re.findall(r"<input [^>]*>", page):
        given = dict(re.findall(r'([\w-]+)="([^"]*)"', tag))
        name, value = given.get("name"), html.unescape(given.get("value", ""))
        if name in ("meta_key", "meta_value"):
            found[name].append(value)
        elif name and (given.get("type") != "checkbox" or " checked" in tag):
            found[name] = value or ("on" if given.get("type") == "checkbox" else "")
    for name, options in re.findall(r'<select [^>]*name="([^"]+)"[^>]*>(.*?)</select>', page, re.DOTALL):
        values = re.findall(r'<option value="([^"]*)"( selected)?', options)
        found[name] = next((value for value, chosen in values if chosen), values[0][0])
    actions = re.search(r'<textarea id="f-actions"[^>]*>(.*?)</textarea>', page, re.DOTALL)
    found["actions"] = html.unescape(actions.group(1)) if actions else ""
    found.pop("csrf", None)
    return found


async def stored(world: World, row: BreakerRow) -> BreakerRow:
    found = await world.store.get_breaker(world.project.id, row.id)
    assert found is not None
    return found


async def sent(ann: Visitor, row: BreakerRow, **changes: Any) -> Any:
    """The edit form with some fields changed."""
    given = fields_of(await ann.page(f"b/{row.id}/edit")) | {k.replace("__", "."): v for k, v in changes.items()}
    return await ann.post(f"b/{row.id}/edit", **given)


async def test_the_form_shows_what_is_stored_and_sends_what_is_changed(ann: Visitor, world: World) -> None:
    row = await world.breaker("checkout", threshold=0.25, kind="error_rate", window_ms=30_000)
    reply = await sent(ann, row, threshold="0.4", meta_key=["team", ""], meta_value=["payments", ""])
    assert reply.status == 200, reply
    told = html.unescape(reply.body.decode())
    assert "threshold: 0.25 → 0.4" in told
    assert reply.headers["hx-trigger"] == "acted"
    now = await stored(world, row)
    assert (now.rule.threshold, now.metadata, now.version) == (0.4, {"team": "payments"}, row.version + 1)
    assert now.rule == msgspec.structs.replace(row.rule, threshold=0.4)
    entry = (await world.store.audit(world.project.id, 1))[0]
    assert entry.action == "breaker.update"
    assert 'hx-swap-oob="outerMorph"' in told


async def test_an_edit_can_be_taken_back_once(ann: Visitor, world: World) -> None:
    row = await world.breaker("b", threshold=5)
    told = (await sent(ann, row, threshold="7", cooldown_ms="9000", name="c")).body.decode()
    back = fields_of(told.partition("</form>")[0])
    assert set(msgspec.json.decode(back["before"])) == {"threshold", "cooldown_ms", "name"}
    reply = await ann.post(f"b/{row.id}/edit/undo", before=back["before"], tag=back["tag"])
    assert reply.status == 200
    now = await stored(world, row)
    assert (now.rule, now.name) == (row.rule, "b")
    again = await ann.post(f"b/{row.id}/edit/undo", before=back["before"], tag=back["tag"])
    assert again.status == 412
    assert "changed again since" in again.body.decode()


async def test_nothing_that_somebody_else_changed_is_written_over(ann: Visitor, world: World) -> None:
    row = await world.breaker("b", threshold=5)
    given = fields_of(await ann.page(f"b/{row.id}/edit"))
    await world.call("PATCH", f"breakers/{row.id}", json={"cooldown_ms": 4_000, "threshold": 6})
    reply = await ann.post(f"b/{row.id}/edit", **given | {"threshold": "9", "min_count": "3"})
    told = html.unescape(reply.body.decode())
    assert reply.status == 412
    assert "cooldown_ms is 4000 now" in told
    assert "You changed threshold, too" in told
    assert (await stored(world, row)).rule.threshold == 6
    merged = fields_of(reply.body.decode())
    assert (merged["threshold"], merged["cooldown_ms"], merged["min_count"]) == ("9", "4000", "3")
    assert (await ann.post(f"b/{row.id}/edit", **merged)).status == 200
    rule = (await stored(world, row)).rule
    assert (rule.threshold, rule.cooldown_ms, rule.min_count) == (9, 4_000, 3)


async def test_an_override_meanwhile_is_no_other_rule(ann: Visitor, world: World) -> None:
    row = await world.breaker("b", threshold=5)
    given = fields_of(await ann.page(f"b/{row.id}/edit"))
    await world.call("PUT", f"breakers/{row.id}/override", json={"kind": "force_open", "reason": "r"})
    assert (await ann.post(f"b/{row.id}/edit", **given | {"threshold": "9"})).status == 200
    assert (await ann.post(f"b/{row.id}/edit", **given | {"threshold": "8", "tag": ""})).status == 422
    assert (await stored(world, row)).rule.threshold == 9


async def test_each_field_has_a_label_a_unit_and_a_default(ann: Visitor, world: World) -> None:
    assert set(drafts.LABELS) == set(drafts.described_fields()) - {"kind_params"}
    page = await ann.page("new")
    assert re.search(r'<label for="f-window_ms">Window <span class="dim">\(ms\)</span></label>', page)
    assert "Left empty: 60000 (1 min)." in page
    assert "Default: conservative." in page


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("threshold", "much", "must be a finite number"),
        ("window_ms", "1.5", "must be an integer"),
        ("window_ms", "99999999999", "must be at most 86400000"),
        ("recovery_allow_rate_ramp_steps", "11", "must be at most 10"),
        ("actions", "{", "is not JSON"),
        ("metric", "m" * 129, "at most 128 characters"),
    ],
)
async def test_what_is_wrong_stands_at_its_field(ann: Visitor, world: World, field: str, text: str, words: str) -> None:
    row = await world.breaker("b")
    reply = await sent(ann, row, **{field: text})
    assert reply.status == 422
    told = html.unescape(reply.body.decode())
    place = re.search(rf'<p class="wrong" id="e-{field}" hx-swap-oob="outerHTML">(.*?)</p>', told)
    assert place is not None
    assert words in place.group(1)
    assert (await stored(world, row)).version == row.version


async def test_an_unchanged_form_changes_nothing(ann: Visitor, world: World) -> None:
    for rule in (
        {"kind": "percentile", "kind_params": {"percentile": 99.5, "more": [1]}},
        {"kind": "delta", "kind_params": {"delta_of": "p95", "alpha": 0.5}},
        {"kind": "consecutive_failures", "threshold": 1e-7},
        {"threshold": 1e300, "half_open_backoff_enabled": False},
    ):
        row = await world.breaker(None, **rule)
        assert "Nothing was changed" in (await sent(ann, row)).body.decode(), rule
        assert (await stored(world, row)).version == row.version


async def test_params_go_with_their_kind(ann: Visitor, world: World) -> None:
    row = await world.breaker("b")
    wrong = await sent(ann, row, kind="percentile")
    assert 'id="e-kind_params-percentile" hx-swap-oob="outerHTML">is required' in wrong.body.decode()
    assert (await sent(ann, row, kind="percentile", kind_params__percentile="99")).status == 200
    assert (await stored(world, row)).rule.kind_params == {"percentile": 99}
    assert (await sent(ann, row, kind="avg")).status == 200
    assert (await stored(world, row)).rule.kind_params is None


async def test_remarks_are_shown(ann: Visitor, world: World) -> None:
    row = await world.breaker("b", kind="error_rate", threshold=0.5)
    assert "never opens" in (await sent(ann, row, threshold="1")).body.decode()


async def test_percent_for_a_share_are_asked_about_before_they_are_saved(ann: Visitor, world: World) -> None:
    row = await world.breaker("b", kind="error_rate", threshold=0.5)
    asked = await sent(ann, row, threshold="50")
    assert (asked.status, (await stored(world, row)).version) == (422, row.version)
    assert "50 is 5,000 %. Did you mean 0.5 (50 %)?" in asked.body.decode()
    assert "Nothing was changed" in (await sent(ann, row, threshold="50", meant="50 0.5")).body.decode()
    assert (await sent(ann, row, threshold="50", meant="50 50")).status == 200
    assert (await stored(world, row)).rule.threshold == 50
    assert (await sent(ann, row, name="c")).status == 200, "what is stored already is asked about no more"


@pytest.mark.parametrize(
    ("fields", "words", "instead"),
    [
        ({"kind": "error_rate", "threshold": 30}, "30 is 3,000 %. Did you mean 0.3 (30 %)?", "0.3"),
        ({"kind": "error_rate", "threshold": 2.5}, "2.5 is 250 %. Did you mean 0.025 (2.5 %)?", "0.025"),
        ({"kind": "error_rate", "threshold": 300}, "300 is 30,000 %, and an error rate lies between 0 and 100 %.", ""),
        ({"kind": "error_rate", "threshold": -2}, "-2 is -200 %, and an error rate lies between 0 and 100 %.", ""),
        ({"kind": "error_rate", "threshold": 1}, None, None),
        ({"kind": "error_rate", "threshold": "much"}, None, None),
        ({"kind": "avg", "threshold": 30}, None, None),
        (
            {"kind": "delta", "kind_params": {"delta_of": "error_rate"}, "threshold": -30},
            "-30 is -3,000 %. Did you mean -0.3 (-30 %)?",
            "-0.3",
        ),
        ({"kind": "delta", "kind_params": {"delta_of": "p95"}, "threshold": 30}, None, None),
    ],
)
def test_what_is_doubted(fields: dict[str, Any], words: str | None, instead: str | None) -> None:
    doubt = doubts.doubt_of(fields)
    assert (doubt is None) == (words is None)
    if doubt is not None:
        assert (doubt.words, doubt.instead) == (words, instead)


async def test_a_new_breaker_is_made_once(ann: Visitor, world: World) -> None:
    given = fields_of(await ann.page("new")) | {"name": "fresh", "metric": "latency", "threshold": "0.2"}
    first, second = await ann.post("new", **given), await ann.post("new", **given)
    (row,) = (await world.store.list_breakers(world.project.id))[0]
    assert first.headers["hx-redirect"] == second.headers["hx-redirect"] == ann.path(f"b/{row.id}")
    assert (row.name, row.rule.kind, row.rule.threshold, row.rule.min_count) == ("fresh", "error_rate", 0.2, 5)
    assert row.rule == parse_rule(
        {"metric": "latency", "kind": "error_rate", "op": "gt", "threshold": 0.2, "min_count": 5}
    )
    assert len(row.router_ids) == 1


async def test_a_new_breaker_on_a_router_that_is_there(ann: Visitor, world: World) -> None:
    router = await world.router()
    given = fields_of(await ann.page("new")) | {"metric": "latency", "threshold": "0.2", "mode": "observe"}
    reply = await ann.post("new", **given | {"router": router.id})
    assert reply.headers["hx-redirect"]
    (row,) = (await world.store.list_breakers(world.project.id))[0]
    assert row.router_ids == (router.id,)
    assert row.controls.mode == "observe"
    assert [one.id for one in await world.store.list_routers(world.project.id)] == [router.id]
    gone = fields_of(await ann.page("new")) | {"metric": "latency", "threshold": "0.2", "name": "second"}
    told = await ann.post("new", **gone | {"router": "00000000-0000-4000-8000-000000000009"})
    alone = told.headers["hx-redirect"]
    assert alone.endswith("?said=alone")
    assert "router of its own" in await ann.page(alone)


async def test_a_new_one_that_is_wrong_or_remarked_on(ann: Visitor, world: World) -> None:
    given = fields_of(await ann.page("new"))
    reply = await ann.post("new", **given | {"metric": "", "threshold": ""})
    assert reply.status == 422
    assert 'id="e-metric" hx-swap-oob="outerHTML">is required' in reply.body.decode()
    assert 'id="e-threshold" hx-swap-oob="outerHTML">is required' in reply.body.decode()
    good = given | {"metric": "m", "threshold": "1", "name": "never"}
    reply = await ann.post("new", **good)
    (row,) = (await world.store.list_breakers(world.project.id))[0]
    assert reply.headers["hx-redirect"] == ann.path(f"b/{row.id}?said=made")
    page = html.unescape(await ann.page(f"b/{row.id}?said=made"))
    assert "The breaker was made." in page
    assert "never opens" in page
    assert "The breaker was made." not in await ann.page(f"b/{row.id}")


@pytest.mark.parametrize("digits", [308, 309, 400, 5_000])
async def test_a_threshold_of_any_length_is_answered(ann: Visitor, world: World, digits: int) -> None:
    row = await world.breaker("checkout", threshold=0.25, kind="error_rate")
    answer = await sent(ann, row, threshold="9" * digits)
    assert (answer.status, "Not done" in answer.body.decode()) == (422, True)
    assert (await stored(world, row)).rule.threshold == 0.25


@pytest.mark.parametrize(
    ("text", "whole", "found"),
    [
        (" 5 ", False, 5),
        ("0.5", False, 0.5),
        ("0.5", True, "0.5"),
        ("9" * 308, True, int("9" * 308)),
        ("9" * 309, False, "9" * 309),
        ("9" * 309, True, "9" * 309),
        ("-1e400", False, "-1e400"),
        ("nan", False, "nan"),
        ("", True, None),
    ],
)
def test_what_is_no_number_of_any_use_stays_a_text(text: str, whole: bool, found: Any) -> None:
    assert drafts.number(text, whole) == found


async def test_percent_for_a_share_are_asked_about_before_a_breaker_is_made(ann: Visitor, world: World) -> None:
    given = fields_of(await ann.page("new")) | {"metric": "m", "threshold": "30"}
    asked = await ann.post("new", **given)
    told = asked.body.decode()
    assert (asked.status, (await world.store.list_breakers(world.project.id))[0]) == (422, [])
    assert "30 is 3,000 %. Did you mean 0.3 (30 %)?" in told
    assert '<button form="edit" name="meant" value="30 0.3" class="main">Use 0.3</button>' in told
    assert '<button form="edit" name="meant" value="30 30">Make it all the same</button>' in told
    other = await ann.post("new", **given | {"threshold": "40", "meant": "30 30"})
    assert "40 is 4,000 %" in other.body.decode(), "the answer was about another number"
    assert (await ann.post("new", **given | {"meant": "30 0.3"})).headers["hx-redirect"]
    (row,) = (await world.store.list_breakers(world.project.id))[0]
    assert row.rule.threshold == 0.3
    again = fields_of(await ann.page("new")) | {"metric": "m", "threshold": "30", "meant": "30 30"}
    assert (await ann.post("new", **again)).headers["hx-redirect"].endswith("?said=made")


async def test_a_form_that_made_a_breaker_makes_no_other(ann: Visitor, world: World) -> None:
    given = fields_of(await ann.page("new")) | {"metric": "m", "threshold": "0.5"}
    assert (await ann.post("new", **given)).headers["hx-redirect"]
    second = await ann.post("new", **given | {"threshold": "0.6"})
    told = second.body.decode()
    assert "This form was sent already and made a breaker. Open a new form to make another." in told
    assert "Idempotency" not in told
    assert len((await world.store.list_breakers(world.project.id))[0]) == 1


async def test_hostile_words_are_text(ann: Visitor, world: World) -> None:
    row = await world.breaker(HOSTILE, metric="<script>alert(1)</script>")
    page = await ann.page(f"b/{row.id}/edit")
    assert "<script>alert" not in page
    reply = await sent(ann, row, name=HOSTILE + "2", metric="<script>alert(2)</script>")
    assert reply.status == 200
    assert "<script>alert" not in reply.body.decode()
    tried = await ann.post(f"b/{row.id}/try", metric="<script>alert(1)</script>", kind="avg", op="gt", threshold="1")
    assert "<script>" not in tried.json["html"]


async def test_a_project_key_may_do_none_of_it(guest: Visitor, world: World) -> None:
    row = await world.breaker("b")
    for path in ("new", f"b/{row.id}/edit", f"b/{row.id}/chart"):
        assert (await guest.get(path)).status == 403, path
    for path in ("new", "new/try", f"b/{row.id}/edit", f"b/{row.id}/edit/undo", f"b/{row.id}/try"):
        assert (await guest.post(path, seen="{}", before="{}", version="1")).status == 403, path
    assert (await stored(world, row)).version == row.version


async def test_there_is_no_such_breaker(ann: Visitor) -> None:
    for id_ in ("x", "00000000-0000-4000-8000-000000000009", "..%2f..%2fkeys"):
        for path in ("edit", "chart"):
            assert (await ann.get(f"b/{id_}/{path}")).status == 404, (id_, path)
        assert (await ann.post(f"b/{id_}/try")).status == 404


@pytest.mark.parametrize("seen", ["", "[]", "{", "null"])
async def test_a_form_that_is_not_whole(ann: Visitor, world: World, seen: str) -> None:
    row = await world.breaker("b")
    assert (await sent(ann, row, seen=seen)).status in (409, 422)
    assert (await stored(world, row)).version == row.version


async def test_where_there_is_no_log_the_states_are_shown_and_the_reason(ann: Visitor, world: World) -> None:
    row = await world.breaker("b")
    world.clock.ms += 1_000
    chart = (await ann.get(f"b/{row.id}/chart?span=day")).json
    assert (chart["times"], chart["unit"]) == (1, "")
    assert "can't be shown here" in chart["refused"]
    assert str(world.settings.data_dir) in chart["refused"]
    assert [band[0] for band in chart["bands"]] == ["closed"]
    assert await world.store.events(EventQuery(project_id=world.project.id)) == []


def test_drafts_keep_what_they_do_not_show() -> None:
    base = drafts.fresh() | {"kind": "percentile", "kind_params": {"percentile": 9, "note": "x"}}
    form = {"kind": "percentile", "kind_params.percentile": "99.9", "metric": "m"}
    assert drafts.drafted(form, [], base)["kind_params"] == {"note": "x", "percentile": 99.9}
    with pytest.raises(Invalid, match="twice"):
        drafts.metadata_of([("meta_key", "a"), ("meta_value", "1"), ("meta_key", "a "), ("meta_value", "2")])


async def test_the_whole_page_is_light(ann: Visitor, world: World) -> None:
    row = await world.breaker("b")
    page = await ann.page(f"b/{row.id}/edit")
    names = set(re.findall(r"/console/static/([^?]+)\?", page))
    assert {"uPlot.iife.min.js", "htmx.min.js", "chart.js", "edit.js", "console.css"} <= names
    assert sum(len(assets.asset(name).packed) for name in names) + len(gzip.compress(page.encode())) < 150_000
    assert "style=" not in page
    assert not re.search(r"<script>|<script (?!src=)|\son\w+=", page)


def test_no_polars_before_somebody_opens_a_chart() -> None:
    code = "import sys, api.console; assert not {'polars', 'pandas'} & set(sys.modules), 'too early'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


LARGE: dict[str, tuple[dict[str, Any], str]] = {
    "many values": ({"actions": '{"a":[' + "0," * 1_000 + "0]}"}, "at most 1000 values"),
    "costly text": ({"actions": '{"a":[' + "[]," * 20_000 + "0]}"}, "too many values"),
    "many bytes": ({"actions": '{"a":"' + "x" * 66_000 + '"}'}, "at most 65536 bytes"),
    "a list": ({"actions": "[0,0]"}, "Expected"),
    "deep": ({"actions": '{"a":' * 900 + "0" + "}" * 900}, "32 deep"),
    "too deep to read": ({"actions": '{"a":' * 5_000 + "0" + "}" * 5_000}, "32 deep"),
    "a long name": ({"name": "n" * 200_000}, "length"),
    "many labels": ({"meta_key": [f"k{n}" for n in range(400)], "meta_value": ["v"] * 400}, "length"),
    "a long label": ({"meta_key": ["k"], "meta_value": ["v" * 100_000]}, "length"),
}
"""Fields of a form that are beyond a bound of the API, and what is said of them."""


@pytest.mark.parametrize("name", LARGE)
async def test_nothing_is_made_of_what_is_too_large(
    ann: Visitor, world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a change, nor a breaker, nor the text of a rule's file, which takes seconds to write of so much."""
    made = list[Any]()
    monkeypatch.setattr(tried, "_yaml", made.append)
    row, (fields, words) = await world.breaker("b"), LARGE[name]
    given = fields_of(await ann.page(f"b/{row.id}/edit")) | fields
    for path in (f"b/{row.id}/edit", "new"):
        reply = await ann.post(path, **given)
        assert reply.status == 422, (path, reply)
        assert words in html.unescape(reply.body.decode()), path
    for path in (f"b/{row.id}/try", "new/try"):
        reply = await ann.post(path, **given, router=row.router_ids[0])
        assert reply.status == 200, (path, reply)
        assert words in reply.json["told"], path
    assert made == []
    assert (await stored(world, row)).version == row.version


async def test_the_text_of_a_draft_is_written_off_the_loop(
    ann: Visitor, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set[int]()

    def write(fields: Any) -> str:
        threads.add(threading.get_ident())
        return "written"

    monkeypatch.setattr(tried, "_yaml", write)
    row = await world.breaker("b")
    reply = await ann.post(f"b/{row.id}/try", **fields_of(await ann.page(f"b/{row.id}/edit")))
    assert "written" in reply.json["html"]
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("path", ["edit", "edit/undo"])
async def test_a_form_that_began_with_what_none_is_like_is_not_whole(ann: Visitor, world: World, path: str) -> None:
    row = await world.breaker("b")
    given = fields_of(await ann.page(f"b/{row.id}/edit"))
    deep = '{"actions":' + '{"a":' * 900 + "0" + "}" * 901
    reply = await ann.post(f"b/{row.id}/{path}", **given | {"seen": deep, "before": deep})
    assert reply.status == 422
    assert "not whole" in reply.body.decode()


async def test_actions_that_were_stored_larger_once_stay(
    ann: Visitor, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await world.call("POST", "breakers", json=RULED | {"name": "b", "actions": {"a": ["x" * 100]}})
    row = await world.store.get_breaker(world.project.id, (await made.get_json())["breaker"]["id"])
    assert row is not None
    monkeypatch.setattr("api.console.drafts.bounded", lambda *_: pytest.fail("it was not changed"))
    assert (await sent(ann, row, threshold="0.4")).status == 200
    assert (await stored(world, row)).actions == {"a": ["x" * 100]}


async def test_not_too_many_routers_are_offered(
    ann: Visitor, guest: Visitor, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edit, "ROUTERS_MAX", 1)
    rows = [await world.router() for _ in range(3)]
    page = await ann.page("new")
    assert sum(f'<option value="{row.id}">' in page for row in rows) == 1
    assert "2 more routers are not offered here" in page
    assert (await guest.get("new")).status == 403
    assert (await guest.post("new/try")).status == 403
