"""All that runs in one class, for the store."""

from __future__ import annotations

from breaker_actors.store.operational.backfill_events import Backfills
from breaker_actors.store.operational.journal import Journals
from breaker_actors.store.operational.leases import Placements
from breaker_actors.store.operational.log_needs import LogNeeds
from breaker_actors.store.operational.reads import Reads
from breaker_actors.store.operational.retention import Upkeeps
from breaker_actors.store.operational.set_aside import AsideRows


class Operations(Placements, Journals, Reads, Backfills, Upkeeps, LogNeeds, AsideRows):
    """`PlacementStore`, `JournalStore`, `EventStore`, `AsideStore` on a SQL database; most of `RetentionStore`."""
