"""Answer bodies of deliveries: what was told on a channel, what waits and why. Pure functions of stored rows."""

from __future__ import annotations

from collections.abc import Sequence

from api.bodies import Body, listing, rfc3339
from breaker_actors.notify.circuit import Circuit
from breaker_actors.notify.pace import Pace
from breaker_actors.stores.base import CircuitRow, DeliveryRow


def delivery(row: DeliveryRow) -> Body:
    """`event_id` null: the end of a deleted breaker has no event."""
    return {
        "id": row.id,
        "project_id": row.project_id,
        "channel_id": row.channel_id,
        "breaker_id": row.breaker_id,
        "name": row.told.name,
        "event_id": None if row.kind == "resolve" else f"{row.breaker_id}.{row.transition_seq}",
        "transition_seq": row.transition_seq,
        "kind": row.kind,
        "state": row.state,
        "attempts": row.attempts,
        "last_status": row.last_status,
        "last_error": row.last_error,
        "next_attempt_at": rfc3339(max(row.next_ms, row.created_ms)) if row.state == "pending" else None,
        "created_at": rfc3339(row.created_ms),
        "sent_at": _instant(row.ended_ms) if row.state == "sent" else None,
        "ended_at": _instant(row.ended_ms),
    }


def _instant(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)


def delivery_list(rows: Sequence[DeliveryRow], next_cursor: str | None, silence: Body | None) -> Body:
    """`silence`: why nothing is tried on this channel now; null while it answers."""
    page = {"next_cursor": next_cursor, "cursor": next_cursor, "has_more": next_cursor is not None}
    return listing("deliveries", [delivery(row) for row in rows], returned=len(rows), silence=silence) | page


def silence(stored: CircuitRow | None, now_ms: int) -> Body | None:
    """What is known of a channel that failed and is left in peace (open), or just probed (half_open)."""
    if stored is None:
        return None
    circuit = Circuit(stored.channel_id, stored.version, stored, Pace(), now_ms)
    resting = circuit.room(now_ms) == 0
    if circuit.state == "closed" and not resting:
        return None
    return {
        "state": circuit.state,
        "retry_at": rfc3339(circuit.wake_ms()) if resting else None,
        "last_status": stored.last_status,
        "last_error": stored.last_error,
    }
