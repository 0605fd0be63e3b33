"""What each operation, parameter, property and tag of the interface means: the one source of the document's words.

Fields of a rule are described by `core/rule_fields`. A property is looked up as `Component.property`, then by its name
alone. Times named *_ms are Unix milliseconds in UTC; others are RFC 3339 in UTC.
"""

from __future__ import annotations

from breaker_actors.core.rule_fields import BY_NAME, described

RULE_HOLDERS = ("Breaker", "BreakerCreate", "BreakerItem", "BreakerPatch", "BreakerSingle")

TAGS = {
    "workspaces": "What an organisation sorts its projects into.",
    "projects": "What holds breakers, routers, channels and keys.",
    "ingest_secret": "The secret that signs samples.",  # nosec B105 # its description
    "status": "Numbers of closed and open breakers.",
    "ingest": "Samples in.",
    "breakers": "Rules over samples, their states and their metadata.",
    "events": "The history of state changes.",
    "audit": "The history of configuration changes.",
    "routers": "Which samples reach which breakers.",
    "notification-channels": "Who is told of a trip or a recovery, and what was sent.",
    "keys": "Keys of a project for runtime clients.",
    "health": "Probes of the infrastructure.",
    "rebalance": "For the operator: how the service is doing, and where its breakers run.",
    "metrics": "Series for Prometheus.",
    "openapi.json": "This document.",
    "docs": "This document as a page.",
}

OPERATIONS = {
    "list_workspaces": "Lists all workspaces of the key's organisation.",
    "create_workspace": "Makes a workspace; `slug` must be free in the organisation.",
    "get_workspace": "Shows one workspace.",
    "update_workspace": "Changes the fields that are given.",
    "delete_workspace": "Deletes a workspace without projects; 409 while it has some.",
    "list_projects": "Lists the projects of the organisation, or of one workspace. Ingest secrets are not shown.",
    "create_project": "Makes a project. The answer is the only one but rotation that shows the ingest secret.",
    "get_project": "Shows one project without its ingest secret.",
    "update_project": "Changes the fields that are given; null sets a field back to its default.",
    "delete_project": "Deletes a project with breakers, routers, channels and keys; samples and history go later. With "
    "`confirm_name` it must be the project's name.",
    "rotate_secret": "Makes a new ingest secret, in force everywhere within a second. The one before counts for "  # nosec B105 # its description
    "`overlap_ms` more.",
    "get_status": "Counts closed and open breakers; half_open ones are in neither count.",
    "head_status": "Shows the entity tag of the status without its body.",
    "ingest": "Takes up to 1000 samples. 202: the good ones are durable in the log; the others are named in `errors`. "
    "422: none was good. Needs a signature where the project asks for one.",
    "list_breakers": "Lists all breakers of the project in one page, with the hash of the set as entity tag.",
    "create_breaker": "Makes a breaker in state closed, and a router of its own that is linked to it. 409: the id is "
    "taken.",
    "replace_breakers": "Replaces the whole set: items match by id, else by name; others are made, "
    "and missing ones deleted. 409: a guardrail stops a removal of most breakers; 412: If-Match names another set.",
    "get_breaker": "Shows one breaker.",
    "update_breaker": "Changes the fields that are given; null sets a field back to its default. A change of metric, "
    "kind or kind_params starts the evidence anew and keeps the state.",
    "delete_breaker": "Deletes a breaker, and its own router when nothing else is linked to that.",
    "get_state": "Shows the committed state of one breaker.",
    "get_states": "Shows the committed states of the breakers named, and of those linked to the routers named, each "
    "once and in the order of the request. Unknown ids are left out; empty lists count as absent.",
    "stream_states": "Sends one `data:` message per breaker at first, then one at each change of state or allow_rate, "
    "with `breaker` (its name), `state` and `allow_rate` (null but in half_open). Never ends cleanly: reconnect.",
    "list_breaker_metadata": "Lists id, name and metadata of all breakers.",
    "head_breaker_metadata": "Shows the entity tag of that list without its body.",
    "update_breaker_metadata": "Merges keys into a breaker's metadata; null removes a key.",
    "list_events": "Lists state changes, newest first, page by page; from `after_sequence` oldest first. Kept 90 days "
    "unless set otherwise; they outlive their breaker.",
    "list_audit": "Lists changes of configuration, newest first, page by page.",
    "list_routers": "Lists all routers of the project.",
    "create_router": "Makes a router, linked to the breakers named.",
    "get_router": "Shows one router with its breakers in full.",
    "update_router": "Changes the fields that are given; null sets a field back to its default.",
    "delete_router": "Deletes a router; 409 while breakers are linked to it.",
    "link_breakers": "Links breakers to a router, all or none; links that exist stay.",
    "unlink_breaker": "Removes one link; later samples of the router don't reach the breaker.",
    "list_router_metadata": "Lists id, name and metadata of all routers.",
    "update_router_metadata": "Merges keys into a router's metadata; null removes a key. Keys `canary:<breaker>` and "
    "`weight:<breaker>` set the shares of the modes.",
    "list_channels": "Lists all notification channels, secrets masked.",
    "create_channel": "Makes a notification channel.",
    "get_channel": "Shows one notification channel, secrets masked.",
    "update_channel": "Changes the fields that are given. Keys of `config` are put over the stored ones, null removes "
    "one; a masked secret that is sent back, or left out, keeps the stored one while the channel goes where it went.",
    "delete_channel": "Deletes a channel; what waits to be sent on it is dropped.",
    "test_channel": "Sends a test notification now, whatever `enabled` and `events` say; 422 with the reason when it "
    "fails.",
    "list_deliveries": "Lists what was sent on a channel, what waits and why, newest first, page by page.",
    "redrive_delivery": "Makes a dead delivery pending again, with the dead ones of the same outage; 409 unless it "
    "is dead.",
    "list_keys": "Lists the keys of a project without the keys themselves.",
    "create_key": "Makes a key for runtime reads of the project. It is shown only in this answer.",
    "delete_key": "Revokes a key; it is refused everywhere within a second.",
    "get_health": "Says that the replica answers.",
    "head_health": "Says that the replica answers, without a body.",
    "get_healthz": "Says that the replica answers.",
    "head_healthz": "Says that the replica answers, without a body.",
    "get_readyz": "Says whether store, Directory, Journal and logs take work; 503 when one does not.",
    "head_readyz": "Says the same without a body.",
    "cluster_status": "Shows nodes, actors, logs, and projects at their limits. For the operator of the service.",
    "rebalance": "Moves some routers and breakers to other actors to even out the load; to be repeated while `left` "
    "is above 0. For the operator of the service.",
    "openapi_document": "Answers this document.",
    "get_metrics": "States, values and thresholds of the oldest breakers of all projects, as many as"
    " BREAKERS_METRICS_BREAKERS_MAX, in Prometheus' text format. For BREAKERS_METRICS_TOKEN, which is no API key.",
    "docs_page": "Answers this document as one HTML page to search and to try; it asks no other host.",
    "docs_script": "Answers the script of that page, which browsers keep.",
}

PATH_PARAMETERS = {
    "workspace_id": "Id of the workspace.",
    "project_id": "Id of the project.",
    "breaker_id": "Id of the breaker.",
    "router_id": "Id of the router.",
    "channel_id": "Id of the notification channel.",
    "delivery_id": "Id of the delivery.",
    "key_id": "Id of the key, not the key itself.",
}

PROPERTIES = {
    # of many bodies
    "id": "Id, as paths name it.",
    "name": "Name for people, at most 255 characters.",
    "project_id": "Id of the project.",
    "workspace_id": "Id of the workspace the project belongs to.",
    "breaker_id": "Id of the breaker.",
    "items": "The same list, under the name that paging clients look for.",
    "count": "How many there are in this answer.",
    "returned": "How many there are in this page.",
    "next_cursor": "Where the next page begins, as query parameter `cursor`; null: this was the last.",
    "cursor": "The same as next_cursor.",
    "has_more": "Whether there is a next page.",
    "metadata": "Labels of one's own: at most 20 keys of at most 64 characters, values of at most 255.",
    "inserted_at": "When it was made.",
    "created_at": "When it was made.",
    "updated_at": "When it was changed last.",
    "timestamp": "ts_ms as text.",
    "ts_ms": "When it happened, Unix milliseconds.",
    "transition_seq": "Number of the breaker's transition: 1, 2, 3 and so on; 0 before the first.",
    "hash": "SHA-256 of the set as the list shows it, in canonical JSON sorted by id; the entity tag holds it.",
    # errors
    "Error.error": "Machine word for what went wrong.",
    "Error.code": "The same word as `error`.",
    "Error.message": "The same for people.",
    "Error.request_id": "X-Request-ID of the answer, under which the service logs.",
    "warnings": "Fields of the body that were ignored, and what is hardly meant; at most 20, only when there are any.",
    "FieldWarning.code": "Machine word: unknown_field; never_moves, short_window, percentile_below_1, same_name or"
    " pending of a breaker; no_mail_server, channel_cannot_work or unknown_config_key of a channel; repeated,"
    " router_disabled or no_breaker_hears of samples.",
    "FieldWarning.field": "Path of the field in the body; empty where none is meant.",
    "FieldWarning.message": "What is wrong with it, and which field may be meant.",
    "Error.details": "What is wrong by the path of a field, where that can be said; else empty.",
    # projects
    "Project.id": "The same as project_id.",
    "enable_signed_ingest": "Whether samples must be signed with the ingest secret. Default: false.",
    "ingest_secret": "Key of signed samples: HMAC-SHA256, hex-decoded first.",  # nosec B105 # its description
    "slack_webhook_url": "Slack address that hears of every trip and recovery beside the channels, masked in answers; "
    "null: none.",
    "trace_id_url_template": "http(s) address of a trace, with {{value}} for its id; in notifications. null: none.",
    "confirm_name": "Must be the project's name when given.",
    "previous_valid_until_ms": "Until when the secret before still counts, Unix milliseconds; null: it does not.",
    "closed_count": "Breakers in state closed.",
    "open_count": "Breakers in state open.",
    "half_open_count": "Breakers in state half_open.",
    "ProjectStatus.last_eval_ms": "Newest evaluation of any breaker, Unix milliseconds; 0: there was none.",
    # workspaces
    "slug": "Short name for addresses, unique in the organisation.",
    "org_id": "Id of the organisation.",
    # keys
    "key": "The key itself, shown only here.",
    "NewProjectKey.message": "Reminder to store the key now.",
    "key_prefix": "First characters of the key, to tell keys apart.",
    "last_used_at": "When a request came with it last, some seconds late; null: never.",
    # breakers
    "BreakerCreate.id": "Id of the new breaker; made by the service when left out.",
    "BreakerItem.id": "Id of the breaker to match; unknown: of a new one.",
    "BreakerItem.name": "Name for people; matches a breaker where no id does.",
    "Breaker.router_id": "First router the breaker is linked to; empty: none.",
    "Breaker.router_ids": "All routers the breaker is linked to.",
    "half_open_confirmation_ms": "(ramp steps + 1) x eval_interval_ms, milliseconds: least time in half_open before "
    "closed. Computed.",
    "recovery_window_ms": "Ramp steps x eval_interval_ms, milliseconds: allow_rate rises to 1 in it. Computed.",
    "actions": "Object kept as it is and never acted upon: at most 64 KiB, 1000 values, 32 deep; null: none.",
    "BreakerSingle.breaker": "The breaker once more, for clients that read an envelope.",
    "breakers": "The breakers.",
    "BreakersReplace.breakers": "The whole set as it is to be.",
    "RouterSingle.breakers": "The breakers linked to the router, in full.",
    "RouterDetail.breakers": "The breakers linked to the router, in full.",
    "changed": "Whether anything was changed.",
    "duration_ms": "Time the replacement took, milliseconds.",
    "BreakerList.updated_at": "When the project's set of breakers was changed last.",
    # states
    "StateBatch.breaker_ids": "Breakers to show.",
    "StateBatch.router_ids": "Routers whose linked breakers are shown.",
    "StateBatch.router_id": "One more router; empty: none.",
    "BreakerState.name": "Name of the breaker.",
    "BreakerState.state": "closed: calls pass; open: none pass; half_open: a share passes, see allow_rate.",
    "BreakerState.allow_rate": "Share of calls to let through, 0 to 1: 1 in closed, 0 in open, rising in half_open.",
    "indeterminate": "Whether the last evaluation lacked samples.",
    "indeterminate_reason": "insufficient_samples exactly when indeterminate.",
    "reason_code": "Open: why it opened. Else insufficient_samples when indeterminate, threshold_exceeded when a "
    "breach is held back, or null.",
    "held_back": "Whether a breach stands that min_state_duration_ms still keeps from opening the breaker.",
    "observed": "Whether the last evaluation had samples.",
    "BreakerState.value": "Aggregate of the last evaluation, in its own unit; null: undefined.",
    "BreakerState.threshold": "Threshold of the rule.",
    "sample_count": "Samples of the last evaluation; for consecutive_failures those since the evidence began.",
    "BreakerState.min_count": "Samples an evaluation needs.",
    "BreakerState.window_ms": "Length of the window, milliseconds; 0: the kind has none.",
    "passes": "Healthy ticks in half_open so far.",
    "BreakerState.last_eval_ms": "Last evaluation, Unix milliseconds; 0: there was none.",
    "evaluated_at_ms": "Last evaluation, Unix milliseconds; null: there was none.",
    "next_eval_ms": "Earliest time at which the breaker evaluates without new samples, Unix milliseconds.",
    "state_since_ms": "When the breaker entered its state, Unix milliseconds.",
    "BreakerState.updated_at": "The later of last evaluation and last transition.",
    "truncated": "Samples that left the window early because it was full.",
    "late": "Samples that came too late for their window.",
    "stale": "true: its owner did not answer within its time, this is the stored state.",
    # events
    "BreakerEvent.id": "Id of the event: run (of a backfill), breaker and transition_seq, joined by dots.",
    "BreakerEvent.sequence": "Position in the order of storing; `after_sequence` takes it.",
    "BreakerEvent.name": "Name of the breaker at that time.",
    "prev": "State before.",
    "curr": "State after.",
    "from_state": "The same as prev.",
    "to_state": "The same as curr.",
    "reason": "Why the breaker moved; null: not known.",
    "BreakerEvent.value": "What the threshold was compared with; not there where there was none.",
    "rule": "The rule at that time, in short.",
    "agg": "Figures of the window that was evaluated.",
    "source": "live: it happened. backfill: a run found it in loaded history.",
    "run_id": "The run of a backfill; only on its events.",
    "EventRule.kind": "Kind of the aggregate.",
    "EventRule.metric": "Metric of the rule.",
    "EventRule.threshold": "Threshold of the rule.",
    "EventRule.window_ms": "Length of the window, milliseconds.",
    "EventRule.tags": "Always empty: tags don't influence evaluation.",
    "avg": "Mean of the values; 0 for an empty window.",
    "EventAggregates.count": "Number of samples.",
    "error_count": "Samples with ok false.",
    "p95": "95th percentile of the values by nearest rank; 0 for an empty window.",
    # routers
    "mode": "static: every linked breaker gets every sample. canary: breakers with a share in metadata get that share. "
    "weighted: each sample goes to one breaker, by weight. Default: static.",
    "Router.enabled": "Whether its samples reach breakers.",
    "RouterPatch.enabled": "Whether its samples reach breakers. Default: true.",
    "created_by": "system: made with a breaker, and goes with it when nothing else is linked. user: made by a caller.",
    "breaker_count": "Breakers linked to it.",
    "RouterCreate.breaker_ids": "Breakers to link at once.",
    "RouterLink.breaker_ids": "Breakers to link.",
    "RouterLink.breaker_id": "One breaker to link.",
    "RouterSingle.router": "The router once more, for clients that read an envelope.",
    "RouterMetadataList.routers": "The routers with their metadata.",
    "BreakerMetadataList.breakers": "The breakers with their metadata.",
    "MetadataPatch.metadata": "Keys to merge; null removes one.",
    # samples
    "samples": "At most 1000 samples.",
    "MetricSample.router_id": "Router that maps the sample to breakers.",
    "MetricSample.metric": "Name of what was measured, 1 to 128 characters.",
    "MetricSample.value": "Finite number in the metric's own unit.",
    "MetricSample.ts_ms": "When it was measured, Unix milliseconds: at most 1 h ago and 5 min ahead unless set "
    "otherwise. Default: the X-EB-Timestamp header.",
    "ok": "Whether the call succeeded; for error_rate and consecutive_failures. Default: true.",
    "MetricSample.tags": "Labels, at most 32; they don't influence evaluation.",
    "trace_id": "Id of the trace, for links in notifications and for shares of routers.",
    "accepted": "Samples that are durable.",
    "rejected": "Samples that were not taken.",
    "Accepted.errors": "What is wrong with the first hundred of them.",
    "index": "Position of the sample in the request, from 0.",
    "field": "Field that is wrong.",
    "SampleError.code": "Machine word for what is wrong.",
    "SampleError.message": "What is wrong, as a sentence.",
    # notification channels and deliveries
    "Channel.channel": "Kind of the receiver.",
    "ChannelCreate.channel": "Kind of the receiver; can't be changed later.",
    "ChannelSingle.channel": "The channel.",
    "config": "By kind. slack: webhook_url (required). webhook: url, headers, secret. pagerduty: routing_key. email: "
    "to. Secrets and addresses are masked in answers.",
    "ChannelPatch.config": "Keys to change, those left out stay; null removes a key, null in place of all empties it. "
    "A key that is given is replaced whole, `headers` too. Another scheme, host or port asks for the secrets again.",
    "Channel.enabled": "Whether anything is sent.",
    "ChannelPatch.enabled": "Whether anything is sent. Default: true.",
    "Channel.events": "What is told: trip (a move to open), recover (half_open to closed).",
    "ChannelPatch.events": "What is told: trip (a move to open), recover (half_open to closed). Default: both.",
    "ChannelTest.status": "sent: the receiver took it.",
    "ChannelTest.message": "The same for people.",
    "channel_id": "Id of the notification channel.",
    "Delivery.name": "Name of the breaker.",
    "event_id": "Id of the event it tells; null: the end of a deleted breaker has none.",
    "Delivery.kind": "trip, recover, or resolve (the breaker of a trip is gone).",
    "Delivery.state": "pending: waits. sent: the receiver took it. dead: given up. cancelled: not needed any more.",
    "attempts": "Attempts so far.",
    "last_status": "HTTP status of the last attempt's answer; null: there was none.",
    "last_error": "What was wrong with the last attempt; null: nothing.",
    "next_attempt_at": "When it is tried next at the earliest; null unless pending.",
    "sent_at": "When the receiver took it; null: not yet.",
    "ended_at": "When it became sent, dead or cancelled; null: it is pending.",
    "silence": "Why nothing is tried on the channel now; null: deliveries are tried.",
    "Silence.state": "open: nothing is tried until retry_at. half_open: one delivery probes the receiver.",
    "retry_at": "When the receiver is probed; null: now.",
    # audit
    "AuditEntry.id": "Number of the entry.",
    "AuditEntry.project_id": "Id of the project; null: it concerned the organisation.",
    "key_id": "Id of the key that did it, or a word where none was used.",
    "action": "What was done.",
    "target_id": "Id of what it was done to.",
    "before": "What it was before, secrets masked; null: it was not there.",
    "after": "What it was afterwards, secrets masked; null: it is gone.",
    # the operator's part
    "nodes": "Machines of the cluster that are up.",
    "replicas": "Replicas of the API.",
    "budgets": "How many actors of a kind there may be.",
    "ActorBudgets.router": "RouterActors; null: the Directory does not answer.",
    "ActorBudgets.breaker": "BreakerActors; null: the Directory does not answer.",
    "journal": "Figures of the Journal; null: it does not answer.",
    "ClusterStatus.log_bytes": "Bytes of all write-ahead logs.",
    "ClusterStatus.set_aside": "Stored things that could not be read; null: the store does not answer.",
    "Ready.set_aside": "Stored things that could not be read, while there are any; all others are served.",
    "actors": "All actors.",
    "limits": "Projects and organisations at a share of theirs, 100 at most.",
    "Node.id": "Id that Ray gave the machine.",
    "address": "Address of the machine in the cluster.",
    "cpus": "CPUs Ray may use there.",
    "head": "Whether it is the cluster's head.",
    "epoch": "Fencing epoch of the Journal: goes up with each restart.",
    "JournalFigures.sequence": "Last sequence given to an event.",
    "position": "Entries of the change feed since the Journal began.",
    "ActorStatus.name": "Name of the actor.",
    "ActorStatus.kind": "Role of the actor.",
    "ActorStatus.state": "up: it answers. starting: it has not said hello yet. away: it does not answer.",
    "since_ms": "Since when it is in this state, Unix milliseconds; null: not known.",
    "restarts": "How often another process came up under its name since the Directory began; null: "
    "the Directory does not place it.",
    "holds": "Routers or breakers placed there.",
    "incarnation": "Id of the process' life; null: not known.",
    "node_id": "Machine it runs on; null: it does not answer.",
    "pid": "Process id there; null: it does not answer.",
    "started_ms": "When the process started, Unix milliseconds; null: it does not answer.",
    "ActorStatus.routers": "Routers it has itself; null: not of its role, or no answer.",
    "waiting": "Samples on their way into the log; null: not of its role, or no answer.",
    "ActorStatus.log_bytes": "Bytes of the log by partition; null: not of its role, or no answer.",
    "damaged": "Routers whose logs are not as they were written, so that their samples are refused, a hundred at most;"
    " null: not of its role, or no answer.",
    "fault": "Why the log's last write failed: samples are refused meanwhile; empty: it did not; null: not of its role,"
    " or no answer.",
    "ActorStatus.breakers": "Breakers it has itself; null: not of its role, or no answer.",
    "starting": "Breakers that still recover; null: not of its role, or no answer.",
    "behind": "Breakers that have not applied all they were sent; null: not of its role, or no answer.",
    "lag": "Consumer lag: most log records a breaker is behind; null: not of its role, or no answer.",
    "unheard": "Links to routers that nobody serves; null: not of its role, or no answer.",
    "overdue_ms": "Age of the oldest timer that has not fired, milliseconds; null: not of its role, or no answer.",
    "ProjectLimit.project_id": "Id of the project at its limit; null: an organisation is.",
    "ProjectLimit.org_id": "Id of the organisation at its limit; null: a project is.",
    "limit": "Which limit.",
    "used": "How much is used, in the unit of the limit.",
    "ProjectLimit.max": "How much may be used, in the unit of the limit.",
    "Rebalance.max": "Moves at most in this step; never more than 100. Default: 100.",
    "moved": "Routers and breakers that got another owner.",
    "left": "Routers and breakers still to be moved.",
    # health and this document
    "Health.status": "ok: the replica answers.",
    "Ready.status": "ready: all parts answer.",
    "Ready.message": "What is wrong, for people.",
    "openapi": "Version of the OpenAPI specification.",
    "info": "Title and version.",
    "paths": "The operations by path and method.",
}


LIKE = {
    "NewProject": "Project",
    "BreakerSingle": "Breaker",
    "RouterDetail": "Router",
    "RouterSingle": "Router",
    "RouterCreate": "RouterPatch",
    "ChannelCreate": "ChannelPatch",
}
"""Components whose properties mean what those of another one do, unless they have words of their own."""


def words_of(component: str, name: str) -> str | None:
    """What a property means; None: nobody has said so."""
    own = PROPERTIES.get(f"{component}.{name}") or PROPERTIES.get(f"{LIKE.get(component)}.{name}")
    if own is None and component in RULE_HOLDERS and name in BY_NAME:
        return described(BY_NAME[name])
    return own or PROPERTIES.get(name)
