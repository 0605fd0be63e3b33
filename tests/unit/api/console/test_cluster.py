"""The cluster on the console: for the operator alone, with what is wrong in words."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from api.console.cluster import troubles_of
from api.wire.responses_admin import cluster_status
from tests.support.fake_gateway import ORG_AT_LIMIT, PROJECT_AT_LIMIT
from tests.support.web_world import World
from tests.unit.api.console.conftest import Visitor, sign_in


async def status_of(world: World) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(cluster_status(await world.gateway.status()))
    return found


async def test_the_operator_sees_it(world: World) -> None:
    admin = await sign_in(world, "admin")
    for part in (False, True):
        text = await admin.page("cluster", part)
        assert "breaker-0" in text
        assert "starting" in text
        assert f"project {PROJECT_AT_LIMIT}" in text
        assert f"organisation {ORG_AT_LIMIT}" in text
        assert "its samples are refused" in text
        assert "All parts answer" in text
        assert "data-live" not in text


async def test_others_read_a_plain_word_in_its_place(world: World, ann: Visitor, guest: Visitor) -> None:
    for visitor in (ann, guest):
        reply = await visitor.get("cluster")
        text = reply.body.decode()
        assert reply.status == 403
        assert "whoever operates it" in text
        assert "breaker-0" not in text
        assert "Rebalance" not in text
        assert (await visitor.post("cluster/rebalance")).status == 403
        assert "breaker-0" not in (await visitor.get("cluster", part=True)).body.decode()


async def test_an_admin_of_another_organisation_does_not_operate(world: World) -> None:
    _, key = await world.store.create_key(world.other.org_id, "admin", "foreign", 1)
    world.keys["foreign_admin"] = key
    foreign = await sign_in(world, "foreign_admin")
    reply = await foreign.get(f"/console/p/{world.other.id}/cluster")
    assert (reply.status, "whoever operates it" in reply.body.decode()) == (403, True)
    assert (await foreign.post(f"/console/p/{world.other.id}/cluster/rebalance")).status == 403
    assert (await foreign.get("cluster")).status == 404


async def test_rebalancing_says_what_moved(world: World) -> None:
    admin = await sign_in(world, "admin")
    assert "Nothing to move" in (await admin.post("cluster/rebalance")).body.decode()
    world.gateway.uneven = 130
    assert "Moved 100 " in (first := (await admin.post("cluster/rebalance")).body.decode())
    assert "30 are left" in first
    assert "It is even now" in (await admin.post("cluster/rebalance")).body.decode()


async def test_what_readyz_says_stands_on_top(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = await sign_in(world, "admin")

    async def notice() -> str:
        return "<b>logs</b> are ahead"

    monkeypatch.setattr(world.gateway, "notice", notice)
    text = await admin.page("cluster")
    assert "1 thing is wrong" in text
    assert "&lt;b&gt;logs&lt;/b&gt; are ahead" in text
    world.gateway.down = True
    assert "Not ready: " in await admin.page("cluster")


TROUBLES: dict[str, tuple[dict[str, Any], str]] = {
    "away": ({"state": "away"}, "a: it does not answer."),
    "fault": ({"fault": "disk full"}, "a: samples can't be stored: disk full"),
    "damaged": ({"damaged": [str(n) for n in range(7)]}, "a: logs are damaged, of routers 0, 1, 2, 3, 4 and 2 more"),
    "logs ahead": ({"logs_ahead": ["r"], "ahead_ms": 90_000}, "a: logs are up to 1 min 30 s ahead of the clock, of r"),
    "ahead": ({"ahead": 3}, "a: 3 breakers are ahead of the clock"),
    "doubted": ({"clock_doubted_ms": 5_000}, "a: the clock stepped ahead by 5 s"),
    "overdue": ({"overdue_ms": 20_000}, "a: its timers are 20 s late."),
}


@pytest.mark.parametrize("what", TROUBLES)
async def test_each_trouble_has_words(world: World, what: str) -> None:
    status, (fields, words) = await status_of(world), TROUBLES[what]
    assert troubles_of(status) == []
    (actor,) = status["actors"]
    status["actors"] = [actor | {"name": "a", "state": "up"} | fields]
    (told,) = troubles_of(status)
    assert told.startswith(words)


async def test_parts_that_do_not_answer_are_named(world: World) -> None:
    status = await status_of(world)
    assert re.match("4 stored things", troubles_of(status | {"set_aside": 4})[0])
    silent = {"epoch": None, "sequence": None, "position": None}
    status["journals"] = [one | silent for one in status["journals"]]
    assert len(troubles_of(status | {"set_aside": None})) == 2
    other = {"name": "journal-1", "epoch": 1, "sequence": 1, "position": 1}
    (told,) = troubles_of(status | {"journals": [other, *status["journals"]]})
    assert told.startswith("journal-0 does not answer")
