"""A whole service in one process for tests: `service(tmp_path)` and helpers that speak to it as the API does."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import Result

from breaker_actors.core.log_entries import (
    BREAKER,
    GAPS,
    SAMPLES,
    VIEW,
    RouterView,
    SampleColumns,
    Splitter,
    decode_breaker,
    decode_gap,
    decode_view,
    encode_samples,
)
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Batch, Control, Effect, Transition
from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import Unavailable
from breaker_actors.messages import AppendResult, Part, StateReading
from breaker_actors.persistence import DATABASE, make_log, make_store
from breaker_actors.settings import Settings
from breaker_actors.store.rows import BreakerDraft, BreakerRow, EventQuery, EventRow, ProjectRow
from breaker_actors.wal.base import SampleLog
from breaker_actors.wal.reader import concerned
from tests.support.fresh import migrated
from tests.support.in_process import LocalCluster
from tests.support.virtual_time import clock_of_loop

FAST_RULE = {
    "metric": "latency",
    "kind": "avg",
    "op": "gt",
    "threshold": 100,
    "window_ms": 1000,
    "eval_interval_ms": 50,
    "min_state_duration_ms": 0,
    "cooldown_ms": 2_000,
}


PAUSE_S, PAUSE_MAX_S = 0.01, 0.05
"""How often a condition is looked at, first and after a while."""


async def until(check: Callable[[], Awaitable[Any]], timeout_s: float = 10.0) -> Any:
    """The first true answer of `check`, asked again and again until the deadline."""
    loop = asyncio.get_running_loop()
    deadline, pause_s = loop.time() + timeout_s, PAUSE_S
    while not (answer := await check()):
        assert loop.time() < deadline, f"{check} did not become true in {timeout_s} s"
        await asyncio.sleep(pause_s)
        pause_s = min(PAUSE_MAX_S, pause_s * 1.2)
    return answer


class Service:
    """One project on an in-process cluster."""

    def __init__(self, cluster: LocalCluster, project: ProjectRow) -> None:
        self.cluster = cluster
        self.gateway = cluster.gateway
        self.store = cluster.store
        self.net = cluster.net
        self.project = project
        self.clock = clock_of_loop()

    async def breaker(self, name: str | None = None, **rule: Any) -> BreakerRow:
        """A breaker made as the API makes one, ready to answer."""
        draft = BreakerDraft(rule=parse_rule({**FAST_RULE, **rule}), name=name)
        row, changes = await self.store.create_breaker(self.project.id, draft, self.clock.now_ms())
        await self.gateway.configured(self.project.id, changes)
        await self.fresh(row.id)
        return row

    async def edit(self, breaker_id: str, **fields: Any) -> BreakerRow:
        from msgspec.structs import replace

        row, changes = await self.store.update_breaker(
            self.project.id,
            breaker_id,
            lambda r: replace(r, rule=parse_rule(fields, r.rule)),
            self.clock.now_ms(),
        )
        await self.gateway.configured(self.project.id, changes)
        return row

    async def send(
        self,
        router_id: str,
        values: Sequence[float],
        *,
        metric: str = "latency",
        ok: bool = True,
        keys: tuple[bytes, ...] | None = None,
        ts_ms: int | None = None,
        traces: Sequence[str] = (),
        counts: Sequence[int] | None = None,
    ) -> AppendResult:
        n = len(values)
        count = None if counts is None else np.array(counts, np.int64)
        ts = np.full(n, self.clock.now_ms() if ts_ms is None else ts_ms)
        value = np.array(values, float)
        payload = encode_samples([metric], [n], ts, value, np.full(n, ok), traces=traces, count=count)
        part = Part(router_id, keys or (os.urandom(16),), payload, n)
        return (await self.gateway.ingest(self.project.id, [part], self.project.org_id))[0]

    async def refusal(self) -> str:
        """Why the service is not ready; "" where it is."""
        try:
            await self.gateway.ready()
        except Unavailable as error:
            return str(error)
        return ""

    async def state(self, breaker_id: str) -> StateReading:
        return (await self.gateway.states(self.project.id, [breaker_id]))[breaker_id]

    async def fresh(self, breaker_id: str) -> StateReading:
        """The state as its owner tells it."""

        async def read() -> StateReading | None:
            reading = (await self.gateway.states(self.project.id, [breaker_id])).get(breaker_id)
            return reading if reading and not reading.stale else None

        return await until(read)

    async def in_state(self, breaker_id: str, word: str, timeout_s: float = 10.0) -> StateReading:
        async def read() -> StateReading | None:
            reading = (await self.gateway.states(self.project.id, [breaker_id])).get(breaker_id)
            return reading if reading and reading.view.state == word else None

        return await until(read, timeout_s)

    async def events(self, breaker_id: str) -> list[EventRow]:
        """Oldest first."""
        query = EventQuery(project_id=self.project.id, breaker_id=breaker_id, limit=200)
        return (await self.store.events(query))[::-1]

    async def owner(self, breaker_id: str) -> str:
        return next(p.owner for p in await self.store.placements("breaker") if p.id == breaker_id) or ""

    async def slot(self, router_id: str) -> str:
        return next(p.log_slot for p in await self.store.placements("router") if p.id == router_id) or ""

    async def assert_events_equal_replay(self, row: BreakerRow) -> list[EventRow]:
        """The stored events are those of the log replayed by the core, and numbered without a gap."""
        stored = await self.events(row.id)
        assert [e.transition_seq for e in stored] == list(range(1, len(stored) + 1))
        router_id = row.router_ids[0]
        until_ms = stored[-1].ts_ms if stored else 0
        replayed = await replay_log(self.cluster.log, await self.slot(router_id), router_id, row.id, until_ms)
        moves = [(e.prev, e.curr, e.ts_ms) for e in replayed if isinstance(e, Transition)]
        assert [(e.prev, e.curr, e.ts_ms) for e in stored] == moves[: len(stored)]
        assert all(ts >= until_ms for _, _, ts in moves[len(stored) :])
        return stored


async def replay_log(log: SampleLog, slot: str, router_id: str, breaker_id: str, until_ms: int) -> list[Effect]:
    """Effects of one breaker when its single router's log is applied from the start, timers up to `until_ms`."""
    effects: list[Effect] = []
    breaker: Breaker | None = None
    version, taken = 0, list[tuple[str, Batch, int]]()
    splitter, after = Splitter(RouterView(version=0)), 0
    while records := await log.read(slot, router_id, after, 1 << 60):
        after = records[-1].offset
        for record in records:
            now = record.received_ms
            if record.kind == VIEW:
                splitter = Splitter(decode_view(record.payload))
            elif record.kind == BREAKER and (settings := decode_breaker(record.payload)).breaker_id == breaker_id:
                assert settings.rule is not None
                if breaker is None:
                    breaker, first = Breaker.create(
                        settings.rule, now, after_seq=settings.after_seq, control=settings.control
                    )
                    effects += first
                elif settings.version > version:
                    effects += breaker.advance(now - 1)
                    if breaker.configure(settings.rule, now):
                        _reload(breaker, taken)
                    effects += breaker.control(settings.control or Control(), now)
                version = max(version, settings.version)
            elif record.kind == SAMPLES and breaker:
                for taker, body, start, stop in concerned(record, splitter):
                    if taker == breaker_id and isinstance(body, SampleColumns):
                        taken.append((body.metric_at(start), body.rows(start, stop), now))
                        effects += breaker.ingest(*taken[-1][1:])
            elif record.kind in GAPS and breaker:
                gap = decode_gap(record.payload)
                effects += breaker.gap(gap.from_ms, gap.to_ms)
    if breaker is not None:
        effects += breaker.advance(until_ms)
    return effects


def _reload(breaker: Breaker, taken: list[tuple[str, Batch, int]]) -> None:
    """The window, filled again from what came before, as a new rule asks for."""
    breaker.unload()
    for metric, batch, received_ms in taken:
        if metric == breaker.rule.metric and received_ms > breaker.reload_after_ms:
            breaker.load(batch, received_ms)


@asynccontextmanager
async def service(directory: Path, **settings: Any) -> AsyncIterator[Service]:
    """An in-process service with one project."""
    made = Settings(data_dir=directory, **{"breaker_actors": 2, "router_actors": 1, **settings})
    if not made.database_url:
        migrated(made.data_dir / DATABASE)
    store = make_store(made)
    await store.open()
    clock = clock_of_loop()
    now = clock.now_ms()
    org = await store.create_org("org", now)
    workspace = await store.create_workspace(org, "workspace", "workspace", now)
    project = await store.create_project(org, workspace.id, "project", now)
    async with LocalCluster(store, make_log(made), clock, made) as cluster:
        yield Service(cluster, project)


def printed(done: Result) -> Any:
    """What a command printed as JSON beside a service of this process, whose logs go to the same stdout."""
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(line)
