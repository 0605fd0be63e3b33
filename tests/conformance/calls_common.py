"""Rows that every endpoint of a kind has: keys, rights, things of others, bodies that can't be read or are large."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.conformance.interface import ADDED, ENDPOINTS, INPUTS, endpoints, full
from tests.conformance.rows import Row

ALL = endpoints(ENDPOINTS) + endpoints(ADDED)
KEY_OF = {"manage": "user", "runtime": "project", "admin": "admin"}
BODYLESS = re.compile(r"(rotate|/test|/redrive)$")
LARGE = b'{"name": "' + b"x" * (1 << 20) + b'"}'
TYPES = {"string": 7, "uuid": 7, "bool": "yes", "int": "7", "number": "7", "object": [1], "list": 7}
WORDS = {"kind": "mean", "op": "eq", "policy": "hopeful", "mode": "random", "channel": "pigeon"}


def refusals() -> Iterator[Row]:
    """401, 403 and 404 of everything behind a key."""
    for method, path, access, _ in ALL:
        line = f"{method} {path}"
        if access not in KEY_OF:
            continue
        yield Row(f"{line} 401", "no key", key=None)
        yield Row(
            f"{line} 401",
            "unknown key, before anything else",
            key="eb_pk_x",
            names={**_nothing(path), "project_id": "{nil}"},
        )
        key = "ingest" if access == "runtime" else "project"
        yield Row(f"{line} 403", "key without the right", key=key, names=_nothing(path))
        for name in re.findall(r"{(\w+)}", path):
            yield from _unknown(line, name, KEY_OF[access], path)


def _nothing(path: str) -> dict[str, str]:
    """Names of a path that need not exist for the row to hold."""
    return {name: "{nil}" for name in re.findall(r"{(\w+)}", path) if name != "project_id"}


def _unknown(line: str, name: str, key: str, path: str) -> Iterator[Row]:
    others = {} if name != "project_id" else _nothing(path)
    yield Row(f"{line} 404", f"unknown {name}", key=key, names={**others, name: "{nil}"}, body=_least(line))
    yield Row(f"{line} 404", f"malformed {name}", key=key, names={**others, name: "{malformed}"}, body=_least(line))
    if name == "project_id":
        names = {**others, name: "{other_project_id}"}
        yield Row(f"{line} 404", "project of others", key=key, names=names, body=_least(line))


def _least(line: str) -> dict[str, object] | None:
    """A body that is not what the row is about."""
    if line.startswith("PUT") and line.endswith("/override"):
        return {"kind": "force_open", "reason": "why"}
    if line.endswith("/breakers") and "{router_id}" in line:
        return {"breaker_id": "{nil}"}
    if line.endswith("/metadata"):
        return {"metadata": {}}
    return {} if line.split()[0] in ("POST", "PATCH", "PUT") else None


def bodies() -> Iterator[Row]:
    """400, 413 and 422 of everything that reads a JSON object."""
    for method, path, access, _ in ALL:
        if method not in ("POST", "PATCH", "PUT") or access not in KEY_OF or BODYLESS.search(path):
            continue
        line, key = f"{method} {path}", KEY_OF[access]
        yield Row(f"{line} 400", "broken JSON", b'{"a":', key=key, code="bad_request")
        yield Row(f"{line} 400", "no UTF-8", b'{"name": "\xff"}', key=key)
        if line != "POST /v1/projects":
            yield Row(f"{line} 422", "a list", [], key=key, code="validation_failed")
        yield Row(f"{line} 413", "too large", LARGE, key=key, code="payload_too_large")
    for name in ("nil", "malformed"):
        yield Row("POST P/ingest 404", f"{name} project", [], key=None, names={"project_id": f"{{{name}}}"})
    yield Row("DELETE P 413", "too large", LARGE)
    yield Row("POST P/ingest 400", "broken JSON", b"[", key=None)
    yield Row("POST P/ingest 413", "too large", LARGE, key=None)


def wrong_types() -> Iterator[Row]:
    """422 with the field's path for a value of another type in each field of each request."""
    for line, text in INPUTS.items():
        method, path = line.split()
        for field in text.split():
            name, kind = field.rstrip("!").split(":")
            value = TYPES.get(kind) or WORDS[kind]
            key = "admin" if path.endswith("/metadata") else "user"
            if path.endswith("/metadata"):
                value = {"a": 7}
            yield Row(f"{method} {full(path)} 422", f"wrong {name}", {**_rest(line), name: value}, key=key, field=name)


def _rest(line: str) -> dict[str, object]:
    """Required fields of a create, so that only one field is wrong."""
    if line == "POST P/breakers":
        return {"metric": "m", "kind": "avg", "op": "gt", "threshold": 1}
    if line == "POST P/notification-channels":
        return {"channel": "webhook", "config": {}}
    return {"workspace_id": "{workspace_id}"} if line == "POST /v1/projects" else {}


def methods() -> Iterator[Row]:
    """405 on every path for a method it doesn't have."""
    for path in dict.fromkeys(path for _, path, _, _ in ALL):
        yield Row(
            f"OPTIONS {path} 405",
            names=_nothing(path),
            code="method_not_allowed",
            check=lambda r, b: "Allow" in r.headers,
        )
    yield Row("GET /v1/nowhere 404", code="not_found")
    yield Row("GET / 404", code="not_found")
