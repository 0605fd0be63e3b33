"""What schemathesis can't know: how a cursor looks, that 1.0 is no integer, which things there are, and the time."""

from __future__ import annotations

import base64
import itertools
import os
import re
import time
from typing import Any
from zoneinfo import available_timezones

import polars as pl
import schemathesis
from hypothesis import strategies as st

from api.wire.overrides import FOR_MS_MIN
from api.wire.query import instant_ms
from api.wire.requests_mutes import LAST_MS
from breaker_actors.clock import rfc3339
from breaker_actors.store.mutes.schedule import zone_of
from tests.support.arrow_streams import STREAM, of_polars

UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
NAMES = ("workspace_id", "router_id", "shadow_of")
THERE_IS = {name: os.environ.get(f"CONFORMANCE_{name.upper()}", "") for name in NAMES}
SAMPLES = pl.DataFrame({"router_id": [THERE_IS["router_id"]] * 3, "metric": ["m"] * 3, "value": [1.0] * 3})
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def _cursor(place: str) -> str:
    return base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


PLACES = st.tuples(st.integers(0, 10**15), st.integers(0, 10**9)).map(lambda place: f"d.{place[0]}.{place[1]}")
schemathesis.openapi.format("cursor", PLACES.map(_cursor))
schemathesis.openapi.format("number-cursor", st.integers(0, 10**9).map(lambda number: _cursor(f"l.{number}")))
# Messages that can be read; what can't is for the decoders' own tests.
schemathesis.openapi.media_type("application/x-protobuf", st.integers(0, 9).map(lambda n: b"\x0a\x00" * n))
schemathesis.openapi.media_type(STREAM, st.sampled_from([0, 1, 3]).map(lambda n: of_polars(SAMPLES.head(n))))
schemathesis.openapi.format("time-zone", st.sampled_from(["", *sorted(filter(zone_of, available_timezones()))]))


def _whole(value: Any) -> Any:
    """Integers as integers: to JSON Schema 1.0 is one as well, to typed clients and this service it is not. None of
    more than 64 bits in objects that may hold anything: the schema of an open object can't say so."""
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-(1 << 63), min(value, (1 << 63) - 1))
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list) else value


def _named(value: Any) -> Any:
    """Ids of things there are, in place of made-up ones: nothing else would ever be found."""
    if isinstance(value, list):
        return [_named(item) for item in value]
    if not isinstance(value, dict):
        return value
    known = {key: THERE_IS[key] for key in THERE_IS if UUID.fullmatch(str(value.get(key)))}
    if UUID.fullmatch(str(value.get("router"))):
        known["router"] = THERE_IS["router_id"]
    return {key: _named(item) for key, item in value.items()} | known


def _is_within(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _timely(body: Any) -> Any:
    """Times that lie ahead, and lengths that a project allows, in place of those made up: what is over, or lasts for
    years, is refused, as it should be."""
    if not isinstance(body, dict):
        return body
    now_ms, timely = int(time.time() * 1000), dict(body)
    if _is_within(body.get("starts_ms"), now_ms, LAST_MS):
        timely["starts_ms"] = now_ms + body["starts_ms"] % DAY_MS
    if _is_within(body.get("ends_ms"), 0, LAST_MS):
        timely["ends_ms"] = now_ms + 2 * DAY_MS + body["ends_ms"] % DAY_MS
    if _is_within(body.get("until_ms"), 0, (1 << 63) - 1):
        timely["until_ms"] = now_ms + HOUR_MS + body["until_ms"] % HOUR_MS
    if isinstance(body.get("until"), str) and instant_ms(body["until"]) is not None:
        is_said = _is_within(body.get("until_ms"), 0, (1 << 63) - 1)
        timely["until"] = rfc3339(timely["until_ms"] if is_said else now_ms + HOUR_MS)
    if _is_within(body.get("for_ms"), FOR_MS_MIN, (1 << 63) - 1):
        timely["for_ms"] = min(body["for_ms"], DAY_MS)
    return timely


def _is_chained(case: Any) -> bool:
    """Whether it stands in a chain of requests, which makes projects and deletes breakers."""
    return case.meta is not None and case.meta.phase.name == "stateful"


COUNTER = itertools.count()


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """An Idempotency-Key of its own for every request: with another body a key is refused, as it should be. What the
    body names is there, and lies ahead: here and not in map_body, for examples and limits don't pass through that."""
    name = next((name for name in case.headers or () if name.lower() == "idempotency-key"), None)
    if name is not None and 1 <= len(str(case.headers[name])) <= 255:
        case.headers[name] = f"key-{next(COUNTER)}"
    meant = _timely(_named(case.body))
    if _is_chained(case) and isinstance(meant, dict):  # what is watched may be gone, or in another project
        meant = {key: value for key, value in meant.items() if key != "shadow_of"}
    if meant != case.body:
        case.body = meant


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    return _whole(body)
