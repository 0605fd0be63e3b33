"""Fields of a request's body that nothing reads: told beside the answer, so that a slip of the pen shows. Pure.

What is free in form (metadata, actions, config, kind_params) is kept as it is and not looked at. Fields that answers
have and requests don't are passed over in changes of things that were read before, and told where things are made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

import msgspec

from api.wire import requests as r
from api.wire import requests_accounts as ra
from api.wire import requests_mappings as rm
from api.wire import responses as a
from api.wire import responses_accounts as accounts
from api.wire import responses_mappings as mappings
from breaker_actors.core.rule_fields import FIELDS, PARAMS

WARNINGS_MAX = 20
"""Of one answer; what is beyond is not looked for."""
NAME_SHOWN_MAX = 64
"""Characters of a name that are shown and compared."""
UNKNOWN_FIELD = "unknown_field"
RULE_FIELDS = frozenset(field.name for field in FIELDS)
READ_BEFORE: dict[type[msgspec.Struct], type[msgspec.Struct]] = {
    r.ProjectPatch: a.Project,
    r.BreakerPatch: a.Breaker,
    r.BreakerItem: a.Breaker,
    r.RouterPatch: a.Router,
    rm.MappingPatch: mappings.Mapping,
    rm.MappingSent: mappings.Mapping,
    ra.WorkspacePatch: accounts.Workspace,
    ra.ChannelPatch: accounts.Channel,
}
"""Changes, and what their callers may have read and send back."""


_LINK = "link a breaker with POST .../routers/{router_id}/breakers; it has a router of its own as well"
ELSEWHERE = {param.name: f"did you mean kind_params.{param.name}?" for param in PARAMS} | dict.fromkeys(
    ("router", "routers", "router_id", "router_ids"), _LINK
)
"""Names that are no fields of a breaker, and where what they name belongs."""


class FieldWarning(msgspec.Struct, frozen=True):
    """A field of the request that was ignored, or what is taken though it is hardly meant."""

    code: str
    field: str
    message: str


@cache
def _known(kind: type[msgspec.Struct]) -> tuple[frozenset[str], frozenset[str]]:
    """The fields that a body of this kind has, and those that pass without a word."""
    fields = frozenset(kind.__struct_encode_fields__)
    if issubclass(kind, r.BreakerFields):
        fields |= RULE_FIELDS
    read = READ_BEFORE.get(kind)
    return fields, fields | frozenset(read.__struct_encode_fields__ if read else ())


def unknown_fields(fields: Mapping[str, Any], kind: type[msgspec.Struct], place: str = "") -> list[FieldWarning]:
    """A warning for each field that is none of the kind's, at most WARNINGS_MAX. `place` stands before each name."""
    known, passed = _known(kind)
    if fields.keys() <= passed:
        return []
    strange = [name for name in fields if name not in passed][:WARNINGS_MAX]
    elsewhere = ELSEWHERE if issubclass(kind, r.BreakerFields) else {}
    return [_warning(place, name[:NAME_SHOWN_MAX], known, elsewhere) for name in strange]


def unknown_inside(fields: Mapping[str, Any], kind: type[msgspec.Struct]) -> list[FieldWarning]:
    """The same of what is within the body of a mapping, or of a list of them: fields of the items, and of `to`."""
    found = list[FieldWarning]()
    items = fields.get("mappings") if kind is rm.MappingsReplace else None
    for n, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and len(found) < WARNINGS_MAX:
            found += unknown_fields(item, rm.MappingSent, f"mappings[{n}].")
            found += _unknown_of_to(item, f"mappings[{n}].")
    return [*found, *_unknown_of_to(fields, "")][:WARNINGS_MAX]


def _unknown_of_to(fields: Mapping[str, Any], place: str) -> list[FieldWarning]:
    to = fields.get("to")
    return unknown_fields(to, rm.MappingToPatch, f"{place}to.") if isinstance(to, dict) else []


def _warning(place: str, name: str, known: Collection[str], elsewhere: Mapping[str, str]) -> FieldWarning:
    meant = get_close_matches(name, known, 1)
    hint = elsewhere.get(name) or (f"did you mean {meant[0]}?" if meant else "")
    return FieldWarning(UNKNOWN_FIELD, place + name, "; ".join(filter(None, ("is no field of this request", hint))))
