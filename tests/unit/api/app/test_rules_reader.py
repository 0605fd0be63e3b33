"""A reader key: it plans, and tells what drifted, and neither changes anything nor learns what exports don't show."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_asyncio

from tests.support.web_world import World
from tests.unit.api.app.test_rules import ALL, HOOK, RULE, acts, apply, ask, find, plan

KEY = "0123456789abcdef0123456789abcdef"
PAGER: dict[str, Any] = {
    "channel": "pagerduty",
    "config": {"routing_key": KEY},
    "references": {"routing_key": {"env": "PD_KEY"}},
}
MAIL: dict[str, Any] = {
    "channel": "email",
    "config": {"to": "oncall@corp.example"},
    "references": {"to": {"env": "ONCALL"}},
}
FILES = {"breakers": {"a": RULE}, "channels": {"hook": HOOK, "pager": PAGER, "mail": MAIL}}


@pytest_asyncio.fixture
async def reader(world: World) -> World:
    """A world with a reader key of its project, made over the API."""
    made = await ask(world, "POST", "keys", {"name": "ci", "kind": "reader"}, 201)
    assert made["kind"] == "reader"
    assert made["key_prefix"].startswith("eb_read_")
    world.keys["reader"] = made["key"]
    return world


async def told(world: World, method: str, path: str, document: Any = None, status: int = 200) -> Any:
    more = {} if document is None else {"json": document}
    answer = await world.call(method, f"{world.path}/{path}", "reader", **more)
    assert answer.status_code == status, await answer.get_json()
    return await answer.get_json()


def of_config(answer: Any) -> list[Any]:
    fields = [one for change in answer["changes"] for one in change["fields"]]
    return [one for one in fields if one["field"].partition(".")[0] == "config"]


async def test_a_reader_plans_what_a_user_plans(reader: World) -> None:
    await apply(reader, ALL)
    changed = {**ALL, "breakers": {**ALL["breakers"], "a": {**RULE, "threshold": 9.0}}}
    mine, theirs = await told(reader, "POST", "rules:plan", changed), await plan(reader, changed)
    assert (mine["changes"], mine["version"]) == (theirs["changes"], theirs["version"])
    assert acts(mine) == [("update", "breakers", "a")]
    await ask(reader, "PATCH", f"breakers/{(await find(reader, 'breakers', 'a'))['id']}", {"threshold": 5})
    drifted = "rules:drift?owner=payments"
    assert await told(reader, "GET", drifted) == await ask(reader, "GET", drifted)
    assert await told(reader, "GET", "rules") == await ask(reader, "GET", "rules")


async def test_a_reader_changes_nothing(reader: World) -> None:
    await apply(reader, ALL)
    before = await ask(reader, "GET", "rules")
    for method, path, body in (
        ("POST", "rules:apply", {"owner": "payments"}),
        ("POST", "rules:adopt", ALL),
        ("POST", "breakers", RULE),
        ("POST", "keys", {"kind": "reader"}),
        ("PATCH", f"breakers/{(await find(reader, 'breakers', 'a'))['id']}", {"threshold": 5}),
        ("GET", "keys", None),
        ("GET", "audit", None),
    ):
        assert (await told(reader, method, path, body, 403))["code"] == "forbidden", path
    assert await ask(reader, "GET", "rules") == before


@pytest.mark.parametrize(
    ("name", "path", "right", "wrong"),
    [
        ("hook", "url", "https://hook.example/secret", "https://hook.example/guess"),
        ("pager", "routing_key", KEY, KEY[::-1]),
        ("mail", "to", "oncall@corp.example", "guess@corp.example"),
    ],
)
@pytest.mark.parametrize("by_reference", [True, False])
async def test_a_plan_is_no_way_to_guess_a_secret(
    reader: World, name: str, path: str, right: str, wrong: str, by_reference: bool
) -> None:
    """Whatever it sends: the answer is the same for the value that is stored and for another one."""
    await apply(reader, FILES)
    answers = []
    for value in (right, wrong):
        channel = {**FILES["channels"][name], "config": {path: value}}
        if not by_reference:
            channel.pop("references")
        document = {**FILES, "channels": {**FILES["channels"], name: channel}}
        answers.append(await told(reader, "POST", "rules:plan", document))
        assert [one["code"] for one in answers[-1].pop("warnings")] == ["secrets_not_compared"]
    assert answers[0] == answers[1]
    assert answers[0]["changes"] == []


async def test_of_configs_only_is_told_that_they_change(reader: World) -> None:
    """A name that files refer to is no secret by its field, and no export shows it."""
    config = {"url": "https://alerts.example/", "username": "oncall-team", "password": "p", "labels": {"tier": "a"}}
    references = {"username": {"env": "AM_USER"}, "password": {"env": "AM_PASSWORD"}}
    await apply(reader, {"channels": {"am": {"channel": "alertmanager", "config": config, "references": references}}})
    changed = {"url": "https://alerts.example/", "labels": {"tier": "b"}}
    answer = await told(
        reader, "POST", "rules:plan", {"channels": {"am": {"channel": "alertmanager", "config": changed}}}
    )
    assert "oncall" not in repr(answer)
    assert acts(answer) == [("update", "channels", "am")]
    assert [one["field"] for one in of_config(answer)] == ["config.labels", "config.password", "config.username"]
    assert {(one["before"], one["after"], one["secret"]) for one in of_config(answer)} == {(None, None, True)}
