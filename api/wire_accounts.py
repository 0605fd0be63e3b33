"""Requests about workspaces, projects' ends, keys and notification channels, as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_args

import msgspec
from msgspec import UNSET, UnsetType

from api.wire import NAME_LENGTH_MAX, Name, invalid, shape
from breaker_actors.errors import BreakersError
from breaker_actors.stores.base import Alert, ChannelDraft, ChannelEdit, ChannelKind, ChannelRow
from breaker_actors.stores.masking import unmask

SLUG = f"^[A-Za-z0-9._~-]{{1,{NAME_LENGTH_MAX}}}$"
Slug = Annotated[str, msgspec.Meta(pattern=SLUG)]
FullName = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
MOVES_MAX = 100
"""Moves in one step of rebalancing, as many as there are at all."""
CONFIG_BYTES_MAX = 65_536
ALERTS: tuple[Alert, ...] = get_args(Alert)


class WorkspaceCreate(msgspec.Struct):
    name: FullName
    slug: Slug


class WorkspacePatch(msgspec.Struct):
    """Null and "" leave a field as it is: both are required ones."""

    name: Name | None = None
    slug: Annotated[str, msgspec.Meta(pattern=f"^$|{SLUG}")] | None = None

    def fields(self) -> dict[str, str]:
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name))}


class KeyCreate(msgspec.Struct):
    name: Name | None = None


class Rebalance(msgspec.Struct):
    max: Annotated[int, msgspec.Meta(ge=1)] = MOVES_MAX


def confirms(body: bytes, name: str) -> None:
    """Refuses the deletion of a project under another name; whatever else the body is, it is nobody's business."""
    try:
        asked = msgspec.json.decode(body) if body.strip() else None
    except (ValueError, RecursionError):
        return
    given = asked.get("confirm_name") if isinstance(asked, dict) else None
    if given is not None and given != name:
        raise invalid("confirm_name", "is not the name of the project")


# notification channels


class ChannelFields(msgspec.Struct):
    name: Name | None = None
    config: dict[str, Any] | UnsetType | None = UNSET
    enabled: bool | UnsetType | None = UNSET
    events: list[Alert] | UnsetType | None = UNSET


class _Kind(msgspec.Struct):
    channel: ChannelKind


def channel_draft(fields: Mapping[str, Any]) -> ChannelDraft:
    """What a create asks for; null is the same as absent."""
    kind, plain = shape(fields, _Kind).channel, shape(fields, ChannelFields)
    if plain.config is UNSET:
        raise invalid("config", "is required")
    return ChannelDraft(
        channel=kind,
        config=_config(kind, plain.config or {}, {}),
        name=plain.name or None,
        enabled=plain.enabled is not False,
        events=_alerts(plain.events),
    )


def channel_edit(fields: Mapping[str, Any]) -> ChannelEdit:
    """The row as a PATCH wants it; a config comes whole, with masked values standing for the stored ones."""
    plain = shape(fields, ChannelFields)

    def edit(row: ChannelRow) -> ChannelRow:
        wanted: dict[str, Any] = {"name": plain.name} if plain.name else {}
        if plain.config is not UNSET:
            wanted["config"] = _config(row.channel, plain.config or {}, row.config)
        if plain.enabled is not UNSET:
            wanted["enabled"] = plain.enabled is not False
        if plain.events is not UNSET:
            wanted["events"] = _alerts(plain.events)
        return msgspec.structs.replace(row, **wanted)

    return edit


def _alerts(events: list[Alert] | UnsetType | None) -> tuple[Alert, ...]:
    """Each once; none given means all."""
    return ALERTS if events is UNSET or events is None else tuple(dict.fromkeys(events))


def _config(kind: ChannelKind, sent: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Slack's address is asked for; what the others lack shows when they are tested."""
    config = unmasked("config", sent, stored)
    if len(msgspec.json.encode(config)) > CONFIG_BYTES_MAX:
        raise invalid("config", f"Expected at most {CONFIG_BYTES_MAX} bytes")
    url = config.get("webhook_url")
    if kind == "slack" and not (isinstance(url, str) and url.startswith(("http://", "https://"))):
        raise invalid("config.webhook_url", "Expected an http(s) address")
    return dict(config)


def unmasked(field: str, sent: Any, stored: Any) -> Any:
    """The value to store of one that may be masked, or the error for its field."""
    try:
        return unmask(sent, stored)
    except BreakersError as error:
        raise invalid(field, error.message) from None
