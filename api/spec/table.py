"""All operations of the interface, one entry each. A test holds them against the app's routes, both ways."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from api.query import LIMIT_DEFAULT, LIMIT_MAX
from api.spec import answers as a
from api.spec import requests as r
from api.spec.operation import GONE, Answer, Either, Operation, Parameter, conditional, made, ok
from api.spec.types import Cursor, DeliveryState, Moment, NumberCursor, Uuid

Op = Operation
V1, P = "/v1", "/v1/projects/{project_id}"
B, R, N, K = f"{P}/breakers", f"{P}/routers", f"{P}/notification-channels", f"{P}/keys"
B1, R1, N1 = f"{B}/{{breaker_id}}", f"{R}/{{router_id}}", f"{N}/{{channel_id}}"

IF_NONE_MATCH = Parameter("If-None-Match", "header", str, "Entity tags the caller holds.")
IF_MATCH = Parameter("If-Match", "header", str, "Replace only while the set has one of these entity tags.")
DESTRUCTIVE = Parameter("allow_destructive", "query", bool, "true overrides the guardrail.")
WORKSPACE = Parameter("workspace_id", "query", str, "Only projects of this workspace.")
SIGNATURE = (
    Parameter("X-EB-Timestamp", "header", str, "Unix time in milliseconds; part of what is signed."),
    Parameter("Idempotency-Key", "header", str, "A request with the same key within 10 minutes is applied once."),
    Parameter("Content-Encoding", "header", Literal["gzip", "identity", ""], "gzip, or nothing."),
)
Whole = Annotated[int, Meta(ge=-(10**18) + 1, le=10**18 - 1, extra_json_schema={"format": "int64"})]
Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX, extra_json_schema={"default": LIMIT_DEFAULT})]
EVENTS = (
    Parameter("since_ms", "query", Whole, "Events newer than this."),
    Parameter("start_time", "query", Moment, "Events at this time or newer."),
    Parameter("end_time", "query", Moment, "Events at this time or older."),
    Parameter("breaker_id", "query", Uuid, "Only events of this breaker."),
    Parameter("after_sequence", "query", Whole, "Oldest first from here: the poll that misses nothing."),
    Parameter("cursor", "query", Cursor, "next_cursor of a previous answer."),
    Parameter("limit", "query", Limit, "Events in one answer."),
    Parameter("source", "query", Literal["live", "backfill", "all"], "live: what happened (the default)."),
)
AUDIT = (
    Parameter("cursor", "query", NumberCursor, "next_cursor of a previous answer."),
    Parameter("limit", "query", Limit, "Entries in one answer."),
)
DELIVERIES = (
    Parameter("state", "query", DeliveryState, "Only deliveries in this state."),
    Parameter("cursor", "query", NumberCursor, "next_cursor of a previous answer."),
    Parameter("limit", "query", Limit, "Deliveries in one answer."),
)
REDRIVEN = {202: Answer(a.DeliveryList, "They are pending again: the dead ones of the same outage, in order.")}
STREAM = {200: Answer(str, "States of all breakers, then every change.", "text/event-stream", ("Cache-Control",))}
METADATA = Either((r.MetadataPatch, r.MetadataChange))
STATUS_BOTH = conditional(a.ProjectStatus)

OPERATIONS: tuple[Operation, ...] = (
    Op("GET", f"{V1}/workspaces", "list_workspaces", "All workspaces", "manage", ok(a.WorkspaceList)),
    Op(
        "POST",
        f"{V1}/workspaces",
        "create_workspace",
        "Make a workspace",
        "manage",
        made(a.Workspace),
        (),
        r.WorkspaceCreate,
        links=("workspace_id",),
    ),
    Op("GET", f"{V1}/workspaces/{{workspace_id}}", "get_workspace", "One workspace", "manage", ok(a.Workspace), (404,)),
    Op(
        "PATCH",
        f"{V1}/workspaces/{{workspace_id}}",
        "update_workspace",
        "Change a workspace",
        "manage",
        ok(a.Workspace),
        (404,),
        r.WorkspacePatch,
        False,
    ),
    Op(
        "DELETE",
        f"{V1}/workspaces/{{workspace_id}}",
        "delete_workspace",
        "Delete an empty workspace",
        "manage",
        GONE,
        (404, 409),
    ),
    Op("GET", f"{V1}/projects", "list_projects", "All projects", "manage", ok(a.ProjectList), parameters=(WORKSPACE,)),
    Op(
        "POST",
        f"{V1}/projects",
        "create_project",
        "Make a project",
        "manage",
        made(a.NewProject),
        (),
        r.ProjectCreate,
        links=("project_id",),
    ),
    Op("GET", P, "get_project", "One project", "manage", ok(a.Project)),
    Op("PATCH", P, "update_project", "Change a project", "manage", ok(a.Project), (), r.ProjectPatch, False),
    Op(
        "DELETE",
        P,
        "delete_project",
        "Delete a project with all it has",
        "manage",
        GONE,
        (),
        r.ProjectDelete,
        False,
        lenient=True,
    ),
    Op(
        "POST", f"{P}/ingest_secret/rotate", "rotate_secret", "Replace the ingest secret", "manage", ok(a.RotatedSecret)
    ),
    Op(
        "GET",
        f"{P}/status",
        "get_status",
        "How many breakers are closed or open",
        "read_runtime",
        STATUS_BOTH,
        parameters=(IF_NONE_MATCH,),
    ),
    Op(
        "HEAD",
        f"{P}/status",
        "head_status",
        "The status' ETag",
        "read_runtime",
        STATUS_BOTH,
        parameters=(IF_NONE_MATCH,),
    ),
    Op(
        "POST",
        f"{P}/ingest",
        "ingest",
        "Take samples",
        "signed",
        {202: Answer(a.Accepted, "In the sample log.")},
        (),
        r.Samples | list[r.MetricSample],
        parameters=SIGNATURE,
    ),
    Op("GET", B, "list_breakers", "All breakers", "manage", conditional(a.BreakerList), parameters=(IF_NONE_MATCH,)),
    Op(
        "POST",
        B,
        "create_breaker",
        "Make a breaker, with a router",
        "manage",
        made(a.BreakerSingle),
        (409,),
        r.BreakerCreate,
        links=("breaker_id",),
    ),
    Op(
        "PUT",
        B,
        "replace_breakers",
        "Replace the whole set",
        "manage",
        ok(a.BulkResult),
        (409, 412),
        r.BreakersReplace,
        parameters=(IF_MATCH, DESTRUCTIVE),
    ),
    Op("GET", B1, "get_breaker", "One breaker", "manage", ok(a.BreakerSingle)),
    Op("PATCH", B1, "update_breaker", "Change a breaker", "manage", ok(a.BreakerSingle), (), r.BreakerPatch, False),
    Op("DELETE", B1, "delete_breaker", "Delete a breaker", "manage", GONE),
    Op("GET", f"{B1}/state", "get_state", "The state of a breaker", "read_runtime", ok(a.BreakerState)),
    Op(
        "POST",
        f"{B}/state:batch",
        "get_states",
        "States of many breakers",
        "read_runtime",
        ok(a.BreakerStateList),
        (),
        r.StateBatch,
    ),
    Op("GET", f"{B}/state:stream", "stream_states", "States as server-sent events", "read_runtime", STREAM),
    Op(
        "GET",
        f"{B}/metadata",
        "list_breaker_metadata",
        "Metadata of all breakers",
        "read_runtime",
        conditional(a.BreakerMetadataList),
        parameters=(IF_NONE_MATCH,),
    ),
    Op(
        "HEAD",
        f"{B}/metadata",
        "head_breaker_metadata",
        "Its ETag",
        "read_runtime",
        conditional(a.BreakerMetadataList),
        parameters=(IF_NONE_MATCH,),
    ),
    Op(
        "PATCH",
        f"{B1}/metadata",
        "update_breaker_metadata",
        "Merge metadata of a breaker",
        "edit_metadata",
        ok(a.BreakerSingle),
        (),
        METADATA,
    ),
    Op(
        "GET",
        f"{P}/events",
        "list_events",
        "State changes, newest first",
        "manage",
        ok(a.EventList, "X-Latest-Timestamp"),
        (400,),
        parameters=EVENTS,
    ),
    Op(
        "GET",
        f"{P}/audit",
        "list_audit",
        "Changes of configuration, newest first",
        "manage",
        ok(a.AuditList),
        (400,),
        parameters=AUDIT,
    ),
    Op("GET", R, "list_routers", "All routers", "manage", ok(a.RouterList)),
    Op(
        "POST",
        R,
        "create_router",
        "Make a router",
        "manage",
        made(a.RouterSingle),
        (),
        r.RouterCreate,
        False,
        links=("router_id",),
    ),
    Op("GET", R1, "get_router", "One router", "manage", ok(a.RouterSingle)),
    Op("PATCH", R1, "update_router", "Change a router", "manage", ok(a.RouterSingle), (), r.RouterPatch, False),
    Op("DELETE", R1, "delete_router", "Delete a router without breakers", "manage", GONE, (409,)),
    Op(
        "POST",
        f"{R1}/breakers",
        "link_breakers",
        "Link breakers to a router",
        "manage",
        ok(a.RouterSingle),
        (),
        r.RouterLink,
    ),
    Op("DELETE", f"{R1}/breakers/{{breaker_id}}", "unlink_breaker", "Unlink a breaker", "manage", GONE),
    Op(
        "GET",
        f"{R}/metadata",
        "list_router_metadata",
        "Metadata of all routers",
        "read_runtime",
        conditional(a.RouterMetadataList),
        parameters=(IF_NONE_MATCH,),
    ),
    Op(
        "PATCH",
        f"{R1}/metadata",
        "update_router_metadata",
        "Merge metadata of a router",
        "edit_metadata",
        ok(a.RouterSingle),
        (),
        METADATA,
    ),
    Op("GET", N, "list_channels", "All notification channels", "manage", ok(a.ChannelList)),
    Op(
        "POST",
        N,
        "create_channel",
        "Make a channel",
        "manage",
        made(a.ChannelSingle),
        (),
        r.ChannelCreate,
        links=("channel_id",),
    ),
    Op("GET", N1, "get_channel", "One channel", "manage", ok(a.Channel)),
    Op("PATCH", N1, "update_channel", "Change a channel", "manage", ok(a.ChannelSingle), (), r.ChannelPatch, False),
    Op("DELETE", N1, "delete_channel", "Delete a channel", "manage", GONE),
    Op("POST", f"{N1}/test", "test_channel", "Send a test notification", "manage", ok(a.ChannelTest), (422,)),
    Op(
        "GET",
        f"{N1}/deliveries",
        "list_deliveries",
        "What was told on a channel, what waits and why, newest first",
        "manage",
        ok(a.DeliveryList),
        (400,),
        parameters=DELIVERIES,
    ),
    Op(
        "POST",
        f"{N1}/deliveries/{{delivery_id}}/redrive",
        "redrive_delivery",
        "Send a dead delivery again",
        "manage",
        REDRIVEN,
        (409,),
    ),
    Op("GET", K, "list_keys", "Keys of a project", "manage", ok(a.ProjectKeyList)),
    Op(
        "POST",
        K,
        "create_key",
        "Make a project key",
        "manage",
        made(a.NewProjectKey),
        (),
        r.ProjectKeyCreate | None,
        False,
        links=("key_id",),
    ),
    Op("DELETE", f"{K}/{{key_id}}", "delete_key", "Revoke a key", "manage", GONE),
    *(
        Op(method, f"/api/{name}", f"{method.lower()}_{name}", "Liveness", "probe", ok(a.Health))
        for name in ("health", "healthz")
        for method in ("GET", "HEAD")
    ),
    *(
        Op(method, "/api/readyz", f"{method.lower()}_readyz", "Readiness", "probe", ok(a.Health), (503,))
        for method in ("GET", "HEAD")
    ),
    Op(
        "GET",
        f"{V1}/admin/status",
        "cluster_status",
        "How the service is doing (ours, for its operator)",
        "operate",
        ok(a.ClusterStatus),
    ),
    Op(
        "POST",
        f"{V1}/admin/rebalance",
        "rebalance",
        "Spread breakers over actors, one step (ours, for its operator)",
        "operate",
        ok(a.Rebalanced),
        (),
        r.Rebalance,
        False,
    ),
    Op("GET", "/openapi.json", "openapi_document", "This document", "open", ok(a.Document)),
    Op("GET", "/docs", "docs_page", "This document as a page", "open", {200: Answer(str, "A page.", "text/html")}),
)
