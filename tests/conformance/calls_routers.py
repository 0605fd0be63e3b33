"""Rows of routers, notification channels and ingest."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl

from api.wire.samples import SENTENCES
from tests.conformance.rows import Row
from tests.support.arrow_streams import STREAM, of_polars

R, N = "P/routers/{router_id}", "P/notification-channels/{channel_id}"
CHANNELS_PATH = "P/notification-channels"
OWN = {"router_id": "{own_router_id}"}
DEAD = {"channel_id": "{dead_channel_id}", "delivery_id": "{dead_id}"}
WAITING = {"channel_id": "{waiting_channel_id}", "delivery_id": "{waiting_id}"}
SLACK = {"channel": "slack", "config": {"webhook_url": "https://hooks.slack.example/services/T0/B0/secret"}}
CLOSED = {"channel": "webhook", "config": {"url": "http://127.0.0.1:1/"}}
SIGNED = {"project_id": "{new_project_id}"}

ROUTERS = (
    Row(
        "GET P/routers 200",
        "",
        before=((f"GET {R}",),),
        check=lambda r, b: all(isinstance(one["breaker_count"], int) for one in b["routers"]) and b["routers"] != [],
    ),
    Row(f"GET {R} 200", "", check=lambda r, b: b["router"]["breakers"] == []),
    Row(
        f"GET {R} 200",
        "made by a breaker",
        names=OWN,
        check=lambda r, b: b["router"]["created_by"] == "system" and len(b["router"]["breakers"]) == 1,
    ),
    Row(
        "POST P/routers 201",
        "empty",
        {},
        check=lambda r, b: (
            (b["router"]["mode"], b["router"]["enabled"], b["router"]["created_by"]) == ("static", True, "user")
        ),
    ),
    Row(
        "POST P/routers 201",
        "everything",
        {"name": "n", "mode": "canary", "breaker_ids": ["{breaker_id}"], "metadata": {"a": "b"}},
        check=lambda r, b: len(b["router"]["breakers"]) == 1 and b["mode"] == "canary",
    ),
    Row("POST P/routers 201", "no body"),
    Row("POST P/routers 404", "unknown breaker", {"breaker_ids": ["{nil}"]}, code="not_found"),
    Row("POST P/routers 422", "mode", {"mode": "random"}, field="mode"),
    Row("POST P/routers 422", "no uuid", {"breaker_ids": ["x"]}, field="breaker_ids[0]"),
    *(
        Row(f"PATCH {R} 200", f"mode {mode}", {"mode": mode}, check=lambda r, b, mode=mode: b["router"]["mode"] == mode)
        for mode in ("static", "canary", "weighted")
    ),
    Row(f"PATCH {R} 200", "disabled", {"enabled": False}, check=lambda r, b: b["router"]["enabled"] is False),
    Row(
        f"PATCH {R} 200",
        "name and metadata",
        {"name": "z", "metadata": {"a": "b"}},
        check=lambda r, b: (b["name"], b["metadata"]) == ("z", {"a": "b"}),
    ),
    Row(f"PATCH {R} 200", "unknown fields are ignored", {"description": "d"}),
    Row(f"PATCH {R} 422", "mode", {"mode": "random"}, field="mode"),
    Row(f"DELETE {R} 204", ""),
    Row(f"DELETE {R} 409", "has breakers", names=OWN, code="router_has_breakers"),
    Row(
        f"POST {R}/breakers 200",
        "many",
        {"breaker_ids": ["{breaker_id}", "{second_breaker_id}"]},
        check=lambda r, b: len(b["router"]["breakers"]) == 2,
    ),
    Row(f"POST {R}/breakers 200", "one", {"breaker_id": "{breaker_id}"}, check=lambda r, b: b["breaker_count"] == 1),
    Row(
        f"POST {R}/breakers 200",
        "twice",
        {"breaker_id": "{breaker_id}"},
        before=((f"POST {R}/breakers", {"breaker_id": "{breaker_id}"}),),
        check=lambda r, b: b["breaker_count"] == 1,
    ),
    Row(f"POST {R}/breakers 404", "all or none", {"breaker_ids": ["{breaker_id}", "{nil}"]}),
    Row(f"POST {R}/breakers 422", "nothing", {}),
    Row(
        f"DELETE {R}/breakers/{{breaker_id}} 204", "", before=((f"POST {R}/breakers", {"breaker_id": "{breaker_id}"}),)
    ),
)

CHANNELS = (
    Row(f"GET {CHANNELS_PATH} 200", "", before=((f"GET {N}",),), check=lambda r, b: b["channels"] != []),
    Row(
        f"POST {CHANNELS_PATH} 201",
        "slack, masked",
        SLACK,
        check=lambda r, b: (
            isinstance(b["channel"]["config"]["webhook_url"], str)
            and "secret" not in b["channel"]["config"]["webhook_url"]
        ),
    ),
    *(
        Row(
            f"POST {CHANNELS_PATH} 201",
            kind,
            {"channel": kind, "config": {}},
            check=lambda r, b, kind=kind: b["channel"]["channel"] == kind,
        )
        for kind in ("pagerduty", "alertmanager", "email", "webhook", "apprise")
    ),
    Row(
        f"POST {CHANNELS_PATH} 201",
        "defaults",
        CLOSED,
        check=lambda r, b: b["channel"]["enabled"] is True and sorted(b["channel"]["events"]) == ["recover", "trip"],
    ),
    Row(
        f"POST {CHANNELS_PATH} 201",
        "events",
        {**CLOSED, "events": ["trip"], "enabled": False},
        check=lambda r, b: (b["channel"]["events"], b["channel"]["enabled"]) == (["trip"], False),
    ),
    Row(f"POST {CHANNELS_PATH} 422", "no channel", {"config": {}}, field="channel"),
    Row(f"POST {CHANNELS_PATH} 422", "no config", {"channel": "slack"}, field="config"),
    Row(f"POST {CHANNELS_PATH} 422", "unknown channel", {"channel": "pigeon", "config": {}}, field="channel"),
    Row(f"POST {CHANNELS_PATH} 422", "unknown event", {**CLOSED, "events": ["storm"]}, field="events"),
    Row(f"GET {N} 200", "bare", check=lambda r, b: b["channel"] == "webhook"),
    Row(f"PATCH {N} 200", "off", {"enabled": False}, check=lambda r, b: b["channel"]["enabled"] is False),
    Row(f"PATCH {N} 200", "events", {"events": ["recover"]}, check=lambda r, b: b["channel"]["events"] == ["recover"]),
    Row(f"PATCH {N} 200", "config", {"config": {"url": "http://127.0.0.1:2/"}}),
    Row(f"PATCH {N} 422", "unknown event", {"events": ["storm"]}, field="events"),
    Row(f"DELETE {N} 204", ""),
    Row(f"POST {N}/test 200", "sent", check=lambda r, b: b["status"] == "sent"),
    Row(f"POST {N}/test 200", "off all the same", before=((f"PATCH {N}", {"enabled": False}),)),
    Row(
        f"POST {N}/test 422",
        "nobody listens",
        before=((f"PATCH {N}", {"config": {"url": "http://127.0.0.1:1/"}}),),
        code="send_failed",
    ),
    Row(f"GET {N}/deliveries 200", "none yet", check=lambda r, b: b["deliveries"] == [] and b["silence"] is None),
    Row(
        f"GET {N}/deliveries 200",
        "pending",
        names=WAITING,
        check=lambda r, b: [(d["kind"], d["state"], d["attempts"]) for d in b["items"]] == [("trip", "pending", 0)],
    ),
    Row(
        f"GET {N}/deliveries 200",
        "of a state",
        names=WAITING,
        query="state=dead",
        check=lambda r, b: (b["returned"], b["next_cursor"]) == (0, None),
    ),
    Row(f"GET {N}/deliveries 400", "state", query="state=lost", field="state"),
    Row(f"GET {N}/deliveries 400", "limit", query="limit=0", field="limit"),
    Row(f"GET {N}/deliveries 400", "cursor", query="cursor=x", field="cursor"),
    Row(
        f"POST {N}/deliveries/{{delivery_id}}/redrive 202",
        "dead",
        names=DEAD,
        check=lambda r, b: [d["state"] for d in b["deliveries"]] == ["pending"],
    ),
    Row(f"POST {N}/deliveries/{{delivery_id}}/redrive 409", "pending", names=WAITING, code="not_redrivable"),
)


def sample(**fields: object) -> dict[str, object]:
    """A good sample of this row's router, with changes; a field that is Ellipsis is left out."""
    base: dict[str, object] = {"router_id": "{router_id}", "metric": "latency", "value": 1.5}
    return {name: value for name, value in (base | fields).items() if value is not ...}


STAMPED = {"X-EB-Timestamp": "{now}"}


def good(note: str, **fields: object) -> Row:
    return Row(
        "POST P/ingest 202", note, [sample(**fields)], key=None, headers=STAMPED, check=lambda r, b: b["accepted"] == 1
    )


DEFAULTS = SimpleNamespace(age_ms=3_600_000)
"""What sentences name of the settings."""


def bad(note: str, code: str, **fields: object) -> Row:
    first = {"index": 0, "field": next(iter(fields)), "code": code, "message": SENTENCES[code].format(DEFAULTS)}
    return Row(
        "POST P/ingest 422",
        note,
        [sample(**fields)],
        key=None,
        headers=STAMPED,
        check=lambda r, b: b["details"]["errors"] == [first],
    )


ARROW, ARROW_FILE = {"Content-Type": STREAM}, "application/vnd.apache.arrow.file"
EMPTY = of_polars(pl.DataFrame(schema={"router_id": pl.String, "metric": pl.String, "value": pl.Float64}))

INGEST = (
    good("bare list"),
    Row(
        "POST P/ingest 202",
        "object",
        {"samples": [sample()]},
        key=None,
        headers=STAMPED,
        check=lambda r, b: b["accepted"] == 1 and [one["code"] for one in b["warnings"]] == ["no_breaker_hears"],
    ),
    Row("POST P/ingest 202", "empty", [], key=None, check=lambda r, b: b == {"accepted": 0}),
    Row("POST P/ingest 202", "a token", [], key="ingest", check=lambda r, b: b == {"accepted": 0}),
    Row("POST P/ingest 401", "a wrong token", [], key="eb_ingest_x"),
    Row(
        "POST P/ingest 404", "a token of another project", [], key="ingest", names={"project_id": "{other_project_id}"}
    ),
    Row(
        "POST P/ingest 202",
        "the good ones",
        [sample(), sample(value="x")],
        key=None,
        headers=STAMPED,
        check=lambda r, b: (b["accepted"], b["rejected"], b["errors"][0]["index"]) == (1, 1, 1),
    ),
    good("ok false", ok=False),
    good("tags", tags={"a": "b"}),
    good("tags null", tags=None),
    good("trace_id", trace_id="t"),
    good("trace_id null", trace_id=None),
    good("integer value", value=3),
    good("unknown field", colour=1),
    good("unknown metric", metric="unheard"),
    bad("router_id unknown", "invalid_router_id", router_id="{nil}"),
    bad("router_id null", "invalid_router_id", router_id=None),
    bad("router_id absent", "invalid_router_id", router_id=...),
    bad("metric number", "invalid_metric", metric=1),
    bad("metric empty", "invalid_metric", metric=""),
    bad("metric absent", "invalid_metric", metric=...),
    bad("ts_ms text", "invalid_ts_ms", ts_ms="1"),
    bad("ts_ms fraction", "invalid_ts_ms", ts_ms=1.5),
    bad("ts_ms old", "ts_ms_too_old", ts_ms=1),
    bad("ts_ms far ahead", "ts_ms_in_future", ts_ms=99999999999999),
    bad("value text", "invalid_value", value="1"),
    bad("value bool", "invalid_value", value=True),
    bad("value null", "invalid_value", value=None),
    bad("value absent", "invalid_value", value=...),
    bad("ok number", "invalid_ok", ok=1),
    bad("ok null", "invalid_ok", ok=None),
    bad("tags list", "invalid_tags", tags=[]),
    bad("tags of numbers", "invalid_tags", tags={"a": 1}),
    bad("trace_id number", "invalid_trace_id", trace_id=1),
    bad("count zero", "invalid_count", count=0),
    bad("count fraction", "invalid_count", count=1.5),
    bad("count text", "invalid_count", count="2"),
    bad("count beyond", "invalid_count", count=10_000_001),
    Row(
        "POST P/ingest 422",
        "no ts_ms at all",
        [sample()],
        key=None,
        check=lambda r, b: b["details"]["errors"][0]["code"] == "invalid_ts_ms",
    ),
    Row("POST P/ingest 202", "columns", EMPTY, key=None, headers=ARROW, check=lambda r, b: b == {"accepted": 0}),
    Row("POST P/ingest 202", "columns, a token", EMPTY, key="ingest", headers=ARROW),
    Row("POST P/ingest 401", "columns, a wrong token", EMPTY, key="eb_ingest_x", headers=ARROW),
    Row("POST P/ingest 400", "no columns", b"ARROW1", key=None, code="bad_request", headers=ARROW),
    Row("POST P/ingest 415", "an Arrow file", b"ARROW1", key=None, headers={"Content-Type": ARROW_FILE}),
    Row(
        "POST P/ingest 422",
        "columns of others",
        of_polars(pl.DataFrame({"a": [1]})),
        key=None,
        headers=ARROW,
        check=lambda r, b: b["details"] == {"where": "schema", "field": "router_id"},
    ),
    Row(
        "POST P/ingest 422",
        "columns of an unknown router",
        of_polars(pl.DataFrame({"router_id": ["x"], "metric": ["m"], "value": [1.5]})),
        key=None,
        headers=ARROW | STAMPED,
        check=lambda r, b: [one["code"] for one in b["details"]["errors"]] == ["invalid_router_id"],
    ),
    Row("POST P/ingest 400", "no list", {"sample": 1}, key=None, code="bad_request"),
    Row("POST P/ingest 400", "no gzip", b"x", key=None, headers={"Content-Encoding": "gzip"}),
    Row(
        "POST P/ingest 401",
        "unsigned",
        [],
        key=None,
        names=SIGNED,
        before=(("PATCH P", {"enable_signed_ingest": True}),),
        code="unauthorized",
    ),
)
