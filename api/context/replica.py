"""The parts of one API replica, made once and shared by all its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quart import current_app

from api.admission.intake import Intake
from api.admission.read_budget import ReadBudget
from api.lookup.caches import Caches
from api.lookup.key_usage import KeyUses
from api.lookup.remembered import Remembered
from api.lookup.states import States
from api.stream.feed import Feed
from api.stream.sse import StreamTiming
from api.wire.responses import Ready, project_status
from breaker_actors.clock import Clock
from breaker_actors.gateway.gateway import Gateway
from breaker_actors.notify.model import Sender
from breaker_actors.settings import Settings
from breaker_actors.store.base import AccountStore, ConfigStore, DeliveryStore, EventStore, MuteStore
from breaker_actors.telemetry.meters import Meters

EXTENSION = "breakers"
READY_S, SCRAPE_S = 0.5, 1.0
"""How old what readyz, and what /metrics, says may be: whoever asks more often is told the same."""


@dataclass(frozen=True, slots=True)
class Replica:
    """The parts of one API replica."""

    gateway: Gateway
    settings: Settings
    clock: Clock
    feed: Feed
    timing: StreamTiming
    uses: KeyUses
    meters: Meters
    sender: Sender
    intake: Intake
    states: States
    readiness: Remembered[Ready]
    scrapes: Remembered[bytes]
    reads: ReadBudget

    @property
    def accounts(self) -> AccountStore:
        return self.gateway.store

    @property
    def config(self) -> ConfigStore:
        return self.gateway.store

    @property
    def events(self) -> EventStore:
        return self.gateway.store

    @property
    def mutes(self) -> MuteStore:
        return self.gateway.store

    @property
    def outbox(self) -> DeliveryStore:
        return self.gateway.store

    @property
    def caches(self) -> Caches:
        return self.feed.caches


def replica() -> Replica:
    """The replica that answers the current request."""
    found: Replica = current_app.extensions[EXTENSION]
    return found


def assemble(
    gateway: Gateway,
    settings: Settings,
    clock: Clock,
    timing: StreamTiming,
    shards: Sequence[int],
    meters: Meters,
    sender: Sender,
) -> Replica:
    """Makes the parts of a replica; none of them is started."""
    feed = Feed(gateway, settings, clock, meters, timing, shards)
    intake = Intake(clock, settings.bodies_in_flight_bytes, settings.max_body_bytes, settings.body_timeout_ms)
    meters.watch(lambda: _tell_refusals(intake, meters))
    return Replica(
        gateway=gateway,
        settings=settings,
        clock=clock,
        feed=feed,
        timing=timing,
        uses=KeyUses(gateway.store, clock, meters),
        meters=meters,
        sender=sender,
        intake=intake,
        states=States(gateway, feed.caches, clock, project_status),
        readiness=Remembered(READY_S, clock.monotonic),
        scrapes=Remembered(SCRAPE_S, clock.monotonic),
        reads=ReadBudget.of(settings),
    )


def _tell_refusals(intake: Intake, meters: Meters) -> None:
    for what, n in intake.refusals().items():
        meters.total("breakers_intake_refused_total", n, what=what)
