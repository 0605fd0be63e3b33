"""One row: one request and what has to come of it. `line` names endpoint and status as interface.py spells them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from quart import Response

from tests.conformance.service_harness import Scope

Check = Callable[[Response, Any], bool]


@dataclass(frozen=True)
class Row:
    """`names`: what stands for what in this row; `before`: requests that must succeed first; `code`: the error word."""

    line: str
    note: str = ""
    body: Any = None
    key: str | None = "user"
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    before: tuple[tuple[Any, ...], ...] = ()
    code: str = ""
    field: str = ""
    check: Check | None = None
    app: str = "main"

    @property
    def endpoint(self) -> str:
        return self.line.rpartition(" ")[0]

    @property
    def status(self) -> int:
        return int(self.line.rpartition(" ")[2])

    async def run(self, scope: Scope) -> None:
        """Sends it and looks at the answer."""
        for name, value in self.names.items():
            scope.names[name] = await scope.fill(value)
        for line, *body in self.before:
            key = "admin" if line.endswith("/metadata") else "user"
            await scope.made(line, *body, key=key)
        line = self.endpoint + (f"?{self.query}" if self.query else "")
        response, found = await scope.call(line, self.body, key=self.key, headers=dict(self.headers), app=self.app)
        assert response.status_code == self.status, (response.status_code, found)
        if self.code:
            assert found["error"] == self.code
        if self.field:
            assert any(self.field in path for path in found["details"]), found
        assert self.check is None or self.check(response, found), found


def table(rows: Iterable[Row]) -> pytest.MarkDecorator:
    """The rows as parameters named by what they are about."""
    return pytest.mark.parametrize("row", [pytest.param(row, id=f"{row.line} {row.note}".strip()) for row in rows])
