"""Answer bodies: the document's shapes plus the extra fields that public clients read. Pure functions of stored rows.

Numbers that count or measure time are integers, `metadata` is always an object of strings, unset `actions` are null,
times are RFC 3339 in UTC with milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from api.reply import digest
from breaker_actors.core.model import View
from breaker_actors.core.rules import derived
from breaker_actors.messages import StateReading
from breaker_actors.stores.base import BreakerRow, EventRow, ProjectRow, Replaced, RouterRow
from breaker_actors.stores.masking import mask_text

Body = dict[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rfc3339(ms: int) -> str:
    """An instant as text."""
    moment = _EPOCH + timedelta(milliseconds=ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def listing(key: str, items: Sequence[Body], **more: Any) -> Body:
    """A list under the document's key, and under the names that paging clients look for."""
    return {key: items, "items": items, "next_cursor": None, "cursor": None, "has_more": False} | more


# projects


def project(row: ProjectRow) -> Body:
    return {
        "project_id": row.id,
        "id": row.id,
        "workspace_id": row.workspace_id,
        "name": row.shown_name(),
        "enable_signed_ingest": row.enable_signed_ingest,
        "slack_webhook_url": mask_text(row.slack_webhook_url) if row.slack_webhook_url else None,
        "trace_id_url_template": row.trace_id_url_template,
    }


def new_project(row: ProjectRow) -> Body:
    """The only answer besides rotation that shows the secret."""
    return project(row) | {"ingest_secret": row.ingest_secret}


def project_list(rows: Sequence[ProjectRow]) -> Body:
    return listing("projects", [project(row) for row in rows], count=len(rows))


def project_status(readings: Sequence[StateReading]) -> Body:
    """half_open counts as neither."""
    words = [reading.view.state for reading in readings]
    return {
        "closed_count": words.count("closed"),
        "open_count": words.count("open"),
        "last_eval_ms": max((reading.view.last_eval_ms for reading in readings), default=0),
    }


# breakers


def breaker(row: BreakerRow) -> Body:
    """A breaker as lists show it."""
    body: Body = {"id": row.id, "router_id": row.router_ids[0] if row.router_ids else "", "name": row.name}
    body |= msgspec.structs.asdict(row.rule) | derived(row.rule)
    return body | {"actions": row.actions or None, "metadata": row.metadata, "router_ids": list(row.router_ids)}


def breaker_single(row: BreakerRow) -> Body:
    """A breaker on its own: in an envelope and flat, for there are clients of both kinds."""
    body = breaker(row)
    return body | {"breaker": body}


def set_hash(rows: Sequence[BreakerRow]) -> str:
    """What the list of these breakers is known by: any difference in what it shows makes another hash."""
    return digest(sorted(map(breaker, rows), key=lambda body: str(body["id"])))


def bulk_result(replaced: Replaced, duration_ms: int) -> Body:
    return {
        "changed": replaced.changed,
        "count": len(replaced.rows),
        "hash": set_hash(replaced.rows),
        "duration_ms": duration_ms,
        "breakers": [breaker(row) for row in replaced.rows],
    }


def breaker_list(rows: Sequence[BreakerRow], updated_ms: int, content_hash: str) -> Body:
    items = [breaker(row) for row in rows]
    return listing("breakers", items, count=len(items), hash=content_hash, updated_at=rfc3339(updated_ms))


# routers


def router(row: RouterRow) -> Body:
    """A router as lists show it."""
    return {
        "id": row.id,
        "name": row.name,
        "mode": row.mode,
        "enabled": row.enabled,
        "created_by": row.created_by,
        "inserted_at": rfc3339(row.inserted_ms),
        "metadata": row.metadata,
        "breaker_count": len(row.breaker_ids),
    }


def router_single(row: RouterRow, breakers: Mapping[str, BreakerRow]) -> Body:
    """A router with its breakers in full: typed clients can't read an element of only id and name."""
    linked = [breaker(breakers[name]) for name in row.breaker_ids if name in breakers]
    body = router(row) | {"breakers": linked, "breaker_count": len(linked)}
    return body | {"router": body}


def router_list(rows: Sequence[RouterRow]) -> Body:
    return listing("routers", [router(row) for row in rows], count=len(rows))


# metadata


def metadata_list(project_id: str, key: str, rows: Sequence[BreakerRow] | Sequence[RouterRow]) -> Body:
    items: list[Body] = [{"id": row.id, "name": row.name, "metadata": row.metadata} for row in rows]
    return listing(key, items, project_id=project_id)


# states


def state(row: BreakerRow, reading: StateReading) -> Body:
    """The state of one breaker: all that a single read and an element of a batch show."""
    view = reading.view
    body: Body = {
        "breaker_id": row.id,
        "name": row.name,
        "state": view.state,
        "allow_rate": view.allow_rate,
        "indeterminate": view.verdict == "indeterminate",
        "indeterminate_reason": "insufficient_samples" if view.verdict == "indeterminate" else None,
        "reason_code": reason_code(view),
        "held_back": view.held_back,
        "observed": view.sample_count > 0,
        "value": view.value,
        "threshold": row.rule.threshold,
        "sample_count": view.sample_count,
        "min_count": row.rule.min_count,
        "window_ms": row.rule.window_ms,
        "passes": view.passes,
        "transition_seq": view.transition_seq,
        "last_eval_ms": view.last_eval_ms,
        "evaluated_at_ms": view.last_eval_ms or None,
        "next_eval_ms": view.next_eval_ms,
        "state_since_ms": view.state_since_ms,
        "updated_at": rfc3339(max(view.last_eval_ms, view.state_since_ms)),
        "truncated": view.truncated_count,
        "late": view.late_count,
    }
    return body | ({"stale": True} if reading.stale else {})


def reason_code(view: View) -> str | None:
    """Why the breaker is in its state, or what keeps it from leaving it."""
    if view.state == "open":
        return view.open_cause
    if view.verdict == "indeterminate":
        return "insufficient_samples"
    return "threshold_exceeded" if view.held_back else None


def state_list(states: Sequence[Body]) -> Body:
    return listing("states", states)


# events


def event(row: EventRow) -> Body:
    """Those of a backfill carry the run that brought them; for what happened nothing is added."""
    run = {} if row.run_id is None else {"source": row.source, "run_id": row.run_id}
    return {
        "id": ".".join([*filter(None, [row.run_id]), row.breaker_id, str(row.transition_seq)]),
        "sequence": row.sequence,
        "project_id": row.project_id,
        "breaker_id": row.breaker_id,
        "name": row.name,
        "prev": row.prev,
        "curr": row.curr,
        "from_state": row.prev,
        "to_state": row.curr,
        "reason": row.reason,
        "ts_ms": row.ts_ms,
        "timestamp": rfc3339(row.ts_ms),
        "transition_seq": row.transition_seq,
        "rule": row.rule,
        "agg": row.agg,
        **run,
    }


def event_list(rows: Sequence[EventRow], next_cursor: str | None) -> Body:
    items = [event(row) for row in rows]
    page = {"next_cursor": next_cursor, "cursor": next_cursor, "has_more": next_cursor is not None}
    return listing("events", items, returned=len(items)) | page
