"""What a BreakerActor's meters are told beside its work: transitions by kind, what its breakers lost, what it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from breaker_actors.breaker.hosted import HostedBreaker
from breaker_actors.core.model import BY_HAND
from breaker_actors.messages import EventDraft
from breaker_actors.telemetry.catalog import OTHER
from breaker_actors.telemetry.meters import Meters

KINDS = {
    ("closed", "open"): "trip",
    ("open", "half_open"): "half_open",
    ("half_open", "closed"): "recover",
    ("half_open", "open"): "retrip",
}


def count_events(meters: Meters, events: Iterable[EventDraft]) -> None:
    """Committed transitions."""
    for event in events:
        meters.count("breakers_transitions_total", kind=_kind_of(event))


def _kind_of(event: EventDraft) -> str:
    if event.hidden_by is not None:
        return "hidden"
    return "by_hand" if event.reason in BY_HAND else KINDS.get((event.prev, event.curr), OTHER)


def count_losses(meters: Meters, hosted: HostedBreaker) -> None:
    """What a breaker lost since it was looked at last: once a second, and when it is dropped."""
    losses = hosted.losses()
    if losses != hosted.losses_reported:
        late, truncated, overflows = (now - then for now, then in zip(losses, hosted.losses_reported, strict=True))
        meters.count("breakers_samples_late_total", late)
        meters.count("breakers_samples_truncated_total", truncated)
        meters.count("breakers_inbox_overflows_total", overflows)
        hosted.losses_reported = losses


def look(meters: Meters, hosted: Collection[HostedBreaker], now_ms: int) -> None:
    """How many breakers are held, by the state that readers see; overrides in force, and breakers that observe."""
    begun: list[int] = []
    observing = resting = 0
    states = Counter({"closed": 0, "open": 0, "half_open": 0, "starting": 0})
    for each in hosted:
        seen = each.committed
        resting += each.resting
        states["starting" if seen is None else seen.state] += 1
        if seen is not None:
            observing += seen.mode == "observe"
            begun += [] if seen.override is None else [seen.override.since_ms]
        count_losses(meters, each)
    for state, n in states.items():
        meters.gauge("breakers_held", n, state=state)
    meters.gauge("breakers_observing", observing)
    meters.gauge("breakers_resting", resting)
    meters.gauge("breakers_overrides_active", len(begun))
    meters.gauge("breakers_overrides_age_seconds", max(0, now_ms - min(begun, default=now_ms)) / 1000)
