"""All operations of the interface, one entry each. A test holds them against the app's routes, both ways."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from api.openapi.operation import (
    GONE,
    ONCE,
    STRICT_SAMPLES,
    Answer,
    Either,
    Operation,
    Parameter,
    creating,
    editing,
    ok,
    polled,
)
from api.wire import comparison, overrides
from api.wire import requests as r
from api.wire import requests_accounts as ra
from api.wire import requests_mappings as rp
from api.wire import requests_mutes as rm
from api.wire import requests_rules as rr
from api.wire import responses as a
from api.wire import responses_accounts as accounts
from api.wire import responses_admin as admin
from api.wire import responses_deliveries as deliveries
from api.wire import responses_mappings as mappings
from api.wire import responses_mutes as mutes
from api.wire import responses_rules as rules
from api.wire.decoding import MetricSample, Samples
from api.wire.query import ACTION_PATTERN, LIMIT_DEFAULT, LIMIT_MAX
from api.wire.types import Cursor, Moment, NumberCursor, Uuid
from breaker_actors.store.rows import DeliveryState, MuteState

Op = Operation


class Document(a.Answer, kw_only=True):
    """This document."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]


V1, P = "/v1", "/v1/projects/{project_id}"
B, R, N, K = f"{P}/breakers", f"{P}/routers", f"{P}/notification-channels", f"{P}/keys"
M = f"{P}/mutes"
MP = f"{P}/mappings"
RU = f"{P}/rules"
WRITTEN = tuple(f"X-Prometheus-Remote-Write-{what}-Written" for what in ("Samples", "Histograms", "Exemplars"))
W, S, BM, RM = f"{V1}/workspaces", f"{P}/status", f"{B}/metadata", f"{R}/metadata"
OV = f"{B}/{{breaker_id}}/override"
OVS = f"{P}/overrides"
W1, B1, R1, N1 = f"{W}/{{workspace_id}}", f"{B}/{{breaker_id}}", f"{R}/{{router_id}}", f"{N}/{{channel_id}}"

WHOLE_MAX = 10**18 - 1
Whole = Annotated[int, Meta(ge=-WHOLE_MAX, le=WHOLE_MAX, extra_json_schema={"format": "int64"})]
Since = Annotated[int, Meta(ge=0, le=WHOLE_MAX, extra_json_schema={"format": "int64"})]
Until = Annotated[int, Meta(ge=1, le=WHOLE_MAX, extra_json_schema={"format": "int64"})]
Overlap = Annotated[int, Meta(ge=0, le=600_000, extra_json_schema={"default": 600_000})]
IF_MATCH = Parameter("If-Match", "header", str, "Replace only while the set has one of these entity tags.")
DESTRUCTIVE = Parameter("allow_destructive", "query", bool, "true overrides the guardrail.")
BREAKER_MATCH = Parameter("If-Match", "header", str, "Change only while the breaker has one of these entity tags.")
OVERRIDE_MATCH = Parameter("If-Match", "header", str, "Only while the override in force has this entity tag.")
END_REASON = Parameter("reason", "query", Annotated[str, Meta(max_length=500)], "Why it is ended.")
SPAN_SINCE = Parameter("since_ms", "query", Since, "The span begins then; a day before its end unless said.")
SPAN_UNTIL = Parameter("until_ms", "query", Until, "The span ends then; now unless said.")
OVERLAP = Parameter("overlap_ms", "query", Overlap, "The old secret counts so long; at most, and unsaid: 10 min.")
WORKSPACE = Parameter("workspace_id", "query", str, "Only projects of this workspace.")
SIGNATURE = (
    Parameter("X-EB-Timestamp", "header", str, "Unix time in milliseconds; part of what is signed."),
    Parameter("Idempotency-Key", "header", str, "A request with the same key within 10 minutes is applied once."),
    Parameter("Content-Encoding", "header", Literal["gzip", "identity", ""], "gzip, or nothing."),
)
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
    Parameter("observed", "query", bool, "true: only moves that callers did not see; false: only those they saw."),
)
Action = Annotated[str, Meta(pattern=f"^{ACTION_PATTERN}$")]
AUDIT = (
    Parameter("action", "query", Action, "Only actions that begin so: breaker. or breaker.update, say."),
    Parameter("target_id", "query", Uuid, "Only what was done to this one."),
    Parameter("cursor", "query", NumberCursor, "next_cursor of a previous answer."),
    Parameter("limit", "query", Limit, "Entries in one answer."),
)
DELIVERIES = (
    Parameter("state", "query", DeliveryState, "Only deliveries in this state."),
    Parameter("cursor", "query", NumberCursor, "next_cursor of a previous answer."),
    Parameter("limit", "query", Limit, "Deliveries in one answer."),
)
OWNER = Parameter("owner", "query", rr.Owner, "Only what this owner declares.")
FROM = Parameter("from", "query", rr.Owner, "Take over what this owner declares, too.")
PLAN_MATCH = Parameter("If-Match", "header", str, "Apply only while the plan has this version.")
MUTES = (Parameter("state", "query", MuteState, "Only mutes in this state."),)
REDRIVEN = {202: Answer(deliveries.DeliveryList, "They are pending again: those of the same outage, in order.")}
STREAM = {200: Answer(str, "States of all breakers, then every change.", "text/event-stream", ("Cache-Control",))}
METADATA = Either((r.MetadataPatch, r.MetadataChange))

OPERATIONS: tuple[Operation, ...] = (
    Op("GET", W, "list_workspaces", "All workspaces", ok(accounts.WorkspaceList)),
    creating(W, "create_workspace", "Make a workspace", ra.WorkspaceCreate, accounts.Workspace, "workspace_id"),
    Op("GET", W1, "get_workspace", "One workspace", ok(accounts.Workspace)),
    editing(W1, "update_workspace", "Change a workspace", ra.WorkspacePatch, accounts.Workspace),
    Op("DELETE", W1, "delete_workspace", "Delete an empty workspace", GONE, refusals=(409,)),
    Op("GET", f"{V1}/projects", "list_projects", "All projects", ok(a.ProjectList), parameters=(WORKSPACE,)),
    creating(f"{V1}/projects", "create_project", "Make a project", r.ProjectCreate, a.NewProject, "project_id"),
    Op("GET", P, "get_project", "One project", ok(a.Project)),
    editing(P, "update_project", "Change a project", r.ProjectPatch, a.Project),
    Op(
        "DELETE",
        P,
        "delete_project",
        "Delete a project with all it has",
        GONE,
        body=ra.ProjectDelete,
        body_required=False,
        lenient=True,
    ),
    Op(
        "POST",
        f"{P}/ingest_secret/rotate",
        "rotate_secret",
        "Replace the ingest secret",
        ok(a.RotatedSecret, "Idempotency-Replayed"),
        refusals=(400, 422),
        parameters=(OVERLAP, ONCE),
    ),
    polled(S, "get_status", "How many breakers are in each state", a.ProjectStatus),
    polled(S, "head_status", "The status' ETag", a.ProjectStatus, method="HEAD"),
    Op(
        "POST",
        f"{P}/ingest",
        "ingest",
        "Take samples",
        {202: Answer(a.Accepted, "In the sample log.")},
        "signed",
        body=Samples | list[MetricSample],
        parameters=(*SIGNATURE, STRICT_SAMPLES),
        takes=("application/vnd.apache.arrow.stream",),
    ),
    Op(
        "POST",
        f"{P}/otlp/v1/metrics",
        "receive_otlp",
        "Take metrics of OpenTelemetry",
        {200: Answer(str, "In the sample log, or partly: see partial_success.", "application/x-protobuf")},
        "ingest",
        takes=("application/x-protobuf", "application/json"),
        complains=("application/x-protobuf", "application/json"),
    ),
    Op(
        "POST",
        f"{P}/remote_write",
        "receive_remote_write",
        "Take samples of Prometheus",
        {204: Answer(None, "In the sample log.", headers=WRITTEN)},
        "ingest",
        takes=("application/x-protobuf",),
        complains=("text/plain",),
    ),
    polled(B, "list_breakers", "All breakers", a.BreakerList, "manage"),
    creating(
        B,
        "create_breaker",
        "Make a breaker, with a router",
        r.BreakerCreate,
        a.BreakerSingle,
        "breaker_id",
        refusals=(409,),
    ),
    Op(
        "PUT",
        B,
        "replace_breakers",
        "Replace the whole set",
        ok(a.BulkResult),
        refusals=(409, 412),
        body=r.BreakersReplace,
        parameters=(IF_MATCH, DESTRUCTIVE),
    ),
    Op("GET", B1, "get_breaker", "One breaker", ok(a.BreakerSingle, "ETag")),
    Op(
        "PATCH",
        B1,
        "update_breaker",
        "Change a breaker",
        ok(a.BreakerSingle, "ETag"),
        refusals=(409, 412),
        body=r.BreakerPatch,
        body_required=False,
        parameters=(BREAKER_MATCH,),
    ),
    Op("DELETE", B1, "delete_breaker", "Delete a breaker", GONE),
    Op(
        "GET",
        f"{B}/{{breaker_id}}/comparison",
        "compare_shadow",
        "A shadow beside what it watches (ours)",
        ok(comparison.Comparison),
        refusals=(400, 422),
        parameters=(SPAN_SINCE, SPAN_UNTIL),
    ),
    Op("GET", OVS, "list_overrides", "Overrides in force (ours)", ok(overrides.OverrideList)),
    Op(
        "POST",
        OVS,
        "set_overrides",
        "Override all breakers that match (ours)",
        ok(overrides.OverridesChanged),
        refusals=(409,),
        body=overrides.OverridesSet,
        parameters=(DESTRUCTIVE,),
    ),
    Op(
        "POST",
        f"{OVS}:preview",
        "preview_overrides",
        "What an override would concern (ours)",
        ok(mutes.MutePreviewed),
        body=overrides.OverrideMatch,
    ),
    Op(
        "POST",
        f"{OVS}:end",
        "end_overrides",
        "End overrides that match (ours)",
        ok(overrides.OverridesChanged),
        body=overrides.OverridesEnd,
    ),
    Op("GET", OV, "get_override", "The override of a breaker", ok(overrides.BreakerOverride, "ETag")),
    Op(
        "PUT",
        OV,
        "set_override",
        "Override what callers see",
        ok(overrides.BreakerOverride, "ETag"),
        refusals=(412,),
        body=overrides.OverrideSet,
        parameters=(OVERRIDE_MATCH,),
    ),
    Op(
        "DELETE",
        OV,
        "end_override",
        "End an override",
        GONE,
        refusals=(400, 412),
        parameters=(OVERRIDE_MATCH, END_REASON),
    ),
    Op("GET", f"{B1}/state", "get_state", "The state of a breaker", ok(a.BreakerState), "read_runtime"),
    Op(
        "POST",
        f"{B}/state:batch",
        "get_states",
        "States of many breakers",
        ok(a.BreakerStateList),
        "read_runtime",
        body=r.StateBatch,
    ),
    Op("GET", f"{B}/state:stream", "stream_states", "States as server-sent events", STREAM, "read_runtime"),
    polled(BM, "list_breaker_metadata", "Metadata of all breakers", a.BreakerMetadataList),
    polled(BM, "head_breaker_metadata", "Its ETag", a.BreakerMetadataList, method="HEAD"),
    Op(
        "PATCH",
        f"{B1}/metadata",
        "update_breaker_metadata",
        "Merge metadata of a breaker",
        ok(a.BreakerSingle),
        "edit_metadata",
        body=METADATA,
    ),
    Op(
        "GET",
        f"{P}/events",
        "list_events",
        "State changes, newest first",
        ok(a.EventList, "X-Latest-Timestamp"),
        refusals=(400,),
        parameters=EVENTS,
    ),
    Op(
        "GET",
        f"{P}/audit",
        "list_audit",
        "Changes of configuration, newest first",
        ok(accounts.AuditList),
        refusals=(400,),
        parameters=AUDIT,
    ),
    Op(
        "GET",
        f"{V1}/audit",
        "list_org_audit",
        "Changes of the organisation itself, newest first (ours)",
        ok(accounts.AuditList),
        refusals=(400,),
        parameters=AUDIT,
    ),
    Op("GET", R, "list_routers", "All routers", ok(a.RouterList)),
    creating(R, "create_router", "Make a router", r.RouterCreate, a.RouterSingle, "router_id", body_required=False),
    Op("GET", R1, "get_router", "One router", ok(a.RouterSingle)),
    editing(R1, "update_router", "Change a router", r.RouterPatch, a.RouterSingle),
    Op("DELETE", R1, "delete_router", "Delete a router without breakers", GONE, refusals=(409,)),
    Op("POST", f"{R1}/breakers", "link_breakers", "Link breakers to a router", ok(a.RouterSingle), body=r.RouterLink),
    Op("DELETE", f"{R1}/breakers/{{breaker_id}}", "unlink_breaker", "Unlink a breaker", GONE),
    polled(RM, "list_router_metadata", "Metadata of all routers", a.RouterMetadataList),
    Op(
        "PATCH",
        f"{R1}/metadata",
        "update_router_metadata",
        "Merge metadata of a router",
        ok(a.RouterSingle),
        "edit_metadata",
        body=METADATA,
    ),
    Op("GET", N, "list_channels", "All notification channels", ok(deliveries.ChannelList)),
    creating(N, "create_channel", "Make a channel", ra.ChannelCreate, accounts.ChannelSingle, "channel_id"),
    Op("GET", N1, "get_channel", "One channel", ok(accounts.Channel)),
    editing(N1, "update_channel", "Change a channel", ra.ChannelPatch, accounts.ChannelSingle),
    Op("DELETE", N1, "delete_channel", "Delete a channel", GONE),
    Op("POST", f"{N1}/test", "test_channel", "Send a test notification", ok(accounts.ChannelTest), refusals=(422,)),
    Op(
        "GET",
        f"{N1}/deliveries",
        "list_deliveries",
        "What was told on a channel, what waits and why, newest first",
        ok(deliveries.DeliveryList),
        refusals=(400,),
        parameters=DELIVERIES,
    ),
    Op(
        "POST",
        f"{N1}/deliveries/{{delivery_id}}/redrive",
        "redrive_delivery",
        "Send a dead delivery again",
        REDRIVEN,
        refusals=(409,),
    ),
    Op("GET", M, "list_mutes", "All mutes", ok(mutes.MuteList), refusals=(400,), parameters=MUTES),
    creating(M, "create_mute", "Make a mute", rm.MuteCreate, mutes.MuteSingle, "mute_id"),
    Op("POST", f"{M}:preview", "preview_mute", "What a mute would match", ok(mutes.MutePreviewed), body=rm.MutePreview),
    Op("GET", f"{M}/{{mute_id}}", "get_mute", "One mute", ok(mutes.CountedMuteSingle)),
    editing(f"{M}/{{mute_id}}", "update_mute", "Change a mute", rm.MutePatch, mutes.MuteSingle),
    Op("DELETE", f"{M}/{{mute_id}}", "end_mute", "End a mute", GONE),
    Op("GET", MP, "list_mappings", "All mappings, in order", ok(mappings.MappingList)),
    creating(MP, "create_mapping", "Make a mapping", rp.MappingCreate, mappings.MappingSingle, "mapping_id"),
    Op(
        "PUT",
        MP,
        "replace_mappings",
        "Replace the whole list",
        ok(mappings.MappingsReplaced),
        body=rp.MappingsReplace,
    ),
    Op(
        "POST",
        f"{MP}:preview",
        "preview_mappings",
        "What series would become",
        ok(mappings.MappingsPreviewed),
        body=rp.MappingsPreview,
        takes=("application/x-protobuf",),
    ),
    Op("GET", f"{MP}/{{mapping_id}}", "get_mapping", "One mapping", ok(mappings.MappingSingle)),
    editing(f"{MP}/{{mapping_id}}", "update_mapping", "Change a mapping", rp.MappingPatch, mappings.MappingSingle),
    Op("DELETE", f"{MP}/{{mapping_id}}", "delete_mapping", "Delete a mapping", GONE),
    Op(
        "GET",
        RU,
        "export_rules",
        "Rules as files",
        ok(rules.RulesExport),
        "read_rules",
        refusals=(400,),
        parameters=(OWNER,),
    ),
    Op(
        "GET",
        f"{RU}:drift",
        "drift_rules",
        "What was changed since files were applied",
        ok(rules.RulesPlan),
        "read_rules",
        refusals=(400,),
        parameters=(OWNER,),
    ),
    Op(
        "POST",
        f"{RU}:plan",
        "plan_rules",
        "What files would change",
        ok(rules.RulesPlan),
        "read_rules",
        body=rr.RulesDocument,
    ),
    Op(
        "POST",
        f"{RU}:apply",
        "apply_rules",
        "Make it as files say",
        ok(rules.RulesApplied),
        body=rr.RulesDocument,
        refusals=(409, 412),
        parameters=(PLAN_MATCH, DESTRUCTIVE),
    ),
    Op(
        "POST",
        f"{RU}:adopt",
        "adopt_rules",
        "Let files own what is there",
        ok(rules.RulesAdopted),
        body=rr.RulesDocument,
        refusals=(400, 409),
        parameters=(FROM,),
    ),
    Op("GET", K, "list_keys", "Keys of a project", ok(accounts.ProjectKeyList)),
    creating(
        K,
        "create_key",
        "Make a project key",
        ra.ProjectKeyCreate | None,
        accounts.NewProjectKey,
        "key_id",
        body_required=False,
    ),
    Op("DELETE", f"{K}/{{key_id}}", "delete_key", "Revoke a key", GONE),
    *(
        Op(method, f"/api/{name}", f"{method.lower()}_{name}", "Liveness", ok(a.Health), "probe")
        for name in ("health", "healthz")
        for method in ("GET", "HEAD")
    ),
    *(
        Op(method, "/api/readyz", f"{method.lower()}_readyz", "Readiness", ok(a.Ready), "probe", refusals=(503,))
        for method in ("GET", "HEAD")
    ),
    Op(
        "GET",
        f"{V1}/admin/status",
        "cluster_status",
        "How the service is doing (ours, for its operator)",
        ok(admin.ClusterStatus),
        "operate",
    ),
    Op(
        "POST",
        f"{V1}/admin/rebalance",
        "rebalance",
        "Spread breakers over actors, one step (ours, for its operator)",
        ok(admin.Rebalanced),
        "operate",
        body=ra.Rebalance,
        body_required=False,
    ),
    Op(
        "GET",
        "/metrics",
        "get_metrics",
        "States of breakers for Prometheus",
        {200: Answer(str, "Series of breakers.", "text/plain")},
        "metrics",
    ),
    Op("GET", "/openapi.json", "openapi_document", "This document", ok(Document), "open"),
    Op("GET", "/docs", "docs_page", "This document as a page", {200: Answer(str, "A page.", "text/html")}, "open"),
    Op(
        "GET",
        "/docs/rapidoc.js",
        "docs_script",
        "The page's script",
        {200: Answer(str, "A script.", "text/javascript")},
        "open",
    ),
)
