"""Rows of overrides, and of the mode of a breaker."""

from __future__ import annotations

from tests.conformance.calls_breakers import ELEVEN, NEW
from tests.conformance.rows import Row

B = "P/breakers/{breaker_id}"
O1 = f"{B}/override"
FORCE = {"kind": "force_open", "reason": "the dependency is being moved"}
NOBODY = {"matchers": [{"field": "metadata.team", "op": "=", "value": "nobody"}]}
OBSERVED = {"breaker_id": "{observing_id}"}


def refused(note: str, field: str, **fields: object) -> Row:
    return Row(f"PUT {O1} 422", note, FORCE | fields, field=field)


OVERRIDES = (
    Row(f"GET {O1} 200", "none", check=lambda r, b: b["override"] is None and r.headers["ETag"] == 'W/"0"'),
    Row(f"GET {O1} 200", "one", before=((f"PUT {O1}", FORCE),), check=lambda r, b: b["override"]["allow_rate"] == 0.0),
    Row(f"PUT {O1} 200", "open", FORCE, check=lambda r, b: b["override"]["kind"] == "force_open"),
    Row(
        f"PUT {O1} 200", "closed", FORCE | {"kind": "force_closed"}, check=lambda r, b: b["override"]["allow_rate"] == 1
    ),
    Row(
        f"PUT {O1} 200",
        "throttle",
        FORCE | {"kind": "throttle", "allow_rate": 0.2, "for_ms": 60_000, "then": "half_open"},
        check=lambda r, b: (b["override"]["allow_rate"], b["override"]["then"]) == (0.2, "half_open"),
    ),
    Row(
        f"PUT {O1} 200",
        "null is absent",
        FORCE | {"allow_rate": None, "for_ms": None, "until_ms": None, "until": None, "then": None},
    ),
    Row(f"PUT {O1} 412", "another one", FORCE, headers={"If-Match": 'W/"7"'}, code="precondition_failed"),
    refused("no reason", "reason", reason=""),
    refused("a long reason", "reason", reason="x" * 501),
    refused("a kind nobody knows", "kind", kind="open"),
    refused("a throttle without its rate", "allow_rate", kind="throttle"),
    refused("a rate beyond one", "allow_rate", kind="throttle", allow_rate=1.5),
    refused("a rate of no throttle", "allow_rate", allow_rate=0.5),
    refused("two ends", "until_ms", for_ms=5_000, until_ms=1),
    refused("two ends, one as a time", "until", for_ms=5_000, until="2020-01-01T00:00:00Z"),
    refused("ends that differ", "until", until_ms=1, until="2020-01-01T00:00:00Z"),
    refused("no time", "until", until="in an hour"),
    refused("far too long", "for_ms", for_ms=86_400_001),
    refused("over already", "until_ms", until_ms=1),
    Row(f"DELETE {O1} 204", "one", query="reason=moved", before=((f"PUT {O1}", FORCE),)),
    Row(f"DELETE {O1} 204", "none"),
    Row(f"DELETE {O1} 400", "a long reason", query="reason=" + "x" * 501, field="reason"),
    Row(f"DELETE {O1} 412", "none", headers={"If-Match": "*"}, code="precondition_failed"),
    Row(f"GET {B}/comparison 200", "", names={"breaker_id": "{shadow_id}"}, check=lambda r, b: b["differing"] == 0),
    Row(f"GET {B}/comparison 400", "an empty span", query="since_ms=5&until_ms=5", names={"breaker_id": "{shadow_id}"}),
    Row(
        f"GET {B}/comparison 200",
        "before there were both",
        query="until_ms=5",
        names={"breaker_id": "{shadow_id}"},
        check=lambda r, b: (b["since_ms"], b["until_ms"], b["shadow"]["closed_ms"]) == (5, 5, 0),
    ),
    Row(f"GET {B}/comparison 422", "no shadow", field="shadow_of"),
    Row("GET P/overrides 200", "", before=((f"PUT {O1}", FORCE),), check=lambda r, b: b["count"] >= 1),
    Row("POST P/overrides 200", "nobody", FORCE | NOBODY, check=lambda r, b: b == {"matches": 0, "changed": 0}),
    Row("POST P/overrides 200", "everybody", FORCE | {"all": True}, query="allow_destructive=true"),
    Row(
        "POST P/overrides 409",
        "most of them",
        FORCE | {"all": True},
        names=NEW,
        before=(("PUT P/breakers", {"breakers": ELEVEN}),),
        code="guardrail_blocked",
    ),
    Row("POST P/overrides 422", "nobody named", FORCE, field="matchers"),
    Row(
        "POST P/overrides 422",
        "a channel",
        FORCE | {"matchers": [{"field": "channel", "op": "=", "value": "x"}]},
        field="matchers[0].field",
    ),
    Row("POST P/overrides:preview 200", "", {"all": True}, check=lambda r, b: b["matches"] >= 0),
    Row("POST P/overrides:preview 422", "nobody named", {}, field="matchers"),
    Row("POST P/overrides:end 200", "", {"all": True, "reason": "over"}, check=lambda r, b: b["changed"] >= 0),
    Row("POST P/overrides:end 422", "nobody named", {}, field="matchers"),
    Row(f"PATCH {B} 200", "observe", {"mode": "observe"}, check=lambda r, b: b["mode"] == "observe"),
    Row(f"PATCH {B} 409", "enforced while open", {"mode": "enforce"}, names=OBSERVED, code="confirmation_needed"),
    Row(f"PATCH {B} 200", "and meant", {"mode": "enforce", "confirm": True}, names=OBSERVED),
    Row(f"PATCH {B} 422", "no mode", {"mode": "off"}, field="mode"),
    Row("POST P/breakers 422", "a shadow of nobody", {**FORCE, "shadow_of": "x"}),
)
