"""The table of operations as one OpenAPI 3.1 document. Made once; nothing in it depends on the running service.

Made from a table and not by quart-schema: its decorators would validate bodies before keys are looked at (401 comes
first here), can't tell null from absent, and know one error shape per handler; its pages load from the internet.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import version
from typing import Any, get_args

import msgspec

from api.openapi import rules
from api.openapi.code_samples import code_samples
from api.openapi.examples import EXAMPLES
from api.openapi.operation import STRICT, Answer, Either, Operation, Parameter
from api.openapi.table import OPERATIONS
from api.openapi.words import OPERATIONS as OPERATION_WORDS
from api.openapi.words import PATH_PARAMETERS, TAGS, words_of
from api.wire.responses import Error
from api.wire.responses_deliveries import ChannelList
from api.wire.unknown import FieldWarning

Json = dict[str, Any]
REF = "#/components/schemas/{name}"
SECURITY: dict[str, list[Json]] = {
    "manage": [{"user_key": []}, {"admin_key": []}],
    "read_rules": [{"user_key": []}, {"admin_key": []}, {"reader_key": []}],
    "edit_metadata": [{"admin_key": []}],
    "operate": [{"admin_key": []}],
    "read_runtime": [{"user_key": []}, {"admin_key": []}, {"project_key": []}, {"reader_key": []}],
    "signed": [{}, {"signature": []}, {"ingest_token": []}, {"ingest_password": []}],
    "ingest": [{"ingest_token": []}, {"ingest_password": []}],
    "probe": [{}, {"health_token": []}],
    "metrics": [{"metrics_token": []}],
    "open": [{}],
}
REFUSALS = {
    400: "The request can't be read: broken JSON, a bad parameter.",
    401: "The key or signature is missing or invalid.",
    403: "The key lacks the right for this.",
    404: "There is no such thing within the key's reach.",
    409: "What is stored forbids it; the word in `code` says what.",
    412: "If-Match names another content.",
    413: "The body is too large.",
    415: "The body is of another type, or in another coat, than is taken here.",
    422: "A value is not allowed; `details` names the fields.",
    429: "Too many requests; Retry-After says how long to wait.",
    500: "A failure of the service, logged under the request id.",
    503: "A part of the service does not answer now.",
}
HEADERS: Json = {
    "X-Request-ID": {
        "description": "The caller's, if short and harmless, else a new one.",
        "schema": {"type": "string"},
    },
    "ETag": {"description": "Weak entity tag of the content.", "schema": {"type": "string", "pattern": '^W/"'}},
    "X-Latest-Timestamp": {"description": "Newest ts_ms under the filter, if any.", "schema": {"type": "integer"}},
    **{
        f"X-Prometheus-Remote-Write-{what}-Written": {
            "description": f"{what} that were taken, also where others were not.",
            "schema": {"type": "integer", "minimum": 0},
        }
        for what in ("Samples", "Histograms", "Exemplars")
    },
    "Retry-After": {"description": "Whole seconds.", "schema": {"type": "integer", "minimum": 1}},
    "Idempotency-Replayed": {
        "description": "There when the request was made before and this is what it was answered.",
        "schema": {"const": "true"},
    },
    "Cache-Control": {"description": "Never from a cache.", "schema": {"const": "no-cache"}},
}
LINKED = {
    "workspace_id": "$response.body#/id",
    "project_id": "$response.body#/project_id",
    "breaker_id": "$response.body#/id",
    "router_id": "$response.body#/id",
    "channel_id": "$response.body#/channel/id",
    "mute_id": "$response.body#/mute/id",
    "mapping_id": "$response.body#/mapping/id",
    "key_id": "$response.body#/id",
}


ABOUT = """Circuit breakers over metric samples.

Fields that a request does not have are ignored, and listed in `warnings` of the answer (at most 20); with
`?strict=true` they are refused with 422. Of samples the first of a request is looked at, of a body of up to 2 KiB all;
with `?strict=true` each that has an unknown field is named in `errors`, and not taken.

Some answers say a thing twice, for clients read it under either name, and both are always the same: a single breaker or
router flat and in its envelope, the entries of a list under their own name and as `items`, `next_cursor` and `cursor`,
`error` and `code`, `id` and `project_id` of a project, `prev` and `from_state`, `curr` and `to_state`."""


@cache
def document() -> Json:
    """The whole description."""
    types = [kind for kind in _types() if kind not in (None, str)]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    places = dict(zip(map(repr, types), schemas, strict=True))
    components = _published(components)
    rules.fill(components)
    _warn(components)
    _describe(components)
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, places)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Circuit breakers over metric samples",
            "version": version("breaker-actors"),
            "description": ABOUT,
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag, "description": TAGS[tag]} for tag in dict.fromkeys(op.tag for op in OPERATIONS)],
        "paths": paths,
        "components": {"schemas": components, "headers": HEADERS, "securitySchemes": _schemes()},
    }


def _types() -> list[Any]:
    """Every type the table names, each once."""
    found: list[Any] = [Error, FieldWarning, bool]
    for operation in OPERATIONS:
        found += operation.body.types if isinstance(operation.body, Either) else [operation.body]
        found += [*(parameter.type for parameter in operation.parameters)]
        found += [answer.body for answer in operation.answers.values()]
    return list({repr(kind): kind for kind in found}.values())


def _published(schema: Any) -> Any:
    """A schema as callers see it: expressions are anchored in the way of JSON Schema, and what counts as not given is
    left out: null as a default, and the empty word."""
    if isinstance(schema, list):
        return [_published(inner) for inner in schema if inner != ""]
    if not isinstance(schema, dict):
        return schema
    made = {name: _published(inner) for name, inner in schema.items() if (name, inner) != ("default", None)}
    if "type" not in made and all(isinstance(word, str) for word in made.get("enum", [None])):
        made["type"] = "string"
    if isinstance(pattern := made.get("pattern"), str):
        made["pattern"] = pattern.replace(r"\A", "^").replace(r"\Z", "$")
    return made


def _warn(components: dict[str, Json]) -> None:
    """Gives the answers about bodies their warnings, which are put in where they are sent."""
    checked = [operation for operation in OPERATIONS if operation.checks_fields or operation.access == "signed"]
    kinds = {answer.body for operation in checked for answer in operation.answers.values()}
    items = {"$ref": REF.format(name=FieldWarning.__name__)}
    for kind in (Error, ChannelList, *kinds):
        components[kind.__name__]["properties"]["warnings"] = {"type": "array", "items": items}


def _describe(components: dict[str, Json]) -> None:
    """Gives every property its words, beside what its type says of itself."""
    for component, schema in components.items():
        for name, kind in schema.get("properties", {}).items():
            if words := words_of(component, name):
                schema["properties"][name] = kind | {"description": words}


def _schemes() -> Json:
    bearer = {
        "user_key": "Key of a person: everything of an organisation but metadata changes.",
        "admin_key": "Prefix eb_admin_: everything of an organisation; the first one's: /v1/admin, too.",
        "project_key": "Prefix eb_pk_: runtime reads of one project.",
        "reader_key": "Prefix eb_read_: the same, and rules of one project, read and planned.",
        "ingest_token": "Prefix eb_ingest_: samples of one project, and nothing else.",  # nosec B105 # a description
        "health_token": "BREAKERS_HEALTH_TOKEN, where one is set.",  # nosec B105 # a description
        "metrics_token": "BREAKERS_METRICS_TOKEN.",  # nosec B105 # a description
    }
    schemes: Json = {name: {"type": "http", "scheme": "bearer", "description": text} for name, text in bearer.items()}
    basic = {"type": "http", "scheme": "basic", "description": "An ingest token as the password, with any user name."}
    signed = "v1= and the hex HMAC-SHA256 of `<X-EB-Timestamp>.<body as sent>`, keyed with the hex-decoded secret."
    header = {"type": "apiKey", "in": "header", "name": "X-EB-Signature", "description": signed}
    return schemes | {"ingest_password": basic, "signature": header}


def _operation(operation: Operation, places: dict[str, Json]) -> Json:
    made: Json = {
        "operationId": operation.id,
        "summary": operation.summary,
        "description": OPERATION_WORDS[operation.id],
        "tags": [operation.tag],
        "security": SECURITY[operation.access],
        "parameters": _parameters(operation, places),
        "responses": {str(status): _response(operation, status, places) for status in operation.statuses},
    }
    if operation.body is not None:
        content: Json = {"schema": _schema(operation.body, places)} | _example(operation.body)
        made["requestBody"] = {"required": operation.body_required, "content": {"application/json": content}}
    if operation.takes:
        binary: Json = {"schema": {"type": "string", "format": "binary"}}
        shaped = made.get("requestBody", {}).get("content", {})
        made["requestBody"] = {"required": True, "content": shaped | dict.fromkeys(operation.takes, binary)}
    return made | {"x-codeSamples": code_samples(operation.method, operation.path, made)}


def _schema(body: Any, places: dict[str, Json]) -> Json:
    if isinstance(body, Either):
        return {"anyOf": [places[repr(kind)] for kind in body.types]}
    return {"type": "string"} if body is str else places[repr(body)]


def _parameters(operation: Operation, places: dict[str, Json]) -> list[Json]:
    names = re.findall(r"{(\w+)}", operation.path)
    any_text, uuid = {"type": "string"}, {"type": "string", "format": "uuid"}
    found = [(n, "path", PATH_PARAMETERS[n], any_text if n == "channel_id" else uuid) for n in names]
    more = (*operation.parameters, STRICT) if operation.checks_fields else operation.parameters
    found += [(p.name, p.place, p.about, _parameter_schema(p, places)) for p in more]
    return [
        {"name": name, "in": place, "required": place == "path", "description": about, "schema": schema}
        for name, place, about, schema in found
    ]


def _parameter_schema(parameter: Parameter, places: dict[str, Json]) -> Json:
    """An empty query parameter is as good as none."""
    schema = _schema(parameter.type, places)
    if "enum" in schema:
        schema = {"type": "string"} | schema  # of one without a type the page says that it is missing
    return (
        {"anyOf": [schema, {"type": "string", "const": ""}]}
        if parameter.place == "query" and parameter.type is not str
        else schema
    )


def _response(operation: Operation, status: int, places: dict[str, Json]) -> Json:
    if status in operation.answers:
        return _success(operation, operation.answers[status], places)
    headers = ("X-Request-ID", "Retry-After") if status == 429 else ("X-Request-ID",)
    made: Json = {"description": REFUSALS[status], "headers": _headers(headers)}
    if operation.is_foreign:
        made["content"] = {kind: {"schema": {}} for kind in operation.complains}
    elif operation.method != "HEAD":
        made["content"] = {"application/json": {"schema": {"$ref": REF.format(name="Error")}}}
    return made


def _success(operation: Operation, answer: Answer, places: dict[str, Json]) -> Json:
    made: Json = {"description": answer.about, "headers": _headers(("X-Request-ID", *answer.headers))}
    if answer.body is not None and operation.is_foreign:
        made["content"] = {kind: {"schema": {}} for kind in operation.takes}
    elif answer.body is not None and operation.method != "HEAD":
        made["content"] = {answer.content: {"schema": _schema(answer.body, places)} | _example(answer.body)}
    if operation.links:
        made["links"] = _links(operation)
    return made


def _headers(names: tuple[str, ...]) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _links(operation: Operation) -> Json:
    """From what was made to the operations on it."""
    links: Json = {}
    for name in operation.links:
        for other in OPERATIONS:
            if f"{{{name}}}" in other.path and other.method != "HEAD" and "state:stream" not in other.path:
                known = {"project_id": "$request.path.project_id"} if "{project_id}" in operation.path else {}
                parameters = known | {name: LINKED[name]}
                if set(re.findall(r"{(\w+)}", other.path)) == set(parameters):
                    links[other.id] = {"operationId": other.id, "parameters": parameters}
    return links


def _example(body: Any) -> Json:
    """In the plural: the page fills in a single `example` only where a property of it is named `value`."""
    kinds = get_args(body) or (body,)
    found = [EXAMPLES[kind] for kind in kinds if isinstance(kind, type) and kind in EXAMPLES]
    return {"examples": {"example": {"value": found[0]}}} if found else {}
