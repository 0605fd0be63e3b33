"""Answer bodies of deliveries, and of lists of channels: what was told on one, what waits and why, made of stored rows;
pure."""

from __future__ import annotations

from collections.abc import Mapping

from api.wire.responses import Answer, list_of, shown
from api.wire.responses_accounts import Channel, channel
from api.wire.types import Count, Instant, Int32, Uuid
from breaker_actors.clock import rfc3339
from breaker_actors.core.model import StateWord
from breaker_actors.notify.circuit import Circuit
from breaker_actors.notify.limits import Pace
from breaker_actors.notify.model import NOBODY
from breaker_actors.store.rows import AlertKind, ChannelRow, CircuitRow, DeliveryRow, DeliveryState, Failing


class Delivery(Answer, kw_only=True):
    """One notification on its way to one channel. `event_id` null: the end of a deleted breaker has no event.
    `next_attempt_at`: null unless it is pending. A mute_ending is about no breaker: its `breaker_id` is all
    zeros."""

    id: Uuid
    project_id: Uuid
    channel_id: str
    breaker_id: Uuid
    name: str
    event_id: str | None
    transition_seq: Count
    kind: AlertKind
    state: DeliveryState
    attempts: Count
    last_status: Int32 | None
    last_error: str | None
    next_attempt_at: Instant | None
    created_at: Instant
    sent_at: Instant | None
    ended_at: Instant | None
    mute_id: Uuid | None


class Silence(Answer, kw_only=True):
    """Why nothing is tried on a channel now: its receiver fails. open: until `retry_at`; half_open: it is probed."""

    state: StateWord
    retry_at: Instant | None
    last_status: Int32 | None
    last_error: str | None


class ChannelSilence(Silence, kw_only=True):
    """The same with how many notifications wait, PENDING_COUNTED for more, and when the oldest of them happened."""

    pending: Count
    oldest_at: Instant | None


class ListedChannel(Channel, kw_only=True):
    """A channel of a list. `silence`: its receiver fails, and nothing is tried now."""

    silence: ChannelSilence | None


ChannelList = list_of("ChannelList", "channels", ListedChannel)
DeliveryList = list_of("DeliveryList", "deliveries", Delivery, returned=Count, silence=Silence | None)


def delivery(row: DeliveryRow) -> Delivery:
    return shown(
        Delivery,
        row,
        breaker_id=NOBODY if row.kind == "mute_ending" else row.breaker_id,
        name=row.told.name,
        event_id=None if row.kind in ("resolve", "mute_ending") else f"{row.breaker_id}.{row.transition_seq}",
        next_attempt_at=rfc3339(max(row.next_ms, row.created_ms)) if row.state == "pending" else None,
        created_at=rfc3339(row.created_ms),
        sent_at=_instant(row.ended_ms) if row.state == "sent" else None,
        ended_at=_instant(row.ended_ms),
    )


def _instant(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)


def silence(stored: CircuitRow | None, now_ms: int) -> Silence | None:
    """What is known of a channel that failed and is left in peace (open), or just probed (half_open)."""
    if stored is None:
        return None
    circuit = Circuit(stored.channel_id, stored.version, stored, Pace(), now_ms)
    resting = circuit.capacity(now_ms) == 0
    if circuit.state == "closed" and not resting:
        return None
    return shown(Silence, stored, state=circuit.state, retry_at=rfc3339(circuit.wake_ms()) if resting else None)


def listed_channel(row: ChannelRow, failing: Mapping[str, Failing], now_ms: int) -> ListedChannel:
    """`failing`: channels of which a failure is known, by id."""
    known = failing.get(row.id)
    why = None if known is None else silence(known.circuit, now_ms)
    quiet = None
    if known is not None and why is not None:
        quiet = shown(ChannelSilence, why, pending=known.pending, oldest_at=_instant(known.oldest_ms))
    return shown(ListedChannel, channel(row), silence=quiet)
