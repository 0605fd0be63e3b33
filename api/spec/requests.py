"""Bodies of requests as the description shows them. What is not described is ignored.

The handlers read with the structs of `api/wire.py` and the checks of `core/rules.py`; a test holds the fields of both
against each other. null in a create is the same as absent, in a PATCH it means "back to the default".
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.samples import SAMPLES_MAX, TAGS_MAX, TRACE_LENGTH_MAX
from api.spec.types import (
    ChannelEvent,
    ChannelKind,
    JsonObject,
    Kind,
    Metadata,
    MetadataKey,
    MetadataValue,
    Metric,
    Mode,
    Name,
    Op,
    Policy,
    Url,
    Uuid,
)
from api.wire import IDS_MAX
from api.wire_accounts import SLUG, Slug
from breaker_actors.core.rules import MS_MAX, RAMP_STEPS_MAX, WINDOW_MAX_MS

Ids = Annotated[list[Uuid], Meta(max_length=IDS_MAX)]
UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
INTERVAL_MAX_MS = MS_MAX // (RAMP_STEPS_MAX + 1)
"""What every number of ramp steps allows; fewer steps allow more (see api/spec/rules.py)."""


def whole(low: int, high: int, default: int, about: str) -> Meta:
    """An integer field with a default that the service applies."""
    return Meta(ge=low, le=high, description=about, extra_json_schema={"default": default})


def otherwise(default: Any, about: str = "") -> Meta:
    """A field with a default that the service applies."""
    return Meta(description=about or None, extra_json_schema={"default": default})


class Body(msgspec.Struct, kw_only=True):
    """Base of all: fields without a default are required."""


class ProjectCreate(Body, kw_only=True):
    workspace_id: Uuid
    name: Name | UnsetType | None = UNSET


class ProjectPatch(Body, kw_only=True):
    enable_signed_ingest: Annotated[bool, otherwise(False)] | UnsetType | None = UNSET
    name: Name | UnsetType | None = UNSET
    slack_webhook_url: Annotated[Url, Meta(description="null clears")] | UnsetType | None = UNSET
    trace_id_url_template: Annotated[Url, Meta(description="{{value}} is the trace id")] | UnsetType | None = UNSET


class ProjectDelete(Body, kw_only=True):
    confirm_name: Annotated[str, Meta(description="Must be the project's name.")] | UnsetType | None = UNSET


class BreakerOptions(Body, kw_only=True):
    """Fields that a create and a PATCH share."""

    name: Name | UnsetType | None = UNSET
    window_ms: Annotated[int, whole(0, WINDOW_MAX_MS, 60_000, "0: consecutive_failures only")] | UnsetType | None = (
        UNSET
    )
    eval_interval_ms: Annotated[int, whole(1, MS_MAX, 10_000, "")] | UnsetType | None = UNSET
    min_count: Annotated[int, whole(0, MS_MAX, 1, "Samples an evaluation needs.")] | UnsetType | None = UNSET
    min_state_duration_ms: Annotated[int, whole(0, MS_MAX, 60_000, "")] | UnsetType | None = UNSET
    cooldown_ms: Annotated[int, whole(0, MS_MAX, 0, "Least time in open.")] | UnsetType | None = UNSET
    half_open_backoff_enabled: Annotated[bool, otherwise(True)] | UnsetType | None = UNSET
    half_open_backoff_cap_ms: Annotated[int, whole(0, MS_MAX, 300_000, "")] | UnsetType | None = UNSET
    half_open_indeterminate_policy: Annotated[Policy, otherwise("conservative")] | UnsetType | None = UNSET
    recovery_allow_rate_ramp_steps: Annotated[int, whole(1, RAMP_STEPS_MAX, 5, "")] | UnsetType | None = UNSET
    kind_params: (
        Annotated[JsonObject, Meta(description="delta: delta_of, alpha; percentile: percentile")] | UnsetType | None
    ) = UNSET
    actions: JsonObject | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET


class BreakerCreate(BreakerOptions, kw_only=True):
    metric: Metric
    kind: Kind
    op: Op
    threshold: float
    id: Uuid | UnsetType | None = UNSET


class BreakerPatch(BreakerOptions, kw_only=True):
    metric: Metric | UnsetType = UNSET
    kind: Kind | UnsetType = UNSET
    op: Op | UnsetType = UNSET
    threshold: float | UnsetType = UNSET


class BreakerItem(BreakerCreate, kw_only=True):
    """Matched by id, else by name; one of them must be there."""


class BreakersReplace(Body, kw_only=True):
    breakers: list[BreakerItem] | None


Change = dict[MetadataKey, MetadataValue | None]
MetadataChange = Annotated[Change, Meta(min_length=1)]


class MetadataPatch(Body, kw_only=True):
    """Keys are merged, null removes one. The bare map as the whole body is taken as well."""

    metadata: Change


class StateBatch(Body, kw_only=True):
    """At least one of the three must name something."""

    breaker_ids: Ids | UnsetType | None = UNSET
    router_ids: Ids | UnsetType | None = UNSET
    router_id: Annotated[str, Meta(pattern=f"^({UUID})?$")] | UnsetType | None = UNSET


class RouterPatch(Body, kw_only=True):
    name: Name | UnsetType | None = UNSET
    mode: Annotated[Mode, otherwise("static")] | UnsetType | None = UNSET
    enabled: Annotated[bool, otherwise(True)] | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET


class RouterCreate(RouterPatch, kw_only=True):
    breaker_ids: Ids | UnsetType | None = UNSET


class RouterLink(Body, kw_only=True):
    """One of the two must be there."""

    breaker_ids: Ids | UnsetType = UNSET
    breaker_id: Uuid | UnsetType = UNSET


class ChannelPatch(Body, kw_only=True):
    name: Name | UnsetType | None = UNSET
    config: JsonObject | UnsetType | None = UNSET
    enabled: Annotated[bool, otherwise(True)] | UnsetType | None = UNSET
    events: Annotated[list[ChannelEvent], otherwise(["trip", "recover"])] | UnsetType | None = UNSET


class ChannelCreate(ChannelPatch, kw_only=True):
    channel: ChannelKind
    config: JsonObject | None


class Rebalance(Body, kw_only=True):
    max: Annotated[int, Meta(ge=1, description="Moves at most; never more than 100 in one step.")] = 100


class WorkspaceCreate(Body, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=255)]
    slug: Slug


class WorkspacePatch(Body, kw_only=True):
    name: Name | UnsetType | None = UNSET
    slug: Annotated[str, Meta(pattern=f"^$|{SLUG}")] | UnsetType | None = UNSET


class ProjectKeyCreate(Body, kw_only=True):
    name: Name | UnsetType | None = UNSET


class MetricSample(Body, kw_only=True):
    router_id: Uuid
    metric: Metric
    value: float
    ts_ms: Annotated[int, Meta(description="Default: the X-EB-Timestamp header.")] | UnsetType | None = UNSET
    ok: Annotated[bool, otherwise(True)] | UnsetType = UNSET
    tags: Annotated[dict[str, str], Meta(max_length=TAGS_MAX)] | UnsetType | None = UNSET
    trace_id: Annotated[str, Meta(max_length=TRACE_LENGTH_MAX)] | UnsetType | None = UNSET


class Samples(Body, kw_only=True):
    """Each sample stands alone: the good ones are taken, the others named in the answer."""

    samples: Annotated[list[MetricSample], Meta(max_length=SAMPLES_MAX)]
