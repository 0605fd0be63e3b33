"""A notification as the JSON of a webhook, its signature and its headers (semantics.md sections 6 and 9). Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

import msgspec

from breaker_actors.notify.model import Message
from breaker_actors.text.escaping import for_token, link

RULE_KEYS = ("kind", "metric", "threshold", "window_ms", "tags")
AGG_KEYS = ("avg", "count", "error_count", "p95")
OURS = frozenset(
    {"content-type", "content-encoding", "content-length", "host", "user-agent", "accept-encoding", "expect"}
    | {"idempotency-key", "x-eb-timestamp", "x-eb-signature"}
)
"""Header names that say what we send; a channel's own headers can't replace them."""
HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)


def render(message: Message) -> bytes:
    """The body. A deleted breaker's resolve is told as a recovery, with the reason beside it: receivers know two
    kinds of events (interface.md) and close on the second."""
    body: dict[str, Any] = {
        "event": "recover" if message.kind == "resolve" else message.kind,
        "project_id": message.project_id,
        "breaker_id": message.breaker_id,
        "name": message.name,
        "prev": message.prev,
        "curr": message.curr,
        "ts_ms": message.ts_ms,
        "transition_seq": message.transition_seq,
        "rule": {key: message.rule[key] for key in RULE_KEYS if key in message.rule},
        "agg": {key: message.agg[key] for key in AGG_KEYS if key in message.agg},
        "trace_url": link(message.trace_url),
    }
    if message.kind == "resolve":
        body["reason"] = message.reason
    if message.by is not None:
        body |= {"by": message.by, "comment": message.comment, "reason": message.reason}
    if message.muted_by is not None:
        body["muted_by"] = {k: v for k, v in msgspec.to_builtins(message.muted_by).items() if v is not None}
    return msgspec.json.encode(body)


def signature(secret: str, timestamp_ms: int, body: bytes) -> str:
    """The value of X-EB-Signature; the secret counts as its UTF-8 bytes."""
    signed = f"{timestamp_ms}.".encode() + body
    return "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def headers(config: Mapping[str, Any], message: Message, body: bytes, now_ms: int) -> dict[str, str]:
    """All headers of one attempt; `now_ms` is its own time, which receivers hold against their clock."""
    given = {str(name): str(value) for name, value in (config.get("headers") or {}).items()}
    sent = given | {"Idempotency-Key": for_token(message.delivery_id)}
    if secret := config.get("secret"):
        sent |= {"X-EB-Timestamp": str(now_ms), "X-EB-Signature": signature(secret, now_ms, body)}
    return sent
