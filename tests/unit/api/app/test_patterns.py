"""Words of a closed vocabulary are taken to the letter: a line end behind one is refused, everywhere.

`$` lets a trailing line end through, so no expression that decides may have one. Those that only describe are
published as JSON Schema, where `$` means the end, and decide nothing.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest

import api
import breaker_actors
import pipelines
from api.openapi.document import document
from api.wire.requests import ProjectCreate, RouterCreate, StateBatch, shape
from api.wire.requests_accounts import ProjectDelete
from tests.support.bodies import request_bodies
from tests.support.fake_gateway import NOW_MS
from tests.support.web_world import RULE, World, error_of

ROOT = Path(__file__).parents[4]
PARSER: Any = importlib.import_module("re._parser")
LINE_ENDS = ["\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x85", "\u2028", " "]
PACKAGES = (api, breaker_actors, pipelines)
SOURCES = [path for package in PACKAGES for path in Path(package.__path__[0]).rglob("*.py")]
NEEDS_MORE = re.compile(r"^(import|from) (ray|alembic)\b", re.MULTILINE)


def modules() -> Iterator[ModuleType]:
    """All but those that start with Ray or a migration."""
    for path in SOURCES:
        if not NEEDS_MORE.search(path.read_text()) and "migrations" not in path.parts:
            yield importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


MODULES = list(modules())


def lets_line_ends_through(pattern: str | bytes, flags: int = 0) -> bool:
    """Whether a `$` is anywhere in an expression."""

    def walk(tree: Any) -> bool:
        for op, argument in tree:
            if (op, argument) == (PARSER.AT, PARSER.AT_END):
                return True
            parts = argument if isinstance(argument, list | tuple) else (argument,)
            for part in parts:
                if isinstance(part, PARSER.SubPattern) and walk(part):
                    return True
                if isinstance(part, list) and any(isinstance(p, PARSER.SubPattern) and walk(p) for p in part):
                    return True
        return False

    return walk(PARSER.parse(pattern, flags))


def metas(kind: Any, seen: set[Any]) -> Iterator[msgspec.Meta]:
    """Every constraint that a type or what it is made of has."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind not in seen:
            seen.add(kind)
            for field in msgspec.structs.fields(kind):
                yield from metas(field.type, seen)
        return
    if isinstance(kind, msgspec.Meta):
        yield kind
    for part in (*getattr(kind, "__metadata__", ()), *(get_args(kind) if get_origin(kind) is not Literal else ())):
        yield from metas(part, seen)


def structs(module: ModuleType) -> list[type[msgspec.Struct]]:
    found = vars(module).values()
    return [v for v in found if isinstance(v, type) and issubclass(v, msgspec.Struct) and v is not msgspec.Struct]


def test_the_search_for_dollars_finds_them() -> None:
    assert all(map(lets_line_ends_through, ("a$", "^(a|b|)$", "(?:x$)?", "^$|a", "(?=b$)", r"(?:(a$)|b)*")))
    assert not any(map(lets_line_ends_through, (r"a\Z", r"a\$", "[$]", r"\A(a|)\Z")))


def test_no_constraint_that_decides_lets_a_line_end_through() -> None:
    seen: set[Any] = set()
    patterns = [
        meta.pattern
        for module in MODULES
        if not module.__name__.startswith("api.openapi")
        for kind in structs(module)
        if not kind.__module__.startswith("api.openapi")
        for meta in metas(kind, seen)
        if meta.pattern is not None
    ]
    assert patterns, "there are some"
    for pattern in patterns:
        assert not lets_line_ends_through(pattern), pattern
        assert pattern.startswith(r"\A"), pattern
        assert pattern.endswith(r"\Z"), pattern


def test_the_description_decides_nothing() -> None:
    """It is made of what is read, and nothing is read with it: who imports it only shows it."""
    importers = {
        path.relative_to(ROOT).as_posix()
        for package in ("api", "breaker_actors", "pipelines")
        for path in (ROOT / package).rglob("*.py")
        if (ROOT / "api" / "openapi") not in path.parents and "api.openapi" in path.read_text()
    }
    console = {f"api/console/{screen}.py" for screen in ("channels", "cluster", "deliveries", "keys", "mutes")}
    shown = {"api/routes/spec.py", "api/cli/main.py", "api/cli/explain.py", "api/cli/rules.py"}
    assert importers == {*shown, *console}


def test_words_that_only_describe_decide_nothing() -> None:
    """What stands in an `extra_json_schema` alone: an id that is none, a default."""
    shape({"breaker_ids": ["no uuid"], "router_id": "no uuid"}, StateBatch)
    shape({"workspace_id": "no uuid"}, ProjectCreate)
    assert bytes(msgspec.json.decode(b'{"confirm_name":5}', type=ProjectDelete).confirm_name) == b"5"
    assert shape({}, RouterCreate).mode is msgspec.UNSET


def test_no_compiled_expression_lets_a_line_end_through() -> None:
    found = [(m.__name__, v) for m in MODULES for v in vars(m).values() if isinstance(v, re.Pattern)]
    assert len(found) > 15
    for name, expression in found:
        assert not lets_line_ends_through(expression.pattern, expression.flags & ~re.DEBUG), (name, expression)


def test_no_expression_in_passing_lets_a_line_end_through() -> None:
    calls = 0
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            owner, text = node.func.value, node.args[0]
            if isinstance(owner, ast.Name) and owner.id == "re" and isinstance(text, ast.Constant):
                calls += 1
                assert not lets_line_ends_through(text.value), (path, text.value)
    assert calls > 15


# every field with a closed vocabulary, over HTTP


def closed_fields() -> set[tuple[str, str]]:
    """(body, field) of the described requests where a string is one of a few words, or has a form."""
    spec = document()
    return {
        (body, name)
        for body in request_bodies()
        for name, schema in spec["components"]["schemas"][body].get("properties", {}).items()
        if is_closed(schema)
    }


def is_closed(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(is_closed, schema))
    if not isinstance(schema, dict):
        return False
    closed = "enum" in schema or schema.get("pattern", NO_BLANK) != NO_BLANK or schema.get("format") == "uuid"
    return closed or any(is_closed(schema.get(word)) for word in ("anyOf", "items", "additionalProperties"))


NO_BLANK = r"\S"
"""Free text that must say something has this as its form."""
OVERRIDE = {"kind": "force_open", "reason": "r"}
MATCHER = {"field": "name", "op": "glob", "value": "a*"}
WINDOW = {"weekdays": ["mon"], "from": "22:00", "to": "06:00"}
MUTE = {"all": True, "comment": "c"}
TO = {"router": "label.router"}
MAPPING = {"matchers": [MATCHER], "to": TO}
CLOSED: dict[tuple[str, str], tuple[str, str, Any]] = {
    ("ProjectCreate", "workspace_id"): ("POST", "/v1/projects", {"workspace_id": "{workspace}"}),
    ("BreakerCreate", "kind"): ("POST", "breakers", {**RULE, "kind": "{avg}"}),
    ("BreakerCreate", "op"): ("POST", "breakers", {**RULE, "op": "{gt}"}),
    ("BreakerCreate", "id"): ("POST", "breakers", {**RULE, "id": "{new}"}),
    ("BreakerCreate", "half_open_indeterminate_policy"): (
        "POST",
        "breakers",
        {**RULE, "half_open_indeterminate_policy": "{optimistic}"},
    ),
    ("BreakerPatch", "kind"): ("PATCH", "breakers/{breaker}", {"kind": "{max}"}),
    ("BreakerPatch", "op"): ("PATCH", "breakers/{breaker}", {"op": "{lt}"}),
    ("BreakerPatch", "half_open_indeterminate_policy"): (
        "PATCH",
        "breakers/{breaker}",
        {"half_open_indeterminate_policy": "{optimistic}"},
    ),
    ("BreakerItem", "kind"): ("PUT", "breakers", {"breakers": [{**RULE, "name": "n", "kind": "{avg}"}]}),
    ("BreakerItem", "op"): ("PUT", "breakers", {"breakers": [{**RULE, "name": "n", "op": "{gt}"}]}),
    ("BreakerItem", "id"): ("PUT", "breakers", {"breakers": [{**RULE, "id": "{new}"}]}),
    ("BreakerItem", "half_open_indeterminate_policy"): (
        "PUT",
        "breakers",
        {"breakers": [{**RULE, "name": "n", "half_open_indeterminate_policy": "{optimistic}"}]},
    ),
    ("StateBatch", "breaker_ids"): ("POST", "breakers/state:batch", {"breaker_ids": ["{breaker}"]}),
    ("StateBatch", "router_ids"): ("POST", "breakers/state:batch", {"router_ids": ["{router}"]}),
    ("StateBatch", "router_id"): ("POST", "breakers/state:batch", {"router_id": "{router}"}),
    ("RouterPatch", "mode"): ("PATCH", "routers/{router}", {"mode": "{static}"}),
    ("RouterCreate", "mode"): ("POST", "routers", {"mode": "{canary}"}),
    ("RouterCreate", "breaker_ids"): ("POST", "routers", {"breaker_ids": ["{breaker}"]}),
    ("RouterLink", "breaker_ids"): ("POST", "routers/{router}/breakers", {"breaker_ids": ["{breaker}"]}),
    ("RouterLink", "breaker_id"): ("POST", "routers/{router}/breakers", {"breaker_id": "{breaker}"}),
    ("ChannelPatch", "events"): ("PATCH", "notification-channels/{channel}", {"events": ["{trip}"]}),
    ("ChannelCreate", "events"): (
        "POST",
        "notification-channels",
        {"channel": "email", "config": {"to": ["a@x.example"]}, "events": ["{trip}"]},
    ),
    ("ProjectKeyCreate", "kind"): ("POST", "keys", {"kind": "{ingest}"}),
    ("ChannelCreate", "channel"): (
        "POST",
        "notification-channels",
        {"channel": "{email}", "config": {"to": ["a@x.example"]}},
    ),
    ("SlackConfig", "webhook_url"): (
        "POST",
        "notification-channels",
        {"channel": "slack", "config": {"webhook_url": "{https://hooks.slack.com/services/T/B/x}"}},
    ),
    ("WorkspaceCreate", "slug"): ("POST", "/v1/workspaces", {"name": "n", "slug": "{ok}"}),
    ("WorkspacePatch", "slug"): ("PATCH", "/v1/workspaces/{workspace}", {"slug": "{ok}"}),
    ("BreakerCreate", "mode"): ("POST", "breakers", {**RULE, "mode": "{observe}"}),
    ("BreakerCreate", "shadow_of"): ("POST", "breakers", {**RULE, "shadow_of": "{breaker}"}),
    ("BreakerPatch", "mode"): ("PATCH", "breakers/{breaker}", {"mode": "{observe}"}),
    ("BreakerItem", "mode"): ("PUT", "breakers", {"breakers": [{**RULE, "name": "n", "mode": "{observe}"}]}),
    ("BreakerPatch", "shadow_of"): ("PATCH", "breakers/{shadow}", {"shadow_of": "{breaker}"}),
    ("BreakerItem", "shadow_of"): (
        "PUT",
        "breakers",
        {"breakers": [{**RULE, "name": "a"}, {**RULE, "name": "s", "shadow_of": "{breaker}"}]},
    ),
    ("OverrideSet", "kind"): ("PUT", "breakers/{breaker}/override", {**OVERRIDE, "kind": "{force_open}"}),
    ("OverrideSet", "then"): ("PUT", "breakers/{breaker}/override", {**OVERRIDE, "then": "{half_open}"}),
    ("OverridesSet", "kind"): ("POST", "overrides", {**OVERRIDE, "all": True, "kind": "{force_open}"}),
    ("OverridesSet", "then"): ("POST", "overrides", {**OVERRIDE, "all": True, "then": "{half_open}"}),
    ("Matcher", "field"): ("POST", "mutes:preview", {"matchers": [{**MATCHER, "field": "{name}"}]}),
    ("Matcher", "op"): ("POST", "mutes:preview", {"matchers": [{**MATCHER, "op": "{glob}"}]}),
    ("OverrideMatcher", "field"): ("POST", "overrides:preview", {"matchers": [{**MATCHER, "field": "{name}"}]}),
    ("OverrideMatcher", "op"): ("POST", "overrides:preview", {"matchers": [{**MATCHER, "op": "{glob}"}]}),
    ("MuteCreate", "zone"): ("POST", "mutes", {**MUTE, "windows": [WINDOW], "zone": "{Europe/Berlin}"}),
    ("RulesDocument", "owner"): ("POST", "rules:plan", {"owner": "{payments}"}),
    ("MutePatch", "zone"): ("PATCH", "mutes/{mute}", {"zone": "{Europe/Berlin}"}),
    ("Window", "weekdays"): ("POST", "mutes", {**MUTE, "windows": [{**WINDOW, "weekdays": ["{mon}"]}]}),
    ("Window", "from"): ("POST", "mutes", {**MUTE, "windows": [{**WINDOW, "from": "{22:00}"}]}),
    ("Window", "to"): ("POST", "mutes", {**MUTE, "windows": [{**WINDOW, "to": "{06:00}"}]}),
    ("SeriesMatcher", "field"): ("POST", "mappings", {**MAPPING, "matchers": [{**MATCHER, "field": "{name}"}]}),
    ("SeriesMatcher", "op"): ("POST", "mappings", {**MAPPING, "matchers": [{**MATCHER, "op": "{glob}"}]}),
    ("MappingToCreate", "router"): ("POST", "mappings", {**MAPPING, "to": {"router": "{router}"}}),
    ("MappingToCreate", "as"): ("POST", "mappings", {**MAPPING, "to": {**TO, "as": "{value}"}}),
    ("MappingToCreate", "temporality"): ("POST", "mappings", {**MAPPING, "to": {**TO, "temporality": "{delta}"}}),
    ("MappingToPatch", "router"): ("PATCH", "mappings/{mapping}", {"to": {"router": "{router}"}}),
    ("MappingToPatch", "as"): ("PATCH", "mappings/{mapping}", {"to": {"as": "{value}"}}),
    ("MappingToPatch", "temporality"): ("PATCH", "mappings/{mapping}", {"to": {"temporality": "{delta}"}}),
    ("MappingSent", "id"): ("PUT", "mappings", {"mappings": [{**MAPPING, "id": "{new}"}]}),
    ("PreviewedSeries", "type"): ("POST", "mappings:preview", {"series": [{"name": "n", "type": "{sum}"}]}),
    ("PreviewedSeries", "temporality"): (
        "POST",
        "mappings:preview",
        {"series": [{"name": "n", "temporality": "{delta}"}]},
    ),
    ("MetricSample", "router_id"): (
        "POST",
        "ingest",
        {"samples": [{"router_id": "{router}", "metric": "m", "value": 1, "ts_ms": NOW_MS}]},
    ),
}
ADMIN_ONLY = ("/v1/workspaces", "/v1/projects")


def test_the_table_has_every_field_with_a_closed_vocabulary() -> None:
    assert set(CLOSED) == closed_fields()


async def ids(world: World) -> dict[str, str]:
    breaker = await world.breaker("a")
    channel = {"channel": "email", "config": {"to": ["a@x.example"]}}
    made = await (await world.call("POST", "notification-channels", json=channel)).get_json()
    mute = await (await world.call("POST", "mutes", json={**MUTE, "windows": [WINDOW]})).get_json()
    mapping = await (await world.call("POST", "mappings", json=MAPPING)).get_json()
    shadow = await (
        await world.call("POST", "breakers", json={**RULE, "name": "s", "shadow_of": breaker.id})
    ).get_json()
    return {
        "breaker": breaker.id,
        "shadow": shadow["id"],
        "router": (await world.router(breaker.id)).id,
        "channel": made.get("channel", made).get("id") or made["id"] if isinstance(made, dict) else "",
        "mute": mute["mute"]["id"],
        "mapping": mapping["mapping"]["id"],
        "workspace": world.workspace_id,
        "new": "0b8f0e1c-6a52-4c0e-9d4b-2f9f1f7a3c11",
    }


@pytest.mark.parametrize("field", CLOSED, ids=".".join)
async def test_a_word_with_a_line_end_is_refused(world: World, field: tuple[str, str]) -> None:
    method, path, body = CLOSED[field]
    known = await ids(world)
    key = "admin" if path.startswith(ADMIN_ONLY) else "user"
    for name, value in known.items():
        path = path.replace(f"{{{name}}}", value)

    def spelled(tail: str, head: str = "") -> Any:
        def word(found: re.Match[str]) -> str:
            return json.dumps(head + known.get(found[1], found[1]) + tail)[1:-1]

        return json.loads(re.sub(r"\{([\w:/.]+)\}", word, json.dumps(body)))

    for tail in LINE_ENDS:
        for wanted in (spelled(tail), spelled("", tail)):
            answer = await world.call(method, path, key, json=wanted)
            if path.endswith("ingest"):
                told = await answer.get_json()
                assert (answer.status_code, told.get("accepted", 0)) in ((422, 0), (202, 0)), (tail, told)
            else:
                await error_of(answer, 422, "validation_failed")
    assert (await world.call(method, path, key, json=spelled(""))).status_code in (200, 201, 202), "without it is taken"


@pytest.mark.parametrize("tail", LINE_ENDS)
async def test_the_poison_of_the_round(world: World, tail: str) -> None:
    """Both were answered 201 and stored."""
    await error_of(await world.call("POST", "routers", json={"mode": f"static{tail}"}), 422, "validation_failed")
    slug = {"name": "n", "slug": f"ok{tail}"}
    await error_of(await world.call("POST", "/v1/workspaces", "admin", json=slug), 422, "validation_failed")
    assert await world.store.list_routers(world.project.id) == []
