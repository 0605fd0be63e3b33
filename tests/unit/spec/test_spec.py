"""The description of the interface: complete against the routes, valid by its own rules, and the same on a page."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any, get_args

import msgspec
import pytest
from quart import Quart

from api import wire
from api.routes import BLUEPRINTS
from api.spec import requests
from api.spec.document import document
from api.spec.examples import EXAMPLES
from api.spec.page import page
from api.spec.table import OPERATIONS
from breaker_actors.core.rules import DEFAULTS, REQUIRED


def routes() -> set[tuple[str, str]]:
    """Method and path of everything the app answers; HEAD and OPTIONS come with GET."""
    app = Quart("bare", static_folder=None)
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint)
    return {
        (method, re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule))
        for rule in app.url_map.iter_rules()
        for method in rule.methods or ()
        if method not in ("HEAD", "OPTIONS")
    }


def test_every_route_is_described_and_nothing_else() -> None:
    described = {(operation.method, operation.path) for operation in OPERATIONS}
    assert {pair for pair in described if pair[0] != "HEAD"} == routes()
    assert {path for method, path in described if method == "HEAD"} <= {path for method, path in routes()}


def test_operation_ids_are_unique() -> None:
    ids = [operation.id for operation in OPERATIONS]
    assert len(ids) == len(set(ids))


def test_references_lead_somewhere() -> None:
    spec = document()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if "$ref" in node:
                target: Any = spec
                for part in node["$ref"].removeprefix("#/").split("/"):
                    target = target[part]
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(spec)


def test_errors_are_the_error_object_and_no_answer_is_a_default() -> None:
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            assert "default" not in operation["responses"]
            for status, answer in operation["responses"].items():
                assert "X-Request-ID" in answer["headers"], (method, path, status)
                if status >= "400" and method != "head":
                    schema = answer["content"]["application/json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/Error"}


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_examples_are_of_their_type(kind: Any) -> None:
    msgspec.convert(EXAMPLES[kind], kind)


def fields(kind: Any) -> set[str]:
    return set(kind.__struct_fields__)


def test_described_fields_are_those_the_handlers_read() -> None:
    assert fields(requests.ProjectCreate) == fields(wire.ProjectCreate)
    assert fields(requests.ProjectPatch) == fields(wire.ProjectPatch)
    assert fields(requests.StateBatch) == fields(wire.StateBatch)
    assert fields(requests.RouterCreate) == fields(wire.RouterFields)
    rule = {*REQUIRED, *DEFAULTS}
    assert fields(requests.BreakerCreate) == rule | fields(wire.BreakerFields)
    assert fields(requests.BreakerPatch) == rule | fields(wire.BreakerFields) - {"id"}


def test_described_defaults_are_those_of_the_rules() -> None:
    properties = document()["components"]["schemas"]["BreakerCreate"]["properties"]
    shown = {name: kind["anyOf"][0]["default"] for name, kind in properties.items() if "default" in str(kind)}
    assert shown == {name: default for name, default in DEFAULTS.items() if default is not None}


def test_the_page_shows_every_operation_and_loads_nothing() -> None:
    text = page()
    for operation in OPERATIONS:
        assert f'id="{operation.id}"' in text
    assert not re.search(r"<script|<link|<img|src=|url\(|https?://(?!hooks|traces)", text)


def test_the_command_prints_the_document() -> None:
    command = [sys.executable, "-c", "from api.cli import main; main()", "openapi"]
    printed = subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert msgspec.json.decode(printed.stdout) == msgspec.json.decode(msgspec.json.encode(document()))


def test_every_kind_of_answer_is_a_described_struct() -> None:
    for operation in OPERATIONS:
        for answer in operation.answers.values():
            assert answer.body in (None, str) or issubclass(answer.body, msgspec.Struct) or get_args(answer.body)
