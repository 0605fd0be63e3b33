"""Words the bodies of the interface are made of, with their bounds as JSON Schema shows them.

What an `extra_json_schema` says only describes; the other arguments of a `Meta` decide when a body is read. An
expression that decides is anchored by `\\A` and `\\Z`, since `$` lets a line end through; the document turns them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from breaker_actors.core.rule_fields import MS_MAX

JsonObject = dict[str, Any]


def text(example: str, **schema: Any) -> Meta:
    """A string with a format or other words of JSON Schema, and an example; decides nothing."""
    return Meta(examples=[example], extra_json_schema=schema or None)


def form(expression: str, about: str | None = None) -> Meta:
    """A string that has this form to the letter."""
    return Meta(pattern=rf"\A{expression}\Z", description=about)


def default(value: Any) -> Meta:
    """A field with a default that the service applies; decides nothing."""
    return Meta(extra_json_schema={"default": value})


ID = "0b8f0e1c-6a52-4c0e-9d4b-2f9f1f7a3c11"
INSTANT = "2026-11-21T06:29:55.980Z"
AT_MS = 1_795_242_595_980
UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
OWNER = "[A-Za-z0-9][A-Za-z0-9._/-]{0,62}"
"""Of rules that files declare: a team, or a path in a repository."""
NAME_LENGTH_MAX = 255
KEY_LENGTH_MAX, VALUE_LENGTH_MAX = 64, 255
IDS_MAX = 10_000

Uuid = Annotated[str, text(ID, format="uuid")]
Ids = Annotated[list[Uuid], Meta(max_length=IDS_MAX)]
Instant = Annotated[str, text(INSTANT, format="date-time", pattern="Z$")]
Ms = Annotated[int, Meta(ge=0, examples=[AT_MS], extra_json_schema={"format": "int64"})]
Count = Annotated[int, Meta(ge=0, extra_json_schema={"format": "int64"})]
Int32 = Annotated[int, Meta(ge=0, le=MS_MAX, extra_json_schema={"format": "int32"})]
Rate = Annotated[float, Meta(ge=0, le=1, description="Share of calls to let through.")]
Hash = Annotated[str, form("[0-9a-f]{64}")]
Secret = Annotated[str, form("[0-9a-f]{64}", "64 lowercase hex digits; shown only here.")]
Name = Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]
Url = Annotated[str, Meta(max_length=2048)]
Cursor = Annotated[str, Meta(extra_json_schema={"format": "cursor"}, description="From a previous answer.")]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=KEY_LENGTH_MAX)], Annotated[str, Meta(max_length=VALUE_LENGTH_MAX)]],
    Meta(max_length=20, examples=[{"team": "payments"}]),
]

NumberCursor = Annotated[
    str, Meta(extra_json_schema={"format": "number-cursor"}, description="From a previous answer.")
]
Moment = Annotated[str, text(INSTANT, format="date-time")]

Mode = Literal["static", "canary", "weighted"]
ReasonCode = Literal["insufficient_samples", "threshold_exceeded"]
