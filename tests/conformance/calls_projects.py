"""Rows of projects, workspaces, keys, health and the description."""

from __future__ import annotations

from typing import Any

from tests.conformance.rows import Row

NEW = {"project_id": "{new_project_id}"}
EMPTY = {"workspace_id": "{new_workspace_id}"}
TOKEN = {"Authorization": "Bearer health-token"}
SCRAPER = {"Authorization": "Bearer metrics-token-of-16"}


def _actions(body: dict[str, Any]) -> set[str]:
    return {entry["action"] for entry in body["entries"]}


PROJECTS = (
    Row("GET /v1/projects 200", "all", check=lambda r, b: b["count"] == len(b["projects"]) > 0),
    Row(
        "GET /v1/projects 200", "of a workspace", query="workspace_id={workspace_id}", check=lambda r, b: b["count"] > 0
    ),
    Row("GET /v1/projects 200", "of no workspace", query="workspace_id={nil}", check=lambda r, b: b["projects"] == []),
    Row("GET /v1/projects 200", "without secrets", check=lambda r, b: "ingest_secret" not in b["projects"][0]),
    Row(
        "POST /v1/projects 201",
        "named",
        {"workspace_id": "{workspace_id}", "name": "n"},
        check=lambda r, b: b["name"] == "n",
    ),
    Row("POST /v1/projects 201", "unnamed", {"workspace_id": "{workspace_id}"}, check=lambda r, b: b["name"] != ""),
    Row("POST /v1/projects 201", "name null", {"workspace_id": "{workspace_id}", "name": None}),
    Row("POST /v1/projects 400", "a list", [], code="bad_request"),
    Row("POST /v1/projects 422", "no workspace_id", {"name": "n"}, code="validation_failed", field="workspace_id"),
    Row("POST /v1/projects 422", "workspace_id empty", {"workspace_id": ""}, field="workspace_id"),
    Row("POST /v1/projects 422", "workspace_id unknown", {"workspace_id": "{nil}"}, field="workspace_id"),
    Row("POST /v1/projects 422", "workspace of others", {"workspace_id": "{other_workspace_id}"}, field="workspace_id"),
    Row("GET P 200", "without secret", check=lambda r, b: "ingest_secret" not in b),
    Row("PATCH P 200", "name", {"name": "renamed"}, names=NEW, check=lambda r, b: b["name"] == "renamed"),
    Row(
        "PATCH P 200",
        "signing",
        {"enable_signed_ingest": True},
        names=NEW,
        check=lambda r, b: b["enable_signed_ingest"] is True,
    ),
    Row(
        "PATCH P 200",
        "template",
        {"trace_id_url_template": "https://t/{{value}}"},
        names=NEW,
        check=lambda r, b: b["trace_id_url_template"] is not None,
    ),
    Row(
        "PATCH P 200",
        "slack address is cleared by null",
        {"slack_webhook_url": None},
        names=NEW,
        before=(("PATCH P", {"slack_webhook_url": "https://hooks.slack.example/x"}),),
        check=lambda r, b: b["slack_webhook_url"] is None,
    ),
    Row(
        "PATCH P 200",
        "slack address is set",
        {"slack_webhook_url": "https://hooks.slack.example/x"},
        names=NEW,
        check=lambda r, b: isinstance(b["slack_webhook_url"], str),
    ),
    Row("PATCH P 200", "nothing", {}, names=NEW),
    Row("PATCH P 422", "wrong type", {"enable_signed_ingest": "yes"}, names=NEW, field="enable_signed_ingest"),
    Row("POST P/ingest_secret/rotate 200", "new secret", names=NEW),
    Row(
        "POST P/ingest_secret/rotate 422",
        "long key",
        names=NEW,
        headers={"Idempotency-Key": "k" * 256},
        field="Idempotency-Key",
    ),
    Row("POST P/ingest_secret/rotate 400", "overlap below 0", names=NEW, query="overlap_ms=-1", field="overlap_ms"),
    Row("DELETE P 204", "", names=NEW),
    Row("DELETE P 204", "confirmed", {"confirm_name": "x"}, names=NEW, before=(("PATCH P", {"name": "x"}),)),
    Row("DELETE P 422", "another name", {"confirm_name": "y"}, names=NEW, before=(("PATCH P", {"name": "x"}),)),
    Row("GET P/status 200", "", key="project"),
    Row("GET P/status 304", "held", key="project", headers={"If-None-Match": "*"}),
    Row("HEAD P/status 200", "", key="project"),
    Row("HEAD P/status 304", "held", key="project", headers={"If-None-Match": "*"}),
)

WORKSPACES = (
    Row("GET /v1/workspaces 200", "", check=lambda r, b: len(b["workspaces"]) > 0),
    Row("POST /v1/workspaces 201", "", {"name": "w", "slug": "w-1"}, check=lambda r, b: b["slug"] == "w-1"),
    Row("POST /v1/workspaces 422", "no name", {"slug": "w"}, field="name"),
    Row("POST /v1/workspaces 422", "no slug", {"name": "w"}, field="slug"),
    Row("GET /v1/workspaces/{workspace_id} 200", ""),
    Row("PATCH /v1/workspaces/{workspace_id} 200", "", {"name": "z"}, names=EMPTY, check=lambda r, b: b["name"] == "z"),
    Row("PATCH /v1/workspaces/{workspace_id} 422", "wrong type", {"name": 3}, names=EMPTY, field="name"),
    Row("DELETE /v1/workspaces/{workspace_id} 204", "", names=EMPTY),
    Row("DELETE /v1/workspaces/{workspace_id} 409", "has projects", code="workspace_has_projects"),
    Row("GET /v1/workspaces/{workspace_id} 404", "of others", names={"workspace_id": "{other_workspace_id}"}),
)

KEYS = (
    Row("GET P/keys 200", "", before=(("POST P/keys", {}),), check=lambda r, b: b["count"] == len(b["keys"]) > 0),
    Row("GET P/keys 200", "without keys themselves", check=lambda r, b: all("key" not in one for one in b["keys"])),
    Row(
        "POST P/keys 201",
        "named",
        {"name": "ci"},
        check=lambda r, b: b["name"] == "ci" and b["key"].startswith("eb_pk_"),
    ),
    Row(
        "POST P/keys 201",
        "an ingest token",
        {"kind": "ingest"},
        check=lambda r, b: b["kind"] == "ingest" and b["key"].startswith("eb_ingest_"),
    ),
    Row("POST P/keys 422", "another kind", {"kind": "admin"}, field="kind"),
    Row("POST P/keys 201", "unnamed", {}, check=lambda r, b: b["name"] != ""),
    Row("POST P/keys 201", "no body"),
    Row("POST P/keys 422", "wrong type", {"name": 3}, field="name"),
    Row("DELETE P/keys/{key_id} 204", ""),
)

AUDIT = (
    Row("GET P/audit 200", "", check=lambda r, b: b["returned"] == len(b["entries"]) > 0),
    Row("GET P/audit 200", "a page", query="limit=1", check=lambda r, b: isinstance(b["next_cursor"], str)),
    Row("GET P/audit 400", "limit", query="limit=0", field="limit"),
    Row("GET P/audit 400", "cursor", query="cursor=x", field="cursor"),
    Row("GET P/audit 200", "an action", query="action=project.", check=lambda r, b: _actions(b) <= {"project.create"}),
    Row("GET P/audit 200", "a thing", query="target_id={nil}", check=lambda r, b: b["entries"] == []),
    Row("GET P/audit 400", "action", query="action=A", field="action"),
    Row("GET P/audit 400", "target", query="target_id=x", field="target_id"),
    Row("GET /v1/audit 200", "", check=lambda r, b: "key.create" in _actions(b)),
    Row("GET /v1/audit 200", "nothing of projects", query="action=project.", check=lambda r, b: b["returned"] == 0),
    Row("GET /v1/audit 400", "limit", query="limit=0", field="limit"),
    Row("GET /v1/audit 400", "action", query="action=breaker..", field="action"),
)

ADMIN = (
    Row(
        "GET /v1/admin/status 200",
        "",
        key="admin",
        check=lambda r, b: {"journal-0", "directory", "router-0"} <= {actor["name"] for actor in b["actors"]},
    ),
    Row("POST /v1/admin/rebalance 200", "", {"max": 1}, key="admin"),
    Row("POST /v1/admin/rebalance 200", "no body", key="admin"),
    Row("POST /v1/admin/rebalance 422", "nothing to move", {"max": 0}, key="admin", field="max"),
)

HEALTH = (
    *(
        Row(f"{method} /api/{name} 200", "", key=None)
        for name in ("health", "healthz", "readyz")
        for method in ("GET", "HEAD")
    ),
    *(
        Row(f"{method} /api/{name} 200", "token", key=None, headers=TOKEN, app="token")
        for name in ("health", "healthz", "readyz")
        for method in ("GET", "HEAD")
    ),
    *(
        Row(f"{method} /api/{name} 401", "no token", key=None, app="token")
        for name in ("health", "healthz", "readyz")
        for method in ("GET", "HEAD")
    ),
    Row("GET /api/readyz 503", "not ready", key=None, app="down", code="not_ready"),
    Row("HEAD /api/readyz 503", "not ready", key=None, app="down"),
    Row("GET /openapi.json 200", "", key=None, check=lambda r, b: b["openapi"].startswith("3.1")),
    Row(
        "GET /metrics 200",
        "token",
        key=None,
        headers=SCRAPER,
        app="token",
        check=lambda r, b: r.mimetype == "text/plain",
    ),
    Row("GET /metrics 401", "no token", key=None, app="token"),
    Row("GET /metrics 401", "a key", key="admin"),
    Row("GET /docs 200", "", key=None, check=lambda r, b: r.mimetype == "text/html"),
    Row("GET /docs/rapidoc.js 200", "", key=None, check=lambda r, b: r.mimetype == "text/javascript"),
)
