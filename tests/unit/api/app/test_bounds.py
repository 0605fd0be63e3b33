"""What is stored of a body is bounded, and so is what an answer shows of it."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from sqlalchemy import insert, text, update

from api.context.replica import EXTENSION
from api.wire import responses as bodies
from api.wire.requests_accounts import CONFIG_BYTES_MAX, CONFIG_VALUES_MAX
from api.wire.telling import SLICE_ITEMS
from breaker_actors.core.rules import JSON_BYTES_MAX, JSON_DEPTH_MAX, JSON_VALUES_MAX, PARAMS_BYTES_MAX
from breaker_actors.store import tables as t
from breaker_actors.store.config.audit_log import ENTRY_CHARS_MAX, OMITTED, PAGE_CHARS_MAX
from breaker_actors.store.rows import BreakerRow, ChannelDraft
from tests.support.web_world import RULE, World, error_of
from tests.unit.api.app.test_accounts import body_of

FREE = {"actions": JSON_BYTES_MAX, "kind_params": PARAMS_BYTES_MAX}


def sized(size: int) -> dict[str, str]:
    """A value whose JSON takes so many bytes."""
    return {"a": "x" * (size - len('{"a":""}'))}


def nested(depth: int) -> dict[str, object]:
    """A value so many levels deep."""
    value: object = 0
    for _ in range(depth - 2):
        value = [value]
    return {"a": value}


# bodies


@pytest.mark.parametrize("field", FREE)
async def test_values_of_free_form_are_bounded(world: World, field: str) -> None:
    """In a create, a change, and each item of a bulk replace; the error names the field."""
    fits, large = sized(FREE[field]), sized(FREE[field] + 1)
    made = await body_of(await world.call("POST", "breakers", json=RULE | {"name": "b", field: fits}), 201)
    assert made[field] == fits
    items = [RULE | {"name": "b"}, RULE | {"name": "c", field: large}]
    for method, path, body, place in (
        ("POST", "breakers", RULE | {field: large}, field),
        ("PATCH", f"breakers/{made['id']}", {field: large}, field),
        (
            "PUT",
            "breakers",
            {"breakers": items},
            f"breakers[1].{field}",
        ),
    ):
        error = await error_of(await world.call(method, path, json=body), 422, "validation_failed")
        assert list(error["details"]) == [place]
        assert str(FREE[field]) in error["message"] + str(error["details"])
    assert [row.name for row in (await world.store.list_breakers(world.project.id))[0]] == ["b"]


@pytest.mark.parametrize("field", FREE)
async def test_values_of_free_form_hold_few_values(world: World, field: str) -> None:
    """Empty lists take two bytes as text and fifty once they are read, as often as they are."""
    fits = ({"a": [[]] * (JSON_VALUES_MAX - 2)}, nested(JSON_DEPTH_MAX))
    large = ({"a": [[]] * (JSON_VALUES_MAX - 1)}, nested(JSON_DEPTH_MAX + 1))
    for n, value in enumerate(fits):
        made = await body_of(await world.call("POST", "breakers", json=RULE | {"name": f"b{n}", field: value}), 201)
        assert made[field] == value
    for value in large:
        answer = await world.call("POST", "breakers", json=RULE | {field: value})
        error = await error_of(answer, 422, "validation_failed")
        assert list(error["details"]) == [field]
        assert str(JSON_VALUES_MAX) in error["message"] + str(error["details"])


@pytest.mark.parametrize(
    "more",
    [sized(CONFIG_BYTES_MAX), {f"k{i}": "" for i in range(CONFIG_VALUES_MAX - 1)}, {"a": [[]] * CONFIG_VALUES_MAX}],
)
async def test_the_config_of_a_channel_is_bounded(world: World, more: dict[str, object]) -> None:
    """In a create and in a change; what an earlier version stored larger is shown, changed otherwise, and deleted."""
    config = {"webhook_url": "https://hooks.example/x"}
    path = "notification-channels"
    made = await body_of(await world.call("POST", path, json={"channel": "slack", "config": config}), 201)
    large = {"channel": "slack", "config": config | more}
    one = f"{path}/{made['channel']['id']}"
    for method, where in (("POST", path), ("PATCH", one)):
        error = await error_of(await world.call(method, where, json=large), 422, "validation_failed")
        assert list(error["details"]) == ["config"]
        assert "at most" in error["message"]
    draft = ChannelDraft(channel="slack", config=config | more)
    old = await world.store.create_channel(world.project.id, draft, 1)
    assert (await body_of(await world.call("GET", f"{path}/{old.id}")))["config"].keys() == (config | more).keys()
    patched = await body_of(await world.call("PATCH", f"{path}/{old.id}", json={"enabled": False}))
    assert patched["channel"]["enabled"] is False
    assert (await world.call("DELETE", f"{path}/{old.id}")).status_code == 204


async def test_the_largest_config_that_works_is_taken(world: World) -> None:
    headers = {f"X-Header-{i}": "v" * 350 for i in range(32)}
    config = {"url": "https://hooks.example/" + "x" * 2_000, "headers": headers, "secret": "s" * 1_000}
    made = {"channel": "webhook", "config": config}
    await body_of(await world.call("POST", "notification-channels", json=made), 201)


async def test_what_runtime_clients_poll_reads_nothing_of_free_form(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For states, metadata and the status of a project no `actions` are decoded, and no whole rule:
    neither can be, and nobody notices."""
    row = await world.breaker("b")
    read: list[str] = []
    monkeypatch.setattr(t, "note_column", lambda place, *_: read.append(place))
    rule = json.dumps(msgspec.to_builtins(row.rule) | {"kind_params": 5})
    bad = text("UPDATE breakers SET actions = '[]', rule = :rule").bindparams(rule=rule)
    await world.store._db.write(lambda c: c.execute(bad))
    for method, path, body in (
        ("GET", "status", None),
        ("GET", "breakers/metadata", None),
        ("GET", f"breakers/{row.id}/state", None),
        ("POST", "breakers/state:batch", {"breaker_ids": [row.id]}),
    ):
        world.app.extensions[EXTENSION].caches.forget_all()
        await body_of(await world.call(method, path, "project", json=body))
    assert "breakers.actions" not in read
    read.clear()
    assert [(brief.name, brief.rule.threshold) for brief in await world.store.breaker_briefs(world.project.id)]
    assert await world.store.breaker_metadata(world.project.id)
    assert read == []
    await body_of(await world.call("GET", "breakers"))
    assert sorted(read) == ["breakers.actions", "breakers.rule"]


async def test_a_larger_value_of_earlier_is_read_and_can_be_changed_beside(world: World) -> None:
    row = await world.breaker("old")
    huge = {"a": "x" * 200_000}
    await world.store._db.write(lambda c: c.execute(update(t.breakers).values(actions=huge)))
    path = f"breakers/{row.id}"
    assert (await body_of(await world.call("GET", path)))["actions"] == huge
    changed = await body_of(await world.call("PATCH", path, json={"threshold": 7}))
    assert (changed["threshold"], changed["actions"]) == (7.0, huge)
    await error_of(await world.call("PATCH", path, json={"actions": huge | {"b": 1}}), 422, "validation_failed")
    entry = (await body_of(await world.call("GET", "audit")))["entries"][0]
    assert entry["before"]["actions"] == entry["after"]["actions"] == {OMITTED: 200_008}
    assert (entry["before"]["rule"]["threshold"], entry["after"]["rule"]["threshold"]) == (500.0, 7.0)


async def test_a_set_of_breakers_is_told_in_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list, also where the caller has it already, and the answer of a PUT: others are served between slices, and
    the hash is that of the set as a whole."""
    items = [RULE | {"name": f"b{i}", "metadata": {"k": str(i)}} for i in range(500)]
    made = await body_of(await world.call("PUT", "breakers", json={"breakers": items}))
    rows = (await world.store.list_breakers(world.project.id))[0]
    rounds, now, told = list[int](), 0, bodies.breaker

    def counted(row: BreakerRow) -> bodies.Breaker:
        rounds.append(now)
        return told(row)

    monkeypatch.setattr(bodies, "breaker", counted)
    for method, headers, json_body, status in (
        ("GET", {}, None, 200),
        ("GET", {"If-None-Match": made["hash"]}, None, 304),
        ("PUT", {}, {"breakers": items}, 200),
    ):
        rounds.clear()
        call = asyncio.create_task(world.call(method, "breakers", json=json_body, headers=headers))
        while not call.done():
            await asyncio.sleep(0)
            now += 1
        assert call.result().status_code == status
        assert len(rounds) == 500
        assert max(rounds.count(n) for n in set(rounds)) <= 2 * SLICE_ITEMS
        if status == 200:
            body = await body_of(call.result())
            assert body["hash"] == made["hash"] == bodies.set_hash(rows)
            assert body["breakers"] == [msgspec.to_builtins(told(row)) for row in rows]


async def test_a_router_is_told_in_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read, changed, linked or made: others are served between slices."""
    items = [RULE | {"name": f"b{i}"} for i in range(500)]
    await body_of(await world.call("PUT", "breakers", json={"breakers": items}))
    ids = [row.id for row in (await world.store.list_breakers(world.project.id))[0]]
    router, rounds, now, told = await world.router(*ids), list[int](), 0, bodies.breaker

    def counted(row: BreakerRow) -> bodies.Breaker:
        rounds.append(now)
        return told(row)

    monkeypatch.setattr(bodies, "breaker", counted)
    for method, path, json_body, status in (
        ("GET", f"routers/{router.id}", None, 200),
        ("PATCH", f"routers/{router.id}", {"name": "n"}, 200),
        ("POST", f"routers/{router.id}/breakers", {"breaker_ids": []}, 200),
        ("POST", "routers", {"name": "other", "breaker_ids": ids}, 201),
    ):
        rounds.clear()
        call = asyncio.create_task(world.call(method, path, json=json_body))
        while not call.done():
            await asyncio.sleep(0)
            now += 1
        body = await body_of(call.result(), status)
        assert [breaker["id"] for breaker in body["breakers"]] == ids
        assert body["router"]["breakers"] == body["breakers"]
        assert len(rounds) == 500
        assert max(rounds.count(n) for n in set(rounds)) <= 2 * SLICE_ITEMS


# the audit log


async def _entries(world: World, sizes: list[int]) -> None:
    """Entries as they were written before there was a bound."""
    rows = [
        {"project_id": world.project.id, "at_ms": 1, "who": "k", "action": "breaker.update", "target_id": str(i)}
        | {"before": {"actions": "x" * size}, "after": {"actions": "y" * size}}
        for i, size in enumerate(sizes)
    ]
    await world.store._db.write(lambda c: c.execute(insert(t.audit), rows))


async def test_a_page_of_the_audit_log_ends_early_where_entries_are_large(world: World) -> None:
    await _entries(world, [ENTRY_CHARS_MAX - 100] * 30)
    cursor, seen, pages = None, list[str](), 0
    while cursor is not None or not pages:
        response = await world.call("GET", "audit?limit=200" + (f"&cursor={cursor}" if cursor else ""))
        assert len(await response.get_data()) < 2.1 * PAGE_CHARS_MAX, "entries are there under two names"
        page = await body_of(response)
        assert page["has_more"] is (page["next_cursor"] is not None)
        seen += [entry["target_id"] for entry in page["entries"]]
        cursor, pages = page["next_cursor"], pages + 1
    assert seen[:30] == [str(i) for i in reversed(range(30))]
    assert pages == 4


async def test_an_entry_is_never_larger_than_its_bound(world: World) -> None:
    """One from earlier is shown by its size; the others of its page are whole."""
    await _entries(world, [10, 3_000_000, 20])
    first, second, third = (await body_of(await world.call("GET", "audit")))["entries"][:3]
    assert (first["before"], third["after"]) == ({"actions": "x" * 20}, {"actions": "y" * 10})
    assert second["before"] == second["after"] == {OMITTED: 3_000_014}


async def test_links_of_a_large_router_are_noted_by_what_changed(world: World) -> None:
    """Ten thousand ids twice for each link would be a flood of their own."""
    items = [RULE | {"name": f"b{i}"} for i in range(1_200)]
    await body_of(await world.call("PUT", "breakers", json={"breakers": items}))
    ids = [row.id for row in (await world.store.list_breakers(world.project.id))[0]]
    router = await world.router(*ids[:-1])
    await body_of(await world.call("POST", f"routers/{router.id}/breakers", json={"breaker_id": ids[-1]}))
    entry = (await body_of(await world.call("GET", "audit?limit=1")))["entries"][0]
    assert entry["before"] == {"breaker_count": 1_199, "changed_breaker_ids": []}
    assert entry["after"] == {"breaker_count": 1_200, "changed_breaker_ids": [ids[-1]]}
