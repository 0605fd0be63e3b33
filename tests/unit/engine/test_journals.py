"""Several Journals, each of its own projects: what one that is away costs the projects of the others, and a number that
goes up and down."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from api.app import create_app
from api.context.replica import EXTENSION
from breaker_actors.clock import SystemClock
from breaker_actors.directory import host as directory_host
from breaker_actors.errors import Unavailable
from breaker_actors.gateway import journals as gateway_journals
from breaker_actors.persistence import make_log, make_store
from breaker_actors.settings import Settings
from breaker_actors.store.rows import BreakerRow
from breaker_actors.transport.peers import DIRECTORY, journal_name
from tests.support.cluster import Service, service, until
from tests.support.in_process import LocalCluster
from tests.support.web_world import TIMING, soon


async def on_shard(s: Service, shard: int) -> Service:
    """A new project of that shard on the same cluster."""
    now = s.clock.now_ms()
    while True:
        project = await s.store.create_project(s.project.org_id, s.project.workspace_id, "project", now)
        if project.shard == shard:
            return Service(s.cluster, project)


async def trip(s: Service, row: BreakerRow) -> None:
    assert (await s.send(row.router_ids[0], [500.0])).status == "ok"


async def hanging(*_: Any) -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def replica(s: Service) -> AsyncIterator[tuple[Any, Any]]:
    """A client of a replica of the service, with a key, and the replica's feed."""
    app = create_app(s.gateway, s.cluster.settings, SystemClock(), TIMING, owns_gateway=False)
    _, key = await s.store.create_key(s.project.org_id, "user", "u", s.clock.now_ms())
    async with app.test_app() as running:
        feed = app.extensions[EXTENSION].feed
        await soon(feed.fresh)
        client = running.test_client()
        client.headers = {"Authorization": f"Bearer {key}"}
        yield client, feed


@asynccontextmanager
async def stream(client: Any, s: Service) -> AsyncIterator[Any]:
    path = f"/v1/projects/{s.project.id}/breakers/state:stream"
    async with client.request(path, headers=client.headers) as following:
        await following.send_complete()
        await heard(following, b'"closed"')
        yield following
        await following.disconnect()


async def heard(following: Any, word: bytes) -> None:
    found = b""
    async with asyncio.timeout(10):
        while word not in found:
            found += await following.receive()


async def test_each_journal_stores_the_moves_of_its_projects(tmp_path: Path) -> None:
    async with service(tmp_path, journals=2) as s:
        projects, sequences = [await on_shard(s, shard) for shard in (0, 1)], list[int]()
        for mine in projects:
            row = await mine.breaker("b")
            await trip(mine, row)
            await mine.in_state(row.id, "open")
            sequences += [event.sequence for event in await mine.events(row.id)]
        status = await s.gateway.status()
        assert [(one.name, one.figures and one.figures.sequence) for one in status.journals] == [
            ("journal-0", sequences[0]),
            ("journal-1", sequences[1]),
        ]
        assert {"journal-0", "journal-1"} <= {actor.name for actor in status.actors if actor.state == "up"}
        found, _ = await s.gateway.counted()
        assert {"journal-0", "journal-1"} <= {counted.actor for counted in found}


@pytest.mark.parametrize("away", [0, 1])
async def test_a_journal_that_is_away_holds_up_its_own_projects_alone(tmp_path: Path, away: int) -> None:
    """Streams, moves and changes of the others go on, and its own come when it is back."""
    async with service(tmp_path, journals=2) as s:
        mine, other = await on_shard(s, away), await on_shard(s, 1 - away)
        rows = await mine.breaker("b", cooldown_ms=600_000), await other.breaker("b", cooldown_ms=600_000)
        async with replica(s) as (client, feed), stream(client, mine) as left, stream(client, other) as right:
            await s.net.kill(journal_name(away))
            with pytest.raises(Unavailable):
                await s.gateway.ready()
            began = time.monotonic()
            for one, row in ((mine, rows[0]), (other, rows[1])):
                await trip(one, row)
            await heard(right, b'"open"')
            made = await other.breaker("other")
            await heard(right, b'"other"')
            assert made.name == "other"
            assert feed.fresh()
            assert time.monotonic() - began < 5
            assert await mine.events(rows[0].id) == []
            await s.cluster.start_journal(away)
            await heard(left, b'"open"')
        assert [event.curr for event in await mine.events(rows[0].id)] == ["open"]


async def test_a_journal_that_hangs_holds_up_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever changes something waits for one Journal that has heard; the one that hangs hears when it can."""
    async with service(tmp_path, journals=2) as s:
        other = await on_shard(s, 0)
        await other.breaker("b")
        async with replica(s) as (client, _), stream(client, other) as following:
            with monkeypatch.context() as patched:
                patched.setattr(s.net.actors[journal_name(1)], "announce", hanging)
                began = time.monotonic()
                await s.gateway.announce("config", [other.project.id])
                await other.breaker("other")
                await heard(following, b'"other"')
                assert time.monotonic() - began < 3
                announcements = s.net.actors[DIRECTORY]._dispatch.announcements
                assert list(announcements._telling) == [1]


async def test_fewer_journals_leave_those_that_projects_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_journals, "COUNT_S", 0.05)
    async with service(tmp_path, journals=2) as s:
        mine = await on_shard(s, 1)
        row = await mine.breaker("b")
    settings = s.cluster.settings.model_copy(update={"journals": 1})
    store = make_store(settings)
    await store.open()
    async with LocalCluster(store, make_log(settings), s.clock, settings) as cluster:
        again = Service(cluster, mine.project)
        await soon(lambda: cluster.gateway.journals() == 2)

        async def ready() -> bool:
            with contextlib.suppress(Unavailable):
                await cluster.gateway.ready()
                return True
            return False

        await until(ready)
        await trip(again, row)
        await again.in_state(row.id, "open")
        shards = {(await on_shard(again, 0)).project.shard for _ in range(8)}
        assert shards == {0}
        assert [one.name for one in (await cluster.gateway.status()).journals] == ["journal-0", "journal-1"]


async def test_a_replica_follows_a_journal_that_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that began with fewer of them, as in an upgrade: a stream follows its project's own at once."""
    monkeypatch.setattr(directory_host, "CHECK_S", 0.05)
    async with service(tmp_path) as s:
        s.store._shards = 2  # type: ignore[attr-defined]
        mine = await on_shard(s, 1)
        s.store._shards = 1  # type: ignore[attr-defined]

        async def started() -> bool:
            return journal_name(1) in s.net.actors

        await until(started)
        row = await mine.breaker("b", cooldown_ms=600_000)
        async with replica(s) as (client, feed):
            assert list(feed._heard) == [0]
            async with stream(client, mine) as following:
                await trip(mine, row)
                await heard(following, b'"open"')


def test_settings_bound_the_number() -> None:
    assert Settings().journals == 1
    with pytest.raises(ValueError, match="less than or equal to 16"):
        Settings(journals=17)
