"""Requests as values: JSON bodies into typed structs, which are described as they are read, or one error that names the
field.

Unknown fields are ignored here (api/wire/unknown.py tells of them). Null and absent differ only in a PATCH, where null
means "back to the default". The fields of a breaker's rule stand in none of the structs: core/rules.py checks them,
api/openapi describes them by its table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from api.admission.weight import weigh
from api.auth import uuid_or_none
from api.wire.places import not_json, words_of
from api.wire.types import (
    KEY_LENGTH_MAX,
    UUID,
    VALUE_LENGTH_MAX,
    Ids,
    JsonObject,
    Metadata,
    Name,
    Url,
    Uuid,
    default,
)
from breaker_actors.core.model import BreakerMode
from breaker_actors.core.rules import JSON_BYTES_MAX, JSON_VALUES_MAX, excess, parse_rule
from breaker_actors.errors import BadRequest, Invalid
from breaker_actors.store.rows import NO_SHADOW, BreakerDraft, BreakerRow, ProjectRow, RouterDraft, RouterRow, with_mode
from breaker_actors.text.escaping import link_template
from breaker_actors.text.redaction import unmask

T = TypeVar("T")

OVERRIDE_MAX_MS = 31 * 86_400_000
"""A month: the longest that a project may let an override last."""
TEMPLATE = "Expected an http or https address with a host of its own; {{value}} may stand behind the host"
_MISSING = re.compile(r"missing required field `([^`]*)`")
_SUSPECT = re.compile(rb"\\u0000|[0-9]{19}")
_NO_NAME = re.compile(r"\W")
_PATH = re.compile(r"`\$\.?([^`]*)`")


def decode_object(body: bytes, otherwise: type[Invalid] | type[BadRequest] = Invalid) -> dict[str, Any]:
    """The JSON object of a request body; no body at all is an empty object, another kind of value is `otherwise`.
    Raises PayloadTooLarge for one that costs too much to read, unread."""
    if not body:
        return {}
    weigh(body)
    try:
        decoded = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise not_json(body, error) from None
    if not isinstance(decoded, dict):
        raise otherwise("The body must be a JSON object.")
    # Databases don't agree on NUL characters, records and answers hold 64 bits; the cheap test finds suspects to walk.
    if _SUSPECT.search(body) and _has_unstorable(decoded):
        raise Invalid("Text must not contain NUL characters, and integers must fit into 64 bits.")
    return decoded


def _has_unstorable(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, int):
        return not -(1 << 63) <= value < 1 << 63
    if isinstance(value, dict):
        return any(_has_unstorable(key) or _has_unstorable(item) for key, item in value.items())
    return isinstance(value, list) and any(map(_has_unstorable, value))


def shape(fields: Mapping[str, Any], kind: type[T]) -> T:
    """The fields as a struct, or Invalid with the path of the field that doesn't fit."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        field, problem = _place(str(error))
        if problem.startswith("Invalid enum value") and (words := words_of(kind, _NO_NAME.split(field)[0])):
            problem = f"must be one of {', '.join(words)}"
        raise invalid(field, problem) from None


def _place(text: str) -> tuple[str, str]:
    """The field that an error of msgspec is about, and what is wrong with it."""
    found, missing = _PATH.search(text), _MISSING.search(text)
    path = found.group(1) if found else ""
    if missing:
        return ".".join(filter(None, (path, missing.group(1)))), "is required"
    return path or "body", text.partition(" - at ")[0]


def invalid(field: str, message: str) -> Invalid:
    """The error for one field."""
    return Invalid(f"{field}: {message}", {field: message})


def bounded(field: str, value: T, bytes_max: int = JSON_BYTES_MAX, values_max: int = JSON_VALUES_MAX) -> T:
    """The value, if its JSON holds no more than a stored one may; what was stored larger once is still read."""
    if too_much := excess(value, bytes_max, values_max):
        raise invalid(field, f"Expected {too_much}")
    return value


def unmasked(field: str, sent: Any, stored: Any) -> Any:
    """The value to store of one that may be masked, or the error for its field."""
    try:
        return unmask(sent, stored, field)
    except Invalid as error:
        (path,) = error.details
        raise invalid(path, error.message) from None


# projects


class ProjectCreate(msgspec.Struct):
    workspace_id: Uuid | None = None
    name: Name | None = None


class ProjectPatch(msgspec.Struct):
    enable_signed_ingest: Annotated[bool, default(False)] | UnsetType | None = UNSET
    name: Name | UnsetType | None = UNSET
    slack_webhook_url: Url | UnsetType | None = UNSET
    trace_id_url_template: Url | UnsetType | None = UNSET
    override_max_ms: Annotated[int, msgspec.Meta(ge=1_000, le=OVERRIDE_MAX_MS)] | UnsetType | None = UNSET

    def fields(self, row: ProjectRow) -> dict[str, Any]:
        """What to store: null and "" clear an address, null turns signing off, an empty name is no change, and the mask
        of the stored address leaves it."""
        given = {name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name) is not UNSET}
        if not given.get("name"):
            given.pop("name", None)
        for name in ("slack_webhook_url", "trace_id_url_template"):
            if name in given:
                given[name] = given[name] or None
        template = given.get("trace_id_url_template")
        if template is not None and link_template(template) is None:
            raise invalid("trace_id_url_template", TEMPLATE)
        if "slack_webhook_url" in given:
            given["slack_webhook_url"] = unmasked(
                "slack_webhook_url", given["slack_webhook_url"], row.slack_webhook_url
            )
        if "enable_signed_ingest" in given:
            given["enable_signed_ingest"] = bool(given["enable_signed_ingest"])
        return given


# breakers


class BreakerFields(msgspec.Struct):
    id: Uuid | UnsetType | None = UNSET
    name: Name | UnsetType | None = UNSET
    actions: JsonObject | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET
    mode: Annotated[BreakerMode, default("enforce")] | UnsetType | None = UNSET
    shadow_of: Uuid | UnsetType | None = UNSET


class BreakerCreate(BreakerFields):
    """`shadow_of`: a breaker of the project whose samples this one gets, too; it is in mode observe then."""


class BreakerPatch(BreakerFields):
    """Its id has to be text or null, means nothing and is not described. `confirm`: to enforce a breaker whose machine
    is not closed, which callers feel at once. `shadow_of`: as it is stored, or null."""

    confirm: bool | UnsetType | None = UNSET


class BreakerItem(BreakerFields):
    """Matched by id, else by name; one of them must be there. Without a mode the stored one is kept. `shadow_of`: as it
    is stored, or null."""


class BreakersReplace(msgspec.Struct):
    # Read breaker by breaker, see requests_bulk.py.
    breakers: list[BreakerItem] | None


def breaker_draft(fields: Mapping[str, Any]) -> BreakerDraft:
    """What a create asks for; null is the same as absent."""
    plain = shape(fields, BreakerCreate)
    if plain.id not in (None, UNSET) and uuid_or_none(plain.id) is None:
        raise invalid("id", "Expected a uuid")
    shadow_of = shadow_asked(plain)
    if shadow_of is not None and plain.mode == "enforce":
        raise invalid("mode", "A shadow observes; make it without shadow_of, or change its mode later")
    mode: BreakerMode = "observe" if shadow_of is not None or plain.mode == "observe" else "enforce"
    return BreakerDraft(
        rule=parse_rule(fields),
        id=uuid_or_none(plain.id),
        name=plain.name or None,
        actions=bounded("actions", plain.actions or None),
        metadata=plain.metadata or {},
        control=with_mode(None, mode),
        shadow_of=shadow_of,
    )


def shadow_asked(plain: BreakerFields, place: str = "") -> str | None:
    """The breaker that another is to be a shadow of. `place` stands before the field. Raises Invalid."""
    if plain.shadow_of is None or plain.shadow_of is UNSET:
        return None
    if (found := uuid_or_none(plain.shadow_of)) is None:
        raise invalid(f"{place}shadow_of", "Expected a uuid")
    return found


def mode_asked(fields: Mapping[str, Any]) -> tuple[BreakerMode | None, bool]:
    """The mode that a PATCH asks for (None: it does not), and whether it confirms that."""
    plain = shape(fields, BreakerPatch)
    return None if plain.mode is UNSET else plain.mode or "enforce", plain.confirm is True


def breaker_edit(row: BreakerRow, fields: Mapping[str, Any], by: str | None = None) -> BreakerRow:
    """The row as a PATCH wants it; `by`: whose it is."""
    plain = shape(fields, BreakerPatch)
    if shadow_asked(plain) not in (None, row.shadow_of):
        raise invalid("shadow_of", NO_SHADOW)
    wanted: dict[str, Any] = {"rule": parse_rule(fields, row.rule)}
    if plain.name is not UNSET:
        wanted["name"] = plain.name or ""  # the store finds a name where there is none
    if plain.actions is not UNSET:
        wanted["actions"] = bounded("actions", plain.actions or None)
    if plain.metadata is not UNSET:
        wanted["metadata"] = plain.metadata or {}
    if plain.mode is not UNSET:
        wanted["control"] = with_mode(row.control, plain.mode or "enforce", by)
    return msgspec.structs.replace(row, **wanted)


# routers


Mode = Annotated[Literal["static", "canary", "weighted", ""], default("static")]
"""One client sends "" when nothing was chosen."""
Enabled = Annotated[bool, default(True)]


class RouterPatch(msgspec.Struct):
    # null means back to the default, "" no change
    name: Name | None = None
    mode: Mode | UnsetType | None = UNSET
    enabled: Enabled | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET


class RouterCreate(RouterPatch):
    breaker_ids: Ids | None = None


def router_draft(fields: Mapping[str, Any]) -> RouterDraft:
    """What a create asks for; a shape msgspec has checked, so the mode is one of the three words."""
    plain = shape(fields, RouterCreate)
    return RouterDraft(
        name=plain.name or None,
        mode=plain.mode or "static",
        enabled=plain.enabled is not False,
        metadata=plain.metadata or {},
        breaker_ids=tuple(dict.fromkeys(uuids("breaker_ids", plain.breaker_ids))),
    )


def router_edit(row: RouterRow, fields: Mapping[str, Any]) -> RouterRow:
    """The row as a PATCH wants it."""
    plain = shape(fields, RouterPatch)
    wanted: dict[str, Any] = {"name": plain.name} if plain.name else {}
    if plain.mode is not UNSET and plain.mode != "":
        wanted["mode"] = plain.mode or "static"
    if plain.enabled is not UNSET:
        wanted["enabled"] = plain.enabled is not False
    if plain.metadata is not UNSET:
        wanted["metadata"] = plain.metadata or {}
    return msgspec.structs.replace(row, **wanted)


class RouterLink(msgspec.Struct):
    """One of the two must be there."""

    breaker_ids: Ids | None = None
    breaker_id: Uuid | None = None


def linked_ids(fields: Mapping[str, Any]) -> list[str]:
    """The breakers to link: a list or a single one."""
    plain = shape(fields, RouterLink)
    if plain.breaker_ids is None and not plain.breaker_id:
        raise Invalid("Give breaker_ids or breaker_id.", {"breaker_ids": "Expected at least one id"})
    return uuids("breaker_ids", plain.breaker_ids) + uuids("breaker_id", [plain.breaker_id] if plain.breaker_id else [])


# metadata


Change = dict[
    Annotated[str, msgspec.Meta(max_length=KEY_LENGTH_MAX)],
    Annotated[str, msgspec.Meta(max_length=VALUE_LENGTH_MAX)] | None,
]
MetadataChange = Annotated[Change, msgspec.Meta(min_length=1)]


class MetadataPatch(msgspec.Struct):
    """Keys are merged, null removes one. The bare map as the whole body is taken as well."""

    metadata: Change


def metadata_change(fields: Mapping[str, Any]) -> dict[str, str | None]:
    """Keys to set, null for those to remove: under `metadata`, or the whole body (values are strings or null, so an
    object under that name can only be the first)."""
    wrapped = fields.get("metadata")
    given = wrapped if isinstance(wrapped, dict) else fields
    if not given and given is fields:
        raise invalid("metadata", "is required")
    return shape({"metadata": given}, MetadataPatch).metadata


def merge_metadata(old: Mapping[str, str], change: Mapping[str, str | None]) -> dict[str, str]:
    """Keys not in the change are kept; how many keys there may be holds for the outcome."""
    merged = {key: value for key, value in {**old, **change}.items() if value is not None}
    return shape({"metadata": merged}, _MetadataWhole).metadata


class _MetadataWhole(msgspec.Struct):
    metadata: Metadata


def uuids(field: str, values: list[str] | None) -> list[str]:
    """Canonical uuids, or Invalid with the place of the first that isn't one."""
    found = [uuid_or_none(value) for value in values or ()]
    if None in found:
        raise invalid(f"{field}[{found.index(None)}]", "Expected a uuid")
    return [value for value in found if value is not None]


# states


class StateBatch(msgspec.Struct):
    """At least one of the three must name something."""

    breaker_ids: Ids | None = None
    router_ids: Ids | None = None
    router_id: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"^({UUID})?$"})] | None = None

    def breakers(self) -> list[str]:
        return uuids("breaker_ids", self.breaker_ids)

    def routers(self) -> list[str]:
        return uuids("router_ids", self.router_ids) + uuids("router_id", [self.router_id] if self.router_id else [])


def state_batch(fields: Mapping[str, Any]) -> StateBatch:
    """The ids asked for; empty lists count as not given, and nothing at all is refused."""
    batch = shape(fields, StateBatch)
    if not (batch.breaker_ids or batch.router_ids or batch.router_id):
        raise Invalid("Give breaker_ids or router_ids.", {"breaker_ids": "Expected at least one id"})
    return batch
