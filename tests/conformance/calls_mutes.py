"""Rows of mutes."""

from __future__ import annotations

from tests.conformance.rows import Row

M = "P/mutes/{mute_id}"
TEAM = {"field": "metadata.team", "op": "=", "value": "nobody"}
NIGHT = {"weekdays": ["sat", "sun"], "from": "22:00", "to": "06:00"}
PLAIN = {"matchers": [TEAM], "ends_ms": "{soon}", "comment": "deploy"}


def refused(note: str, field: str, **fields: object) -> Row:
    return Row("POST P/mutes 422", note, PLAIN | fields, field=field)


MUTES = (
    Row("GET P/mutes 200", "", before=((f"GET {M}",),), check=lambda r, b: b["mutes"] != []),
    Row("GET P/mutes 200", "of a state", query="state=pending", check=lambda r, b: b["mutes"] == []),
    Row("GET P/mutes 400", "no state", query="state=lost", field="state"),
    Row(
        "POST P/mutes 201",
        "plain",
        PLAIN,
        check=lambda r, b: (b["mute"]["state"], b["mute"]["matchers"]) == ("active", [TEAM]),
    ),
    Row(
        "POST P/mutes 201",
        "windows",
        {"matchers": [TEAM], "windows": [NIGHT], "zone": "Europe/Berlin", "comment": "nights"},
        check=lambda r, b: (b["mute"]["windows"], b["mute"]["ends_ms"]) == ([NIGHT], None),
    ),
    Row("POST P/mutes 201", "null is absent", PLAIN | {"all": None, "windows": None, "zone": None, "starts_ms": None}),
    Row("POST P/mutes 201", "everything", {"all": True, "ends_ms": "{soon}", "comment": "c"}),
    refused("nothing matched", "matchers", matchers=[]),
    refused("all and some", "all", all=True),
    refused("no end", "ends_ms", ends_ms=None),
    refused("an end in the past", "ends_ms", ends_ms=1),
    refused("far too long", "ends_ms", ends_ms=4_102_444_800_000),
    refused("beyond all times", "ends_ms", ends_ms=4_102_444_800_001),
    refused("no comment", "comment", comment=""),
    refused("null as comment", "comment", comment=None),
    refused("a field nobody knows", "matchers[0].field", matchers=[TEAM | {"field": "state"}]),
    refused("an op nobody knows", "matchers[0].op", matchers=[TEAM | {"op": "=~"}]),
    refused("a glob of stars", "matchers[0].value", matchers=[{"field": "name", "op": "glob", "value": "*a" * 9}]),
    refused("many matchers", "matchers", matchers=[TEAM] * 21),
    refused("a time that is none", "windows[0].to", windows=[NIGHT | {"to": "24:01"}]),
    refused("a day that is none", "windows[0].weekdays", windows=[NIGHT | {"weekdays": ["someday"]}]),
    refused("a zone that is none", "zone", windows=[NIGHT], zone="Mars/Olympus"),
    Row("POST P/mutes:preview 200", "", {"all": True}, check=lambda r, b: b["matches"] >= 1 and b["breakers"] != []),
    Row("POST P/mutes:preview 200", "nobody", {"matchers": [TEAM]}, check=lambda r, b: b["matches"] == 0),
    Row("POST P/mutes:preview 422", "nothing", {}, field="matchers"),
    Row(f"GET {M} 200", "", check=lambda r, b: b["mute"]["matches"] >= 1 and b["mute"]["holding"] == 0),
    Row(f"PATCH {M} 200", "comment", {"comment": "longer"}, check=lambda r, b: b["mute"]["comment"] == "longer"),
    Row(f"PATCH {M} 200", "matchers", {"all": False, "matchers": [TEAM]}, check=lambda r, b: not b["mute"]["all"]),
    Row(f"PATCH {M} 200", "no body"),
    Row(f"PATCH {M} 422", "no end any more", {"ends_ms": None}, field="ends_ms"),
    Row(f"PATCH {M} 422", "another start", {"starts_ms": 1}, field="starts_ms"),
    Row(f"PATCH {M} 422", "it has ended", {"comment": "x"}, before=((f"DELETE {M}",),), field="state"),
    Row(f"DELETE {M} 204", ""),
    Row(f"DELETE {M} 204", "twice", before=((f"DELETE {M}",),)),
)
