"""A day of load in seconds, with lives as short: what comes into logs, tables and memory goes again."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from breaker_actors.persistence import DATABASE
from breaker_actors.settings import Settings
from breaker_actors.store.rows import BreakerDraft, BreakerRow
from breaker_actors.transport.peers import ActorKind
from breaker_actors.wal.sqlite import SqliteLog
from tests.support.cluster import Service, service

LIVES_MS = 300
"""Retention of logs and history, and how long a duplicate key is known."""
ROUNDS, SPELL = 24, 4
"""Rounds of load in a period, however long they take, and how many of them in a row bring bad samples, or good ones."""
BREAKERS, GUESTS = 8, 4
GROWTH, SLACK = 1.5, 30
SETTINGS = {
    "breaker_actors": 2,
    "log_retention_ms": LIVES_MS,
    "upkeep_interval_ms": 100,
    "checkpoint_interval_ms": 100,
    "heartbeat_interval_ms": 100,
    "duplicate_window_ms": LIVES_MS,
    "feed_entries_max": 50,
}
RULE: dict[str, Any] = {"window_ms": 200, "cooldown_ms": 100, "recovery_allow_rate_ramp_steps": 1}
CONSTANT = {"orgs", "workspaces", "projects", "api_keys", "directory", "journals", "seals", "counters", "notifier"}


@pytest.fixture
def short_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches small enough to be full in the first period."""

    def make_log(settings: Settings) -> SqliteLog:
        return SqliteLog(settings.data_dir / "log", keys_ms=LIVES_MS)

    monkeypatch.setattr("breaker_actors.breaker.hosted.IDLE_MS", LIVES_MS)
    monkeypatch.setattr("breaker_actors.directory.retention.GONE_MIN_MS", LIVES_MS)
    monkeypatch.setattr("breaker_actors.router.duplicates.RETRIES_MS", LIVES_MS)
    monkeypatch.setattr("breaker_actors.wal.reader.VIEWS_MAX", 15)
    monkeypatch.setattr("breaker_actors.gateway.gateway.OWNERS_MAX", 15)
    monkeypatch.setattr("breaker_actors.journal.newest.KNOWN_MAX", 15)
    monkeypatch.setattr("tests.support.cluster.make_log", make_log)


@pytest.mark.usefixtures("short_lives")
async def test_nothing_grows_with_time(tmp_path: Path) -> None:
    """Sizes are those of a service that has nothing to do, when all lives are over: they tell nothing of how fast the
    machine was. In the second of four periods a BreakerActor is away."""
    async with service(tmp_path, **SETTINGS) as s:
        load = Load(s)
        await load.begin()
        await load.run(ROUNDS)
        first = await load.left(tmp_path)
        async with away(s, "breaker", "breaker-1"):
            await load.run(ROUNDS)
        await load.run(2 * ROUNDS)
        assert load.appended >= 4 * ROUNDS * BREAKERS
        assert load.moves > 4 * BREAKERS
        deadline = asyncio.get_running_loop().time() + 10
        while grown := growth(first, await load.left(tmp_path)):
            assert asyncio.get_running_loop().time() < deadline, grown
        for row in load.rows:
            await s.fresh(row.id)


def growth(before: Counter[str], after: Counter[str]) -> dict[str, tuple[int, int]]:
    """What is larger than it may be, with both sizes."""
    return {name: (before[name], n) for name, n in after.items() if n > GROWTH * before[name] + SLACK}


@asynccontextmanager
async def away(s: Service, kind: ActorKind, name: str) -> AsyncIterator[None]:
    """An actor that is killed, and does not come back before the end, whoever tries to start it."""
    spawn = s.net.spawn
    s.net.spawn = lambda k, n: None if n == name else spawn(k, n)  # type: ignore[method-assign, assignment]
    await s.net.kill(name)
    yield
    s.net.spawn = spawn  # type: ignore[method-assign]
    s.net.revive(kind, name)


class Load:
    """Breakers that trip and recover all the time, guests that come and go, and an operator's pruning."""

    def __init__(self, s: Service) -> None:
        self.s = s
        self.rows: list[BreakerRow] = []
        self.guests: list[BreakerRow] = []
        self._names = count()
        self.appended = 0
        self.moves = 0

    async def begin(self) -> None:
        self.rows = [await self.s.breaker(**RULE) for _ in range(BREAKERS)]

    async def run(self, rounds: int) -> None:
        for i in range(rounds):
            await self._send([900.0 if i // SPELL % 2 else 1.0] * 20)
            await self._change_guests()
            await self._prune()

    async def _send(self, values: list[float]) -> None:
        sent = [self.s.send(row.router_ids[0], values) for row in (*self.rows, *self.guests)]
        assert {outcome.status for outcome in await asyncio.gather(*sent)} == {"ok"}
        self.appended += len(sent)

    async def left(self, directory: Path) -> Counter[str]:
        """Sizes after a time without load; duplicate keys go with the next samples of their router."""
        await asyncio.sleep(2 * LIVES_MS / 1000)
        await self._send([1.0])
        await self._prune()
        await self.s.cluster.retention.round()  # on a busy machine its own rounds come late
        return files(directory) | census([*self.s.net.actors.values(), self.s.gateway])

    async def _change_guests(self) -> None:
        """One comes; one goes when there are enough. Each takes its router, its log and its name with it."""
        if len(self.guests) == GUESTS:
            gone = self.guests.pop(0)
            changes = await self.s.store.delete_breaker(self.s.project.id, gone.id, self.s.clock.now_ms())
            await self.s.gateway.configured(self.s.project.id, changes)
        draft = BreakerDraft(rule=self.rows[0].rule, name=f"guest-{next(self._names) % (2 * GUESTS)}")
        row, changes = await self.s.store.create_breaker(self.s.project.id, draft, self.s.clock.now_ms())
        await self.s.gateway.configured(self.s.project.id, changes)
        self.guests.append(row)

    async def _prune(self) -> None:
        before_ms = self.s.clock.now_ms() - LIVES_MS
        self.moves += (await self.s.store.prune(before_ms))["events"]
        await self.s.store.prune_deliveries(before_ms)


def files(directory: Path) -> Counter[str]:
    """Rows of every table, and pages of every log."""
    sizes: Counter[str] = Counter()
    for path in (directory / DATABASE, *(directory / "log").glob("*.sqlite")):
        with closing(sqlite3.connect(path)) as connection:
            names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (name,) in names:
                if name not in CONSTANT and not name.startswith(("sqlite_", "alembic")):
                    rows = connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
                    sizes[f"{path.name} {name}"] = rows
            used = [connection.execute(f"PRAGMA {n}").fetchone()[0] for n in ("page_count", "freelist_count")]
            sizes[f"{path.name} pages"] = used[0] - used[1]
    return sizes


def census(roots: list[Any]) -> Counter[str]:
    """How many things the containers hold that can be reached from here, by the attribute that leads to them."""
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    todo: list[tuple[str, Any]] = [(type(root).__name__, root) for root in roots]
    while todo:
        path, thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, np.ndarray):
            sizes[path] += thing.size
        elif isinstance(thing, dict | list | deque | set | tuple):
            sizes[path] += len(thing)
            todo += ((path, item) for item in (thing.values() if isinstance(thing, dict) else thing))
        elif type(thing).__module__.startswith("breaker_actors"):
            name = type(thing).__name__
            slots = (slot for kind in type(thing).__mro__ for slot in getattr(kind, "__slots__", ()))
            attributes = [*slots, *getattr(thing, "__dict__", {})]
            todo += ((f"{name}.{a}", getattr(thing, a)) for a in attributes if hasattr(thing, a))
    return sizes
