"""Store: rules that files declare, applied whole or not at all, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any
from uuid import uuid4

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
from breaker_actors.errors import Invalid, NotOwned, PreconditionFailed
from breaker_actors.store.config import channels, rules
from breaker_actors.store.quotas import DECLARED_WEIGHT
from breaker_actors.store.rows import AuditFilter, RulesChange
from breaker_actors.store.tables import declared
from tests.contract.store_world import World
from tests.contract.test_store_shares import read, small, sums

__all__ = ["small"]
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
