"""The description of the interface: complete against the routes, valid by its own rules, and the same on a page."""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import re
import shlex
import subprocess
import sys
from typing import Any, get_args

import jsonschema
import msgspec
import pytest
from quart import Quart

from api.openapi.document import document
from api.openapi.examples import EXAMPLES
from api.openapi.page import RAPIDOC, RAPIDOC_VERSION, packed, script
from api.openapi.table import OPERATIONS
from api.routes import BLUEPRINTS
from api.wire import requests as wire
from breaker_actors.core.rules import DEFAULTS, REQUIRED

RAPIDOC_SHA256 = "affbd173a65e870e18f392cca963113bcdafb6e50e88cd2f6a834a65b22db94d"


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


def test_every_body_that_has_an_example_shows_it_in_its_code() -> None:
    found = document()
    bodies = {
        operation["operationId"]: (content["application/json"], operation["x-codeSamples"])
        for path in found["paths"].values()
        for operation in path.values()
        if "application/json" in (content := operation.get("requestBody", {}).get("content", {}))
    }
    shown = {
        name: content["examples"]["example"]["value"] for name, (content, _) in bodies.items() if "examples" in content
    }
    assert {"ingest", "create_breaker", "create_channel"} <= shown.keys()
    for name, example in shown.items():
        assert json.dumps(example) in bodies[name][1][0]["source"], name


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


OTHERS = {operation.id for operation in OPERATIONS if operation.is_foreign}
"""Protocols of others, whose errors have other forms."""


def test_errors_are_the_error_object_and_no_answer_is_a_default() -> None:
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            assert "default" not in operation["responses"]
            for status, answer in operation["responses"].items():
                assert "X-Request-ID" in answer["headers"], (method, path, status)
                if status >= "400" and method != "head" and operation["operationId"] not in OTHERS:
                    schema = answer["content"]["application/json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/Error"}


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_examples_are_of_their_type(kind: Any) -> None:
    msgspec.convert(EXAMPLES[kind], kind)


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_examples_are_what_the_document_describes(kind: Any) -> None:
    schema = {"$ref": f"#/components/schemas/{kind.__name__}", "components": document()["components"]}
    jsonschema.Draft202012Validator(schema).validate(EXAMPLES[kind])


def test_a_breaker_is_described_with_its_rule_and_with_what_the_handlers_read_beside_it() -> None:
    schemas, rule = document()["components"]["schemas"], {*REQUIRED, *DEFAULTS}
    assert set(schemas["BreakerCreate"]["properties"]) == rule | set(wire.BreakerCreate.__struct_fields__)
    assert set(schemas["BreakerPatch"]["properties"]) == rule | set(wire.BreakerPatch.__struct_fields__) - {"id"}
    assert set(schemas["BreakerCreate"]["required"]) == set(REQUIRED)


def test_described_defaults_are_those_of_the_rules() -> None:
    properties = document()["components"]["schemas"]["BreakerCreate"]["properties"]
    shown = {name: kind["anyOf"][0]["default"] for name, kind in properties.items() if "default" in str(kind)}
    assert shown == {"mode": "enforce"} | {name: value for name, value in DEFAULTS.items() if value is not None}


def test_the_script_is_rapidoc_as_it_came() -> None:
    program = RAPIDOC.read_bytes()
    assert f"RapiDoc {RAPIDOC_VERSION}".encode() in program
    assert b"MIT License" in RAPIDOC.with_name("rapidoc-min.LICENSE.txt").read_bytes()
    assert hashlib.sha256(program).hexdigest() == RAPIDOC_SHA256
    assert gzip.decompress(packed()) == script() == program
    assert len(packed()) < 300_000


def test_every_operation_has_samples_that_parse() -> None:
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            samples = {each["label"]: each["source"] for each in operation["x-codeSamples"]}
            assert list(samples) == ["curl", "Python", "TypeScript"], (method, path)
            assert all(path in source for source in samples.values())
            ast.parse(samples["Python"])
            assert shlex.split(samples["curl"].replace("\\\n", " "))[0] == "curl"


def test_the_command_prints_the_document() -> None:
    command = [sys.executable, "-c", "from api.cli.main import main; main()", "openapi"]
    printed = subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert msgspec.json.decode(printed.stdout) == msgspec.json.decode(msgspec.json.encode(document()))


def test_every_kind_of_answer_is_a_described_struct() -> None:
    for operation in OPERATIONS:
        for answer in operation.answers.values():
            assert answer.body in (None, str) or issubclass(answer.body, msgspec.Struct) or get_args(answer.body)


def test_every_parameter_says_its_type() -> None:
    """The page shows one without as "missing-type-info"."""
    for path, methods in document()["paths"].items():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                schemas = parameter["schema"].get("anyOf", [parameter["schema"]])
                assert all("type" in schema or "$ref" in schema for schema in schemas), (path, parameter)
