"""The parts of one API replica, made once and shared by all its requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quart import current_app

from api.admission.intake import Intake
from api.admission.read_budget import ReadBudget
from api.lookup import (
    ingest_memory,
    key_usage,
    mapping_plans,
    project_index,
    project_memories,
    remembered,
    series_outcomes,
)
from api.lookup.caches import Caches
from api.lookup.states import States
from api.stream.feed import Feed
from api.stream.listeners import Listeners
from api.stream.sse import StreamTiming
from api.wire.responses import Ready, project_status
from breaker_actors.clock import Clock
from breaker_actors.gateway.gateway import Gateway
from breaker_actors.notify.model import ExaminingSender
from breaker_actors.settings import Settings
from breaker_actors.store.base import (
    AccountStore,
    ConfigStore,
    DeliveryStore,
    EventStore,
    MappingStore,
    MuteStore,
    RuleStore,
    SessionStore,
)
from breaker_actors.telemetry.meters import Meters

EXTENSION = "breakers"
READY_S, SCRAPE_S = 0.5, 1.0
"""How old what readyz, and what /metrics, says may be: whoever asks more often is told the same."""
MOVES_S, MOVES_MAX = 2.0, 50
"""How old the picture of a project's moves may be, and of how many it is kept."""


@dataclass(frozen=True, slots=True)
class Replica:
    """The parts of one API replica."""

    gateway: Gateway
    settings: Settings
    clock: Clock
    feed: Feed
    timing: StreamTiming
    uses: key_usage.KeyUses
    meters: Meters
    sender: ExaminingSender
    intake: Intake
    states: States
    readiness: remembered.Remembered[Ready]
    scrapes: remembered.Remembered[bytes]
    reads: ReadBudget
    examined: ReadBudget
    listeners: Listeners
    indexes: project_index.ProjectIndexes
    ingested: ingest_memory.IngestMemory
    moves: remembered.Remembered[list[Any]]
    plans: mapping_plans.MappingPlans
    outcomes: series_outcomes.SeriesOutcomes
    memories: project_memories.DecoderMemories

    @property
    def accounts(self) -> AccountStore:
        return self.gateway.store

    @property
    def sessions(self) -> SessionStore:
        return self.gateway.store

    @property
    def config(self) -> ConfigStore:
        return self.gateway.store

    @property
    def events(self) -> EventStore:
        return self.gateway.store

    @property
    def rules(self) -> RuleStore:
        return self.gateway.store

    @property
    def mutes(self) -> MuteStore:
        return self.gateway.store

    @property
    def mappings(self) -> MappingStore:
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
    meters: Meters,
    sender: ExaminingSender,
) -> Replica:
    """Makes the parts of a replica; none of them is started."""
    feed = Feed(gateway, settings, clock, meters, timing)
    intake = Intake(clock, settings.bodies_in_flight_bytes, settings.max_body_bytes, settings.body_timeout_ms)
    meters.watch(lambda: _tell_refusals(intake, meters))
    states = States(gateway, feed.caches, clock, project_status)
    listeners = Listeners(gateway.store, states.find, clock.now_ms, meters)
    indexes = project_index.ProjectIndexes(gateway.store, clock.monotonic, clock.now_ms)
    plans = mapping_plans.MappingPlans(gateway.store, feed.fresh, clock.monotonic)
    feed.caches.watch(plans.forget)
    outcomes = series_outcomes.SeriesOutcomes(clock.monotonic)
    memories = project_memories.DecoderMemories(clock.monotonic)
    meters.watch(lambda: _tell_memories(meters, series=outcomes.of, decoders=memories.of))
    feed.ears += [indexes.hear, listeners.hear, plans.hear]
    return Replica(
        gateway=gateway,
        settings=settings,
        clock=clock,
        feed=feed,
        timing=timing,
        uses=key_usage.KeyUses(gateway.store, clock, meters),
        meters=meters,
        sender=sender,
        intake=intake,
        states=states,
        readiness=remembered.Remembered(READY_S, clock.monotonic),
        scrapes=remembered.Remembered(SCRAPE_S, clock.monotonic),
        reads=ReadBudget.of(settings),
        examined=ReadBudget.of_examined(settings),
        listeners=listeners,
        indexes=indexes,
        ingested=ingest_memory.IngestMemory(clock.now_ms, clock.monotonic),
        moves=remembered.Remembered(MOVES_S, clock.monotonic, MOVES_MAX),
        plans=plans,
        outcomes=outcomes,
        memories=memories,
    )


def _tell_refusals(intake: Intake, meters: Meters) -> None:
    for what, n in intake.refusals().items():
        meters.total("breakers_intake_refused_total", n, what=what)


def _tell_memories(meters: Meters, **memories: project_memories.ProjectMemories[Any]) -> None:
    for what, memory in memories.items():
        meters.total("breakers_memories_cut_total", memory.cut, what=what)
