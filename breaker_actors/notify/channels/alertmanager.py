"""A notification as an alert of an Alertmanager (API v2, POST /api/v2/alerts). Pure.

An Alertmanager tells alerts apart by their labels and forgets one at its endsAt: labels are those of the outage's first
trip (`Subject`), and what stands is sent again with a later endsAt, as Prometheus does (the alert generator
specification of prometheus/compliance).
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import httpx
from msgspec.structs import replace

from breaker_actors.clock import rfc3339
from breaker_actors.notify.channels.wording import explanation, facts, project_of, summary
from breaker_actors.notify.model import Message
from breaker_actors.store.rows import Subject
from breaker_actors.text.escaping import cut, for_line, link

PATH = "/api/v2/alerts"
OURS = ("alertname", "breaker", "breaker_id", "project", "project_id", "router", "metric", "kind")
"""Labels that say which breaker it is; a channel's own labels can't replace them."""
LABEL_NAME = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]{0,127}")
"""Those of Prometheus' data model, without the names it keeps for itself."""
NAME_MAX, VALUE_MAX, DESCRIPTION_MAX = 128, 300, 4096
RUNBOOK = "runbook_url"
"""The key of a breaker's metadata that is an annotation, not a label."""
LASTS = 4
"""An alert that stands ends after so many renewals, unless it is renewed: Prometheus' rule."""
_NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9_]")


def endpoint(url: httpx.URL) -> httpx.URL:
    """Where alerts go, of an Alertmanager's address or of that of its alerts."""
    path = url.path.rstrip("/")
    return url.copy_with(path=path if path.endswith(PATH) else path + PATH, fragment="")


def headers(config: Mapping[str, Any]) -> dict[str, str]:
    """Who asks: RFC 7617 or RFC 6750; nothing where the config names nobody."""
    if token := config.get("bearer_token"):
        return {"Authorization": f"Bearer {token}"}
    if username := config.get("username"):
        pair = f"{username}:{config.get('password') or ''}".encode()
        return {"Authorization": f"Basic {b64encode(pair).decode()}"}
    return {}


def render(message: Message, config: Mapping[str, Any], now_ms: int, renewal_ms: int) -> dict[str, Any]:
    """One alert, as of `now_ms`. What stands ends LASTS renewals later, a test after one."""
    began_ms = message.ts_ms - (message.outage_ms or 0)
    alert: dict[str, Any] = {
        "labels": labels(message, config),
        "annotations": _annotations(message),
        "startsAt": rfc3339(began_ms),
        "endsAt": rfc3339(max(began_ms, _ends_ms(message, now_ms, renewal_ms))),
    }
    if url := _generator(message, config):
        alert["generatorURL"] = url
    return alert


def _ends_ms(message: Message, now_ms: int, renewal_ms: int) -> int:
    match message.kind:
        case "trip":
            return now_ms + LASTS * renewal_ms
        case "test":
            return now_ms + renewal_ms
        case _:
            return min(message.ts_ms, now_ms)


def labels(message: Message, config: Mapping[str, Any]) -> dict[str, str]:
    """All that the alert is known by; what is empty is no label."""
    subject = message.subject or _subject(message)
    found = {
        "alertname": "BreakerTest" if message.kind == "test" else "BreakerOpen",
        "breaker": subject.breaker,
        "breaker_id": message.breaker_id,
        # not of its name of now: it may have one since
        "project": subject.project or project_of(replace(message, project_name=None)),
        "project_id": message.project_id,
        "router": subject.router or "",
        "metric": subject.metric,
        "kind": subject.kind,
    }
    for key, value in sorted(subject.metadata.items()):
        if key != RUNBOOK:
            found.setdefault(label_name(key), value)
    found |= {str(name): str(value) for name, value in (config.get("labels") or {}).items()}
    return {name: line for name, value in found.items() if (line := for_line(value, VALUE_MAX))}


def label_name(key: str) -> str:
    """A key of metadata as a label: what a name can't have is "_"; one of ours gets "meta_" before it."""
    name = _NOT_OF_A_NAME.sub("_", key)
    if name.startswith("__") or not name or name[0].isdigit():
        name = "_" + name.lstrip("_")
    return f"meta_{name}" if name in OURS else name[:NAME_MAX]


def _subject(message: Message) -> Subject:
    """Of what has none, such as a test."""
    rule = message.rule
    metric, kind = str(rule.get("metric", "")), str(rule.get("kind", ""))
    return Subject(breaker=message.name, metric=metric, kind=kind, project=message.project_name)


def _annotations(message: Message) -> dict[str, str]:
    """What people read; it may be another text in each alert."""
    known = "\n".join(f"{label}: {words}" for label, words in facts(message).items())
    found = {
        "summary": summary(message),
        "description": cut(f"{explanation(message)}\n{known}", DESCRIPTION_MAX),
    }
    metadata = {} if message.subject is None else message.subject.metadata
    links = {RUNBOOK: link(metadata.get(RUNBOOK)), "trace_url": link(message.trace_url)}
    return found | {name: url for name, url in links.items() if url}


def _generator(message: Message, config: Mapping[str, Any]) -> str | None:
    """Where the alert comes from: the breaker in the console where the channel knows its address, else the trace."""
    base = config.get("generator_url")
    if not base:
        return link(message.trace_url)
    breaker = f"/b/{message.breaker_id}" if message.tells_of_a_breaker else ""
    return link(f"{str(base).rstrip('/')}/console/p/{message.project_id}{breaker}")
