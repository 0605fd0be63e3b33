"""What a mapping says: matchers over the series of an open protocol, and what those series become. Pure values.

All matchers have to match. What is not there equals nothing: `=` and `glob` don't match it, `!=` does. A label or
resource attribute whose text is empty is not there, as in Prometheus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from breaker_actors.store.mutes.matching import CHARS_MAX, MATCHERS_MAX, Op
from breaker_actors.text import globs

As = Literal["observations", "value"]
Temporality = Literal["delta", "cumulative"]

LABEL, RESOURCE = "label.", "resource."
KEY_CHARS_MAX = 128
METRIC_CHARS_MAX = 128
"""The same as of a sample's metric."""
RULES_MAX, VALUES_MAX = 10, 50
"""Rules of an `ok`, and values that one of them lists."""
SERIES_MAX, SERIES_MAX_DEFAULT = 10_000, 2_000
"""Distinct series of one mapping: at most, and unless said."""
UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
PLACE = rf"(label|resource)\.[\s\S]{{1,{KEY_CHARS_MAX}}}"
FIELD = rf"(name|{PLACE})"
ROUTER = rf"({UUID}|{PLACE})"

Key = Annotated[str, Meta(min_length=1, max_length=KEY_CHARS_MAX, examples=["http.response.status_code"])]
Value = Annotated[str, Meta(max_length=CHARS_MAX, examples=["OK"])]


class SeriesMatcher(msgspec.Struct, frozen=True, kw_only=True):
    """`field`: name (of the series), label.KEY or resource.KEY. A glob knows * and ? alone."""

    field: Annotated[str, Meta(pattern=rf"\A{FIELD}\Z", examples=["label.server.address"])]
    op: Op
    value: Annotated[str, Meta(min_length=1, max_length=CHARS_MAX, examples=["payments"])]


class Below(msgspec.Struct, frozen=True, kw_only=True):
    """The number under a key is below a limit."""

    key: Key
    limit: float


class OneOf(msgspec.Struct, frozen=True, kw_only=True):
    """The text under a key is one of some."""

    key: Key
    values: Annotated[tuple[Value, ...], Meta(min_length=1, max_length=VALUES_MAX)]


class OkRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"one_of": "in"}):
    """When the observations of a series are good; one of the fields. Keys are looked for among labels, then among
    resource attributes. A rule about a key that is not there holds.

    `absent`: the key is not there. `below`, `one_of` (`in`): what is under it. `label`: what is under it is true."""

    absent: Key | None = None
    below: Below | None = None
    one_of: OneOf | None = None
    label: Key | None = None


Ok = Annotated[tuple[OkRule, ...], Meta(max_length=RULES_MAX)]


class MappingTo(msgspec.Struct, frozen=True, kw_only=True, rename={"take_as": "as"}):
    """What series become.

    `router`: id of a router of the project, or label.KEY or resource.KEY with the id or name of one. `metric`: None:
    the name of the series. `scale`: each value is multiplied by it. `take_as`: a rise by n of what only rises is n
    observations of 1 x scale, or one sample whose value is the rise; a histogram is observations, anything else is its
    value. `ok`: rules that all have to hold; none: by the conventions of OpenTelemetry and Prometheus. `temporality`:
    of series that don't say. `series_max`: distinct series that it takes."""

    router: Annotated[str, Meta(pattern=rf"\A{ROUTER}\Z", examples=["label.server.address"])]
    metric: Annotated[str, Meta(min_length=1, max_length=METRIC_CHARS_MAX, examples=["latency"])] | None = None
    scale: float = 1.0
    take_as: As = "observations"
    ok: Ok = ()
    temporality: Temporality | None = None
    series_max: Annotated[int, Meta(ge=1, le=SERIES_MAX)] = SERIES_MAX_DEFAULT


SeriesMatchers = Annotated[tuple[SeriesMatcher, ...], Meta(min_length=1, max_length=MATCHERS_MAX)]

UNREADABLE_SERIES = (SeriesMatcher(field="label.unreadable", op="=", value=""),)
UNREADABLE_TO = MappingTo(router=f"{LABEL}unreadable")
"""Stand for a mapping's matchers, or what it makes of series, that can't be read: they match nothing, and name no
router."""


def place_of(field: str) -> tuple[Literal["label", "resource"], str]:
    """Kind and key of `label.KEY` or `resource.KEY`."""
    return ("label", field[len(LABEL) :]) if field.startswith(LABEL) else ("resource", field[len(RESOURCE) :])


def problems(matchers: Sequence[SeriesMatcher], to: MappingTo) -> Iterator[tuple[str, str]]:
    """What of a mapping can't be taken although its shape is right: field and words."""
    for place, matcher in enumerate(matchers):
        if matcher.op == "glob" and (words := globs.problem(matcher.value)):
            yield f"matchers[{place}].value", words
    if not isfinite(to.scale):
        yield "to.scale", "must be a finite number"
    for place, rule in enumerate(to.ok):
        given = [name for name in OkRule.__struct_fields__ if getattr(rule, name) is not None]
        if len(given) != 1:
            yield f"to.ok[{place}]", "give one of absent, below, in and label"
        elif rule.below is not None and not isfinite(rule.below.limit):
            yield f"to.ok[{place}].below.limit", "must be a finite number"
