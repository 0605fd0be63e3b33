"""Idempotency-Key on requests that make something: the same request again gets the same answer, made once.

Keys are the caller's organisation's, per operation and path, for a day (store/config/idempotency.py). Who asks is
checked before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from quart import Quart, Response, request

from api.context.current import path_project, raw_body
from api.context.replica import replica
from api.wire.http import json_bytes
from breaker_actors.errors import Invalid
from breaker_actors.store.rows import Once, Repeated

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
KEY_MAX = 255


async def once(
    org_id: str, answer: Callable[[Any], Any], project_id: str | None = None, status: int = 201
) -> Once | None:
    """What the store needs to do the current request once; None without a key. `answer`: the body for a result."""
    key = request.headers.get(HEADER, "")
    if not key:
        return None
    if len(key) > KEY_MAX:
        raise Invalid(f"{HEADER} has more than {KEY_MAX} characters.", {HEADER: f"at most {KEY_MAX} characters"})
    asked = request.query_string + b"\0" + await raw_body()
    return Once(
        org_id=org_id,
        project_id=project_id,
        operation=f"{request.method} {request.path.lower()}",
        key=key,
        fingerprint=hashlib.sha256(asked).hexdigest(),
        status=status,
        answer=lambda made: msgspec.json.encode(answer(made)).decode(),
        now_ms=replica().clock.now_ms(),
    )


def noted(asked: Once | None) -> None:
    """Counts what had to be forgotten for it."""
    if asked is not None and asked.forgotten:
        replica().meters.count("breakers_idempotency_keys_dropped_total", asked.forgotten)


async def answer_repeated(repeated: Repeated) -> Response:
    """The answer of the first request; what it wrote is in the routers' logs by then, as it was for the first."""
    return await replayed(repeated, json_bytes(repeated.body.encode(), repeated.status, done=False))


async def replayed(repeated: Repeated, response: Response) -> Response:
    """Marks an answer as that of a repetition."""
    await _settled(repeated.change_ids)
    replica().meters.count("breakers_idempotent_replays_total")
    response.headers[REPLAYED] = "true"
    return response


async def _settled(change_ids: Sequence[int]) -> None:
    if change_ids:
        await replica().gateway.configured(path_project(), list(change_ids))


def install(app: Quart) -> None:
    """Has repetitions answered."""
    app.register_error_handler(Repeated, answer_repeated)
