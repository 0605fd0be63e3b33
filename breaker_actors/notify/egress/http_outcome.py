"""What an HTTP answer means for a delivery: sent, try again, or give up; and what its body says about why. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import msgspec

from breaker_actors.clock import unix_ms
from breaker_actors.notify.egress.excerpt import shown_of
from breaker_actors.notify.model import Attempt, Destination

BODY_MAX = 4096
"""Bytes that are read of an answer; the rest is left unread."""
RETRY_AFTER_MAX_MS = 3_600_000
RETRIED = (408, 425, 429)
_SECONDS = re.compile(r"[0-9]{1,12}")
_SLACK_WORD = re.compile(r"[a-z]+(_[a-z]+)*")


class Answer(msgspec.Struct, kw_only=True):
    """As much as came of an answer: `status` 0 means none did. `body`: its first `body_max` bytes."""

    status: int = 0
    headers: list[tuple[str, str]] = []
    retry_after: str | None = None
    body: bytes = b""
    body_max: int = BODY_MAX


def judge(to: Destination, answer: Answer, now_ms: int) -> Attempt:
    """The outcome of an attempt that was answered."""
    status = answer.status
    if 200 <= status < 300:
        if to.kind == "slack" and _object(answer.body).get("ok") is False:
            return Attempt(result="refused", status=status, error=_said(to, answer, "not accepted"))
        return Attempt(result="sent", status=status)
    if 300 <= status < 400:
        return Attempt(result="refused", status=status, error=f"answered {_named(status)}; redirects are not followed")
    error = _said(to, answer, f"answered {_named(status)}")
    if status in RETRIED or not 400 <= status < 500:
        wait_ms = retry_after_ms(answer.retry_after, now_ms)
        return Attempt(result="retry", status=status, error=error, retry_after_ms=wait_ms)
    return Attempt(result="refused", status=status, error=error)


def disliked(to: Destination, answer: Answer) -> Attempt:
    """The outcome of an attempt whose answer says in its body that nothing was taken, whatever its status."""
    return Attempt(result="refused", status=answer.status, error=_said(to, answer, "not accepted"))


def retry_after_ms(value: str | None, now_ms: int) -> int | None:
    """Milliseconds to wait, from seconds or an HTTP date; at most an hour, None when it says nothing readable."""
    if value is None:
        return None
    if _SECONDS.fullmatch(value.strip()):
        return min(int(value) * 1_000, RETRY_AFTER_MAX_MS)
    try:
        until = parsedate_to_datetime(value)
        aware = until if until.tzinfo else until.replace(tzinfo=UTC)
        wait_ms = unix_ms(aware) - now_ms
    except (ValueError, OverflowError):
        return None
    return min(max(wait_ms, 0), RETRY_AFTER_MAX_MS)


def _named(status: int) -> str:
    """The status with our own name for it: a reason phrase is the receiver's text."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _said(to: Destination, answer: Answer, what: str) -> str:
    words = shown_of(_words(to, answer.body), to.config)
    return f"{what}: {words}" if words else what


def _words(to: Destination, body: bytes) -> str:
    """The part of a body that names the trouble: Slack's word, PagerDuty's list, Alertmanager's text, else that of an
    error object.

    Anything else (a page, say) is not worth a line.
    """
    text = body.decode("utf-8", "replace").strip()
    if to.kind == "slack" and _SLACK_WORD.fullmatch(text):
        return text
    if to.kind == "alertmanager" and isinstance(said := _value(body), str):
        return said
    fields = _object(body)
    listed = fields.get("errors")
    if to.kind == "pagerduty" and isinstance(listed, list):
        return "; ".join(item for item in listed if isinstance(item, str))
    return next((said for key in ("message", "error", "code") if isinstance(said := fields.get(key), str)), "")


def _object(body: bytes) -> Mapping[str, Any]:
    value = _value(body)
    return value if isinstance(value, dict) else {}


def _value(body: bytes) -> Any:
    """The JSON of a body; None of what is none."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
