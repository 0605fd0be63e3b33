"""Rows of mappings."""

from __future__ import annotations

from tests.conformance.rows import Row

M = "P/mappings/{mapping_id}"
NAMED = {"field": "name", "op": "=", "value": "requests"}
TO = {"router": "label.router"}
OTHERS = {"project_id": "{other_project_id}"}
NOBODY = "3f2b8c1e-0000-4000-8000-000000000000"
PLAIN = {"matchers": [NAMED], "to": TO}
SHOWN = {
    "router": "label.router",
    "metric": None,
    "scale": 1.0,
    "as": "observations",
    "ok": [],
    "temporality": None,
    "series_max": 2000,
}
LATENCY = {"name": "http.client.request.duration", "type": "histogram"}


def refused(note: str, field: str, **fields: object) -> Row:
    return Row("POST P/mappings 422", note, PLAIN | fields, field=field)


def refused_to(note: str, field: str, **fields: object) -> Row:
    return Row("POST P/mappings 422", note, PLAIN | {"to": TO | fields}, field=field)


PROTOBUF = {"Content-Type": "application/x-protobuf"}
SNAPPY = PROTOBUF | {"Content-Encoding": "snappy"}


def received(line: str, status: int, nothing: bytes, headers: dict[str, str]) -> list[Row]:
    """What a receiver of an open protocol answers. `nothing`: a request without a point."""
    return [
        Row(f"{line} {status}", "nothing", nothing, key="ingest", headers=headers),
        Row(f"{line} 400", "no protobuf", b"\x01\x00\xff", key="ingest", headers=headers),
        Row(f"{line} 401", "no key", nothing, key=None, headers=headers),
        Row(f"{line} 401", "unknown key", nothing, key="eb_ingest_x", headers=headers),
        Row(f"{line} 403", "key without the right", nothing, headers=headers),
        Row(f"{line} 404", "project of others", nothing, key="ingest", headers=headers, names=OTHERS),
        Row(f"{line} 413", "too large", b"x" * ((9 << 20) + 1), key="ingest", headers=headers),
        Row(f"{line} 415", "another type", nothing, key="ingest", headers={"Content-Type": "text/plain"}),
    ]


MAPPINGS = (
    Row("GET P/mappings 200", "", before=((f"GET {M}",),), check=lambda r, b: b["mappings"] != []),
    Row(
        "POST P/mappings 201",
        "plain",
        PLAIN,
        check=lambda r, b: (b["mapping"]["to"], b["mapping"]["enabled"], b["mapping"]["version"]) == (SHOWN, True, 1),
    ),
    Row(
        "POST P/mappings 201",
        "all of it",
        {
            "name": "latency of {mapping_id}",
            "matchers": [NAMED, {"field": "resource.service.name", "op": "glob", "value": "web-*"}],
            "to": {
                "router": "{router_id}",
                "metric": "latency",
                "scale": 1000,
                "as": "value",
                "ok": [{"below": {"key": "code", "limit": 500}}, {"in": {"key": "rpc", "values": ["0", "OK"]}}],
                "temporality": "delta",
                "series_max": 10,
            },
            "enabled": False,
            "position": 1,
        },
        check=lambda r, b: b["mapping"]["position"] == 1 and b["mapping"]["to"]["ok"][1]["in"]["values"] == ["0", "OK"],
    ),
    Row(
        "POST P/mappings 201",
        "one rule",
        PLAIN | {"to": TO | {"ok": {"label": "good"}}},
        check=lambda r, b: b["mapping"]["to"]["ok"] == [{"label": "good"}],
    ),
    Row(
        "POST P/mappings 201",
        "null is absent",
        PLAIN | {"name": None, "enabled": None, "position": None, "to": dict.fromkeys(SHOWN) | TO},
        check=lambda r, b: b["mapping"]["to"] == SHOWN,
    ),
    refused("no matchers", "matchers", matchers=[]),
    refused("null as matchers", "matchers", matchers=None),
    refused("many matchers", "matchers", matchers=[NAMED] * 21),
    refused("a field nobody knows", "matchers[0].field", matchers=[NAMED | {"field": "unit"}]),
    refused("an op nobody knows", "matchers[0].op", matchers=[NAMED | {"op": "=~"}]),
    refused("an empty text", "matchers[0].value", matchers=[NAMED | {"value": ""}]),
    refused("a glob of stars", "matchers[0].value", matchers=[NAMED | {"op": "glob", "value": "*a" * 9}]),
    refused("no place", "position", position=0),
    refused("nothing to become", "to", to=None),
    refused_to("null as router", "to.router", router=None),
    refused_to("a router by its name", "to.router", router="shop"),
    refused_to("nobody's router", "to.router", router=NOBODY),
    refused_to("an endless metric", "to.metric", metric="m" * 129),
    refused_to("another way", "to.as", **{"as": "samples"}),
    refused_to("two rules in one", "to.ok[0]", ok=[{"label": "ok", "absent": "error"}]),
    refused_to("no rule", "to.ok[0]", ok={}),
    refused_to("many series", "to.series_max", series_max=10_001),
    Row(
        "POST P/mappings 422",
        "a name twice",
        PLAIN | {"name": "n"},
        before=(("POST P/mappings", PLAIN | {"name": "n"}),),
    ),
    Row(
        "PUT P/mappings 200",
        "the whole list",
        {"mappings": [PLAIN | {"name": "b"}, PLAIN | {"name": "a"}]},
        check=lambda r, b: (b["changed"], b["count"], [m["name"] for m in b["mappings"]]) == (True, 2, ["b", "a"]),
    ),
    Row(
        "PUT P/mappings 200",
        "the same again",
        {"mappings": [PLAIN | {"name": "b"}, PLAIN | {"name": "a"}]},
        before=(("PUT P/mappings", {"mappings": [PLAIN | {"name": "b"}, PLAIN | {"name": "a"}]}),),
        check=lambda r, b: b["changed"] is False,
    ),
    Row(
        "PUT P/mappings 200",
        "by id",
        {"mappings": [PLAIN | {"id": "{mapping_id}", "name": "renamed"}]},
        check=lambda r, b: (b["mappings"][0]["name"], b["mappings"][0]["version"]) == ("renamed", 2),
    ),
    Row("PUT P/mappings 200", "nothing", {"mappings": []}, check=lambda r, b: b["count"] == 0),
    Row("PUT P/mappings 422", "no list", {}, field="mappings"),
    Row("PUT P/mappings 422", "no name", {"mappings": [PLAIN]}, field="mappings[0].name"),
    Row("PUT P/mappings 422", "an id that is none", {"mappings": [PLAIN | {"id": "x"}]}, field="mappings[0].id"),
    Row("PUT P/mappings 422", "a name twice", {"mappings": [PLAIN | {"name": "a"}] * 2}, field="mappings[1].name"),
    Row(
        "PUT P/mappings 422",
        "all or nothing",
        {"mappings": [PLAIN | {"name": "a"}, PLAIN | {"name": "b", "to": {"router": NOBODY}}]},
        field="mappings[1].to.router",
    ),
    Row(
        "POST P/mappings:preview 200",
        "by the ready mapping",
        {"series": [LATENCY | {"labels": {"server.address": "r", "http.response.status_code": "503"}}]},
        before=(("POST P/routers", {"name": "r"}),),
        check=lambda r, b: (b["mapped"] == 1 and b["series"][0]["ok"] is False) or b["refused"] == 1,
    ),
    Row(
        "POST P/mappings:preview 200",
        "why not",
        {"series": [{"name": "other"}, {"name": "other", "labels": {"router_id": "nobody of that name"}}]},
        before=(("PUT P/mappings", {"mappings": []}),),
        check=lambda r, b: (b["unmatched"], b["series"][1]["code"]) == (1, "router_not_found"),
    ),
    Row(
        "POST P/mappings:preview 200",
        "by a mapping",
        {"series": [{"name": "requests", "labels": {"router": "{router_id}"}, "type": "sum", "monotonic": True}]},
        before=(("PUT P/mappings", {"mappings": [PLAIN | {"name": "a"}]}),),
        check=lambda r, b: (b["series"][0]["mapping"], b["series"][0]["as"]) == ("a", "observations"),
    ),
    Row("POST P/mappings:preview 200", "nothing", {"series": []}, check=lambda r, b: b["series"] == []),
    Row("POST P/mappings:preview 422", "no series", {}, field="series"),
    Row("POST P/mappings:preview 422", "many", {"series": [{"name": "x"}] * 1_001}, field="series"),
    Row(
        "POST P/mappings:preview 422", "no type", {"series": [{"name": "x", "type": "counter"}]}, field="series[0].type"
    ),
    Row(f"GET {M} 200", "", check=lambda r, b: b["mapping"]["to"] == SHOWN),
    Row(
        f"PATCH {M} 200",
        "a part of to",
        {"to": {"scale": 1000, "ok": None}},
        check=lambda r, b: b["mapping"]["to"] == SHOWN | {"scale": 1000.0} and b["mapping"]["version"] == 2,
    ),
    Row(f"PATCH {M} 200", "to the front", {"position": 1}, check=lambda r, b: b["mapping"]["position"] == 1),
    Row(f"PATCH {M} 200", "off", {"enabled": False, "name": ""}, check=lambda r, b: not b["mapping"]["enabled"]),
    Row(f"PATCH {M} 200", "no body", check=lambda r, b: b["mapping"]["version"] == 1),
    Row(f"PATCH {M} 422", "no router", {"to": {"router": None}}, field="to.router"),
    Row(f"PATCH {M} 422", "null as matchers", {"matchers": None}, field="matchers"),
    Row(f"DELETE {M} 204", ""),
    Row(f"DELETE {M} 404", "twice", before=((f"DELETE {M}",),)),
    Row("POST P/mappings:preview 415", "another coat", b"x", headers=PROTOBUF | {"Content-Encoding": "br"}),
    *received("POST P/otlp/v1/metrics", 200, b"", PROTOBUF),
    Row("POST P/otlp/v1/metrics 200", "JSON", {}, key="ingest", headers={"Content-Type": "application/json"}),
    *received("POST P/remote_write", 204, b"\x00", SNAPPY),
)
