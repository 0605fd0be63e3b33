"""The values between those who decide that somebody is told (outbox, Notifier, the /test route) and those who tell them
(renderers and senders of this package). Frozen, picklable, no I/O; all times are Unix or plain milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from breaker_actors.store.rows import ChannelKind, DeliveryRow, MutedBy, Subject

MessageKind = Literal["trip", "recover", "resolve", "test", "observed", "mute_ending"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a renderer needs.

    `kind`: a trip is every move to open, a recover every one to closed; observed is either of a breaker that observes;
    a resolve says that an open breaker was deleted, a test comes from the /test operation, a mute_ending says that a
    mute ends behind which something waits (`name` is its comment). `rule` and `agg` are those of the event
    (semantics.md section 5); a rule may also have op, min_count and kind_params, and is worded the better for it.
    `outage_ms`: of a recover, how long the breaker was away from closed. `muted_by`: of a trip that was held behind a
    mute, and of a warning. `by` and `comment`: who moved the breaker by hand, and why. `subject`: what an Alertmanager
    knows the outage by.
    `delivery_id` stays the same over retries: it becomes the Idempotency-Key and the Message-ID.
    """

    kind: MessageKind
    project_id: str
    project_name: str | None
    breaker_id: str
    name: str
    prev: str
    curr: str
    ts_ms: int
    transition_seq: int
    rule: dict[str, Any]
    agg: dict[str, Any]
    value: float | None
    reason: str
    trace_url: str | None
    outage_ms: int | None
    delivery_id: str
    muted_by: MutedBy | None = None
    by: str | None = None
    comment: str | None = None
    subject: Subject | None = None

    @property
    def tells_of_a_breaker(self) -> bool:
        """Whether a breaker is what it is about, and not its channel or a mute."""
        return self.kind not in ("test", "mute_ending")


NOBODY = "00000000-0000-0000-0000-000000000000"
"""The breaker of a test notification, and of the warning that a mute ends."""


def sample(project_id: str, project_name: str | None, now_ms: int, delivery_id: str) -> Message:
    """What /test sends: a whole message, so that receivers meet every field, about no breaker at all."""
    return Message(
        kind="test",
        project_id=project_id,
        project_name=project_name,
        breaker_id=NOBODY,
        name="test",
        prev="closed",
        curr="closed",
        ts_ms=now_ms,
        transition_seq=0,
        rule={"kind": "error_rate", "metric": "test", "threshold": 0.5, "window_ms": 60_000, "tags": {}},
        agg={"avg": 0.0, "count": 0, "error_count": 0, "p95": 0.0},
        value=None,
        reason="test",
        trace_url=None,
        outage_ms=None,
        delivery_id=delivery_id,
    )


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where to: a channel's kind and its opened (unsealed) config, which must not reach a log or an answer; and whose
    it is."""

    channel_id: str
    kind: ChannelKind
    config: dict[str, Any]
    org_id: str = ""

    def __repr__(self) -> str:
        return f"Destination(channel_id={self.channel_id!r}, kind={self.kind!r})"


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one attempt. `refused`: trying again can't help (bad config, a final 4xx). Where a setting of the
    service refuses the destination it can: another start may lift that.

    `error` is one short line for people and never holds a secret, the path of an address or a token. `status` is the
    HTTP status or the SMTP reply code. `retry_after_ms`: what the receiver asked for, bounded to an hour.
    """

    result: Literal["sent", "retry", "refused"]
    status: int | None = None
    error: str | None = None
    retry_after_ms: int | None = None


SEALED = "its configuration was sealed with another key"
UNREADABLE = "what was to be told can't be read"
LATE = Attempt(result="retry", error="no answer in time")


class Sender(Protocol):
    """Sends to every kind of channel. `send` never raises (but for cancellation) and is bounded by its timeout."""

    async def send(self, to: Destination, message: Message) -> Attempt: ...

    async def close(self) -> None: ...


class ExaminingSender(Sender, Protocol):
    """Looks at destinations of an organisation without sending, too: `examine` says what is wrong with their addresses,
    as far as only the library that their kind goes through can tell; "": nothing; None: that could not be found out.
    Raises Overloaded where the organisation has too many looked at. A replica's `send` raises it, too, where the
    organisation has too many under way."""

    async def examine(self, org_id: str, many: Sequence[Destination]) -> list[str | None]: ...


class RenewingSender(Sender, Protocol):
    """Sends what stands again, too, to the kinds of channels that forget alerts (an Alertmanager). `renew` takes trips,
    at least one, as they stood at `now_ms`; it never raises, as `send`."""

    async def renew(self, to: Destination, trips: Sequence[Message], now_ms: int) -> Attempt: ...


def message_of(row: DeliveryRow, project_name: str | None) -> Message:
    """What is told of a row: always the same, whoever sends it and how often."""
    told = row.told
    return Message(
        kind=row.kind,
        project_id=row.project_id,
        project_name=project_name,
        breaker_id=NOBODY if row.kind == "mute_ending" else row.breaker_id,
        name=told.name,
        prev=told.prev,
        curr=told.curr,
        ts_ms=told.ts_ms,
        transition_seq=row.transition_seq,
        rule=told.rule,
        agg=told.agg,
        value=told.value,
        reason=told.reason,
        trace_url=told.trace_url,
        outage_ms=told.outage_ms,
        muted_by=told.muted_by,
        by=told.by,
        comment=told.comment,
        subject=told.subject,
        delivery_id=row.id,
    )
