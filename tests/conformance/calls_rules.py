"""Rows of rules as code."""

from __future__ import annotations

from typing import Any

from tests.conformance.rows import Row

RULE: dict[str, Any] = {"metric": "m", "kind": "avg", "op": "gt", "threshold": 1.5}
MINE: dict[str, Any] = {"owner": "one", "breakers": {"declared": RULE}}
FRESH = {"owner": "fresh", "breakers": {"planned": RULE}}
FIRST = {"owner": "first", "breakers": {"applied": RULE}}
THEIRS = MINE | {"owner": "two"}
APPLIED = ("POST P/rules:apply", MINE)
ADOPT = {"breakers": {"by hand": RULE}}
BY_HAND = ("POST P/breakers", RULE | {"name": "by hand"})

RULES = (
    Row("GET P/rules 200", "", before=(APPLIED,), check=lambda r, b: b["breakers"]["declared"]["threshold"] == 1.5),
    Row("GET P/rules 200", "of an owner", query="owner=nobody", check=lambda r, b: not b.get("breakers")),
    Row("GET P/rules 400", "no owner's name", query="owner=a%20b"),
    Row("GET P/rules:drift 200", "none", query="owner=one", before=(APPLIED,), check=lambda r, b: b["changes"] == []),
    Row("GET P/rules:drift 400", "no owner's name", query="owner=a%20b"),
    Row("POST P/rules:plan 200", "", FRESH, check=lambda r, b: [one["act"] for one in b["changes"]] == ["create"]),
    Row("POST P/rules:plan 200", "nothing", {}, check=lambda r, b: b["count"] == 0),
    Row("POST P/rules:plan 200", "applied", MINE, before=(APPLIED,), check=lambda r, b: b["count"] == 0),
    Row("POST P/rules:plan 422", "no rule", {"breakers": {"a": {}}}),
    Row("POST P/rules:apply 200", "", FIRST, check=lambda r, b: (b["changed"], b["count"]) == (True, 1)),
    Row("POST P/rules:apply 422", "no body"),
    Row("POST P/rules:plan 422", "no body"),
    Row("GET P/rules:drift 200", "of nobody named", query="owner="),
    Row("POST P/rules:apply 200", "again", MINE, before=(APPLIED,), check=lambda r, b: b["changed"] is False),
    Row("POST P/rules:apply 400", "no flag", MINE, query="allow_destructive=0.5", before=(APPLIED,)),
    Row("POST P/rules:apply 409", "another owner's", THEIRS, before=(APPLIED,), code="not_owned"),
    Row("POST P/rules:apply 412", "another plan", FRESH, headers={"If-Match": '"x"'}),
    Row("POST P/rules:apply 422", "no rule", {"breakers": {"a": {}}}),
    Row(
        "POST P/rules:adopt 200", "", ADOPT, before=(BY_HAND,), check=lambda r, b: b["adopted"] == ["breakers.by hand"]
    ),
    Row("POST P/rules:adopt 200", "nothing", {}, check=lambda r, b: b["adopted"] == []),
    Row("POST P/rules:adopt 400", "from no owner's name", {}, query="from=a%20b"),
    Row("POST P/rules:adopt 409", "another owner's", THEIRS, before=(APPLIED,), code="not_owned"),
)
