"""The bodies of requests, as the description names them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from api.openapi.document import document


def request_bodies() -> set[str]:
    """Every component that a request has, whole or as a part."""
    spec = document()
    found, bodies = (
        set[str](),
        [
            operation["requestBody"]
            for methods in spec["paths"].values()
            for operation in methods.values()
            if "requestBody" in operation
        ],
    )
    while bodies:
        for name in set(_references(bodies.pop())) - found:
            found.add(name)
            bodies.append(spec["components"]["schemas"][name])
    return found


def fields(body: str) -> list[str]:
    """The fields of a body."""
    return list(document()["components"]["schemas"][body]["properties"])


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"].rsplit("/", 1)[1]
        node = list(node.values())
    for inner in node if isinstance(node, list) else ():
        yield from _references(inner)
