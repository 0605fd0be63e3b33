"""The API's own words: nothing in the document is without a description, and no description is without its thing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest

from api.openapi import words
from api.openapi.document import document
from api.openapi.table import OPERATIONS
from breaker_actors.core.model import Kind, Op, Policy, Rule
from breaker_actors.core.rule_fields import BY_NAME, FIELDS, KINDS, MEANINGS, PARAMS, described
from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import Invalid

SCHEMAS: dict[str, Any] = document()["components"]["schemas"]
CALLS = [(path, method) for path, methods in document()["paths"].items() for method in methods]
PROPERTIES = [(name, field) for name, schema in SCHEMAS.items() for field in schema.get("properties", {})]


def says_something(text: str) -> bool:
    return text.strip() == text and len(text) >= 5 and text.endswith(".")


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and everything in it."""
    if isinstance(schema, dict):
        yield schema
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from nodes(inner)


@pytest.mark.parametrize(("path", "method"), CALLS, ids=[f"{method} {path}" for path, method in CALLS])
def test_each_operation_and_parameter_is_described(path: str, method: str) -> None:
    operation = document()["paths"][path][method]
    assert says_something(operation["description"])
    assert operation["description"].rstrip(".") != operation["summary"]
    for parameter in operation["parameters"]:
        assert parameter["description"].strip(), parameter["name"]
    for answer in operation["responses"].values():
        assert answer["description"].strip()


@pytest.mark.parametrize(("component", "field"), PROPERTIES, ids=[f"{c}.{f}" for c, f in PROPERTIES])
def test_each_property_is_described(component: str, field: str) -> None:
    schema = SCHEMAS[component]["properties"][field]
    assert says_something(schema.get("description", ""))
    if field.endswith("_ms"):
        assert "illisecond" in schema["description"] or "Unit: ms." in schema["description"]


def test_properties_inside_a_property_are_described() -> None:
    """Branches of a component narrow its own properties, which are described once, or those of the one it is a branch
    of; all others say what they are."""
    whole = {"ShadowMode": "BreakerCreate"}
    inner = [
        (component, field, schema)
        for component, outer in SCHEMAS.items()
        for node in nodes(outer)
        if node is not outer
        for field, schema in node.get("properties", {}).items()
        if field not in SCHEMAS[whole.get(component, component)]["properties"]
    ]
    assert {field for _, field, _ in inner} == {"percentile", "delta_of", "alpha"}
    assert [(component, field) for component, field, schema in inner if not says_something(schema["description"])] == []


def test_every_list_says_what_is_in_it() -> None:
    """Also in the branches that ask for one of several fields: a generator takes those for the property itself."""
    spec = document()
    lists = [node for node in nodes(spec) if node.get("type") == "array"]
    assert lists
    assert [node for node in lists if "items" not in node] == []
    batch = SCHEMAS["StateBatch"]["anyOf"][0]["properties"]["breaker_ids"]
    assert batch["items"] == {"type": "string", "format": "uuid"}


def test_tags_headers_and_ways_in_are_described() -> None:
    spec = document()
    assert all(says_something(tag["description"]) for tag in spec["tags"])
    for part in ("headers", "securitySchemes"):
        assert all(thing["description"].strip() for thing in spec["components"][part].values())


def test_no_description_is_left_over() -> None:
    assert set(words.OPERATIONS) == {operation.id for operation in OPERATIONS}
    assert set(words.TAGS) == {operation.tag for operation in OPERATIONS}
    named = {name for operation in OPERATIONS for name in words.PATH_PARAMETERS if f"{{{name}}}" in operation.path}
    assert named == set(words.PATH_PARAMETERS)
    own = {f"{component}.{field}" for component, field in PROPERTIES}
    by_name = {
        field
        for component, field in PROPERTIES
        if f"{component}.{field}" not in words.PROPERTIES and not (component in words.RULE_HOLDERS and field in BY_NAME)
    }
    assert set(words.PROPERTIES) - own - by_name == set()


def test_the_rule_is_described_by_its_own_table() -> None:
    for component in words.RULE_HOLDERS:
        for field in FIELDS:
            assert SCHEMAS[component]["properties"][field.name]["description"] == described(field)


def test_the_table_of_fields_is_the_rule() -> None:
    """Names, defaults and choices are those of the struct that the core evaluates."""
    struct = {field.name: field for field in msgspec.structs.fields(Rule)}
    assert [field.name for field in FIELDS] == list(struct)
    for field in FIELDS:
        assert field.required == (struct[field.name].default is msgspec.NODEFAULT)
        if not field.required:
            assert field.default == struct[field.name].default
    assert {name: set(meanings) for name, meanings in MEANINGS.items()} == {
        "kind": set(get_args(Kind)),
        "op": set(get_args(Op)),
        "half_open_indeterminate_policy": set(get_args(Policy)),
    }
    assert [param.name for param in PARAMS] == ["percentile", "delta_of", "alpha"]
    assert set(KINDS) == set(MEANINGS["kind"])


@pytest.mark.parametrize("field", [field for field in FIELDS if field.low is not None], ids=lambda field: field.name)
def test_bounds_are_those_that_are_checked(field: Any) -> None:
    plain = {"metric": "m", "kind": "avg", "op": "gt", "threshold": 1, "eval_interval_ms": 1}
    for value in (field.low - 1, field.high + 1):
        with pytest.raises(Invalid) as caught:
            parse_rule(plain | {field.name: value})
        assert field.name in caught.value.details
    parse_rule(plain | {"kind": "consecutive_failures", field.name: field.low})
