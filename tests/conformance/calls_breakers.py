"""Rows of breakers, their states, metadata and events."""

from __future__ import annotations

from tests.conformance.rows import Row
from tests.conformance.service_harness import RULE

NEW = {"project_id": "{new_project_id}"}
B = "P/breakers/{breaker_id}"
ONE = {"name": "one", **RULE}
TWO = {"name": "two", **RULE}
SET = (("PUT P/breakers", {"breakers": [ONE, TWO]}),)
ELEVEN = [{"name": f"b{number}", **RULE} for number in range(11)]
FULL = {
    **RULE,
    "kind": "delta",
    "kind_params": {"delta_of": "max", "alpha": 0.5},
    "window_ms": 30000,
    "eval_interval_ms": 5000,
    "min_count": 3,
    "min_state_duration_ms": 0,
    "cooldown_ms": 7,
    "half_open_backoff_enabled": False,
    "half_open_backoff_cap_ms": 9,
    "half_open_indeterminate_policy": "pessimistic",
    "recovery_allow_rate_ramp_steps": 2,
    "actions": {"page": ["x"]},
    "metadata": {"team": "a"},
}

BREAKERS = (
    Row(
        "GET P/breakers 200",
        "",
        before=(("GET " + B,),),
        check=lambda r, b: b["count"] == len(b["breakers"]) > 0 and r.headers["ETag"] == f'W/"{b["hash"]}"',
    ),
    Row("GET P/breakers 200", "another tag", headers={"If-None-Match": 'W/"x"'}),
    Row(
        "GET P/breakers 304",
        "held",
        names=NEW,
        headers={"If-None-Match": "{etag}"},
        check=lambda r, b: r.headers["ETag"].startswith('W/"'),
    ),
    Row(f"GET {B} 200", "", check=lambda r, b: b["router_id"] == b["breaker"]["router_id"]),
    Row("POST P/breakers 201", "least", RULE, check=lambda r, b: b["router_id"] != ""),
    Row(
        "POST P/breakers 201",
        "everything",
        FULL,
        check=lambda r, b: all(b["breaker"][name] == value for name, value in FULL.items()),
    ),
    Row(
        "POST P/breakers 201",
        "own id",
        {**RULE, "id": "a0000000-0000-4000-8000-000000000001"},
        check=lambda r, b: b["breaker"]["id"].startswith("a0000000"),
    ),
    Row(
        "POST P/breakers 201",
        "computed fields are read-only",
        {**RULE, "eval_interval_ms": 1000, "recovery_window_ms": 1, "half_open_confirmation_ms": 1},
        check=lambda r, b: (b["recovery_window_ms"], b["half_open_confirmation_ms"]) == (5000, 6000),
    ),
    Row("POST P/breakers 201", "unknown fields are ignored", {**RULE, "description": "d", "colour": 1}),
    Row("POST P/breakers 409", "id taken", {**RULE, "id": "{breaker_id}"}, code="breaker_exists"),
    *(
        Row("POST P/breakers 422", f"no {name}", {k: v for k, v in RULE.items() if k != name}, field=name)
        for name in RULE
    ),
    Row(
        "POST P/breakers 422",
        "percentile without its number",
        {**RULE, "kind": "percentile"},
        field="kind_params.percentile",
    ),
    Row(
        "POST P/breakers 422",
        "unknown delta_of",
        {**RULE, "kind": "delta", "kind_params": {"delta_of": "slope"}},
        field="kind_params.delta_of",
    ),
    Row(
        "POST P/breakers 422",
        "alpha 0",
        {**RULE, "kind": "delta", "kind_params": {"alpha": 0}},
        field="kind_params.alpha",
    ),
    *(
        Row("POST P/breakers 422", f"kind {kind}", {**RULE, "kind": kind}, field="kind")
        for kind in ("ratio", "slope", "")
    ),
    Row("POST P/breakers 422", "an integer of 65 bits somewhere", {**RULE, "kind_params": {"x": [1 << 64]}}),
    Row("POST P/breakers 422", "a NUL character somewhere", {**RULE, "actions": {"x": ["\0"]}}),
    Row(f"PATCH {B} 200", "threshold", {"threshold": 7}, check=lambda r, b: b["breaker"]["threshold"] == 7),
    Row(
        f"PATCH {B} 200",
        "null is the default",
        {"cooldown_ms": None},
        before=((f"PATCH {B}", {"cooldown_ms": 5}),),
        check=lambda r, b: b["cooldown_ms"] == 0,
    ),
    Row(f"PATCH {B} 200", "nothing", {}),
    Row(
        f"PATCH {B} 200",
        "everything",
        FULL,
        check=lambda r, b: all(b["breaker"][name] == value for name, value in FULL.items()),
    ),
    Row(f"PATCH {B} 422", "null threshold", {"threshold": None}, field="threshold"),
    Row(f"PATCH {B} 200", "If-Match *", {"cooldown_ms": 7}, headers={"If-Match": "*"}),
    Row(f"PATCH {B} 412", "another one", {}, headers={"If-Match": 'W/"x"'}, code="precondition_failed"),
    Row(f"PATCH {B} 422", "before If-Match", {"threshold": None}, headers={"If-Match": 'W/"x"'}, field="threshold"),
    Row(f"DELETE {B} 204", ""),
    Row(f"DELETE {B} 404", "twice", before=((f"DELETE {B}",),)),
    Row(
        "PUT P/breakers 200",
        "first set",
        {"breakers": [ONE, TWO]},
        names=NEW,
        check=lambda r, b: b["changed"] is True and b["count"] == 2,
    ),
    Row(
        "PUT P/breakers 200",
        "the same again",
        {"breakers": [ONE, TWO]},
        names=NEW,
        before=SET,
        check=lambda r, b: b["changed"] is False,
    ),
    Row(
        "PUT P/breakers 200", "one goes", {"breakers": [ONE]}, names=NEW, before=SET, check=lambda r, b: b["count"] == 1
    ),
    Row("PUT P/breakers 200", "If-Match", {"breakers": [ONE]}, names=NEW, headers={"If-Match": "{etag}"}),
    Row("PUT P/breakers 200", "If-Match *", {"breakers": [ONE]}, names=NEW, headers={"If-Match": "*"}),
    Row(
        "PUT P/breakers 200",
        "guardrail overridden",
        {"breakers": []},
        names=NEW,
        before=SET,
        query="allow_destructive=true",
        check=lambda r, b: b["count"] == 0,
    ),
    Row("PUT P/breakers 400", "allow_destructive 1", {"breakers": []}, names=NEW, query="allow_destructive=1"),
    Row("PUT P/breakers 409", "empty list", {"breakers": []}, names=NEW, before=SET, code="guardrail_blocked"),
    Row("PUT P/breakers 409", "null list", {"breakers": None}, names=NEW, before=SET, code="guardrail_blocked"),
    Row(
        "PUT P/breakers 409",
        "more than half of eleven",
        {"breakers": ELEVEN[:5]},
        names=NEW,
        before=(("PUT P/breakers", {"breakers": ELEVEN}),),
        code="guardrail_blocked",
    ),
    Row(
        "PUT P/breakers 200",
        "less than half of eleven",
        {"breakers": ELEVEN[:6]},
        names=NEW,
        before=(("PUT P/breakers", {"breakers": ELEVEN}),),
    ),
    Row(
        "PUT P/breakers 412",
        "another set",
        {"breakers": [ONE]},
        names=NEW,
        headers={"If-Match": 'W/"x"'},
        code="precondition_failed",
    ),
    Row(
        "PUT P/breakers 412",
        "before the guardrail",
        {"breakers": []},
        names=NEW,
        before=SET,
        headers={"If-Match": 'W/"x"'},
    ),
    Row(
        "PUT P/breakers 422", "before If-Match", {"breakers": [{"name": "x"}]}, names=NEW, headers={"If-Match": 'W/"x"'}
    ),
    Row("PUT P/breakers 422", "name twice", {"breakers": [ONE, ONE]}, names=NEW),
    Row("PUT P/breakers 422", "neither id nor name", {"breakers": [RULE]}, names=NEW),
    Row("PUT P/breakers 422", "no list", {}, names=NEW, field="breakers"),
    Row(
        "PUT P/breakers 422",
        "id of another project",
        {"breakers": [{**RULE, "id": "{foreign}"}]},
        names={"foreign": "{breaker_id}", **NEW},
    ),
)

STATES = (
    Row(
        f"GET {B}/state 200",
        "just made",
        key="project",
        check=lambda r, b: (
            (b["state"], b["indeterminate"], b["indeterminate_reason"]) == ("closed", True, "insufficient_samples")
        ),
    ),
    Row(
        f"GET {B}/state 200",
        "tripped",
        key="project",
        names={"breaker_id": "{tripped_id}"},
        check=lambda r, b: b["state"] == "half_open",
    ),
    Row(
        "POST P/breakers/state:batch 200",
        "by breaker",
        {"breaker_ids": ["{breaker_id}", "{breaker_id}", "{nil}"]},
        key="project",
        check=lambda r, b: len(b["states"]) == 1,
    ),
    Row(
        "POST P/breakers/state:batch 200",
        "by router",
        {"router_ids": ["{own_router_id}"]},
        key="project",
        check=lambda r, b: len(b["states"]) == 1,
    ),
    Row(
        "POST P/breakers/state:batch 200",
        "by one router",
        {"router_id": "{own_router_id}"},
        key="project",
        check=lambda r, b: len(b["states"]) == 1,
    ),
    Row("POST P/breakers/state:batch 422", "neither", {}, key="project", code="validation_failed"),
    Row("POST P/breakers/state:batch 422", "empty lists", {"breaker_ids": [], "router_ids": []}, key="project"),
    Row("POST P/breakers/state:batch 422", "no uuid", {"breaker_ids": ["x"]}, key="project", field="breaker_ids[0]"),
)

METADATA = (
    *(
        Row(
            f"{method} P/breakers/metadata 200",
            "",
            key="project",
            check=lambda r, b: r.headers["ETag"].startswith('W/"'),
        )
        for method in ("GET", "HEAD")
    ),
    *(
        Row(
            f"{method} P/breakers/metadata 304",
            "held",
            key="project",
            headers={"If-None-Match": "*"},
            check=lambda r, b: "ETag" in r.headers,
        )
        for method in ("GET", "HEAD")
    ),
    Row("GET P/routers/metadata 200", "", key="project", before=(("GET P/routers/{router_id}",),)),
    Row("GET P/routers/metadata 304", "held", key="project", headers={"If-None-Match": "*"}),
    Row(
        f"PATCH {B}/metadata 200",
        "wrapped",
        {"metadata": {"a": "1"}},
        key="admin",
        check=lambda r, b: b["metadata"] == {"a": "1"} and set(b) >= {"id", "name"},
    ),
    Row(f"PATCH {B}/metadata 200", "bare", {"a": "1"}, key="admin", check=lambda r, b: b["metadata"] == {"a": "1"}),
    Row(
        f"PATCH {B}/metadata 200",
        "merged",
        {"metadata": {"b": "2"}},
        key="admin",
        before=((f"PATCH {B}/metadata", {"metadata": {"a": "1"}}),),
        check=lambda r, b: b["metadata"] == {"a": "1", "b": "2"},
    ),
    Row(
        f"PATCH {B}/metadata 200",
        "null removes",
        {"metadata": {"a": None}},
        key="admin",
        before=((f"PATCH {B}/metadata", {"metadata": {"a": "1", "b": "2"}}),),
        check=lambda r, b: b["metadata"] == {"b": "2"},
    ),
    Row(f"PATCH {B}/metadata 422", "a number", {"metadata": {"a": 1}}, key="admin"),
    Row(f"PATCH {B}/metadata 422", "null", b"null", key="admin"),
    Row(
        "PATCH P/routers/{router_id}/metadata 200",
        "",
        {"metadata": {"a": "1"}},
        key="admin",
        check=lambda r, b: b["metadata"] == {"a": "1"},
    ),
    Row("PATCH P/routers/{router_id}/metadata 422", "a number", {"metadata": {"a": 1}}, key="admin"),
)

EVENTS = (
    Row(
        "GET P/events 200",
        "newest first",
        query="breaker_id={tripped_id}",
        check=lambda r, b: (
            [e["curr"] for e in b["events"]] == ["half_open", "open"]
            and b["returned"] == 2
            and int(r.headers["X-Latest-Timestamp"]) == b["events"][0]["ts_ms"]
        ),
    ),
    Row(
        "GET P/events 200",
        "a page",
        query="breaker_id={tripped_id}&limit=1",
        check=lambda r, b: isinstance(b["next_cursor"], str),
    ),
    Row(
        "GET P/events 200",
        "none",
        query="breaker_id={nil}",
        check=lambda r, b: b["events"] == [] and b["next_cursor"] is None and "X-Latest-Timestamp" not in r.headers,
    ),
    Row("GET P/events 200", "since the future", query="since_ms=99999999999999", check=lambda r, b: b["returned"] == 0),
    Row("GET P/events 200", "unknown parameter", query="colour=red"),
    *(
        Row("GET P/events 400", query, query=query, code="bad_request", field=query.split("=")[0])
        for query in ("limit=x", "since_ms=x", "since_ms=1.5", "breaker_id=x", "cursor=x", "start_time=x", "end_time=x")
    ),
)
