"""The bulk replace of a project's breakers: its items, and what may keep it from being carried out."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from api.admission.weight import SLOW_MAX, too_many, weigh
from api.auth import uuid_or_none
from api.wire import responses as bodies
from api.wire.decoding import ABSENT, TOO_LONG, places, taken
from api.wire.http import matches
from api.wire.places import not_json
from api.wire.requests import BreakerItem as ItemFields
from api.wire.requests import bounded, decode_object, invalid, shadow_asked, shape
from api.wire.unknown import WARNINGS_MAX, FieldWarning, unknown_fields
from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import BadRequest, GuardrailBlocked, Invalid, PreconditionFailed, too_many_breakers
from breaker_actors.store.rows import BreakerItem, BreakerRow

GUARDED_FROM = 10
"""Sets smaller than this may lose any part but not all."""
SLICE = 50
"""Breakers read at a time: about 2 ms."""
SLICE_BYTES = 32_000
"""The same in bytes of their texts; a breaker that holds slow numbers ends its slice too."""
STRUCTURE_PER_ITEM = 500
"""Commas and quotes that a body may have for each breaker a project may have."""
ITEM_BYTES_MAX = 1 << 18


class Guard(msgspec.Struct, frozen=True):
    """Asked within the transaction, after the items were found valid. `if_match`: None when the header is absent."""

    if_match: str | None
    allow_destructive: bool
    removal_percent_max: int
    items: int

    def check(self, rows: Sequence[BreakerRow], removed: int) -> None:
        if self.if_match is not None and not matches(self.if_match, bodies.set_hash(rows)):
            raise PreconditionFailed
        if self.allow_destructive or not removed:
            return
        if not self.items:
            raise GuardrailBlocked(details={"breakers": len(rows), "removed": removed})
        refuse_many(removed, len(rows), self.removal_percent_max)


def refuse_many(removed: int, breakers: int, percent_max: int) -> None:
    """Raises GuardrailBlocked where a change takes too large a part of a project's breakers from callers."""
    if breakers >= GUARDED_FROM and 100 * removed > percent_max * breakers:
        raise GuardrailBlocked(details={"breakers": breakers, "removed": removed})


@functools.lru_cache(maxsize=4)
def _bodies(breakers_max: int) -> msgspec.json.Decoder[Any]:
    """A decoder that ends at the breaker too many."""
    kind = places(msgspec.Raw, ABSENT, breakers_max) | UnsetType | None
    return msgspec.json.Decoder(msgspec.defstruct("Body", [("breakers", kind, UNSET)], gc=False))


def bulk_texts(body: bytes, breakers_max: int) -> list[bytes]:
    """The JSON texts of the body's breakers; null is an empty list (one client sends that)."""
    if len(body) > STRUCTURE_PER_ITEM and body.count(b",") + body.count(b'"') > STRUCTURE_PER_ITEM * breakers_max:
        raise too_many()
    try:
        body.decode()
        given = _bodies(breakers_max).decode(body).breakers if body else UNSET
    except msgspec.ValidationError as error:
        if str(error).startswith(TOO_LONG):
            raise too_many_breakers(breakers_max) from None
        if "`$.breakers`" not in str(error):
            raise Invalid("The body must be a JSON object.") from None
        raise invalid("breakers", "Expected an array") from None
    except (ValueError, RecursionError) as error:
        raise not_json(body, error) from None
    if given is UNSET:
        raise invalid("breakers", "is required")
    return [bytes(text) for text in (taken(given, ABSENT) if given else ())]


async def bulk_items(
    body: bytes, breakers_max: int, next_turn: Callable[[], Awaitable[None]], unknown: list[FieldWarning] | None = None
) -> list[BreakerItem]:
    """The breakers of the body; fields that are none of theirs go to `unknown`. Read in slices, each but the first in a
    turn: several bodies that are read at once hold up others for one slice, not for one of each. Raises PayloadTooLarge
    for more slow numbers than one for each breaker and SLOW_MAX, and what `next_turn` does."""
    items, sliced, slow = [], 0, 0
    for i, text in enumerate(bulk_texts(body, breakers_max)):
        found = weigh(text)
        slow += found
        if slow > breakers_max + SLOW_MAX:
            raise too_many()
        items.append(_item(i, text, unknown))
        sliced += max(len(text), SLICE_BYTES // SLICE, SLICE_BYTES if found else 0)
        if sliced >= SLICE_BYTES:
            sliced = 0
            await next_turn()
    return items


def _item(i: int, text: bytes, unknown: list[FieldWarning] | None) -> BreakerItem:
    path = f"breakers[{i}]"
    if not text.startswith(b"{"):
        raise invalid(path, "Expected an object")
    if len(text) > ITEM_BYTES_MAX:
        raise invalid(path, f"Expected at most {ITEM_BYTES_MAX} bytes")
    try:
        fields = decode_object(text)
    except BadRequest:  # its place is the item's, not the body's
        raise BadRequest(f"{path} is not valid JSON.") from None
    try:
        plain = shape(fields, ItemFields)
        actions = bounded("actions", plain.actions or None)
        rule = parse_rule(fields)
    except Invalid as error:
        details = {f"{path}.{field}": text for field, text in error.details.items()}
        raise Invalid(f"{path}: {error.message}", details) from None
    if unknown is not None and len(unknown) < WARNINGS_MAX:
        unknown += unknown_fields(fields, ItemFields, f"{path}.")
    item_id = uuid_or_none(plain.id)
    if (plain.id and item_id is None) or plain.id == "":
        raise invalid(f"{path}.id", "Expected a uuid")
    return BreakerItem(
        rule=rule,
        id=item_id,
        name=plain.name or None,
        actions=actions,
        metadata=None if plain.metadata is UNSET else plain.metadata,
        mode=plain.mode or None,
        shadow_of=shadow_asked(plain, f"{path}."),
    )
