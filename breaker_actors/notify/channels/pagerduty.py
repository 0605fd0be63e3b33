"""A notification as an event of PagerDuty's Events API v2. Pure.

A trip triggers an alert, a recovery or the deletion of the breaker resolves it: both carry the same dedup_key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from breaker_actors.clock import rfc3339
from breaker_actors.notify.channels.wording import explanation, facts, measure, name_of, project_of, summary
from breaker_actors.notify.model import Message
from breaker_actors.text.escaping import cut, for_line, link

EVENTS_URL = "https://events.pagerduty.com/v2/enqueue"
SEVERITIES = ("critical", "error", "warning", "info")
DEDUP_MAX, SUMMARY_MAX = 255, 1024


def render(message: Message, config: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON body; `config` is the channel's (routing_key, severity)."""
    event: dict[str, Any] = {
        "routing_key": config["routing_key"],
        "event_action": "trigger" if message.kind in ("trip", "test") else "resolve",
        "dedup_key": cut(f"{message.project_id}:{message.breaker_id}", DEDUP_MAX),
    }
    if event["event_action"] == "resolve":
        return event
    event |= {"client": "breaker-actors", "payload": _payload(message, config)}
    if url := link(message.trace_url):
        event["links"] = [{"href": url, "text": "Newest trace"}]
    return event


def _payload(message: Message, config: Mapping[str, Any]) -> dict[str, Any]:
    """`source` is the project, as no host is known that the samples came from."""
    return {
        "summary": cut(summary(message), SUMMARY_MAX),
        "source": project_of(message),
        "severity": _severity(message, config),
        "timestamp": rfc3339(message.ts_ms),
        "component": name_of(message),
        "group": project_of(message),
        "class": "test" if message.kind == "test" else measure(message.rule),
        "custom_details": _details(message),
    }


def _severity(message: Message, config: Mapping[str, Any]) -> str:
    """A test wakes nobody at night."""
    wanted = config.get("severity")
    if message.kind == "test":
        return "info"
    return wanted if isinstance(wanted, str) and wanted in SEVERITIES else "critical"


def _details(message: Message) -> dict[str, Any]:
    """The words people read first, then the figures for whoever routes events by them."""
    words = {label.lower(): text for label, text in facts(message).items()} | {"meaning": explanation(message)}
    if message.kind == "test":
        return words
    return words | {
        "project_id": message.project_id,
        "breaker_id": message.breaker_id,
        "transition_seq": message.transition_seq,
        "kind": message.rule.get("kind"),
        "metric": for_line(str(message.rule.get("metric", "")), 128),
        "threshold": message.rule.get("threshold"),
        "window_ms": message.rule.get("window_ms"),
        "agg": message.agg,
    }
