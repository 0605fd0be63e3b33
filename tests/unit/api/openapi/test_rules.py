"""Rules between fields: the description allows a body where the code takes it, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import jsonschema
import msgspec
import pytest

from api.openapi.document import document
from api.openapi.examples import RULE
from api.wire.overrides import asked_override, matchers_of
from api.wire.requests import breaker_draft
from api.wire.requests_mutes import Bounds, mute_draft, mute_edit, preview_of
from api.wire.types import AT_MS, ID
from breaker_actors.errors import Invalid
from breaker_actors.store.mutes.matching import Matcher
from breaker_actors.store.mutes.schedule import Window
from breaker_actors.store.rows import MuteRow
from breaker_actors.text.globs import STARS_MAX

ABSENT = object()
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
BOUNDS = Bounds(AT_MS, DAY_MS)
NAME = {"field": "name", "op": "=", "value": "checkout"}
NIGHT = {"weekdays": ["sat"], "from": "22:00", "to": "06:00"}
MATCHERS, ALL = (ABSENT, None, [], [NAME]), (ABSENT, None, False, True)
ENDS, WINDOWS = (ABSENT, None, AT_MS + HOUR_MS), (ABSENT, None, [], [NIGHT])
ZONES = (ABSENT, None, "", "UTC", "America/Port-au-Prince", "Mars Olympus", "Europe/")


def bodies(base: Mapping[str, Any], **fields: tuple[Any, ...]) -> Iterator[dict[str, Any]]:
    """The base with every choice of further fields."""
    for values in product(*fields.values()):
        more = dict(zip(fields, values, strict=True))
        yield {**base, **{name: value for name, value in more.items() if value is not ABSENT}}


def allows(component: str, body: dict[str, Any]) -> bool:
    """Whether a body is as it is described."""
    schema = {"$ref": f"#/components/schemas/{component}", "components": document()["components"]}
    return bool(jsonschema.Draft202012Validator(schema).is_valid(body))


def takes(read: Callable[[dict[str, Any]], Any], body: dict[str, Any]) -> bool:
    """Whether the code takes it."""
    try:
        read(body)
    except Invalid:
        return False
    return True


def mute_made(fields: dict[str, Any]) -> None:
    mute_draft(fields, BOUNDS)


def overridden(fields: dict[str, Any]) -> None:
    asked_override(fields, "me", AT_MS, DAY_MS)


def overridden_by_match(fields: dict[str, Any]) -> None:
    overridden(fields)
    matchers_of(fields)


SAID = {"reason": "moved"}
OPEN = {"kind": "force_open", **SAID}
WHOM = {"matchers": MATCHERS, "all": ALL}
COMMENT, SOME = {"comment": "deploy"}, {"matchers": [NAME]}
ENDING = {**COMMENT, "ends_ms": AT_MS + HOUR_MS}
OVERRIDE: dict[str, tuple[Any, ...]] = {
    "kind": ("force_open", "force_closed", "throttle"),
    "allow_rate": (ABSENT, None, 0, 0.5),
    "for_ms": (ABSENT, None, 5_000),
    "until_ms": (ABSENT, None, AT_MS + HOUR_MS),
}
READ: dict[str, tuple[str, Callable[[dict[str, Any]], Any], list[dict[str, Any]]]] = {
    "preview": ("MutePreview", preview_of, [*bodies({}, **WHOM)]),
    "mute": ("MuteCreate", mute_made, [*bodies(ENDING, **WHOM)]),
    "end": ("MuteCreate", mute_made, [*bodies({**COMMENT, **SOME}, ends_ms=ENDS, windows=WINDOWS)]),
    "zone": ("MuteCreate", mute_made, [*bodies({**ENDING, **SOME}, zone=ZONES)]),
    "match": ("OverrideMatch", matchers_of, [*bodies({}, **WHOM)]),
    "ends": ("OverridesEnd", matchers_of, [*bodies({}, **WHOM)]),
    "override": ("OverrideSet", overridden, [*bodies(SAID, **OVERRIDE)]),
    "reason": ("OverrideSet", overridden, [*bodies({"kind": "force_open"}, reason=(ABSENT, "", " ", "\n\t", " a "))]),
    "overrides": ("OverridesSet", overridden_by_match, [*bodies(OPEN, **WHOM)]),
    "asked": ("OverridesSet", overridden_by_match, [*bodies({**SAID, **SOME}, **OVERRIDE)]),
    "shadow": (
        "BreakerCreate",
        breaker_draft,
        [*bodies(RULE, shadow_of=(ABSENT, None, ID), mode=(ABSENT, None, "observe", "enforce"))],
    ),
}


@pytest.mark.parametrize("name", READ)
def test_bodies_are_allowed_where_they_are_taken(name: str) -> None:
    component, read, made = READ[name]
    verdicts = {takes(read, body) for body in made}
    assert verdicts == {True, False}
    for body in made:
        assert allows(component, body) is takes(read, body), body


STARS = tuple("a*" * count for count in (0, 1, STARS_MAX, STARS_MAX + 1))
FIELDS = ("name", "id", "metric", "kind", "channel", "metadata.team", "router.\n", "metadata.", "state")


@pytest.mark.parametrize(("component", "read"), [("MutePreview", preview_of), ("OverrideMatch", matchers_of)])
def test_matchers_are_allowed_where_they_are_taken(component: str, read: Callable[[Mapping[str, Any]], Any]) -> None:
    made = [*bodies({"field": "name"}, op=("=", "!=", "glob"), value=STARS)]
    made += bodies({"op": "=", "value": "x"}, field=FIELDS)
    refused = [each for each in made if not takes(read, {"matchers": [each]})]
    others = ["metadata.", "state"] if component == "MutePreview" else ["channel", "metadata.", "state"]
    assert [each["field"] for each in refused] == ["name", *others]
    for each in made:
        assert allows(component, {"matchers": [each]}) is (each not in refused), each


ROW = MuteRow(
    id=ID,
    project_id=ID,
    matchers=(),
    all=True,
    starts_ms=AT_MS - HOUR_MS,
    ends_ms=AT_MS + HOUR_MS,
    windows=(),
    zone="UTC",
    comment="deploy",
    number=1,
    created_by=ID,
    created_name="key",
    inserted_ms=AT_MS,
    updated_ms=AT_MS,
)
BY_NAME: dict[str, Any] = {"matchers": (msgspec.convert(NAME, Matcher),), "all": False}
RECURRING: dict[str, Any] = {"windows": (msgspec.convert(NIGHT, Window),), "ends_ms": None}
ROWS = [msgspec.structs.replace(ROW, **whom, **when) for whom, when in product(({}, BY_NAME), ({}, RECURRING))]


def test_a_change_of_a_mute_is_allowed_where_it_is_taken_for_some_mute() -> None:
    made = [*bodies({}, **WHOM), *bodies({}, ends_ms=ENDS, windows=WINDOWS), *bodies({}, zone=ZONES)]
    for body in made:
        taken = [takes(lambda fields, row=row: mute_edit(fields, BOUNDS)(row), body) for row in ROWS]
        assert allows("MutePatch", body) is any(taken), body


def test_no_zone_is_utc_again() -> None:
    assert mute_edit({"zone": ""}, BOUNDS)(msgspec.structs.replace(ROW, zone="Europe/Berlin")).zone == "UTC"
