"""What the interface promises, line by line, in our own words: endpoints with their statuses, fields, limits.

This is data for the suite and independent of the program: nothing here is derived from `api`. `P` is a project's path.
Fields: `name:type`, `?` may be null, `=x` the default, `~` may be absent; types are in client_compatibility.py.
"""

from __future__ import annotations

ENDPOINTS = """
GET    /v1/projects                          manage   200 401
POST   /v1/projects                          manage   201 400 401 422
GET    P                                     manage   200 404
PATCH  P                                     manage   200 404 422
POST   P/ingest_secret/rotate                manage   200 404
GET    P/breakers                            manage   200 304
GET    P/breakers/{breaker_id}               manage   200 404
POST   P/breakers                            manage   201 409 422
PATCH  P/breakers/{breaker_id}               manage   200 404 412 422
PUT    P/breakers                            manage   200 409 412 422
DELETE P/breakers/{breaker_id}               manage   204 404
GET    P/breakers/{breaker_id}/state         runtime  200 404
POST   P/breakers/state:batch                runtime  200 422
GET    P/breakers/state:stream               runtime  200
GET    P/breakers/metadata                   runtime  200 304
HEAD   P/breakers/metadata                   runtime  200 304
PATCH  P/breakers/{breaker_id}/metadata      admin    200 404 422
GET    P/events                              manage   200 400 429
GET    P/routers                             manage   200
GET    P/routers/{router_id}                 manage   200 404
POST   P/routers                             manage   201 404 422
PATCH  P/routers/{router_id}                 manage   200 404 422
DELETE P/routers/{router_id}                 manage   204 404 409
GET    P/notification-channels               manage   200
POST   P/notification-channels               manage   201 422
PATCH  P/notification-channels/{channel_id}  manage   200 404 422
DELETE P/notification-channels/{channel_id}  manage   204 404
POST   P/notification-channels/{channel_id}/test  manage  200 404 422
GET    /api/health                           probe    200
GET    /api/healthz                          probe    200
HEAD   /api/healthz                          probe    200
GET    /api/readyz                           probe    200 503
HEAD   /api/readyz                           probe    200 503
"""
"""The document's own endpoints."""

ADDED = """
GET    /v1/workspaces                        manage   200
POST   /v1/workspaces                        manage   201 422
GET    /v1/workspaces/{workspace_id}         manage   200 404
PATCH  /v1/workspaces/{workspace_id}         manage   200 404 422
DELETE /v1/workspaces/{workspace_id}         manage   204 404 409
DELETE P                                     manage   204 422
GET    P/status                              runtime  200 304
HEAD   P/status                              runtime  200 304
POST   P/ingest                              signed   202 400 401 413 415 422
POST   P/otlp/v1/metrics                     ingest   200 400 401 403 404 413 415
POST   P/remote_write                        ingest   204 400 401 403 404 413 415
GET    P/routers/metadata                    runtime  200 304
PATCH  P/routers/{router_id}/metadata        admin    200 404 422
POST   P/routers/{router_id}/breakers        manage   200 404 422
DELETE P/routers/{router_id}/breakers/{breaker_id}  manage  204 404
GET    P/notification-channels/{channel_id}  manage   200 404
GET    P/notification-channels/{channel_id}/deliveries  manage  200 400
POST   P/notification-channels/{channel_id}/deliveries/{delivery_id}/redrive  manage  202 409
GET    P/breakers/{breaker_id}/comparison    manage   200 400 404 422
GET    P/overrides                           manage   200
POST   P/overrides                           manage   200 409 422
POST   P/overrides:preview                   manage   200 422
POST   P/overrides:end                       manage   200 422
GET    P/breakers/{breaker_id}/override      manage   200 404
PUT    P/breakers/{breaker_id}/override      manage   200 404 412 422
DELETE P/breakers/{breaker_id}/override      manage   204 400 404 412
GET    P/mutes                               manage   200 400
POST   P/mutes                               manage   201 422
POST   P/mutes:preview                       manage   200 422
GET    P/mutes/{mute_id}                     manage   200 404
PATCH  P/mutes/{mute_id}                     manage   200 404 422
DELETE P/mutes/{mute_id}                     manage   204 404
GET    P/mappings                            manage   200
POST   P/mappings                            manage   201 422
PUT    P/mappings                            manage   200 422
POST   P/mappings:preview                    manage   200 422
GET    P/mappings/{mapping_id}               manage   200 404
PATCH  P/mappings/{mapping_id}               manage   200 404 422
DELETE P/mappings/{mapping_id}               manage   204 404
GET    P/rules                               manage   200 400
GET    P/rules:drift                         manage   200 400
POST   P/rules:plan                          manage   200 422
POST   P/rules:apply                         manage   200 409 412 422
POST   P/rules:adopt                         manage   200 400 409 422
GET    P/audit                               manage   200 400
GET    /v1/audit                             manage   200 400
GET    P/keys                                manage   200
POST   P/keys                                manage   201 422
DELETE P/keys/{key_id}                       manage   204 404
GET    /v1/admin/status                      admin    200
POST   /v1/admin/rebalance                   admin    200 422
HEAD   /api/health                           probe    200
GET    /openapi.json                         open     200
GET    /docs                                 open     200
GET    /docs/rapidoc.js                      open     200
GET    /metrics                              metrics  200
"""
"""What the document leaves out and public clients call."""

RESOURCES = {
    "Project": """project_id:uuid workspace_id:uuid name:string enable_signed_ingest:bool=false
        slack_webhook_url:string?=null trace_id_url_template:string?=null""",
    "NewProject": "project_id:uuid name:string ingest_secret:secret",
    "RotatedSecret": "ingest_secret:secret",
    "ProjectList": "count:int projects:list",
    "ProjectStatus": "closed_count:int open_count:int half_open_count:int last_eval_ms:int",
    "Workspace": "id:uuid name:string slug:string org_id:uuid inserted_at:time",
    "Breaker": """id:uuid name:string metric:string kind:kind op:op threshold:number window_ms:int32=60000
        eval_interval_ms:int32=10000 min_count:int32=1 min_state_duration_ms:int32=60000 cooldown_ms:int32=0
        half_open_backoff_enabled:bool=true half_open_backoff_cap_ms:int32=300000
        half_open_indeterminate_policy:policy="conservative" recovery_allow_rate_ramp_steps:int32=5
        half_open_confirmation_ms:int32=60000 recovery_window_ms:int32=50000 kind_params:object?=null
        actions:object?=null metadata:strings={} router_id:uuid""",
    "BreakerEnvelope": "breaker:object router_id:uuid",
    "BreakerList": "breakers:list count:int hash:string updated_at:time",
    "BulkResult": "changed:bool count:int hash:string duration_ms:int",
    "BreakerMetadata": "id:uuid name:string metadata:strings",
    "BreakerMetadataList": "project_id:uuid breakers:list",
    "BreakerStateLookup": """breaker_id:uuid name:string state:state indeterminate:bool indeterminate_reason:reason?
        last_eval_ms:int next_eval_ms:int? state_since_ms:int""",
    "BreakerStateBatchItem": """breaker_id:uuid state:state observed:bool threshold:number evaluated_at_ms:int?
        sample_count:int? min_count:int? window_ms:int reason_code:reason_code?""",
    "BreakerStateList": "states:list",
    "BreakerEvent": """breaker_id:uuid name:string prev:state curr:state ts_ms:int transition_seq:int rule:object
        agg:object""",
    "BreakerEvent.rule": "kind:kind metric:string threshold:number window_ms:int tags:object",
    "BreakerEvent.agg": "avg:number count:int error_count:int p95:number",
    "EventList": "events:list next_cursor:string? returned:int",
    "Router": """id:uuid name:string mode:mode="static" enabled:bool=true created_by:creator inserted_at:time
        metadata:strings={}""",
    "RouterListItem": "breaker_count:int",
    "RouterDetail": "breakers:list",
    "RouterDetail.breakers": "id:uuid name:string",
    "RouterMetadata": "id:uuid name:string metadata:strings",
    "RouterList": "routers:list",
    "NotificationChannel": """id:string channel:channel config:object enabled:bool=true
        events:channel_events=["trip","recover"] inserted_at:time updated_at:time""",
    "ChannelList": "channels:list",
    "ChannelTest": "status:string message:string",
    "Health": "status:string",
    "Error": "error:string message:string details:object~",
}
"""Each resource of the document with its fields."""

INPUTS = {
    "POST /v1/projects": "workspace_id:uuid! name:string",
    "PATCH P": "enable_signed_ingest:bool name:string slack_webhook_url:string trace_id_url_template:string",
    "POST P/breakers": """kind:kind! metric:string! op:op! threshold:number! id:uuid name:string window_ms:int
        eval_interval_ms:int min_count:int min_state_duration_ms:int cooldown_ms:int half_open_backoff_enabled:bool
        half_open_backoff_cap_ms:int half_open_indeterminate_policy:policy recovery_allow_rate_ramp_steps:int
        kind_params:object actions:object metadata:object""",
    "PATCH P/breakers/{breaker_id}": """name:string metric:string kind:kind op:op threshold:number window_ms:int
        eval_interval_ms:int min_count:int min_state_duration_ms:int cooldown_ms:int half_open_backoff_enabled:bool
        half_open_backoff_cap_ms:int half_open_indeterminate_policy:policy recovery_allow_rate_ramp_steps:int
        kind_params:object actions:object metadata:object""",
    "PUT P/breakers": "breakers:list!",
    "POST P/breakers/state:batch": "breaker_ids:list router_ids:list",
    "PATCH P/breakers/{breaker_id}/metadata": "metadata:object!",
    "POST P/routers": "name:string mode:mode breaker_ids:list metadata:object",
    "PATCH P/routers/{router_id}": "name:string mode:mode enabled:bool metadata:object",
    "POST P/notification-channels": "channel:channel! config:object! enabled:bool events:list",
    "PATCH P/notification-channels/{channel_id}": "config:object enabled:bool events:list",
}
"""Fields of requests; `!` is required. Samples have rows of their own, for each of them is judged alone."""

SAMPLE_FIELDS = "router_id metric ts_ms value ok tags trace_id".split()

LIMITS = (
    "metadata keys of a breaker",
    "metadata keys of a router",
    "metadata keys after a merge",
    "metadata key length",
    "metadata value length",
    "MetricSample.metric length",
    "MetricSample.tags keys",
    "events limit",
    "recovery_allow_rate_ramp_steps",
    "window_ms below 3 x eval_interval_ms",
)


def full(path: str) -> str:
    """A path with the project written out."""
    return path.replace("P", "/v1/projects/{project_id}", 1) if path.startswith("P") else path


def endpoints(lines: str) -> list[tuple[str, str, str, list[int]]]:
    """(method, path, who may, statuses) of each line."""
    rows = [line.split() for line in lines.strip().splitlines()]
    return [(method, full(path), access, [int(s) for s in statuses]) for method, path, access, *statuses in rows]


def fields(text: str) -> dict[str, str]:
    """name -> type with its marks."""
    return dict(part.split(":", 1) for part in text.split())
