"""Every field of every resource: there, of its type, null only where the document says so, and with its default."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from api.openapi.document import document
from tests.conformance.calls_routers import CLOSED, INGEST
from tests.conformance.client_compatibility import TYPES
from tests.conformance.interface import INPUTS, RESOURCES, SAMPLE_FIELDS, fields, full
from tests.conformance.service_harness import RULE, House, Scope

Found = dict[str, list[dict[str, Any]]]
in_session = pytest.mark.asyncio(loop_scope="session")

FIELDS = [(resource, name, kind) for resource, text in RESOURCES.items() for name, kind in fields(text).items()]
EVENTS, STATE = "GET P/events?breaker_id={tripped_id}", "GET P/breakers/{breaker_id}/state"

SOURCES: dict[str, list[tuple[str, Any, Callable[[Any], list[Any]]]]] = {
    "Project": [
        ("POST /v1/projects", {"workspace_id": "{workspace_id}"}, lambda b: [b]),
        ("GET P", None, lambda b: [b]),
        ("PATCH P", {}, lambda b: [b]),
        ("GET /v1/projects", None, lambda b: b["projects"]),
    ],
    "NewProject": [("POST /v1/projects", {"workspace_id": "{workspace_id}"}, lambda b: [b])],
    "RotatedSecret": [("POST P/ingest_secret/rotate", None, lambda b: [b])],
    "ProjectList": [("GET /v1/projects", None, lambda b: [b])],
    "ProjectStatus": [("GET P/status", None, lambda b: [b])],
    "Workspace": [
        ("GET /v1/workspaces", None, lambda b: b["workspaces"]),
        ("GET /v1/workspaces/{workspace_id}", None, lambda b: [b]),
    ],
    "Breaker": [
        ("POST P/breakers", RULE, lambda b: [b["breaker"]]),
        ("GET P/breakers/{breaker_id}", None, lambda b: [b["breaker"]]),
        ("PATCH P/breakers/{breaker_id}", {}, lambda b: [b["breaker"]]),
        ("GET P/breakers", None, lambda b: b["breakers"]),
    ],
    "BreakerEnvelope": [("POST P/breakers", RULE, lambda b: [b]), ("GET P/breakers/{breaker_id}", None, lambda b: [b])],
    "BreakerList": [("GET P/breakers", None, lambda b: [b])],
    "BulkResult": [("PUT P/breakers", {"breakers": [{"name": "n", **RULE}]}, lambda b: [b])],
    "BreakerMetadata": [
        ("GET P/breakers/metadata", None, lambda b: b["breakers"]),
        ("PATCH P/breakers/{breaker_id}/metadata", {"metadata": {}}, lambda b: [b]),
    ],
    "BreakerMetadataList": [("GET P/breakers/metadata", None, lambda b: [b])],
    "BreakerStateLookup": [(STATE, None, lambda b: [b])],
    "BreakerStateBatchItem": [
        ("POST P/breakers/state:batch", {"breaker_ids": ["{breaker_id}"]}, lambda b: b["states"])
    ],
    "BreakerStateList": [("POST P/breakers/state:batch", {"breaker_ids": ["{breaker_id}"]}, lambda b: [b])],
    "BreakerEvent": [(EVENTS, None, lambda b: b["events"])],
    "BreakerEvent.rule": [(EVENTS, None, lambda b: [e["rule"] for e in b["events"]])],
    "BreakerEvent.agg": [(EVENTS, None, lambda b: [e["agg"] for e in b["events"]])],
    "EventList": [(EVENTS, None, lambda b: [b])],
    "Router": [("POST P/routers", {}, lambda b: [b["router"]]), ("GET P/routers", None, lambda b: b["routers"])],
    "RouterListItem": [("GET P/routers", None, lambda b: b["routers"])],
    "RouterDetail": [
        ("POST P/routers", {}, lambda b: [b["router"]]),
        ("GET P/routers/{router_id}", None, lambda b: [b["router"]]),
    ],
    "RouterDetail.breakers": [("GET P/routers/{own_router_id}", None, lambda b: b["router"]["breakers"])],
    "RouterMetadata": [
        ("GET P/routers/metadata", None, lambda b: b["routers"]),
        ("PATCH P/routers/{router_id}/metadata", {"metadata": {}}, lambda b: [b]),
    ],
    "RouterList": [("GET P/routers", None, lambda b: [b])],
    "NotificationChannel": [
        ("POST P/notification-channels", CLOSED, lambda b: [b["channel"]]),
        ("GET P/notification-channels", None, lambda b: b["channels"]),
        ("PATCH P/notification-channels/{channel_id}", {}, lambda b: [b["channel"]]),
    ],
    "ChannelList": [("GET P/notification-channels", None, lambda b: [b])],
    "ChannelTest": [("POST P/notification-channels/{channel_id}/test", None, lambda b: [b])],
    "Health": [
        ("GET /api/health", None, lambda b: [b]),
        ("GET /api/healthz", None, lambda b: [b]),
        ("GET /api/readyz", None, lambda b: [b]),
    ],
    "Error": [("GET P/events?limit=x", None, lambda b: [b]), ("GET /v1/projects/{nil}", None, lambda b: [b])],
}
"""Where resources show; a create with nothing optional comes first, for the defaults."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def found(house: House) -> AsyncIterator[Found]:
    """Objects of every resource, in a project of their own."""
    scope = Scope(house)
    main, replaced = Scope(house), Scope(house)
    for one in (scope, replaced):
        one.names["project_id"] = await one.get("new_project_id")
    special = {EVENTS: main, "PUT P/breakers": replaced}
    collected: Found = {}
    for resource, sources in SOURCES.items():
        for line, body, pick in sources:
            key = "admin" if line.startswith("PATCH") else "user"
            _, answer = await special.get(line, scope).call(line, body, key=key)
            collected.setdefault(resource, []).extend(pick(answer))
    yield collected


@in_session
@pytest.mark.parametrize(("resource", "name", "kind"), FIELDS, ids=[f"{r}.{n}" for r, n, _ in FIELDS])
async def test_field(found: Found, resource: str, name: str, kind: str) -> None:
    word, _, default = kind.partition("=")
    plain, optional = word.rstrip("?~"), word.endswith("~")
    assert found[resource]
    for thing in found[resource]:
        if optional and name not in thing:
            continue
        assert name in thing
        assert TYPES[plain](thing[name]) or ("?" in word and thing[name] is None), thing[name]
    if default:
        assert found[resource][0][name] == json.loads(default)


def test_every_resource_has_a_source() -> None:
    assert set(SOURCES) == set(RESOURCES)


@pytest.mark.parametrize("line", INPUTS)
def test_described_inputs_are_those_of_the_document(line: str) -> None:
    """Each request field of the document is described, and is required exactly where the document says so."""
    method, path = line.split()
    spec = document()
    schema = spec["paths"][full(path)][method.lower()]["requestBody"]["content"]["application/json"]["schema"]
    schema = schema.get("anyOf", [schema])[0]
    component = spec["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    for name, kind in fields(INPUTS[line]).items():
        assert name in component["properties"]
        assert (name in component.get("required", [])) == kind.endswith("!")


def test_every_field_of_a_sample_has_rows() -> None:
    notes = " ".join(row.note for row in INGEST)
    for name in SAMPLE_FIELDS:
        assert name in notes or name == "ok"
