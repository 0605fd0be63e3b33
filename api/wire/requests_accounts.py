"""Requests about workspaces, projects' ends, keys and notification channels, as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_args

import msgspec
from msgspec import UNSET, UnsetType

from api.wire.requests import Enabled, bounded, invalid, shape, unmasked
from api.wire.types import NAME_LENGTH_MAX, JsonObject, Name, default, form
from breaker_actors.errors import Invalid
from breaker_actors.notify.channels import apprise
from breaker_actors.notify.channels.config import ADDRESS_KEYS, stays, unknown_keys
from breaker_actors.notify.channels.reach import unreachable
from breaker_actors.store.base import ChannelEdit
from breaker_actors.store.rows import Alert, ChannelDraft, ChannelEvent, ChannelKind, ChannelRow, ProjectKeyKind
from breaker_actors.text.redaction import mask, masked_paths

SLUG = f"[A-Za-z0-9._~-]{{1,{NAME_LENGTH_MAX}}}"
FullName = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
MOVES_MAX = 100
"""Moves in one step of rebalancing, as many as there are at all."""
CONFIRMATION_BYTES_MAX = 4_096
"""A longer text is no name, however it is escaped."""
CONFIG_BYTES_MAX, CONFIG_VALUES_MAX = 1 << 14, 200
"""Of a channel's config, in JSON: room for 32 headers of 350 characters beside an address and a secret, or for 50
recipients. All of it is opened and masked whenever it is shown."""
ALERTS: tuple[ChannelEvent, ...] = get_args(Alert)


class WorkspaceCreate(msgspec.Struct):
    name: FullName
    slug: Annotated[str, form(SLUG)]


class WorkspacePatch(msgspec.Struct):
    # null and "" leave a field as it is: both are required ones
    name: Name | None = None
    slug: Annotated[str, form(f"({SLUG})?")] | None = None

    def fields(self) -> dict[str, str]:
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name))}


class ProjectKeyCreate(msgspec.Struct):
    name: Name | None = None
    kind: Annotated[ProjectKeyKind, default("project")] | None = None


class Rebalance(msgspec.Struct):
    max: Annotated[int, msgspec.Meta(ge=1)] = MOVES_MAX


AnyText = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"anyOf": [{"type": "string"}, {"type": "null"}]})]
"""Text or null; whatever else it is, is read only to be compared."""


class ProjectDelete(msgspec.Struct):
    confirm_name: AnyText | UnsetType = UNSET


def confirms(body: bytes, name: str) -> None:
    """Refuses the deletion of a project under another name; whatever else the body is, it is nobody's business."""
    try:
        sent = msgspec.json.decode(body, type=ProjectDelete).confirm_name
        text = b"null" if sent is UNSET else bytes(sent)
        given = msgspec.json.decode(text) if len(text) <= CONFIRMATION_BYTES_MAX else text
    except (ValueError, RecursionError):
        return
    if given is not None and given != name:
        raise invalid("confirm_name", "is not the name of the project")


# notification channels


class ChannelPatch(msgspec.Struct, kw_only=True):
    name: Name | None = None
    config: JsonObject | UnsetType | None = UNSET
    enabled: Enabled | UnsetType | None = UNSET
    events: Annotated[list[ChannelEvent], default(list(ALERTS))] | UnsetType | None = UNSET


class ChannelCreate(ChannelPatch, kw_only=True):
    channel: ChannelKind
    config: JsonObject | None


def channel_draft(fields: Mapping[str, Any], allow_private: bool) -> ChannelDraft:
    """What a create asks for; null is the same as absent. `allow_private`: whether notifications may go there."""
    if "channel" not in fields:
        raise invalid("channel", "is required")
    plain = shape({"channel": fields["channel"], **fields}, ChannelCreate)  # it is looked at first
    return ChannelDraft(
        channel=plain.channel,
        config=_config(plain.channel, plain.config or {}, {}, allow_private),
        name=plain.name or None,
        enabled=plain.enabled is not False,
        events=_alerts(plain.events),
    )


def channel_edit(fields: Mapping[str, Any], allow_private: bool) -> ChannelEdit:
    """The row as a PATCH wants it. Keys of its config are put over the stored ones, null removes one; null for the
    config removes all. Masked values stand for the stored ones."""
    plain = shape(fields, ChannelPatch)

    def edit(row: ChannelRow) -> ChannelRow:
        wanted: dict[str, Any] = {"name": plain.name} if plain.name else {}
        if plain.config is not UNSET:
            sent = {} if plain.config is None else _merged(row.config, plain.config)
            config = _config(row.channel, sent, row.config, allow_private)
            wanted["config"] = row.config if config == row.config else config  # the same one says: nothing was given
        if plain.enabled is not UNSET:
            wanted["enabled"] = plain.enabled is not False
        if plain.events is not UNSET:
            wanted["events"] = _alerts(plain.events)
        return msgspec.structs.replace(row, **wanted)

    return edit


def _alerts(events: list[ChannelEvent] | UnsetType | None) -> tuple[ChannelEvent, ...]:
    """Each once; none given means all."""
    return ALERTS if events is UNSET or events is None else tuple(dict.fromkeys(events))


def _merged(stored: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The change over the stored config as its callers see it, so that what they don't give counts as sent back masked:
    other destinations ask for it as well."""
    merged = mask(stored) | dict(change)
    return {name: value for name, value in merged.items() if name not in change or value is not None}


def _instead(kind: ChannelKind, config: Mapping[str, Any]) -> list[str]:
    """What was probably meant to be the address that is asked for, where it is not there."""
    if ADDRESS_KEYS[kind] in config:
        return []
    return [f"{one.path} {one.message}" for one in unknown_keys(kind, config) if one.message.endswith("?")][:1]


def _config(
    kind: ChannelKind, sent: Mapping[str, Any], stored: Mapping[str, Any], allow_private: bool
) -> dict[str, Any]:
    """Slack's address is asked for; what the others lack shows when they are tested. A destination that can never be
    reached is refused. Secrets stay behind a mask only while they go where they went before."""
    config = bounded("config", unmasked("config", sent, stored), CONFIG_BYTES_MAX, CONFIG_VALUES_MAX)
    kept = masked_paths("config", sent, stored)
    if kept and not stays(kind, config, stored):
        details = dict.fromkeys(kept, "must be given again, whole: the channel has another destination")
        raise Invalid(f"{kept[0]}: {details[kept[0]]}", details)
    url = config.get("webhook_url")
    if kind == "slack" and not (isinstance(url, str) and url.startswith(("http://", "https://"))):
        raise invalid("config.webhook_url", "; ".join(["Expected an http(s) address", *_instead(kind, config)]))
    if kind == "apprise" and not apprise.installed():
        raise invalid("channel", apprise.NOT_INSTALLED)
    if problem := unreachable(kind, config, allow_private):
        raise invalid(problem.path, problem.message)
    return dict(config)
