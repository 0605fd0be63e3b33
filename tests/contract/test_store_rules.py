"""Store: rules that files declare, applied whole or not at all, on both databases."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select
from sqlalchemy.event import listens_for

from api.rules.comparing import compared, drifted
from api.rules.deciding import Guards, applying
from api.rules.exporting import exported
from api.rules.model import Asked
from api.wire import requests_rules
from api.wire.requests_rules import rules_document
from breaker_actors.errors import Invalid, NotOwned, Overloaded, PreconditionFailed
from breaker_actors.store.config import channels, router_set, rules
from breaker_actors.store.quotas import DECLARED_WEIGHT
from breaker_actors.store.rows import AuditFilter, BreakerRow, RulesChange
from breaker_actors.store.tables import declared
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World
from tests.contract.test_store_routers import COUNTED
from tests.contract.test_store_shares import read, sums

NAMES = st.sampled_from(["a", "b", "c d", "é", "x.y", "no", "é/ü"])
RULE: dict[str, Any] = {"metric": "m", "kind": "avg", "op": "gt", "threshold": 1.5}
PROJECTS = count()


def asked(document: dict[str, Any], project_id: str, now_ms: int = 10) -> Asked:
    return Asked(rules_document(document), project_id, now_ms, "k", lambda: str(uuid4()), 10**12, False)


async def apply(world: World, document: dict[str, Any], project_id: str, if_match: str | None = None) -> bool:
    guards, request = Guards(if_match, True, 100), asked(document, project_id)
    done = list[bool]()

    def decide(rules: Any) -> RulesChange | None:
        comparison, change = applying(request, rules, guards)
        done[:] = [bool(comparison.changes)]
        return change

    await world.store.apply_rules(project_id, decide, 10, "k", "key")
    return done[0]


async def plan(world: World, document: dict[str, Any], project_id: str) -> Any:
    return compared(asked(document, project_id), await world.store.project_rules(project_id))


@st.composite
def documents(draw: st.DrawFn, owner: str = "default", prefix: str = "") -> dict[str, Any]:
    """Documents whose things have names of their own, in their only form."""
    names = draw(st.lists(NAMES, unique=True, max_size=4))
    breakers = {
        prefix + name: RULE
        | draw(
            st.fixed_dictionaries(
                {"threshold": st.sampled_from([0.5, 2.0, -3.25])},
                optional={
                    "window_ms": st.sampled_from([1_000, 300_000]),
                    "mode": st.just("observe"),
                    "metadata": st.just({"team": "é"}),
                    "actions": st.just({"run": ["x", None, 1]}),
                },
            )
        )
        for name in sorted(names)
    }
    linked = st.lists(st.sampled_from(sorted(breakers)), unique=True).map(sorted) if breakers else st.just([])
    routers = {}
    for name in sorted(draw(st.lists(NAMES, unique=True, max_size=2))):
        links = draw(linked)
        fields = {"enabled": False} if draw(st.booleans()) else {}
        routers[prefix + name] = fields | ({"breakers": links} if links else {})
    match = [{"field": "name", "op": "=", "value": "requests"}]
    to = st.sampled_from(["label.to", *routers])
    mappings = {
        prefix + name: {"matchers": match, "to": {"router": draw(to)}}
        for name in draw(st.lists(NAMES, unique=True, max_size=3))
    }
    mutes = {
        prefix + name: {"all": True, "starts_ms": 10**12, "ends_ms": 10**12 + 5, "comment": "c"}
        for name in sorted(draw(st.lists(NAMES, unique=True, max_size=1)))
    }
    kinds = draw(st.lists(NAMES, unique=True, max_size=2))
    channels = {
        prefix + name: {
            "channel": "webhook",
            "config": {"url": f"https://x.example/{draw(st.integers(0, 2))}"},
            "references": {"url": {"env": "HOOK"}},
        }
        for name in sorted(kinds)
    }
    parts = {"breakers": breakers, "routers": routers, "mappings": mappings, "mutes": mutes, "channels": channels}
    return {"owner": owner, "labels": {}, **parts}


def as_exported(document: dict[str, Any]) -> dict[str, Any]:
    channels = {name: {"channel": "webhook", "config": {"url": {"env": "HOOK"}}} for name in document["channels"]}
    return {**document, "channels": channels}


async def export(world: World, owner: str, project_id: str) -> dict[str, Any]:
    found = exported(await world.store.project_rules(project_id), owner, 10)
    return {name: getattr(found, name) for name in found.__struct_fields__}


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
@given(first=documents(), second=documents(), other=documents("other", "other "))
async def test_what_is_applied_is_what_is_there(
    world: World, first: dict[str, Any], second: dict[str, Any], other: dict[str, Any]
) -> None:
    """A plan after an apply is empty, an export equals the document, from any document to any other; another owner's
    things stay as they are."""
    made = await world.store.create_project(world.org_id, world.workspace_id, f"p{next(PROJECTS)}", 1)
    await apply(world, other, made.id)
    for document in (first, second):
        await apply(world, document, made.id)
        assert (await plan(world, document, made.id)).changes == []
        assert not await apply(world, document, made.id)
        exported_now = await export(world, "default", made.id)
        assert exported_now == as_exported(document)
        assert list(exported_now["mappings"]) == list(document["mappings"])
        assert drifted(await world.store.project_rules(made.id), "default", 10) == []
        assert (await plan(world, other, made.id)).changes == []
    assert await export(world, "other", made.id) == as_exported(other)


async def test_of_two_applies_at_once_one_wins(world: World) -> None:
    wanted = [{"breakers": {"a": {**RULE, "threshold": n}}} for n in (1, 2)]
    plans = [await plan(world, one, world.project_id) for one in wanted]
    done = await asyncio.gather(
        *(apply(world, one, world.project_id, of.version) for one, of in zip(wanted, plans, strict=True)),
        return_exceptions=True,
    )
    assert sorted(type(one).__name__ for one in done) == ["PreconditionFailed", "bool"]
    assert [type(one) for one in done if isinstance(one, Exception)] == [PreconditionFailed]
    (row,) = (await world.store.list_breakers(world.project_id))[0]
    assert row.rule.threshold == (1 if done[0] is True else 2)


async def test_a_mute_that_begins_at_once_is_planned_and_applied(world: World) -> None:
    """Now is another time at the apply; what was planned is the same."""
    mute = {"all": True, "windows": [{"weekdays": ["mon"], "from": "22:00", "to": "23:00"}], "comment": "c"}
    document = {
        "mutes": {"at once": mute, "long ago": {**mute, "starts_ms": 1}, "later": {**mute, "starts_ms": 10**12}}
    }
    planned = compared(asked(document, world.project_id, 1_000), await world.store.project_rules(world.project_id))
    guards = Guards(planned.version, True, 100)

    def decide(rules: Any) -> RulesChange | None:
        return applying(asked(document, world.project_id, 2_000), rules, guards)[1]

    await world.store.apply_rules(world.project_id, decide, 2_000, "k", "key")
    mutes = (await world.store.project_rules(world.project_id)).mutes
    assert sorted(row.starts_ms for row in mutes) == [2_000, 2_000, 10**12]


async def test_an_apply_that_fails_leaves_no_half(world: World) -> None:
    """The mapping is refused when all before it is written."""
    await apply(world, {"owner": "one", "mappings": {"taken": MAPPING}}, world.project_id)
    rows = await world.store.project_rules(world.project_id)
    with pytest.raises(NotOwned):
        await apply(world, {"breakers": {"a": RULE}, "mappings": {"taken": MAPPING}}, world.project_id)

    def fails(rules: Any) -> RulesChange | None:
        change = applying(asked({"breakers": {"a": RULE}}, world.project_id), rules, Guards(None, True, 100))[1]
        assert change is not None
        return RulesChange(owner="x", declared=change.declared * 2, breakers_made=change.breakers_made)

    with pytest.raises(Exception, match=r"."):
        await world.store.apply_rules(world.project_id, fails, 10)
    assert await world.store.project_rules(world.project_id) == rows


async def test_links_that_end_are_one_change(world: World) -> None:
    """No more statements for sixty than for three, but one or two; one entry in the audit log."""
    statements: list[str] = []

    @listens_for(world.store._db._engines.serial, "before_cursor_execute")  # type: ignore[attr-defined]
    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    async def ended(owner: str, n: int) -> int:
        breakers = [(await world.breaker(f"{owner}{i}")).name for i in range(n)]
        await apply(world, {"owner": owner, "routers": {owner: {"breakers": breakers}}}, world.project_id)
        statements.clear()
        await apply(world, {"owner": owner, "routers": {owner: {"breakers": []}}}, world.project_id)
        entries = await world.store.audit(world.project_id, 10, only=AuditFilter(action="router.unlink"))
        (router,) = [row for row in await world.store.list_routers(world.project_id) if row.name == owner]
        assert router.breaker_ids == ()
        assert [entry.target_id for entry in entries].count(router.id) == 1
        return len(statements)

    assert await ended("many", 60) <= await ended("few", 3) + 2


async def test_links_of_an_apply_have_a_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "RULES_LINKS_MAX", 2)
    names = [(await world.breaker(f"b{i}")).name for i in range(3)]
    with pytest.raises(Invalid, match="3 links would change, and at most 2 do at once"):
        await apply(world, {"routers": {"r": {"breakers": names}}}, world.project_id)
    await apply(world, {"routers": {"r": {"breakers": names[:2]}}}, world.project_id)
    await apply(world, {"routers": {"r": {"breakers": names[1:]}}}, world.project_id)
    await apply(world, {}, world.project_id)


async def test_notifications_of_what_an_apply_deletes_have_a_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each open breaker and channel: channels that are made with it count, those that go with it do not."""
    told = OutboxWorld(world)
    await world.take_journal()
    hooks = {name: {"channel": "webhook", "config": {"url": "http://hook.example/x"}} for name in "xy"}
    names = {f"b{n}": RULE for n in range(3)}
    await apply(world, {"breakers": names, "channels": {"x": hooks["x"]}}, world.project_id)
    rows = (await world.store.list_breakers(world.project_id))[0]
    for row in rows:
        await told.adopt(row.id)
    for row in rows[:2]:
        await told.moves(row.id, "open")
    monkeypatch.setattr(rules, "RULES_ENDS_MAX", 3)
    with pytest.raises(Invalid, match="4 notifications"):
        await apply(world, {"channels": hooks}, world.project_id)
    assert len((await world.store.list_breakers(world.project_id))[0]) == 3
    monkeypatch.setattr(rules, "RULES_ENDS_MAX", 0)
    assert await apply(world, {}, world.project_id)
    assert (await world.store.list_breakers(world.project_id))[0] == []


async def test_what_is_declared_counts(small: Callable[..., Any]) -> None:
    """In the project's share of configuration, to the byte; labels are short, channels as many as there may be."""
    assert requests_rules.CHANNELS_MAX == channels.CHANNELS_MAX
    world = await small(configuration_bytes=6_000)
    with pytest.raises(Invalid):
        rules_document({"labels": {"a": "y" * 256}})
    labels = {f"{n}": "y" * 250 for n in range(4)}

    async def counted() -> tuple[int, int]:
        query = select(func.coalesce(func.sum(DECLARED_WEIGHT), 0)).where(declared.c.project_id == world.project_id)
        return (await sums(world)).get("configuration", 0), int(await read(world, lambda c: c.execute(query).scalar()))

    things = {name: RULE for name in "ab"}
    await apply(world, {"breakers": things}, world.project_id)
    bare, declared_bare = await counted()
    await apply(world, {"breakers": things, "labels": labels}, world.project_id)
    told, declared_told = await counted()
    assert told - bare == declared_told - declared_bare > 2_000
    with pytest.raises(Invalid, match="what files declare of them would take"):
        await apply(world, {"breakers": {name: RULE for name in "abcd"}, "labels": labels}, world.project_id)
    assert await counted() == (told, declared_told)
    await apply(world, {}, world.project_id)
    assert await counted() == (0, 0)


MAPPING = {"matchers": [{"field": "name", "op": "=", "value": "x"}], "to": {"router": "label.to"}}


async def test_a_rule_set_of_many_routers_takes_no_more_statements(world: World) -> None:
    """Routers that are made, changed, linked, unlinked and removed: what is asked of each would be asked of all before
    it, too, while everybody waits."""
    statements: list[str] = []

    @listens_for(world.store._db._engines.serial, "before_cursor_execute")  # type: ignore[attr-defined]
    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith("INSERT INTO changes"):  # SQLite gives ids in order to one row at a time
            statements.append(statement)

    async def counted(owner: str, n: int) -> list[int]:
        names = [(await world.breaker(f"{owner}{i}")).name for i in range(4)]
        made = {f"{owner}{i}": {"breakers": names[:3]} for i in range(n)}
        changed = {name: {"breakers": names[1:], "enabled": False, "metadata": {"a": "b"}} for name in made}
        found = []
        for routers in (made, changed, {}):
            statements.clear()
            await apply(world, {"owner": owner, "routers": routers}, world.project_id)
            found.append(len(statements))
        return found

    few, many = await counted("few", 3), await counted("many", 60)
    assert all(n <= m + 3 * COUNTED for n, m in zip(many, few, strict=True)), (few, many)
    assert [row.name for row in await world.store.list_routers(world.project_id) if row.created_by == "user"] == []


async def test_others_write_while_an_apply_is_decided(world: World) -> None:
    """It takes seconds of a large project."""
    neighbour, begun, done = await world.neighbour("n"), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def decide(rules: Any) -> RulesChange | None:
        loop.call_soon_threadsafe(begun.set)
        assert done.wait(30), "nobody else could write"
        return applying(asked({"breakers": {"a": RULE}}, world.project_id), rules, Guards(None, True, 100))[1]

    applied = asyncio.create_task(world.store.apply_rules(world.project_id, decide, 10, "k", "key"))
    await begun.wait()
    try:
        await asyncio.wait_for(neighbour.breaker("other"), 20)
    finally:
        done.set()
    assert (await applied)[0] is not None
    assert [row.name for row in (await world.store.list_breakers(world.project_id))[0]] == ["a"]


async def test_what_was_changed_meanwhile_is_decided_on_anew(world: World) -> None:
    """Whatever it was; where that goes on and on the apply is refused, and nothing of it is written."""
    row, store = await world.breaker("by hand"), world.store
    loop, seen = asyncio.get_running_loop(), list[float]()

    def deciding(times: int) -> Callable[[Any], RulesChange | None]:
        def decide(rules: Any) -> RulesChange | None:
            seen.append(rules.breakers[0].rule.threshold)
            if len(seen) <= times:
                edit = partial(raised, by=1)
                asyncio.run_coroutine_threadsafe(store.update_breaker(world.project_id, row.id, edit, 9), loop).result()
            return applying(asked({"breakers": {"a": RULE}}, world.project_id), rules, Guards(None, True, 100))[1]

        return decide

    with pytest.raises(Overloaded):
        await store.apply_rules(world.project_id, deciding(100), 10)
    assert len(seen) == rules.DECIDED_TIMES
    assert [one.name for one in (await store.list_breakers(world.project_id))[0]] == ["by hand"]
    seen.clear()
    await store.apply_rules(world.project_id, deciding(1), 10)
    assert [seen[1] - seen[0], len(seen)] == [1, 2]
    assert {one.name for one in (await store.list_breakers(world.project_id))[0]} == {"by hand", "a"}


async def test_a_mute_that_ended_meanwhile_is_made_anew(world: World) -> None:
    """The Notifier ends it between the look and the write: an end has no entry in the audit log."""
    store, epoch = world.store, await world.store.open_notifier()
    quiet = {"q": {"all": True, "comment": "c", "starts_ms": 0, "ends_ms": 1_000}}
    longer = {"q": {**quiet["q"], "ends_ms": 100_000}}
    await apply(world, {"mutes": quiet}, world.project_id)
    loop, looks = asyncio.get_running_loop(), list[int]()

    def decide(rules: Any) -> RulesChange | None:
        if not looks:
            asyncio.run_coroutine_threadsafe(store.tend_mutes(epoch, 1_001, 0), loop).result()
        looks.append(len(rules.mutes))
        return applying(asked({"mutes": longer}, world.project_id, 999), rules, Guards(None, True, 100))[1]

    await store.apply_rules(world.project_id, decide, 999, "k", "key")
    assert len(looks) == 2
    mutes = await store.list_mutes(world.project_id)
    assert sorted((row.state(2_000), row.ends_ms) for row in mutes) == [("active", 100_000), ("expired", 1_000)]


def raised(row: BreakerRow, by: float) -> BreakerRow:
    return msgspec.structs.replace(row, rule=msgspec.structs.replace(row.rule, threshold=row.rule.threshold + by))


async def test_every_change_of_what_files_declare_is_noticed(world: World) -> None:
    """Of each kind of thing, by hand and by files: what an apply was decided on is known by it."""
    store, project_id = world.store, world.project_id
    row = await world.breaker("a")
    router = await world.router()
    config = {"webhook_url": "https://hooks.example.com/x"}
    documents: list[dict[str, Any]] = [
        {"owner": "one", "mappings": {"m": MAPPING}},
        {"owner": "one", "channels": {"c": {"channel": "slack", "config": config}}},
        {"owner": "one", "mutes": {"x": {"all": True, "comment": "c", "ends_ms": 10**12}}},
        {"owner": "one", "labels": {"a": "b"}},
    ]
    acts: list[Callable[[], Awaitable[Any]]] = [
        lambda: world.breaker("b"),
        lambda: store.update_breaker(project_id, row.id, partial(raised, by=1), 9),
        lambda: store.link_breakers(project_id, router.id, [row.id], 9),
        lambda: store.update_router(project_id, router.id, lambda r: msgspec.structs.replace(r, name="z"), 9),
        lambda: store.unlink_breaker(project_id, router.id, row.id, 9),
        lambda: store.delete_router(project_id, router.id, 9),
        *(partial(apply, world, document, project_id) for document in documents),
        lambda: store.delete_breaker(project_id, row.id, 9),
    ]
    known = list[Any]()
    for act in acts:
        known.append(await read(world, lambda c: rules._seen(c, project_id)))
        await act()
    known.append(await read(world, lambda c: rules._seen(c, project_id)))
    assert len(set(known)) == len(acts) + 1


async def test_shadows_of_files_are_bound_as_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of an apply are linked in as many statements, and their links count among those that change."""
    row = await world.breaker("watched")
    for _ in range(3):
        await world.router(row.id)
    shadows = {f"s{n}": {**RULE, "shadow_of": "watched"} for n in range(3)}
    monkeypatch.setattr(rules, "RULES_LINKS_MAX", 11)
    with pytest.raises(Invalid, match="12 links would change"):
        await apply(world, {"breakers": shadows}, world.project_id)
    monkeypatch.setattr(rules, "RULES_LINKS_MAX", 12)
    monkeypatch.setattr(router_set, "SHADOWED_MAX", 3)
    with pytest.raises(Invalid, match="more than 3 routers"):
        await apply(world, {"breakers": shadows}, world.project_id)
    monkeypatch.setattr(router_set, "SHADOWED_MAX", 4)
    await apply(world, {"breakers": shadows}, world.project_id)
    linked = [one.breaker_ids for one in await world.store.list_routers(world.project_id) if row.id in one.breaker_ids]
    assert [len(ids) for ids in linked] == [4] * 4


async def test_a_change_of_breakers_counts_for_each_of_their_links(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes to the logs of all their routers; one that has its own alone counts as a thing."""
    names = {f"b{n}": RULE for n in range(3)}
    await apply(
        world,
        {"breakers": names, "routers": {"r": {"breakers": [*names]}, "s": {"breakers": ["b0"]}}},
        world.project_id,
    )
    monkeypatch.setattr(rules, "RULES_LINKS_MAX", 3)
    routers = {"r": {"breakers": [*names]}, "s": {"breakers": ["b0"]}}
    edited = {name: {**RULE, "threshold": 9} for name in names}
    with pytest.raises(Invalid, match="4 links would change"):
        await apply(world, {"breakers": edited, "routers": routers}, world.project_id)
    monkeypatch.setattr(rules, "RULES_LINKS_MAX", 4)
    assert await apply(world, {"breakers": edited, "routers": routers}, world.project_id)
