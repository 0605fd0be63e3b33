"""Whatever the console changes, and most of what it reads, it asks of the API in this process, in the name of the key
that its caller signed in with: same rights, same checks, same answers, same audit log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import httpx
import msgspec
from quart import current_app, request

from api.context.current import ACTING, acting_key
from api.wire.http import request_id
from breaker_actors.errors import Invalid, NotFound

HOST = "http://console"
NOT_WHOLE = "This form is not whole; load the page again."
PATH = re.compile(r"(/[A-Za-z0-9_:-]+)+")
"""Of the API's paths, with their ids in them: a part that came from an address is never read as syntax."""


class Answer(NamedTuple):
    """What the API answered. `body`: of its JSON; None where there is none."""

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def warnings(self) -> list[dict[str, str]]:
        """What the answer remarks on: each with `field` and `message`."""
        return list(self.body.get("warnings", ())) if isinstance(self.body, dict) else []


class Refused(Exception):
    """The API did not do it. `details`: by field where a body was wrong."""

    def __init__(self, status: int, code: str, message: str, details: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.details = status, code, message, details


async def ask(
    method: str,
    path: str,
    body: Any = None,
    query: Mapping[str, str | int | bool | None] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Asks /v1 + `path`, with a JSON body where there is one, as the current request's key. Raises Refused for every
    answer of 400 and more, NotFound for a path with an id that is none, and Invalid for a header that a form has given
    and no page of ours wrote. Query values that are None or "" are left out."""
    if not PATH.fullmatch(path):
        raise NotFound
    if not all(value.isascii() and value.isprintable() for value in (headers or {}).values()):
        raise Invalid(NOT_WHOLE)
    sent = {"X-Request-ID": request_id(), **(headers or {})}
    content = None if body is None else msgspec.json.encode(body)
    if content is not None:
        sent["Content-Type"] = "application/json"
    asked = {name: str(value) for name, value in (query or {}).items() if value not in (None, "")}
    wanted = httpx.Request(method, f"{HOST}/v1{path}", params=asked, content=content, headers=sent)
    answer = await httpx.ASGITransport(app=_as_caller, raise_app_exceptions=True).handle_async_request(wanted)
    text = await answer.aread()
    told: Any = msgspec.json.decode(text) if text else None
    if answer.status_code >= 400:
        raise Refused(answer.status_code, told["code"], told["message"], told.get("details", {}))
    return Answer(answer.status_code, told, answer.headers)


async def _as_caller(scope: Any, receive: Any, send: Any) -> None:
    key, client = acting_key(), cast(dict[str, Any], request.scope).get("client")
    assert key is not None, "the console's guard has let nobody else in"
    await current_app(cast(Any, {**scope, ACTING: key, "client": client}), receive, send)
