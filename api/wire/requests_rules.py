"""Requests about rules as code, as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from api.wire.requests import shape
from api.wire.types import NAME_LENGTH_MAX, OWNER, JsonObject, Metadata

THINGS_MAX = 10_000
BODY_BYTES_MAX = 1 << 20
"""Some 4,000 breakers; who has more shares them out among owners."""
Owner = Annotated[str, Meta(pattern=rf"\A{OWNER}\Z", examples=["payments"])]
ThingName = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
Named = Annotated[dict[ThingName, JsonObject], Meta(max_length=THINGS_MAX)]
CHANNELS_MAX = 100
"""As many as a project may have: each is looked at by the library of its kind."""
Channels = Annotated[dict[ThingName, JsonObject], Meta(max_length=CHANNELS_MAX)]


class RulesDocument(msgspec.Struct, kw_only=True):
    """All that files of one owner declare, by name: the fields of the requests that make such things, breakers and
    routers by their names. Of a channel `references` says where a value of its config came from, such as
    {"routing_key": {"env": "PD_KEY"}}: exports show that in its place."""

    owner: Owner = "default"
    labels: Metadata = {}
    breakers: Named = {}
    routers: Named = {}
    mappings: Named = {}
    channels: Channels = {}
    mutes: Named = {}


def rules_document(fields: Mapping[str, Any]) -> RulesDocument:
    """The document of a request. Raises Invalid."""
    return shape(fields, RulesDocument)
