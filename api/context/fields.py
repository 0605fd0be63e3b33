"""The fields of the current request's body; what is none of its kind is told beside the answer, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from quart import request

from api.context.current import BODY_BYTES_MAX, raw_body, remark
from api.wire.query import flag
from api.wire.requests import decode_object
from api.wire.unknown import FieldWarning, unknown_fields
from breaker_actors.errors import BadRequest, Invalid


async def sent_fields(
    kind: type[msgspec.Struct],
    bytes_max: int = BODY_BYTES_MAX,
    otherwise: type[Invalid] | type[BadRequest] = Invalid,
) -> dict[str, Any]:
    """The JSON object of the body, of at most `bytes_max`; see `decode_object` and `heed`."""
    fields = decode_object(await raw_body(bytes_max), otherwise)
    heed(unknown_fields(fields, kind))
    return fields


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
