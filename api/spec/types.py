"""Words the bodies of the interface are made of, with their bounds as JSON Schema shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from breaker_actors.core.model import Kind, Op, Policy, StateWord
from breaker_actors.core.rules import METRIC_MAX_CHARS, MS_MAX

JsonObject = dict[str, Any]


def text(example: str, **schema: Any) -> Meta:
    """A string with a format or other words of JSON Schema, and an example."""
    return Meta(examples=[example], extra_json_schema=schema or None)


ID = "0b8f0e1c-6a52-4c0e-9d4b-2f9f1f7a3c11"
INSTANT = "2026-11-21T06:29:55.980Z"
AT_MS = 1_795_242_595_980

Uuid = Annotated[str, text(ID, format="uuid")]
Instant = Annotated[str, text(INSTANT, format="date-time", pattern="Z$")]
Ms = Annotated[int, Meta(ge=0, examples=[AT_MS], extra_json_schema={"format": "int64"})]
Count = Annotated[int, Meta(ge=0, extra_json_schema={"format": "int64"})]
Int32 = Annotated[int, Meta(ge=0, le=MS_MAX, extra_json_schema={"format": "int32"})]
Rate = Annotated[float, Meta(ge=0, le=1, description="Share of calls to let through.")]
Hash = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Secret = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="64 lowercase hex digits; shown only here.")]
Name = Annotated[str, Meta(max_length=255)]
Metric = Annotated[str, Meta(min_length=1, max_length=METRIC_MAX_CHARS)]
Url = Annotated[str, Meta(max_length=2048)]
Cursor = Annotated[str, Meta(extra_json_schema={"format": "cursor"}, description="From a previous answer.")]
Key = Annotated[str, Meta(min_length=1, max_length=64)]
MetadataKey = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=255)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=20, examples=[{"team": "payments"}])]

NumberCursor = Annotated[
    str, Meta(extra_json_schema={"format": "number-cursor"}, description="From a previous answer.")
]
Moment = Annotated[str, text(INSTANT, format="date-time")]

Mode = Literal["static", "canary", "weighted"]
ChannelKind = Literal["slack", "pagerduty", "email", "webhook"]
ChannelEvent = Literal["trip", "recover"]
DeliveryKind = Literal["trip", "recover", "resolve"]
DeliveryState = Literal["pending", "sent", "dead", "cancelled"]
ReasonCode = Literal["insufficient_samples", "threshold_exceeded"]

__all__ = ["Kind", "Op", "Policy", "StateWord"]
