"""A gateway without actors: a real store below, recorded calls above, and a feed that a test speaks into."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from breaker_actors.core.model import StateWord, View
from breaker_actors.errors import Unavailable
from breaker_actors.gateway.status import ActorStatus, ClusterStatus, JournalStatus
from breaker_actors.messages import (
    AppendResult,
    Counted,
    FeedEntry,
    FeedPage,
    JournalFigures,
    Part,
    ProjectShare,
    Rebalanced,
    StateReading,
)
from breaker_actors.store.base import Store

NOW_MS = 1_795_242_600_000

PROJECT_AT_LIMIT = "00000000-0000-4000-8000-000000000000"
ORG_AT_LIMIT = "00000000-0000-4000-8000-000000000001"


class FakeClock:
    """Time that moves when a test says so."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.ms = now_ms
        self.seconds = 100.0

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.seconds


def view(**fields: Any) -> View:
    """The view of a healthy closed breaker, with changes."""
    base: dict[str, Any] = {
        "state": "closed",
        "state_since_ms": NOW_MS - 120_000,
        "allow_rate": 1.0,
        "verdict": "healthy",
        "value": 12.5,
        "sample_count": 4,
        "passes": 0,
        "last_eval_ms": NOW_MS - 1_000,
        "next_eval_ms": NOW_MS + 9_000,
        "transition_seq": 0,
        "open_cause": None,
        "held_back": False,
    }
    return View(**(base | fields))


class FakeGateway:
    """`parts`: what ingest was given; `word`: what it answers. `views`: states by breaker id; others are healthy."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.parts: list[Part] = []
        self.word: Any = "ok"
        self.outcome: AppendResult | None = None
        self.views: dict[str, View] = {}
        self.stale: set[str] = set()
        self.changes: list[int] = []
        self.announced: list[str] = []
        self.down = False
        self.is_late = False
        self.processes: list[Counted] = []
        self.silent = 0
        self.polls = 0
        self.uneven = 0
        self.epoch = 7
        self._entries: list[FeedEntry] = []
        self._position = 0
        self._news = asyncio.Event()

    async def open(self) -> None:
        await self.store.open()

    async def close(self) -> None:
        await self.store.close()

    async def ingest(self, project_id: str, parts: Sequence[Part], org_id: str = "") -> list[AppendResult]:
        self.parts.extend(parts)
        return [self.outcome or AppendResult(self.word, 1) for _ in parts]

    async def configured(self, project_id: str, change_ids: Sequence[int]) -> bool:
        self.changes.extend(change_ids)
        return not self.is_late

    async def announce(self, kind: Any, project_ids: Sequence[str]) -> None:
        self.announced.append(kind)
        self.say(*(FeedEntry(1, kind, project_id) for project_id in project_ids))

    async def states(self, project_id: str, breaker_ids: Sequence[str]) -> dict[str, StateReading]:
        known = {stored.breaker_id for stored in await self.store.stored_states(project_id, list(breaker_ids))}
        return {
            name: StateReading(breaker_id=name, view=self.views.get(name, view()), stale=name in self.stale)
            for name in breaker_ids
            if name in known
        }

    def journals(self) -> int:
        return 1

    async def feed(self, shard: int, epoch: int, after: int, wait_s: float) -> FeedPage:
        self.polls += 1
        if self.down:
            raise Unavailable
        oldest = self._position - len(self._entries)
        if epoch != self.epoch or not oldest <= after <= self._position:
            return FeedPage(self.epoch, self._position, [], reset=True)
        if after == self._position:
            try:
                await asyncio.wait_for(self._news.wait(), wait_s)
            except TimeoutError:
                pass
        return FeedPage(self.epoch, self._position, self._entries[after - oldest :])

    async def ready(self) -> None:
        if self.down:
            raise Unavailable

    async def notice(self) -> str:
        return ""

    async def rebalance(self, most: int) -> Rebalanced:
        moved = min(most, self.uneven)
        self.uneven -= moved
        return Rebalanced(moved=moved, left=self.uneven)

    async def status(self) -> ClusterStatus:
        seat = ActorStatus(
            name="breaker-0", kind="breaker", state="starting", since_ms=NOW_MS, restarts=0, holds=self.uneven
        )
        figures = JournalFigures(epoch=self.epoch, sequence=3, position=self._position)
        return ClusterStatus(
            at_ms=NOW_MS,
            nodes=(),
            replicas=1,
            budgets={"breaker": 8},
            journals=(JournalStatus(name="journal-0", figures=figures),),
            log_bytes=0,
            actors=(seat,),
            limits=(
                ProjectShare(project_id=PROJECT_AT_LIMIT, limit="log_bytes", used=7, most=6),
                ProjectShare(org_id=ORG_AT_LIMIT, limit="projects", used=5, most=5),
            ),
        )

    async def counted(self) -> tuple[list[Counted], int]:
        return self.processes, self.silent

    # what a test says

    def say(self, *entries: FeedEntry) -> None:
        """Puts entries into the feed."""
        self._entries.extend(entries)
        self._position += len(entries)
        news, self._news = self._news, asyncio.Event()
        news.set()

    def forget(self) -> None:
        """A new journal: other epoch, nothing held."""
        self.epoch += 1
        self._entries, self._position = [], 0
        self.say()


def moved(project_id: str, breaker_id: str, state: StateWord, rate: float, seq: int, sequence: int = 1) -> FeedEntry:
    """A state entry."""
    return FeedEntry(sequence, "state", project_id, breaker_id, state, rate, seq)
