"""The bulk replace of a project's breakers: its items, and what may keep it from being carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from api import bodies
from api.auth import uuid_or_none
from api.reply import matches
from api.wire import BreakerFields, invalid, shape
from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import GuardrailBlocked, Invalid, PreconditionFailed
from breaker_actors.stores.base import BreakerItem, BreakerRow

GUARDED_FROM = 10
"""Sets smaller than this may lose any part but not all."""


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
        too_many = len(rows) >= GUARDED_FROM and 100 * removed > self.removal_percent_max * len(rows)
        if too_many or not self.items:
            raise GuardrailBlocked(details={"breakers": len(rows), "removed": removed})


def bulk_items(fields: Mapping[str, Any]) -> list[BreakerItem]:
    """The breakers of the body; null is an empty list (one client sends that)."""
    if "breakers" not in fields:
        raise invalid("breakers", "is required")
    given = fields["breakers"]
    if given is not None and not isinstance(given, list):
        raise invalid("breakers", "Expected an array")
    return [_item(i, item) for i, item in enumerate(given or ())]


def _item(i: int, fields: Any) -> BreakerItem:
    path = f"breakers[{i}]"
    if not isinstance(fields, dict):
        raise invalid(path, "Expected an object")
    try:
        plain = shape(fields, BreakerFields)
        rule = parse_rule(fields)
    except Invalid as error:
        details = {f"{path}.{field}": text for field, text in error.details.items()}
        raise Invalid(f"{path}: {error.message}", details) from None
    item_id = uuid_or_none(plain.id)
    if (plain.id and item_id is None) or plain.id == "":
        raise invalid(f"{path}.id", "Expected a uuid")
    return BreakerItem(
        rule=rule,
        id=item_id,
        name=plain.name or None,
        actions=plain.actions or None,
        metadata=None if plain.metadata is UNSET else plain.metadata,
    )
