"""Examples for the description. A test reads each with the type it stands for."""

from __future__ import annotations

from typing import Any

from api.wire import requests as r
from api.wire import responses as a
from api.wire.decoding import Samples
from api.wire.requests_accounts import ChannelCreate
from api.wire.requests_mappings import MappingCreate, MappingsPreview
from api.wire.types import AT_MS, ID, INSTANT

ROUTER_ID = "5f2d1b7e-93a4-4f0a-8f6c-0a1b2c3d4e5f"
RULE: dict[str, Any] = {"metric": "latency", "kind": "avg", "op": "gt", "threshold": 500.0, "window_ms": 60000}
OPTIONS: dict[str, Any] = {
    "eval_interval_ms": 10000,
    "min_count": 1,
    "min_state_duration_ms": 60000,
    "cooldown_ms": 0,
    "half_open_backoff_enabled": True,
    "half_open_backoff_cap_ms": 300000,
    "half_open_indeterminate_policy": "conservative",
    "recovery_allow_rate_ramp_steps": 5,
    "kind_params": None,
    "actions": None,
    "metadata": {"team": "payments"},
}
BREAKER = {"id": ID, "name": "checkout", **RULE, **OPTIONS, "router_id": ROUTER_ID, "router_ids": [ROUTER_ID]}
BREAKER |= {"mode": "enforce", "shadow_of": None}
BREAKER |= {"half_open_confirmation_ms": 60000, "recovery_window_ms": 50000}
SAMPLE = {"router_id": ROUTER_ID, "metric": "latency", "ts_ms": AT_MS, "value": 812.5, "ok": True}
PAGE = {"next_cursor": None, "cursor": None, "has_more": False}
PROJECT = {
    "project_id": ID,
    "id": ID,
    "workspace_id": ROUTER_ID,
    "name": "shop",
    "enable_signed_ingest": False,
    "slack_webhook_url": None,
    "override_max_ms": None,
    "trace_id_url_template": "https://traces.example/{{value}}",
}
EVENT = {
    "id": f"{ID}.1",
    "sequence": 7,
    "project_id": ID,
    "breaker_id": ID,
    "name": "checkout",
    "prev": "closed",
    "curr": "open",
    "from_state": "closed",
    "to_state": "open",
    "reason": "threshold_exceeded",
    "ts_ms": AT_MS,
    "timestamp": INSTANT,
    "transition_seq": 1,
    "rule": {"kind": "avg", "metric": "latency", "threshold": 500.0, "window_ms": 60000, "tags": {}},
    "agg": {"avg": 812.5, "count": 4, "error_count": 0, "p95": 900.0},
}

EXAMPLES: dict[Any, Any] = {
    a.Project: PROJECT,
    a.NewProject: PROJECT | {"ingest_secret": "0f" * 32},
    a.BreakerSingle: BREAKER | {"breaker": BREAKER},
    a.EventList: {"events": [EVENT], "items": [EVENT], "returned": 1, **PAGE},
    a.Accepted: {"accepted": 1},
    a.Health: {"status": "ok"},
    a.Ready: {"status": "ready"},
    a.ProjectStatus: {"closed_count": 3, "open_count": 1, "half_open_count": 0, "last_eval_ms": AT_MS},
    r.ProjectCreate: {"workspace_id": ROUTER_ID, "name": "shop"},
    r.ProjectPatch: {"enable_signed_ingest": True, "slack_webhook_url": None},
    r.BreakerCreate: {"name": "checkout", **RULE},
    r.BreakerPatch: {"threshold": 750.0, "cooldown_ms": 5000},
    r.BreakersReplace: {"breakers": [{"name": "checkout", **RULE}]},
    r.StateBatch: {"breaker_ids": [ID], "router_ids": [ROUTER_ID]},
    r.RouterCreate: {"name": "edge", "mode": "canary", "breaker_ids": [ID]},
    r.RouterLink: {"breaker_ids": [ID]},
    MappingCreate: {
        "name": "checkout latency",
        "matchers": [
            {"field": "name", "op": "=", "value": "http.client.request.duration"},
            {"field": "resource.service.name", "op": "=", "value": "checkout"},
        ],
        "to": {"router": "label.server.address", "metric": "latency", "scale": 1000.0},
    },
    MappingsPreview: {
        "series": [
            {
                "name": "http.client.request.duration",
                "labels": {"server.address": "payments", "http.response.status_code": "503"},
                "type": "histogram",
            }
        ]
    },
    ChannelCreate: {"channel": "webhook", "config": {"url": "https://hooks.example/breakers"}},
    Samples: {"samples": [SAMPLE]},
}
