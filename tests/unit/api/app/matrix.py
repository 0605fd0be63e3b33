"""What every operation answers to every kind of caller about every project, as rules: one row per operation, and a
function that makes the expected status from it. Written without looking at the code's own table of rights."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tests.support.asgi import Headers
from tests.support.estate import HEALTH_TOKEN, METRICS_TOKEN, Ids
from tests.support.fake_gateway import NOW_MS
from tests.support.web_world import RULE

Rule = Literal[
    "open", "probe", "signed", "organisation", "manage", "rules", "runtime", "metadata", "operate", "metrics", "ingest"
]
ABSENT = "3f2b8c1e-0000-4000-8000-000000000000"
MALFORMED = "any"


@dataclass(frozen=True)
class Caller:
    """Somebody with an Authorization header. `org`, `project`: of whom the key is; `project` "" is all of it. `basic`:
    it is a password, which nobody takes but who takes samples; `token`: it looks like an ingest token."""

    header: str | None
    kind: Literal["nobody", "health", "metrics", "user", "admin", "project", "reader", "ingest"] = "nobody"
    org: str = ""
    project: str = ""
    basic: bool = False
    token: bool = False

    @property
    def headers(self) -> Headers:
        return [] if self.header is None else [("Authorization", self.header)]


def password(key: str, user: str = "any") -> str:
    """The header of HTTP Basic."""
    return "Basic " + base64.b64encode(f"{user}:{key}".encode()).decode()


def callers(keys: dict[str, str]) -> dict[str, Caller]:
    """All kinds of them by name."""
    held = {name: f"Bearer {key}" for name, key in keys.items()}
    return {
        "none": Caller(None),
        "empty": Caller("Bearer "),
        "no scheme": Caller(keys["admin"]),
        "another scheme": Caller(f"Basic {keys['admin']}"),
        "malformed": Caller(f"Bearer {keys['admin']}\u00e9"),
        "unknown": Caller("Bearer eb_admin_" + "0" * 40),
        "revoked": Caller(held["revoked"]),
        "health": Caller(f"Bearer {HEALTH_TOKEN}", "health"),
        "metrics": Caller(f"Bearer {METRICS_TOKEN}", "metrics"),
        "user": Caller(held["user"], "user", "ours"),
        "admin": Caller(held["admin"], "admin", "ours"),
        "project": Caller(held["project"], "project", "ours", "ours"),
        "project of the second": Caller(held["second"], "project", "ours", "second"),
        "reader": Caller(held["reader"], "reader", "ours", "ours"),
        "reader of the second": Caller(held["second_reader"], "reader", "ours", "second"),
        "foreign reader": Caller(held["foreign_reader"], "reader", "theirs", "theirs"),
        "ingest": Caller(held["ingest"], "ingest", "ours", "ours", token=True),
        "ingest as a password": Caller(password(keys["ingest"]), "ingest", "ours", "ours", basic=True, token=True),
        "foreign user": Caller(held["stranger"], "user", "theirs"),
        "foreign admin": Caller(held["foreign_admin"], "admin", "theirs"),
        "foreign project": Caller(held["foreign_project"], "project", "theirs", "theirs"),
    }


def senders(keys: dict[str, str]) -> dict[str, Caller]:
    """More of those who post samples."""
    wrong = "eb_ingest_" + "0" * 64
    return {
        "ingest of the second": Caller(f"Bearer {keys['second_ingest']}", "ingest", "ours", "second", token=True),
        "foreign ingest": Caller(password(keys["foreign_ingest"]), "ingest", "theirs", "theirs", True, True),
        "revoked ingest": Caller(f"Bearer {keys['revoked_ingest']}", token=True),
        "unknown ingest": Caller(f"bearer {wrong}", token=True),
        "unknown ingest as a password": Caller(password(wrong, ""), basic=True, token=True),
        "project as a password": Caller(password(keys["project"]), "project", "ours", "ours", True),
        "ingest as a user name": Caller(password("", keys["ingest"]), basic=True),
        "no password": Caller("Basic " + base64.b64encode(b"any").decode(), basic=True),
    }


@dataclass(frozen=True)
class Row:
    """An operation. `passes`: its status for who is let in, about things in the state that `estate` makes; it says that
    the request got through, success or not. `body` may name {ids}."""

    rule: Rule
    passes: int = 200
    body: Any = None

    def filled(self, ids: Ids) -> Any:
        return _fill(self.body, ids)


def _fill(value: Any, ids: Ids) -> Any:
    if isinstance(value, str):
        return value.format(**ids)
    if isinstance(value, list):
        return [_fill(item, ids) for item in value]
    return {key: _fill(item, ids) for key, item in value.items()} if isinstance(value, dict) else value


SOON_MS = NOW_MS + 3_600_000
MAPPING = {"matchers": [{"field": "name", "op": "=", "value": "m"}], "to": {"router": "label.router"}}
HAS_PROJECTS = HAS_BREAKERS = 409
WRONG_TYPE = 415
SENDS_NOTHING = 422
"""The channel has no address: its test can't be sent."""

ROWS: dict[str, Row] = {
    "list_workspaces": Row("organisation"),
    "create_workspace": Row("organisation", 201, {"name": "n", "slug": "s"}),
    "get_workspace": Row("manage"),
    "update_workspace": Row("manage", 200, {"name": "n"}),
    "delete_workspace": Row("manage", HAS_PROJECTS),
    "list_projects": Row("organisation"),
    "create_project": Row("organisation", 201, {"workspace_id": "{workspace_id}"}),
    "get_project": Row("manage"),
    "update_project": Row("manage", 200, {"name": "n"}),
    "delete_project": Row("manage", 204),
    "rotate_secret": Row("manage"),
    "get_status": Row("runtime"),
    "head_status": Row("runtime"),
    "ingest": Row("signed", 202, []),
    "receive_otlp": Row("ingest", WRONG_TYPE, {}),
    "receive_remote_write": Row("ingest", WRONG_TYPE, {}),
    "list_breakers": Row("manage"),
    "create_breaker": Row("manage", 201, RULE),
    "replace_breakers": Row("manage", 200, {"breakers": [{"id": "{breaker_id}", **RULE}]}),
    "get_breaker": Row("manage"),
    "update_breaker": Row("manage", 200, {"threshold": 7}),
    "delete_breaker": Row("manage", 204),
    "compare_shadow": Row("manage", 422),
    "list_overrides": Row("manage"),
    "set_overrides": Row("manage", 200, {"kind": "force_open", "reason": "why", "all": True}),
    "preview_overrides": Row("manage", 200, {"all": True}),
    "end_overrides": Row("manage", 200, {"all": True}),
    "get_override": Row("manage"),
    "set_override": Row("manage", 200, {"kind": "force_open", "reason": "why"}),
    "end_override": Row("manage", 204),
    "get_state": Row("runtime"),
    "get_states": Row("runtime", 200, {"breaker_ids": ["{breaker_id}"]}),
    "stream_states": Row("runtime"),
    "list_breaker_metadata": Row("runtime"),
    "head_breaker_metadata": Row("runtime"),
    "update_breaker_metadata": Row("metadata", 200, {"metadata": {"a": "b"}}),
    "list_events": Row("manage"),
    "list_audit": Row("manage"),
    "list_org_audit": Row("organisation"),
    "list_routers": Row("manage"),
    "create_router": Row("manage", 201, {}),
    "get_router": Row("manage"),
    "update_router": Row("manage", 200, {"name": "n"}),
    "delete_router": Row("manage", HAS_BREAKERS),
    "link_breakers": Row("manage", 200, {"breaker_id": "{breaker_id}"}),
    "unlink_breaker": Row("manage", 204),
    "list_router_metadata": Row("runtime"),
    "update_router_metadata": Row("metadata", 200, {"metadata": {"a": "b"}}),
    "list_channels": Row("manage"),
    "create_channel": Row("manage", 201, {"channel": "webhook", "config": {}}),
    "get_channel": Row("manage"),
    "update_channel": Row("manage", 200, {"enabled": False}),
    "delete_channel": Row("manage", 204),
    "test_channel": Row("manage", SENDS_NOTHING),
    "list_deliveries": Row("manage"),
    "redrive_delivery": Row("manage", 202),
    "list_mutes": Row("manage"),
    "create_mute": Row("manage", 201, {"all": True, "ends_ms": SOON_MS, "comment": "c"}),
    "preview_mute": Row("manage", 200, {"all": True}),
    "get_mute": Row("manage"),
    "update_mute": Row("manage", 200, {"comment": "c"}),
    "end_mute": Row("manage", 204),
    "list_mappings": Row("manage"),
    "create_mapping": Row("manage", 201, MAPPING),
    "replace_mappings": Row("manage", 200, {"mappings": [{"name": "n", **MAPPING}]}),
    "preview_mappings": Row("manage", 200, {"series": [{"name": "n"}]}),
    "get_mapping": Row("manage"),
    "update_mapping": Row("manage", 200, {"name": "n"}),
    "delete_mapping": Row("manage", 204),
    "export_rules": Row("rules"),
    "drift_rules": Row("rules"),
    "plan_rules": Row("rules", 200, {"breakers": {"n": RULE}}),
    "apply_rules": Row("manage", 200, {"breakers": {"n": RULE}}),
    "adopt_rules": Row("manage", 200, {}),
    "list_keys": Row("manage"),
    "create_key": Row("manage", 201, {}),
    "delete_key": Row("manage", 204),
    **{f"{method}_{name}": Row("probe") for method in ("get", "head") for name in ("health", "healthz", "readyz")},
    "cluster_status": Row("operate"),
    "rebalance": Row("operate", 200, {}),
    "openapi_document": Row("open"),
    "docs_page": Row("open"),
    "docs_script": Row("open"),
    "get_metrics": Row("metrics"),
}

LET_IN: dict[Rule, tuple[str, ...]] = {
    "organisation": ("user", "admin"),
    "manage": ("user", "admin"),
    "rules": ("user", "admin", "reader"),
    "runtime": ("user", "admin", "project", "reader"),
    "metadata": ("admin",),
    "operate": ("admin",),
    "ingest": ("ingest",),
}
"""The kinds of keys that have the right."""


@dataclass(frozen=True)
class Target:
    """What the ids of a path name: everything of one project (`of`), or, for one of them (`odd`), of another."""

    of: str
    odd: str = ""
    odd_of: str = ""

    def ids(self, all_ids: dict[str, Ids]) -> Ids:
        known = _named(self.of, all_ids)
        return known | ({self.odd: _named(self.odd_of, all_ids)[self.odd]} if self.odd else {})

    def is_reached_by(self, caller: Caller) -> bool:
        mine = self.of in (("ours", "second") if caller.org == "ours" else ("theirs",))
        return mine and caller.project in ("", self.of) and not self.odd


def _named(project: str, all_ids: dict[str, Ids]) -> Ids:
    if project in all_ids:
        return all_ids[project]
    return dict.fromkeys(all_ids["ours"], ABSENT if project == "absent" else MALFORMED)


def targets(names: list[str]) -> Iterator[Target]:
    """Of a path with these ids: whole projects; then each id but the first in turn is one of another project."""
    if not names:
        yield Target("ours")
        return
    for of in ("ours", "second", "theirs", "absent", "malformed"):
        yield Target(of)
    for odd in names[1:]:
        for odd_of in ("second", "theirs", "absent", "malformed"):
            yield Target("ours", odd, odd_of)


def expected(row: Row, caller: Caller, target: Target) -> int:
    """401 before 403 before 404, whatever the operation."""
    there = target.of not in ("absent", "malformed")
    match row.rule:
        case "open":
            return row.passes
        case "probe":
            return row.passes if caller.kind == "health" else 401
        case "metrics":
            return row.passes if caller.kind == "metrics" else 401
        case "signed":
            if not caller.token:
                return row.passes if there else 404
    if caller.basic and row.rule not in ("signed", "ingest"):
        return 401
    if caller.kind in ("nobody", "health", "metrics"):
        return 401
    if row.rule != "signed" and caller.kind not in LET_IN[row.rule]:
        return 403
    match row.rule:
        case "organisation":
            return row.passes
        case "operate":
            return row.passes if caller.org == "ours" else 403
    return row.passes if target.is_reached_by(caller) else 404
