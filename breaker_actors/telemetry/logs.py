"""What a log line looks like, in every process: JSON on stderr, or plain text when that is a terminal.

Fields: `ts` (ISO 8601, UTC), `level`, `event`, `process` (which actor or replica speaks), `request_id` while a request
is being answered, and the event's own. Nothing that looks like a key, a bearer token, an ingest secret, or what an
address says beside its host leaves here: see `clean`. Lines of libraries (warnings and errors) take the same way.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

import structlog

from breaker_actors.clock import Clock, SystemClock
from breaker_actors.telemetry.meters import Meters
from breaker_actors.text.escaping import for_log, for_terminal
from breaker_actors.text.redaction import MARK, mask

Event = MutableMapping[str, Any]
FIRST = ("ts", "level", "event", "process")
TRACES = ("exception", "traceback", "stack")
"""Fields that may be of several lines where lines are for eyes."""

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request this task answers."""

_SECRETS = (
    (re.compile(r"\b(eb_[a-z]+_)[\w-]+"), rf"\1{MARK}"),
    (re.compile(r"\b(bearer|basic)(?:\s|%20)+[^\s\"',;]+", re.IGNORECASE), rf"\1 {MARK}"),
    # ingest secrets and signatures; what else has this form (hashes) is no loss
    (re.compile(r"(?<![0-9a-fA-F])[0-9a-fA-F]{64}(?![0-9a-fA-F])"), MARK),
    # of an address scheme and host stay: passwords stand before the @, webhooks' secrets in the path or the query
    (re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^\s\"'<>]*@)?([^\s\"'<>/?#]*)[/?#][^\s\"'<>]*"), rf"\1\2/{MARK}"),
    (re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s\"'<>]*@"), rf"\1{MARK}@"),
)


def clean(text: str) -> str:
    """A text without what looks like a secret in it."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def configure(
    process: str,
    *,
    meters: Meters | None = None,
    level: int = logging.INFO,
    clock: Clock | None = None,
    stream: TextIO | None = None,
) -> None:
    """To be called once in each process of ours, before it logs. `meters` count warnings and errors; `stream`: where
    lines go instead of `sys.stderr`."""
    stamp = clock or SystemClock()
    to = stream or sys.stderr

    def add_fields(logger: Any, method: str, event: Event) -> Event:
        now = datetime.fromtimestamp(stamp.now_ms() / 1000, UTC)
        event["ts"] = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        event["process"] = process
        if (current := request_id.get()) is not None:
            event.setdefault("request_id", current)
        if meters is not None and event["level"] in ("warning", "error", "critical"):
            meters.count("breakers_log_lines_total", level="warning" if event["level"] == "warning" else "error")
        return event

    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        add_fields,
        structlog.processors.format_exc_info,
        _without_secrets,
    ]
    render = _text if to.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(to),
    )
    _take_in_libraries(shared, render, to)


def _take_in_libraries(shared: list[Any], render: Any, to: TextIO) -> None:
    """Warnings and errors of the standard logging module that nobody else has a place for."""
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render]
    )
    handler = logging.StreamHandler(to)
    handler.setFormatter(formatter)
    handler.setLevel(logging.WARNING)
    handler.set_name(__name__)
    root = logging.getLogger()
    for old in [h for h in root.handlers if h.get_name() == __name__]:
        root.removeHandler(old)
    root.addHandler(handler)


def _without_secrets(logger: Any, method: str, event: Event) -> Event:
    """Fields are masked by their names, then all text by its looks. What every line has comes first."""
    masked = {name: _clean(value) for name, value in mask(event).items()}
    return {name: masked[name] for name in FIRST} | masked


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(name)): _clean(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value if isinstance(value, int | float | None) else clean(str(value))


def _text(logger: Any, method: str, event: Event) -> str:
    """`ts level event name=value ...`, tracebacks on lines of their own below."""
    head = f"{event.pop('ts')} {event.pop('level'):7} {for_terminal(str(event.pop('event')))}"
    blocks = [for_log(str(event.pop(name))) for name in TRACES if name in event]
    fields = " ".join(for_terminal(f"{name}={value}") for name, value in event.items())
    return f"{head} {fields}{''.join(blocks)}"
