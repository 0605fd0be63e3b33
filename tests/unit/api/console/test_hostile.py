"""Hostile names in all that people see in the console: they are text, on every page, and make nothing else of it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from tests.support.web_world import RULE, World
from tests.unit.api.app.matrix import ABSENT
from tests.unit.api.console.conftest import Visitor, sign_in
from tests.unit.api.console.test_guard import GUARDED_PAGES

NAMES = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "</textarea></title></style><svg onload=alert(1)>",
    "javascript:alert(1)",
    "\u202e\u2066 turned around \u0000?",
    "a" * 240,
]
ADDRESSES = ("href", "src", "action", "formaction", "hx-get", "hx-post", "data-live", "data-try")
SCREENS = [rule.rule for rule, method in GUARDED_PAGES if method == "GET" and not rule.rule.endswith("/live")]


class Page(HTMLParser):
    """What a browser would make of a page. `wrong`: what no page of ours has."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("img", "iframe", "object", "embed", "style", "base") or (tag == "script" and "src" not in given):
            self.wrong.append(tag)
        for name, value in given.items():
            address = (value or "").strip().lower()
            if name.startswith("on") or name in ("style", "srcdoc"):
                self.wrong.append(f"{tag} {name}")
            if name in ADDRESSES and address and not address.startswith(("/", "#", "?")):
                self.wrong.append(f"{tag} {name} {address}")


async def furnished(world: World, name: str) -> dict[str, str]:
    """A project in which all that somebody may choose is the name; ids of it."""
    labels = {"team": name}
    made = await world.call("POST", "breakers", json=RULE | {"name": name, "metadata": labels})
    if made.status_code != 201:
        made = await world.call("POST", "breakers", json=RULE | {"metadata": {}})
    breaker = await made.get_json()
    ids = {"project_id": world.project.id, "breaker_id": breaker["id"], "router_id": breaker["router_id"]}
    hook = {"channel": "webhook", "name": name, "config": {"url": "https://hook.example/"}}
    for word, path, body, key in (
        ("router_id", "routers", {"name": name, "metadata": labels}, "id"),
        ("channel_id", "notification-channels", hook, "id"),
        ("key_id", "keys", {"name": name}, "id"),
        ("mute_id", "mutes", {"all": True, "comment": name, "ends_ms": world.clock.now_ms() + 3_600_000}, "id"),
        (
            "mapping_id",
            "mappings",
            {
                "name": name,
                "matchers": [{"field": "label.x", "op": "=", "value": name}],
                "to": {"router": "label.x", "metric": name},
            },
            "id",
        ),
    ):
        answer = await world.call("POST", path, json=body)
        if answer.status_code == 201:
            found: dict[str, Any] = await answer.get_json()
            ids[word] = str(found.get(key) or found.get("key_id") or next(iter(found.values())))
    override = {"kind": "force_open", "reason": name}
    await world.call("PUT", f"breakers/{ids['breaker_id']}/override", json=override)
    await world.call("PATCH", f"/v1/projects/{world.project.id}", json={"name": name})
    return ids


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_is_text_on_every_page(world: World, ann: Visitor, name: str) -> None:
    ids, seen = await furnished(world, name), 0
    admin = await sign_in(world, "admin")
    for rule in SCREENS:
        path = re.sub(r"<(?:\w+:)?(\w+)>", lambda found: ids.get(found[1], ABSENT), rule)
        for visitor in (ann, admin):
            reply = await visitor.get(path)
            assert reply.status in (200, 303, 403, 404), (rule, reply)
            text = reply.body.decode()
            if reply.headers.get("content-type", "").startswith("application/json"):
                json.loads(text)
                continue
            page = Page()
            page.feed(text)
            assert page.wrong == [], rule
            seen += name in text and not re.search("[<>\"'&]", name)
    if not re.search("[<>\"'&\u0000]", name):
        assert seen >= 6, "the name is there at all"


@pytest.mark.parametrize("path", ["routers", "first-run", "keys"])
@pytest.mark.parametrize("once", ["é", "€", "a\r\nb"])
async def test_a_form_with_a_mark_that_no_page_wrote_is_refused(ann: Visitor, path: str, once: str) -> None:
    reply = await ann.post(path, once=once, name="x")
    assert reply.status == 422, reply
    assert "not whole" in reply.body.decode()


DEEP = "[" * 50_000


async def test_what_is_nested_without_end_is_refused(world: World, ann: Visitor) -> None:
    row = await world.breaker("a")
    for path, fields in (("mutes/again", {"mute": f'{{"a":{DEEP}'}), (f"b/{row.id}/edit", {"seen": DEEP, "tag": "x"})):
        assert (await ann.post(path, **fields)).status in (412, 422), path


@pytest.mark.parametrize("id_", ["..%3Fx", "..", "%2E%2E%2Fkeys", "a%23b", "a%25b", "%E2%82%AC"])
@pytest.mark.parametrize("page", ["mutes", "routers", "channels", "b", "keys"])
async def test_an_id_is_never_read_as_a_path(ann: Visitor, page: str, id_: str) -> None:
    assert (await ann.get(f"{page}/{id_}")).status in (404, 405)
