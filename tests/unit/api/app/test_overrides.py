"""Overrides and modes over REST: what is asked, answered, refused, and what lies in the log's change rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from breaker_actors.core.log_entries import BREAKER, BreakerSet, decode_breaker
from breaker_actors.core.model import Control
from breaker_actors.core.rules import parse_rule
from breaker_actors.messages import StateReading
from breaker_actors.store.rows import BreakerDraft
from tests.support.fake_gateway import view
from tests.support.web_world import RULE, World, error_of
from tests.unit.api.app.test_app import history

HOUR_MS = 3_600_000
FORCE: dict[str, Any] = {"kind": "force_open", "reason": "the dependency is being moved"}


async def settings_in_changes(world: World) -> list[BreakerSet]:
    """What waits for the routers' logs, oldest first."""
    changes = await world.store.pending_changes(1_000)
    return [decode_breaker(payload) for change in changes for kind, payload in change.entries if kind == BREAKER]


async def put(world: World, breaker_id: str, body: dict[str, Any], status: int = 200, **more: Any) -> dict[str, Any]:
    response = await world.call("PUT", f"breakers/{breaker_id}/override", json=body, **more)
    assert response.status_code == status, await response.get_json()
    return dict(await response.get_json())


async def test_an_override_is_shown_and_lies_in_the_log(world: World) -> None:
    """It lasts an hour unless said, says who and why, and goes to the log with the settings."""
    breaker, now = await world.breaker(), world.clock.now_ms()
    made = await put(world, breaker.id, FORCE)
    override = made["override"]
    assert made["breaker_id"] == breaker.id
    assert (override["kind"], override["allow_rate"], override["then"]) == ("force_open", 0.0, None)
    assert (override["since_ms"], override["until_ms"]) == (now, now + HOUR_MS)
    assert override["reason"] == FORCE["reason"]
    response = await world.call("GET", f"breakers/{breaker.id}/override")
    assert (await response.get_json()) == made
    assert response.headers["ETag"] == f'W/"{override["version"]}"'
    control = (await settings_in_changes(world))[-1].control
    assert control is not None
    assert control.override is not None
    assert control.override.kind == "force_open"
    audited = (await (await world.call("GET", "audit")).get_json())["entries"][0]
    assert (audited["action"], audited["target_id"]) == ("override.set", breaker.id)


async def test_it_ends_by_a_delete_with_who_and_why(world: World) -> None:
    """The record without an override names who ended it; a second end changes nothing."""
    breaker = await world.breaker()
    await put(world, breaker.id, FORCE)
    for _ in range(2):
        response = await world.call("DELETE", f"breakers/{breaker.id}/override?reason=moved")
        assert response.status_code == 204
    told = await settings_in_changes(world)
    assert told[-1].control == Control(by=told[-1].control.by if told[-1].control else None, comment="moved")
    assert told[-1].version == 3
    shown = await (await world.call("GET", f"breakers/{breaker.id}/override")).get_json()
    assert shown["override"] is None


async def test_the_same_again_changes_nothing(world: World) -> None:
    """Within ten seconds it is a repetition, later it is a longer one."""
    breaker = await world.breaker()
    first = await put(world, breaker.id, FORCE)
    world.clock.ms += 9_000
    assert await put(world, breaker.id, FORCE) == first
    world.clock.ms += 9_000
    assert (await put(world, breaker.id, FORCE))["override"]["version"] == first["override"]["version"] + 1


@pytest.mark.parametrize("fields", [("until",), ("until", "until_ms"), ("until_ms",)])
async def test_the_end_that_an_answer_shows_is_taken_back(world: World, fields: tuple[str, ...]) -> None:
    one, other = await world.breaker(), await world.breaker()
    shown = (await put(world, one.id, FORCE | {"for_ms": 61_001}))["override"]
    world.clock.ms += 1_000
    again = await put(world, other.id, FORCE | {name: shown[name] for name in fields})
    assert again["override"]["until_ms"] == shown["until_ms"]
    assert "warnings" not in again
    matching = FORCE | {name: shown[name] for name in fields} | {"all": True}
    response = await world.call("POST", "overrides?allow_destructive=true", json=matching)
    assert "warnings" not in await response.get_json()
    found = await (await world.call("GET", "overrides")).get_json()
    assert {item["until_ms"] for item in found["overrides"]} == {shown["until_ms"]}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"kind": "force_open"}, "reason"),
        ({"kind": "force_open", "reason": "  "}, "reason"),
        ({"kind": "force_open", "reason": "x" * 501}, "reason"),
        ({"kind": "shut", "reason": "x"}, "kind"),
        ({"kind": "throttle", "reason": "x"}, "allow_rate"),
        ({"kind": "throttle", "reason": "x", "allow_rate": 1.5}, "allow_rate"),
        ({"kind": "force_open", "reason": "x", "allow_rate": 0.5}, "allow_rate"),
        ({"kind": "force_open", "reason": "x", "for_ms": 5_000, "until_ms": 1}, "until_ms"),
        ({"kind": "force_open", "reason": "x", "for_ms": 10}, "for_ms"),
        ({"kind": "force_open", "reason": "x", "for_ms": 24 * HOUR_MS + 1}, "for_ms"),
        ({"kind": "force_open", "reason": "x", "until_ms": 1}, "until_ms"),
        ({"kind": "force_open", "reason": "x", "until": "2020-01-01T00:00:00Z"}, "until"),
        ({"kind": "force_open", "reason": "x", "until": "tomorrow"}, "until"),
        ({"kind": "force_open", "reason": "x", "until": "2020-01-01T00:00:00Z", "until_ms": 1}, "until"),
        ({"kind": "force_open", "reason": "x", "until": "2020-01-01T00:00:00Z", "for_ms": 5_000}, "until"),
        ({"kind": "force_open", "reason": "x", "then": "open"}, "then"),
    ],
)
async def test_what_is_refused(world: World, body: dict[str, Any], field: str) -> None:
    """Each with the field that is wrong, and nothing is stored."""
    breaker = await world.breaker()
    response = await world.call("PUT", f"breakers/{breaker.id}/override", json=body)
    assert field in (await error_of(response, 422, "validation_failed"))["details"]
    assert len(await settings_in_changes(world)) == 1


async def test_a_project_says_how_long_they_may_last(world: World) -> None:
    """Its own maximum counts instead of the service's; an hour is no more than that either."""
    breaker = await world.breaker()
    response = await world.call("PATCH", world.path, json={"override_max_ms": 60_000})
    assert (await response.get_json())["override_max_ms"] == 60_000
    await put(world, breaker.id, FORCE | {"for_ms": 60_001}, 422)
    made = await put(world, breaker.id, FORCE)
    assert made["override"]["until_ms"] - made["override"]["since_ms"] == 60_000


async def test_if_match_guards_against_races(world: World) -> None:
    """Only who knows the override in force may replace or end it, where they say so."""
    breaker = await world.breaker()
    await put(world, breaker.id, FORCE, 412, headers={"If-Match": "*"})
    made = await put(world, breaker.id, FORCE, headers={"If-Match": 'W/"0"'})
    tag = f'W/"{made["override"]["version"]}"'
    throttle = {"kind": "throttle", "allow_rate": 0.2, "reason": "carefully"}
    await put(world, breaker.id, throttle, 412, headers={"If-Match": 'W/"0"'})
    await put(world, breaker.id, throttle, headers={"If-Match": tag})
    gone = await world.call("DELETE", f"breakers/{breaker.id}/override", headers={"If-Match": tag})
    await error_of(gone, 412, "precondition_failed")
    assert (await world.call("DELETE", f"breakers/{breaker.id}/override", headers={"If-Match": "*"})).status_code == 204


async def test_one_that_is_over_is_none(world: World) -> None:
    """It is not shown any more, and what is set next stands alone."""
    breaker = await world.breaker()
    await put(world, breaker.id, FORCE | {"for_ms": 5_000})
    world.clock.ms += 5_000
    shown = await (await world.call("GET", f"breakers/{breaker.id}/override")).get_json()
    assert shown["override"] is None
    assert (await (await world.call("GET", "overrides")).get_json())["count"] == 0


async def test_settings_keep_an_override(world: World) -> None:
    """A PATCH and a bulk PUT say nothing of it, so it goes on."""
    breaker = await world.breaker("search")
    await put(world, breaker.id, FORCE)
    await world.call("PATCH", f"breakers/{breaker.id}", json={"threshold": 9})
    await world.call("PUT", "breakers", json={"breakers": [{"name": "search", **RULE, "threshold": 10}]})
    overrides = [told.control.override for told in (await settings_in_changes(world))[1:] if told.control]
    assert len(overrides) == 3
    assert overrides[0] == overrides[1] == overrides[2] is not None


async def test_all_that_match_at_once(world: World) -> None:
    """Preview, override and end go by matchers; the guardrail stops a large part of a project."""
    for i in range(12):
        await world.breaker(f"pay-{i}" if i < 5 else f"other-{i}")
    pays = {"matchers": [{"field": "name", "op": "glob", "value": "pay-*"}]}
    seen = await (await world.call("POST", "overrides:preview", json=pays)).get_json()
    assert (seen["matches"], seen["open"], len(seen["breakers"])) == (5, 0, 5)
    done = await (await world.call("POST", "overrides", json=FORCE | pays)).get_json()
    assert done == {"matches": 5, "changed": 5}
    listed = await (await world.call("GET", "overrides")).get_json()
    assert sorted(one["name"] for one in listed["overrides"]) == [f"pay-{i}" for i in range(5)]
    everything = FORCE | {"all": True}
    await error_of(await world.call("POST", "overrides", json=everything), 409, "guardrail_blocked")
    forced = await world.call("POST", "overrides?allow_destructive=true", json=everything)
    assert (await forced.get_json()) == {"matches": 12, "changed": 7}
    ended = await world.call("POST", "overrides:end", json={"all": True, "reason": "over"})
    assert (await ended.get_json()) == {"matches": 12, "changed": 12}
    for body, field in (
        ({}, "matchers"),
        ({"matchers": [{"field": "channel", "op": "=", "value": "x"}]}, "matchers[0].field"),
    ):
        refused = await world.call("POST", "overrides", json=FORCE | body)
        assert field in (await error_of(refused, 422, "validation_failed"))["details"]


def observing(world: World, breaker_id: str, machine_state: str) -> None:
    """The owner says what the machine of a breaker that observes is in."""
    world.gateway.views[breaker_id] = view(mode="observe", machine_state=machine_state)


async def test_a_mode_is_a_field_of_a_breaker(world: World) -> None:
    """It is made with it, shown, changed by PATCH and kept by a bulk PUT that does not name it."""
    made = await (await world.call("POST", "breakers", json={**RULE, "name": "try", "mode": "observe"})).get_json()
    assert made["mode"] == "observe"
    await world.call("PUT", "breakers", json={"breakers": [{"name": "try", **RULE}]})
    assert (await (await world.call("GET", f"breakers/{made['id']}")).get_json())["mode"] == "observe"
    changed = await world.call("PATCH", f"breakers/{made['id']}", json={"mode": "enforce"})
    assert (await changed.get_json())["mode"] == "enforce"
    control = (await settings_in_changes(world))[-1].control
    assert control is not None
    assert control.mode == "enforce"
    assert control.by
    bad = await world.call("PATCH", f"breakers/{made['id']}", json={"mode": "off"})
    assert "mode" in (await error_of(bad, 422, "validation_failed"))["details"]


async def test_enforcing_an_open_machine_asks_for_a_word(world: World) -> None:
    """Callers would feel it at once, so `confirm` is needed, and the answer says so."""
    made = await (await world.call("POST", "breakers", json={**RULE, "mode": "observe"})).get_json()
    observing(world, made["id"], "open")
    refused = await world.call("PATCH", f"breakers/{made['id']}", json={"mode": "enforce"})
    assert (await error_of(refused, 409, "confirmation_needed"))["details"]["machine_state"] == "open"
    done = await (
        await world.call("PATCH", f"breakers/{made['id']}", json={"mode": "enforce", "confirm": True})
    ).get_json()
    assert done["mode"] == "enforce"
    assert [one["code"] for one in done["warnings"]] == ["now_enforced"]


async def test_enforcing_what_is_another_projects_tells_nothing_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner is not even asked."""
    draft = BreakerDraft(rule=parse_rule({**RULE}))
    theirs = (await world.store.create_breaker(world.other.id, draft, world.clock.now_ms()))[0]
    observing(world, theirs.id, "open")
    asked: list[str] = []

    async def states(project_id: str, ids: Sequence[str]) -> dict[str, StateReading]:
        asked.extend(ids)
        return {id_: StateReading(breaker_id=id_, view=world.gateway.views[id_]) for id_ in ids}

    monkeypatch.setattr(world.gateway, "states", states)
    refused = await world.call("PATCH", f"breakers/{theirs.id}", json={"mode": "enforce"})
    await error_of(refused, 404, "not_found")
    assert asked == []


async def test_a_shadow_hears_what_another_hears(world: World) -> None:
    """It observes, hangs on the same routers, and follows links that are made and ended later."""
    watched = await world.breaker("search")
    body = {**RULE, "name": "search, stricter", "threshold": 100, "shadow_of": watched.id}
    shadow = await (await world.call("POST", "breakers", json=body)).get_json()
    assert (shadow["mode"], shadow["shadow_of"]) == ("observe", watched.id)
    assert set(watched.router_ids) < set(shadow["router_ids"])
    router = await world.router()
    linked = await world.call("POST", f"routers/{router.id}/breakers", json={"breaker_id": watched.id})
    assert {one["id"] for one in (await linked.get_json())["breakers"]} == {watched.id, shadow["id"]}
    await world.call("DELETE", f"routers/{router.id}/breakers/{watched.id}")
    assert (await world.store.get_router(world.project.id, router.id)).breaker_ids == ()  # type: ignore[union-attr]
    for wrong, field in (
        ({"shadow_of": world.project.id}, "shadow_of"),
        ({"shadow_of": "x"}, "shadow_of"),
        ({"shadow_of": watched.id, "mode": "enforce"}, "mode"),
    ):
        refused = await world.call("POST", "breakers", json=RULE | wrong)
        assert field in (await error_of(refused, 422, "validation_failed"))["details"]


async def test_a_comparison_begins_when_there_are_both(world: World) -> None:
    """What the watched one did before is no difference, and the answer says from when on it compares."""
    watched_id = await history(world, 3)
    world.clock.ms += 60_000
    body = {**RULE, "name": "stricter", "shadow_of": watched_id}
    shadow = await (await world.call("POST", "breakers", json=body)).get_json()
    born_ms = world.clock.now_ms()
    world.clock.ms += 5_000
    found = await (await world.call("GET", f"breakers/{shadow['id']}/comparison")).get_json()
    assert (found["since_ms"], found["until_ms"]) == (born_ms, born_ms + 5_000)
    assert found["watched"]["trips"] == 0
    assert [found["shadow"][state] for state in ("closed_ms", "half_open_ms", "open_ms")] == [5_000, 0, 0]
    assert [(one["from_ms"], one["watched"]) for one in found["differences"]] == [(born_ms, "open")]
    before = f"breakers/{shadow['id']}/comparison?until_ms={born_ms - 1}"
    found = await (await world.call("GET", before)).get_json()
    assert (found["since_ms"], found["differing"], found["shadow"]["closed_ms"]) == (born_ms - 1, 0, 0)


@pytest.mark.parametrize("strict", ["", "?strict=true"])
async def test_a_shadow_stays_that_of_its_breaker(world: World, strict: str) -> None:
    """What was read may be sent back; another breaker to watch is refused, and nothing is made that enforces."""
    watched, other = await world.breaker("search"), await world.breaker("other")
    body = {**RULE, "name": "stricter", "shadow_of": watched.id}
    shadow = await (await world.call("POST", "breakers", json=body)).get_json()
    path = f"breakers/{shadow['id']}{strict}"
    for same in (watched.id, watched.id.upper(), None):
        assert (await world.call("PATCH", path, json={"shadow_of": same})).status_code == 200
    for wrong in (other.id, "x"):
        refused = await world.call("PATCH", path, json={"shadow_of": wrong})
        assert "shadow_of" in (await error_of(refused, 422, "validation_failed"))["details"]
    wide = await world.call("PATCH", f"breakers/{other.id}{strict}", json={"shadow_of": watched.id})
    assert "POST" in (await error_of(wide, 422, "validation_failed"))["details"]["shadow_of"]
    items = (await (await world.call("GET", "breakers")).get_json())["breakers"]
    assert (await world.call("PUT", f"breakers{strict}", json={"breakers": items})).status_code == 200
    for last in (RULE | {"name": "new", "shadow_of": watched.id}, RULE | {"name": "new", "shadow_of": "x"}):
        refused = await world.call("PUT", f"breakers{strict}", json={"breakers": [*items, last]})
        assert "breakers[3].shadow_of" in (await error_of(refused, 422, "validation_failed"))["details"]
    assert len(await world.store.controlled_breakers(world.project.id)) == 1
    found = await world.store.get_breaker(world.project.id, shadow["id"])
    assert found is not None
    assert (found.shadow_of, found.controls.mode) == (watched.id, "observe")


async def test_a_field_that_matchers_have_not_is_told_in_words(world: World) -> None:
    end = {"ends_ms": world.clock.now_ms() + HOUR_MS, "comment": "c"}
    for path, more in (("mutes:preview", {}), ("mutes", end), ("overrides:preview", {})):
        body = {"matchers": [{"field": "name", "op": "=", "value": "x"}, {"field": "nam", "op": "=", "value": "x"}]}
        error = await error_of(await world.call("POST", path, json=body | more), 422, "validation_failed")
        assert error["details"]["matchers[1].field"].startswith("Expected name, id, metric, kind, metadata.KEY")
