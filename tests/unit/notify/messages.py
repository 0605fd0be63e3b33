"""Messages for the tests of notifications: one breaker, its trip, its recovery, and what else can happen to it."""

from __future__ import annotations

from typing import Any

import msgspec

from breaker_actors.notify.model import NOBODY, Message, sample
from breaker_actors.store.rows import MutedBy

PROJECT = "6f9a1c1e-2a50-4c6e-9a53-0b8f1d0e7a11"
BREAKER = "0d4e8a52-9f1b-4c0a-8f77-3c2b5a6d7e88"
NOW = 1_763_724_309_123
"""2025-11-21T11:25:09.123Z"""

ERROR_RATE = {
    "kind": "error_rate", "metric": "latency", "threshold": 0.5, "window_ms": 10_000, "tags": {}, "op": "gt",
    "min_count": 5,
}  # fmt: skip

TRIP = Message(
    kind="trip",
    project_id=PROJECT,
    project_name="Shop",
    breaker_id=BREAKER,
    name="checkout",
    prev="closed",
    curr="open",
    ts_ms=NOW,
    transition_seq=7,
    rule=ERROR_RATE,
    agg={"avg": 843.25142, "count": 19, "error_count": 12, "p95": 1204.0},
    value=12 / 19,
    reason="threshold_exceeded",
    trace_url="https://traces.example.com/t/4bf92f3577b34da6?tab=spans&from=1",
    outage_ms=None,
    delivery_id="d-0001",
)
LATER = {"ts_ms": NOW + 252_000, "delivery_id": "d-0002"}


def changed(message: Message = TRIP, **fields: Any) -> Message:
    return msgspec.structs.replace(message, **fields)


RECOVER = changed(
    kind="recover", prev="half_open", curr="closed", transition_seq=9, value=0.0, reason="recovered",
    outage_ms=252_000, agg={"avg": 31.5, "count": 240, "error_count": 0, "p95": 58.0}, **LATER,
)  # fmt: skip
AGAIN = changed(
    prev="half_open", transition_seq=9, value=None, reason="insufficient_samples", trace_url=None, outage_ms=252_000,
    agg={"avg": 0.0, "count": 0, "error_count": 0, "p95": 0.0}, **LATER,
)  # fmt: skip
RESOLVE = changed(kind="resolve", prev="open", curr="closed", reason="deleted", value=None, trace_url=None, **LATER)
BY = MutedBy(mute_id="9c1b7a52-9f1b-4c0a-8f77-3c2b5a6d7e11", comment="deploy of <checkout>", by="ann")
MUTED = changed(muted_by=msgspec.structs.replace(BY, open_since_ms=NOW - 60_000))
ENDING = changed(
    kind="mute_ending", breaker_id=NOBODY, name="deploy of <checkout>", prev="closed", curr="closed", transition_seq=0,
    rule={}, agg={}, value=None, reason="mute_ending", trace_url=None,
    muted_by=msgspec.structs.replace(BY, ends_ms=NOW, holding=3),
)  # fmt: skip
TEST = sample(PROJECT, "Shop", NOW, "d-0003")
HOSTILE = changed(
    name="<!channel> & <https://evil.example|pay>\r\nBcc: all@example.com \u202e*x* @here",
    project_name=None,
    rule=ERROR_RATE | {"metric": "a<b>&c\n\x00d", "kind": "p95", "threshold": 1e-9},
    trace_url='https://x.example/"><script>',
    reason="\u2028odd<reason>",
    value=1.0000001e-9,
    delivery_id="weird id\r\n/é",
)

ALL = {
    "trip": TRIP, "recover": RECOVER, "trip_again": AGAIN, "resolve": RESOLVE, "test": TEST, "hostile": HOSTILE,
    "muted": MUTED, "mute_ending": ENDING,
}  # fmt: skip
