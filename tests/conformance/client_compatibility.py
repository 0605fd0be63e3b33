"""What the strictest of seven public clients can read, as data, and a check of any answer against it.

A word per type; `?` the strictest client takes null there. Integers are literals without a fraction, and within 32 bits
where a field configures something; times name their zone; metadata is an object of strings and never null.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
SECRET = re.compile(r"[0-9a-f]{64}")
KINDS = "error_rate avg p95 max min sum stddev count percentile consecutive_failures delta".split()


def words(*allowed: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in allowed


def whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": whole,
    "int32": lambda value: whole(value) and 0 <= value <= 2_147_483_647,
    "number": lambda value: whole(value) or isinstance(value, float),
    "uuid": lambda value: isinstance(value, str) and bool(UUID.fullmatch(value)),
    "time": lambda value: isinstance(value, str) and bool(TIME.fullmatch(value)),
    "secret": lambda value: isinstance(value, str) and bool(SECRET.fullmatch(value)),
    "object": lambda value: isinstance(value, dict),
    "list": lambda value: isinstance(value, list),
    "uuids": lambda value: isinstance(value, list) and all(isinstance(v, str) and UUID.fullmatch(v) for v in value),
    "strings": lambda value: isinstance(value, dict) and all(isinstance(v, str) for v in value.values()),
    "kind": words(*KINDS),
    "op": words("gt", "lt", "gte", "lte"),
    "policy": words("optimistic", "conservative", "pessimistic"),
    "state": words("closed", "open", "half_open"),
    "mode": words("static", "canary", "weighted"),
    "creator": words("system", "user"),
    "reason": words("insufficient_samples"),
    "reason_code": words("insufficient_samples", "threshold_exceeded"),
    "channel": words("slack", "pagerduty", "alertmanager", "email", "webhook", "apprise"),
    "channel_events": lambda value: isinstance(value, list) and set(value) <= {"trip", "recover"},
    "null": lambda value: value is None,
    "false": lambda value: value is False,
}

PAGE = "next_cursor:null cursor:null has_more:false"
PAGES = "next_cursor:string? cursor:string? has_more:bool"
BREAKER = """id:string name:string metric:string router_id:string router_ids:uuids kind:kind op:op threshold:number
    window_ms:int32 eval_interval_ms:int32 min_count:int32 min_state_duration_ms:int32 cooldown_ms:int32
    half_open_backoff_enabled:bool half_open_backoff_cap_ms:int32? half_open_confirmation_ms:int32?
    recovery_window_ms:int32? recovery_allow_rate_ramp_steps:int32? half_open_indeterminate_policy:policy?
    kind_params:object? actions:object? metadata:strings"""
ROUTER = """id:string name:string mode:mode enabled:bool breaker_count:int inserted_at:time? created_by:string?
    metadata:strings"""
PROJECT = """project_id:string id:string name:string enable_signed_ingest:bool slack_webhook_url:string?
    trace_id_url_template:string?"""
OVERRIDE = """kind:string allow_rate:number reason:string by:string since:time since_ms:int until:time until_ms:int
        then:string? version:int"""
MUTE = """id:uuid project_id:uuid state:string active_until_ms:int? matchers:list all:bool starts_ms:int ends_ms:int?
    windows:list zone:string comment:string created_by:string created_name:string inserted_ms:int updated_ms:int
    ended_ms:int? ended_reason:string?"""
MAPPING = """id:uuid project_id:uuid position:int name:string matchers:list to:object enabled:bool version:int
    inserted_ms:int updated_ms:int"""
KEY = "id:string name:string key_prefix:string last_used_at:time? inserted_at:time?"

SHAPES: dict[str, str] = {
    "Error": "error:string code:string message:string request_id:string",
    "Project": PROJECT,
    "NewProject": PROJECT + " ingest_secret:secret",
    "ProjectList": "projects:[Project] items:[Project] count:int " + PAGE,
    "RotatedSecret": "ingest_secret:secret previous_valid_until_ms:int?",
    "ProjectStatus": "closed_count:int open_count:int last_eval_ms:int",
    "Workspace": "id:string name:string slug:string org_id:string inserted_at:time?",
    "WorkspaceList": "workspaces:[Workspace]",
    "Breaker": BREAKER,
    "BreakerSingle": BREAKER + " breaker:Breaker",
    "BreakerList": "breakers:[Breaker] items:[Breaker] count:int hash:string? updated_at:string? " + PAGE,
    "BulkResult": "changed:bool count:int hash:string duration_ms:int breakers:[Breaker]",
    "MetadataItem": "id:string name:string metadata:strings",
    "BreakerMetadataList": "project_id:string breakers:[MetadataItem]",
    "RouterMetadataList": "project_id:string routers:[MetadataItem]",
    "State": "breaker_id:string state:state allow_rate:number updated_at:time?",
    "StateList": "states:[State] items:[State]",
    "Event": """id:string project_id:string breaker_id:string from_state:string to_state:string timestamp:time
        reason:string? prev:state curr:state ts_ms:int transition_seq:int""",
    "EventList": "events:[Event] items:[Event] returned:int " + PAGES,
    "Router": ROUTER,
    "RouterSingle": ROUTER + " breakers:[Breaker] router:RouterInside",
    "RouterInside": ROUTER + " breakers:[Breaker]",
    "RouterList": "routers:[Router] items:[Router] count:int " + PAGE,
    "Channel": """id:string project_id:string name:string channel:channel config:object events:channel_events
        enabled:bool created_at:time? updated_at:time?""",
    "ChannelSingle": "channel:Channel",
    "ChannelList": "channels:[Channel] items:[Channel] " + PAGE,
    "Sent": "status:string message:string",
    "Delivery": """id:string project_id:string channel_id:string breaker_id:string name:string event_id:string?
        transition_seq:int kind:string state:string attempts:int last_status:int? last_error:string?
        next_attempt_at:time? created_at:time sent_at:time? ended_at:time?""",
    "DeliveryList": "deliveries:[Delivery] items:[Delivery] returned:int " + PAGES,
    "Machine": "breaker_id:string trips:int closed_ms:int half_open_ms:int open_ms:int",
    "Difference": "from_ms:int to_ms:int shadow:string watched:string",
    "Comparison": """since_ms:int until_ms:int shadow:Machine watched:Machine differing_ms:int differing:int
        differences:[Difference]""",
    "Override": OVERRIDE,
    "BreakerOverride": "breaker_id:string override:Override?",
    "OverrideItem": OVERRIDE + " breaker_id:string name:string",
    "OverrideList": "overrides:[OverrideItem] items:[OverrideItem] count:int " + PAGE,
    "OverridesChanged": "matches:int changed:int",
    "Mute": MUTE,
    "CountedMute": MUTE + " matches:int? open:int? holding:int",
    "MuteSingle": "mute:Mute",
    "CountedMuteSingle": "mute:CountedMute",
    "MuteList": "mutes:[CountedMute] items:[CountedMute] " + PAGE,
    "MutePreviewed": "matches:int open:int breakers:list",
    "Mapping": MAPPING,
    "MappingSingle": "mapping:Mapping",
    "MappingList": "mappings:[Mapping] items:[Mapping] " + PAGE,
    "MappingsReplaced": "changed:bool count:int mappings:[Mapping]",
    "MappingsPreviewed": "mapped:int unmatched:int refused:int series:list",
    "RulesPlan": "owner:string version:string count:int changes:list",
    "RulesApplied": "owner:string changed:bool count:int changes:list",
    "RulesAdopted": "owner:string adopted:list",
    "RulesExport": "owner:string? labels:object breakers:object routers:object mappings:object channels:object "
    "mutes:object",
    "Key": KEY,
    "NewKey": KEY + " key:string message:string",
    "KeyList": "keys:[Key] items:[Key] count:int " + PAGE,
    "Accepted": "accepted:int",
    "AuditEntry": "id:string ts_ms:int timestamp:time key_id:string who:string action:string target_id:string",
    "AuditList": "entries:[AuditEntry] items:[AuditEntry] returned:int " + PAGES,
    "Health": "status:string",
    "ClusterStatus": "ts_ms:int timestamp:time nodes:list replicas:int budgets:object log_bytes:int actors:list "
    "limits:list",
    "Rebalanced": "moved:int left:int",
}

ANSWERS: dict[str, str] = {
    "GET /v1/workspaces": "WorkspaceList",
    "POST /v1/workspaces": "Workspace",
    "GET /v1/workspaces/{workspace_id}": "Workspace",
    "PATCH /v1/workspaces/{workspace_id}": "Workspace",
    "GET /v1/projects": "ProjectList",
    "POST /v1/projects": "NewProject",
    "GET P": "Project",
    "PATCH P": "Project",
    "POST P/ingest_secret/rotate": "RotatedSecret",
    "GET P/status": "ProjectStatus",
    "POST P/ingest": "Accepted",
    "GET P/breakers": "BreakerList",
    "POST P/breakers": "BreakerSingle",
    "PUT P/breakers": "BulkResult",
    "GET P/breakers/{breaker_id}": "BreakerSingle",
    "PATCH P/breakers/{breaker_id}": "BreakerSingle",
    "GET P/breakers/{breaker_id}/state": "State",
    "POST P/breakers/state:batch": "StateList",
    "GET P/breakers/metadata": "BreakerMetadataList",
    "PATCH P/breakers/{breaker_id}/metadata": "BreakerSingle",
    "GET P/events": "EventList",
    "GET P/routers": "RouterList",
    "POST P/routers": "RouterSingle",
    "GET P/routers/{router_id}": "RouterSingle",
    "PATCH P/routers/{router_id}": "RouterSingle",
    "POST P/routers/{router_id}/breakers": "RouterSingle",
    "GET P/routers/metadata": "RouterMetadataList",
    "PATCH P/routers/{router_id}/metadata": "RouterSingle",
    "GET P/notification-channels": "ChannelList",
    "POST P/notification-channels": "ChannelSingle",
    "GET P/notification-channels/{channel_id}": "Channel",
    "PATCH P/notification-channels/{channel_id}": "ChannelSingle",
    "POST P/notification-channels/{channel_id}/test": "Sent",
    "GET P/notification-channels/{channel_id}/deliveries": "DeliveryList",
    "POST P/notification-channels/{channel_id}/deliveries/{delivery_id}/redrive": "DeliveryList",
    "GET P/breakers/{breaker_id}/comparison": "Comparison",
    "GET P/overrides": "OverrideList",
    "POST P/overrides": "OverridesChanged",
    "POST P/overrides:preview": "MutePreviewed",
    "POST P/overrides:end": "OverridesChanged",
    "GET P/breakers/{breaker_id}/override": "BreakerOverride",
    "PUT P/breakers/{breaker_id}/override": "BreakerOverride",
    "GET P/mutes": "MuteList",
    "POST P/mutes": "MuteSingle",
    "POST P/mutes:preview": "MutePreviewed",
    "GET P/mutes/{mute_id}": "CountedMuteSingle",
    "PATCH P/mutes/{mute_id}": "MuteSingle",
    "GET P/mappings": "MappingList",
    "POST P/mappings": "MappingSingle",
    "PUT P/mappings": "MappingsReplaced",
    "POST P/mappings:preview": "MappingsPreviewed",
    "GET P/mappings/{mapping_id}": "MappingSingle",
    "PATCH P/mappings/{mapping_id}": "MappingSingle",
    "GET P/rules": "RulesExport",
    "GET P/rules:drift": "RulesPlan",
    "POST P/rules:plan": "RulesPlan",
    "POST P/rules:apply": "RulesApplied",
    "POST P/rules:adopt": "RulesAdopted",
    "GET P/keys": "KeyList",
    "GET P/audit": "AuditList",
    "GET /v1/audit": "AuditList",
    "POST P/keys": "NewKey",
    "GET /v1/admin/status": "ClusterStatus",
    "POST /v1/admin/rebalance": "Rebalanced",
    "GET /api/health": "Health",
    "GET /api/healthz": "Health",
    "GET /api/readyz": "Health",
}
"""The shape of the successful JSON answer of each endpoint."""


def problems_of(value: Any, shape: str, at: str = "") -> list[str]:
    """Everything in a value that the strictest client could not read."""
    if not isinstance(value, dict):
        return [f"{at or shape}: not an object"]
    found = []
    for field in SHAPES[shape].split():
        name, kind = field.split(":")
        found += _check(value, name, kind, f"{at or shape}.{name}")
    return found


def _check(value: dict[str, Any], name: str, kind: str, at: str) -> list[str]:
    if name not in value:
        return [f"{at}: absent"]
    given, plain = value[name], kind.removesuffix("?")
    if given is None and kind != "null":
        return [] if kind.endswith("?") else [f"{at}: null"]
    if plain.startswith("["):
        if not isinstance(given, list):
            return [f"{at}: not a list"]
        return [problem for item in given for problem in problems_of(item, plain.strip("[]"), at)]
    if plain in SHAPES:
        return problems_of(given, plain, at)
    return [] if TYPES[plain](given) else [f"{at}: {given!r} is not {plain}"]
