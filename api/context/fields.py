"""The fields of the current request's body; what is none of its kind is told beside the answer, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from quart import request

from api.admission.inflate import STEP_BYTES
from api.admission.intake import Turn
from api.context.current import BODY_BYTES_MAX, callers, departure, raw_body, remark
from api.context.replica import replica
from api.wire.query import flag
from api.wire.requests import decode_object
from api.wire.requests_bulk import bulk_items
from api.wire.unknown import FieldWarning, unknown_fields
from breaker_actors.errors import BadRequest, Invalid
from breaker_actors.store.rows import BreakerItem


async def sent_fields(
    kind: type[msgspec.Struct],
    bytes_max: int = BODY_BYTES_MAX,
    otherwise: type[Invalid] | type[BadRequest] = Invalid,
) -> dict[str, Any]:
    """The JSON object of the body, of at most `bytes_max`; see `decode_object` and `heed`."""
    fields = decode_object(await raw_body(bytes_max), otherwise)
    heed(unknown_fields(fields, kind))
    return fields


async def sent_set() -> list[BreakerItem]:
    """The breakers of a bulk replace, read in the caller's turns; an answer about as long as the body is made room for.
    See `bulk_items` and `heed`."""
    settings, unknown = replica().settings, list[FieldWarning]()
    body = await raw_body(settings.max_body_bytes)
    async with Turn(replica().intake.turns, callers()) as turn:
        if len(body) > STEP_BYTES:
            await turn.next()
        items = await bulk_items(body, settings.breakers_per_project_max, turn.go_on, unknown)
    heed(unknown)
    await departure().expect(callers(), len(body))
    return items


def heed(found: Sequence[FieldWarning]) -> None:
    """Has the current request's answer say what was ignored. Raises Invalid where the caller asked for `strict`."""
    if strict():
        refuse(found)
    remark(found)


def strict() -> bool:
    """Whether the current request asks for what is only told otherwise to be refused."""
    return flag("strict", request.args)


def refuse(found: Sequence[FieldWarning]) -> None:
    """Raises Invalid where there is anything."""
    if found:
        raise Invalid(f"{found[0].field}: {found[0].message}", {each.field: each.message for each in found})
