"""Every metric of the service, declared once: docs/reference/metrics.md, the dashboard's test and the test of every
call site are made from TABLE. What a part counts into is breaker_actors/telemetry/meters.py. Labels take declared
values only, so the number of series is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, get_args

import msgspec

from breaker_actors.core.counters import OUTCOMES
from breaker_actors.messages import StoredLimit
from breaker_actors.telemetry.set_aside import KINDS

Part = Literal["api", "router", "breaker", "journal", "directory", "notifier"]
Key = tuple[str, ...]
"""A series: the metric's name, then its label values in declared order."""

EVERY: tuple[Part, ...] = ("api", "router", "breaker", "journal", "directory", "notifier")
OTHER = "other"
"""What a label value becomes that was not declared."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)

SAMPLE_FAULTS = (
    *("invalid_router_id", "invalid_metric", "invalid_ts_ms", "ts_ms_too_old", "ts_ms_in_future"),
    *("invalid_value", "invalid_ok", "invalid_tags", "invalid_trace_id", "invalid_count", "unknown_field"),
)
ROUTES = (
    *("admin", "audit", "breakers", "channels", "deliveries", "events", "health", "ingest", "keys", "metadata"),
    *("mappings", "metrics"),
    *(
        "mutes",
        "otlp",
        "overrides",
        "projects",
        "remote_write",
        "routers",
        "rules",
        "spec",
        "states",
        "status",
        "stream",
        "workspaces",
        "none",
    ),
)
"""Groups of routes: the API's blueprints; none: no route was found."""
CHANNELS = ("slack", "pagerduty", "alertmanager", "email", "webhook", "apprise")
STORED: tuple[str, ...] = get_args(StoredLimit)
UPKEEP = (
    *("logs", "deliveries_beyond", "ended_links", "time", "history", "answers", "deliveries", "ended", "deletions"),
)
"""Parts of a round of upkeep."""
LANES = {"lane": ("ingest", "log", "delivery", "commit", "journal")}


class Meter(msgspec.Struct, frozen=True):
    """One metric. `parts`: who counts it. `labels`: their names with all values. `buckets`: upper bounds, rising; only
    histograms have them."""

    name: str
    unit: str
    parts: tuple[Part, ...]
    help: str
    labels: Mapping[str, tuple[str, ...]] = {}
    buckets: tuple[float, ...] = ()

    @property
    def type(self) -> Literal["counter", "gauge", "histogram"]:
        if self.name.endswith("_total"):
            return "counter"
        return "histogram" if self.buckets else "gauge"

    def series(self) -> Iterator[Key]:
        """Every series that declared label values can make."""
        keys: list[Key] = [(self.name,)]
        for values in self.labels.values():
            keys = [(*key, value) for key in keys for value in values]
        return iter(keys)

    def bounded(self, values: tuple[str, ...]) -> Key:
        """The series for label values; undeclared ones count as OTHER."""
        pairs = zip(values, self.labels.values(), strict=True)
        return (self.name, *(value if value in declared else OTHER for value, declared in pairs))


_METERS = [
    # ingest
    Meter(
        "breakers_ingest_requests_total",
        "requests",
        ("api",),
        "ingest requests by what became of them; duplicate: a part of it had been stored before",
        {"outcome": ("accepted", "duplicate", "invalid", "unauthorized", "limited", "full", "unavailable", "failed")},
    ),
    Meter("breakers_samples_accepted_total", "samples", ("api",), "samples answered 202, repeated ones included"),
    Meter(
        "breakers_samples_rejected_total",
        "samples",
        ("api",),
        "samples not taken; reused: another body under an Idempotency-Key; full and unavailable: their request was"
        " refused and has to be sent again",
        {"reason": (*SAMPLE_FAULTS, "reused", "full", "unavailable")},
    ),
    Meter(
        "breakers_duplicate_parts_total", "parts", ("router",), "parts (a request's samples for one router) seen before"
    ),
    Meter("breakers_duplicate_samples_total", "samples", ("router",), "samples of such parts"),
    Meter(
        "breakers_duplicate_keys_dropped_total",
        "keys",
        ("router",),
        "duplicate keys forgotten early, beyond BREAKERS_DUPLICATE_KEYS_MAX",
    ),
    Meter("breakers_duplicate_keys", "keys", ("router",), "duplicate keys held"),
    Meter(
        "breakers_points_total",
        "points",
        ("api",),
        "points of open protocols: taken, unmatched (no mapping takes them), absent (their series pauses), rejected",
        {"protocol": ("otlp", "remote_write"), "outcome": ("taken", "unmatched", "absent", "rejected")},
    ),
    Meter(
        "breakers_cumulative_points_total",
        "points",
        ("router",),
        "points of cumulative series: first (nothing to compare with), rise, reset, old (not newer than the last),"
        " rebased (other buckets), huge (too many observations at once), full (no room for another series)",
        {"outcome": OUTCOMES},
    ),
    Meter("breakers_cumulative_series", "series", ("router",), "cumulative series whose last point is held"),
    # HTTP
    Meter(
        "breakers_http_request_seconds",
        "seconds",
        ("api",),
        "from a request's headers to its answer's (streams: to their start)",
        {"route": ROUTES, "status": ("2xx", "3xx", "4xx", "429", "5xx")},
        buckets=SECONDS,
    ),
    Meter(
        "breakers_callers_forgotten_total",
        "callers",
        ("api",),
        "callers whose budget of requests was forgotten since too many others came after them",
    ),
    Meter(
        "breakers_intake_refused_total",
        "requests",
        ("api",),
        "requests refused since too much was in flight (see Limits); slow: bodies given up; evicted: so that others"
        " had their place; unread: answers cut since nobody read them",
        {"what": ("requests", "bytes", "turns", "slow", "evicted", "answers", "unread")},
    ),
    Meter(
        "breakers_memories_cut_total",
        "projects",
        ("api",),
        "projects of which a replica forgot what it had remembered of their series, since all hold too much and their"
        " organisation most; their next requests cost more. series: what became of each; decoders: how it is spelled",
        {"what": ("series", "decoders")},
    ),
    Meter(
        "breakers_addresses_examined_total",
        "addresses",
        ("api",),
        "addresses of channels that apprise was to look at; unknown: not found out in time; refused: beyond a bound",
        {"outcome": ("fine", "bad", "unknown", "refused")},
    ),
    Meter(
        "breakers_port_refused_total",
        "requests or connections",
        ("api",),
        "of a replica's own port: requests not from HAProxy; connections late, with a long head, one too many,"
        " with requests that wait for no answer, with a body long after its answer, or that take nothing of an answer",
        {"what": ("unproven", "late", "head", "connections", "pipelined", "body", "still")},
    ),
    Meter(
        "breakers_late_answers_total",
        "answers",
        ("api",),
        "refusals that came half a second late since the caller's bad bodies had cost too much",
    ),
    Meter("breakers_key_uses_unwritten_total", "keys", ("api",), "times of last use of a key that could not be stored"),
    # lanes
    Meter(
        "breakers_lane_waiting",
        "weight",
        ("api", "router", "breaker", "journal"),
        "what waits for the next call: samples in ingest, log and delivery lanes, transitions in the journal's",
        LANES,
    ),
    Meter("breakers_lane_calls_total", "calls", ("api", "router", "breaker", "journal"), "calls of lanes", LANES),
    # routers and their logs
    Meter("breakers_routers_held", "routers", ("router",), "routers owned"),
    Meter("breakers_log_append_seconds", "seconds", ("router",), "one transaction of the sample log", buckets=SECONDS),
    Meter("breakers_log_samples_total", "samples", ("router",), "samples appended"),
    Meter(
        "breakers_log_records_total",
        "records",
        ("router",),
        "records appended",
        {"kind": ("samples", "breaker", "view", "gap")},
    ),
    Meter("breakers_log_bytes_total", "bytes", ("router",), "payload appended"),
    Meter("breakers_log_size_bytes", "bytes", ("router",), "what the logs take; bound: BREAKERS_LOG_BYTES_MAX"),
    Meter(
        "breakers_log_shares_full",
        "projects",
        ("router",),
        "projects at their share of a log (BREAKERS_LOG_PROJECT_PERCENT_MAX): their samples are refused",
    ),
    Meter(
        "breakers_logs_damaged",
        "routers",
        ("router",),
        "routers whose logs are not as they were written: their samples are refused (`breakers aside list`)",
    ),
    Meter(
        "breakers_logs_ahead",
        "routers",
        ("router",),
        "routers whose logs are ahead of the clock: their samples are refused (`breakers status`)",
    ),
    Meter(
        "breakers_clock_doubted_seconds",
        "seconds",
        ("router",),
        "by how much the wall clock stepped ahead and is not believed yet; 0: it is",
    ),
    Meter(
        "breakers_log_trimmed_total",
        "records",
        ("router",),
        "records dropped by retention, or early for BREAKERS_LOG_BYTES_MAX",
        {"reason": ("retention", "size")},
    ),
    Meter("breakers_log_failures_total", "appends", ("router",), "appends of unknown outcome; the log is read anew"),
    Meter("breakers_log_gaps_total", "gaps", ("router",), "spans recorded in which no samples could be taken"),
    Meter(
        "breakers_log_refusals_total", "records", ("router",), "appends and watermarks refused: another owner took over"
    ),
    Meter(
        "breakers_delivery_marks_total",
        "marks",
        ("router",),
        "records of a project at its share of a lane, or of a broken lane, sent as 'read the log' instead",
    ),
    Meter("breakers_delivery_retries_total", "calls", ("router",), "deliveries that failed and went again as marks"),
    Meter(
        "breakers_delivery_refusals_total",
        "targets",
        ("router",),
        "breakers not held any more by whom they were sent to",
    ),
    # breakers
    Meter(
        "breakers_held",
        "breakers",
        ("breaker",),
        "breakers held by state; starting: being restored",
        {"state": ("closed", "open", "half_open", "starting")},
    ),
    Meter(
        "breakers_transitions_total",
        "transitions",
        ("breaker",),
        "committed changes of state; retrip: from half_open back to open",
        {"kind": ("trip", "half_open", "recover", "retrip", "by_hand", "hidden")},
    ),
    Meter("breakers_records_applied_total", "records", ("breaker",), "log records applied, each to one breaker"),
    Meter("breakers_samples_applied_total", "samples", ("breaker",), "samples applied, each to one breaker"),
    Meter("breakers_samples_late_total", "samples", ("breaker",), "samples too old for the window they came to"),
    Meter(
        "breakers_samples_truncated_total",
        "samples",
        ("breaker",),
        "samples that left a window early, beyond BREAKERS_WINDOW_SAMPLES_MAX",
    ),
    Meter(
        "breakers_evaluation_lag_seconds",
        "seconds",
        ("breaker",),
        "from the log's stamp to applied: once per delivered record, and per breaker for which it had to wait",
        buckets=SECONDS,
    ),
    Meter(
        "breakers_timer_lag_seconds", "seconds", ("breaker",), "from a timer's due time to its firing", buckets=SECONDS
    ),
    Meter("breakers_catch_ups_total", "reads", ("breaker",), "times a breaker was behind and read the log"),
    Meter("breakers_window_samples", "samples", ("breaker",), "samples that all windows hold"),
    Meter(
        "breakers_window_shares_full",
        "projects",
        ("breaker",),
        "projects whose windows are cut, at their share (BREAKERS_WINDOW_PROJECT_SAMPLES_MAX)",
    ),
    Meter(
        "breakers_inbox_overflows_total", "inboxes", ("breaker",), "inboxes that were full: read from the log instead"
    ),
    Meter("breakers_fenced_total", "breakers", ("breaker",), "breakers dropped because another owner took over"),
    Meter("breakers_passed_over_total", "routers", ("breaker",), "watermarks that firing timers went without"),
    Meter("breakers_unpromised_total", "timers", ("breaker",), "timers put off: no router of theirs answered"),
    Meter("breakers_unattached", "links", ("breaker",), "links to routers whose owner does not answer"),
    Meter("breakers_checkpoints_total", "records", ("breaker",), "breaker records stored between transitions"),
    Meter("breakers_commit_retries_total", "commits", ("breaker",), "commits that failed and were sent again"),
    Meter("breakers_idempotent_replays_total", "requests", ("api",), "creates that were answered like their first"),
    Meter(
        "breakers_idempotency_keys_dropped_total",
        "keys",
        ("api",),
        "keys of creates (Idempotency-Key) forgotten within a day, beyond 10000 of an organisation",
    ),
    # journal and feed
    Meter(
        "breakers_journal_commit_seconds", "seconds", ("journal",), "one transaction of the Journal", buckets=SECONDS
    ),
    Meter("breakers_journal_group_commits", "commits", ("journal",), "commits that share a transaction", buckets=SIZES),
    Meter(
        "breakers_journal_commits_total",
        "commits",
        ("journal",),
        "commits by result; repeated: was stored; late: came behind a later one of its breaker, and was passed over;"
        " put_off: come again, as others of their organisation filled a call",
        {"result": ("ok", "repeated", "late", "fenced", "failed", "put_off")},
    ),
    Meter(
        "breakers_transitions_paced_total",
        "transitions",
        ("journal",),
        "transitions that had to wait, beyond BREAKERS_TRANSITIONS_PER_MINUTE_MAX of their project",
    ),
    Meter("breakers_transitions_waiting", "breakers", ("journal",), "breakers whose transitions wait so"),
    Meter(
        "breakers_transitions_unlogged_total",
        "transitions",
        ("journal",),
        "stored transitions without a log line, beyond 50 a second",
    ),
    Meter("breakers_events_total", "events", ("journal",), "breaker events stored"),
    Meter(
        "breakers_feed_entries_total",
        "entries",
        ("journal",),
        "feed entries announced to replicas",
        {"kind": ("state", "config", "keys")},
    ),
    Meter("breakers_feed_resets_total", "resets", ("api",), "times a replica started over with the feed"),
    Meter("breakers_feed_failures_total", "polls", ("api",), "polls of the feed that failed"),
    # streams
    Meter("breakers_stream_clients", "clients", ("api",), "open state streams"),
    Meter("breakers_console_pages", "pages", ("api",), "pages of the console that listen to what changes"),
    Meter("breakers_streams_opened_total", "streams", ("api",), "state streams opened"),
    Meter(
        "breakers_streams_closed_total",
        "streams",
        ("api",),
        "state streams ended; slow: cut since nothing was read",
        {"reason": ("left", "slow", "gone", "revoked", "stopped")},
    ),
    Meter("breakers_streams_refused_total", "streams", ("api",), "streams beyond BREAKERS_STREAMS_PER_PROJECT_MAX"),
    Meter("breakers_stream_messages_total", "messages", ("api",), "messages given to stream clients"),
    Meter(
        "breakers_stream_messages_merged_total",
        "messages",
        ("api",),
        "messages that a stream client did not get, as it was far behind and got a newer one of the same breaker",
    ),
    Meter(
        "breakers_board_loads_total",
        "loads",
        ("api",),
        "states of a project loaded for its streams; overrun: too much happened meanwhile, done again",
        {"result": ("ok", "overrun", "failed")},
    ),
    Meter(
        "breakers_changes_late_total",
        "changes",
        ("api",),
        "requests answered with the warning pending: their changes were not in all routers' logs within 10 s",
    ),
    # directory
    Meter(
        "breakers_changes_pending",
        "changes",
        ("directory",),
        "configuration changes not yet in a router's log; counted up to 100000",
    ),
    Meter("breakers_actors_up", "actors", ("directory",), "actors that answer", {"kind": ("breaker", "router")}),
    Meter(
        "breakers_assignments_total",
        "assignments",
        ("directory",),
        "breakers and routers given to an owner, each time under a new epoch",
        {"kind": ("breaker", "router")},
    ),
    # notifications
    Meter("breakers_outbox_depth", "notifications", ("notifier",), "notifications waiting"),
    Meter("breakers_outbox_age_seconds", "seconds", ("notifier",), "age of the oldest notification that is due"),
    Meter(
        "breakers_notifications_total",
        "attempts",
        ("notifier",),
        "attempts to deliver by result; dead: given up",
        {"channel": CHANNELS, "result": ("delivered", "retry", "dead")},
    ),
    Meter(
        "breakers_notifications_unsent_total",
        "notifications",
        ("notifier",),
        "notifications that ended unsent; dead: refused or given up, cancelled: their channel was gone or disabled,"
        " suppressed: their outage ended behind a mute, found by the Notifier",
        {"state": ("dead", "cancelled", "suppressed")},
    ),
    Meter(
        "breakers_alerts_renewed_total",
        "alerts",
        ("notifier",),
        "alerts that stand, sent again to Alertmanagers, by what came of it",
        {"result": ("delivered", "retry", "refused")},
    ),
    Meter("breakers_notifications_held", "notifications", ("notifier",), "notifications held behind mutes"),
    Meter(
        "breakers_notifications_released_total",
        "notifications",
        ("notifier",),
        "notifications of outages that outlasted their mutes",
    ),
    Meter("breakers_overrides_active", "breakers", ("breaker",), "breakers whose callers see an override"),
    Meter("breakers_overrides_age_seconds", "seconds", ("breaker",), "since the oldest of these overrides was set"),
    Meter("breakers_observing", "breakers", ("breaker",), "breakers in mode observe"),
    Meter(
        "breakers_resting",
        "breakers",
        ("breaker",),
        "breakers that go on in their turns, as they have more to do than goes in one step",
    ),
    Meter("breakers_mutes_active", "mutes", ("notifier",), "mutes between their start and their end"),
    Meter("breakers_mutes_age_seconds", "seconds", ("notifier",), "since the oldest of these mutes started"),
    Meter(
        "breakers_channels_silent",
        "channels",
        ("notifier",),
        "channels to which no delivery is attempted since they don't answer",
    ),
    Meter(
        "breakers_notification_seconds",
        "seconds",
        ("notifier",),
        "one attempt to deliver",
        {"channel": CHANNELS},
        buckets=SECONDS,
    ),
    # what could not be read
    Meter(
        "breakers_set_aside_total",
        "things",
        EVERY,
        "stored things that could not be read, met for the first time by this process; see `breakers aside list`",
        {"kind": KINDS},
    ),
    Meter("breakers_set_aside_rows", "rows", ("directory",), "rows of `breakers aside list`"),
    Meter(
        "breakers_set_aside_dropped_total",
        "things",
        ("directory",),
        "things set aside that found no room among the rows, 10000 at most",
    ),
    # what projects keep in the database
    Meter(
        "breakers_stored_shares_full",
        "projects",
        ("directory",),
        "projects and organisations at 95 % and more of what they may keep in the database (see Limits), counted up"
        " to 100 in all",
        {"what": STORED},
    ),
    Meter(
        "breakers_audit_shortened_total",
        "entries",
        ("directory",),
        "audit entries written without before and after, beyond BREAKERS_AUDIT_BYTES_MAX of their project or"
        " organisation",
    ),
    Meter(
        "breakers_events_dropped_total",
        "events",
        ("directory",),
        "events that went before their time, beyond BREAKERS_EVENTS_MAX of their project, or with it",
    ),
    Meter(
        "breakers_deliveries_dropped_total",
        "notifications",
        ("directory",),
        "ended notifications that went before their time, beyond BREAKERS_DELIVERIES_MAX of their project, or with it",
    ),
    Meter(
        "breakers_alerts_unsent_total",
        "notifications",
        ("directory",),
        "notifications given up, or never written, since too many of their project waited (BREAKERS_DELIVERIES_MAX)",
    ),
    Meter(
        "breakers_alerts_unmuted_total",
        "notifications",
        ("directory",),
        "notifications that went out as if nothing muted them, since matching mutes took too long and they could not be"
        " held (see Limits)",
    ),
    Meter(
        "breakers_upkeep_failures_total",
        "parts",
        ("directory",),
        "parts of rounds of upkeep that failed, and are tried again in the next one: logs: what nobody needs of them;"
        " deliveries_beyond: what projects have beyond their shares; time: up to when history is old; history: old"
        " events, audit entries and mutes; answers: those kept for Idempotency-Keys; ended: names and sessions;"
        " deletions: projects whose end was not finished",
        {"part": UPKEEP},
    ),
    # every process
    Meter(
        "breakers_wires_refused_total",
        "connections",
        ("router", "breaker", "journal", "directory", "notifier"),
        "connections to an actor's own port that did not prove to be the service's: what came was no proof, late:"
        " nothing came in time, connections: made room for another one",
        {"what": ("unproven", "late", "connections")},
    ),
    Meter("breakers_log_lines_total", "lines", EVERY, "lines logged", {"level": ("warning", "error")}),
    Meter(
        "breakers_loop_delay_seconds",
        "seconds",
        EVERY,
        "how late the event loop was, looked at once a second",
        buckets=SECONDS,
    ),
]

TABLE: dict[str, Meter] = {meter.name: meter for meter in _METERS}
BUCKET, SUM = "_bucket_total", "_sum_total"
"""A histogram is exported as counters: one per bucket, with the label `le`, and one for the sum."""


def exported(name: str) -> tuple[Meter, tuple[str, ...]]:
    """The metric behind an exported name and the labels it is exported with."""
    meter = TABLE[name.removesuffix(BUCKET).removesuffix(SUM)]
    return meter, (*meter.labels, "le") if name.endswith(BUCKET) else tuple(meter.labels)


def reference_table() -> str:
    """The table of docs/reference/metrics.md, by the names Prometheus sees."""
    lines = ["| metric | type, unit | labels | where | what |", "|---|---|---|---|---|"]
    for meter in TABLE.values():
        labels = ", ".join(f"{name}: {' '.join(values)}" for name, values in meter.labels.items())
        where = "all" if meter.parts == EVERY else ", ".join(meter.parts)
        lines.append(f"| `{meter.name}` | {meter.type}, {meter.unit} | {labels} | {where} | {meter.help} |")
    return "\n".join(lines)
