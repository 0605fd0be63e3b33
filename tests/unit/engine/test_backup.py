"""What operators do: copies of the database and the logs, of a running service or a stopped one, brought back to life
elsewhere."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from api.cli.verify import verified
from api.launch import put_back
from breaker_actors.core.log_entries import SAMPLES, decode_samples
from breaker_actors.errors import Invalid
from breaker_actors.persistence import DATABASE, KEY_FILE, make_log, make_store, newest_change
from breaker_actors.settings import Settings
from breaker_actors.sql import copies
from breaker_actors.store.base import Store
from breaker_actors.store.rows import BreakerRow, EventQuery, EventRow, ProjectRow, RouterDraft
from tests.support.cluster import Service, service, until
from tests.support.commands import command_beside
from tests.support.in_process import LocalCluster
from tests.support.postgres import Postgres, Server
from tests.support.virtual_time import clock_of_loop

RULE: dict[str, Any] = {"window_ms": 300, "cooldown_ms": 100, "recovery_allow_rate_ramp_steps": 1}


def copy_file(source: Path, target: Path) -> None:
    """One instant of a SQLite file, however busily it is written: `sqlite3 source "VACUUM INTO 'target'"`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(source, timeout=30)) as connection:
        connection.execute("VACUUM INTO ?", (str(target),))


def copy_store(data_dir: Path, target: Path) -> None:
    copy_file(data_dir / DATABASE, target / DATABASE)
    shutil.copy2(data_dir / KEY_FILE, target)


def copy_logs(data_dir: Path, target: Path) -> None:
    for path in (data_dir / "log").glob("*.sqlite"):
        copy_file(path, target / "log" / path.name)


def settings_of(data_dir: Path, **place: Any) -> Settings:
    return Settings(data_dir=data_dir, **{"breaker_actors": 2, "router_actors": 1, **place})


@asynccontextmanager
async def restored(data_dir: Path, project: ProjectRow, **place: Any) -> AsyncIterator[Service]:
    settings = settings_of(data_dir, **place)
    store = make_store(settings)
    await store.open()
    async with LocalCluster(store, make_log(settings), clock_of_loop(), settings) as cluster:
        yield Service(cluster, project)


class Load:
    """Good and bad samples in turn for some breakers; `sent`: what was accepted, by value."""

    def __init__(self, s: Service, rows: list[BreakerRow]) -> None:
        self._s = s
        self._rows = rows
        self.sent: list[float] = []

    async def run(self, seconds: float) -> None:
        until = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until:
            bad = int(asyncio.get_running_loop().time() * 3) % 2
            value = (900 if bad else 1) + len(self.sent) / (1 << 20)
            sent = await asyncio.gather(*(self._s.send(row.router_ids[0], [value]) for row in self._rows))
            assert {outcome.status for outcome in sent} == {"ok"}
            self.sent.append(value)
            await asyncio.sleep(0.01)


async def events_of(store: Store, row: BreakerRow) -> list[EventRow]:
    """Oldest first."""
    return (await store.events(EventQuery(project_id=row.project_id, breaker_id=row.id, limit=200)))[::-1]


async def logged(s: Service, row: BreakerRow) -> set[float]:
    router_id = row.router_ids[0]
    records = await s.cluster.log.read(await s.slot(router_id), router_id, 0, 1 << 60, 1 << 30)
    return {value for r in records if r.kind == SAMPLES for value in decode_samples(r.payload).batch.value.tolist()}


async def check_goes_on(s: Service, row: BreakerRow) -> None:
    """Samples reach the breaker, settings can be changed, and its history is that of its log."""
    await s.fresh(row.id)

    async def closed() -> bool:
        """With good samples until it is: the first ones may meet it open."""
        assert (await s.send(row.router_ids[0], [1.0] * 2_000)).status == "ok"
        return (await s.state(row.id)).view.state == "closed"

    await until(closed)
    before = len(await s.events(row.id))
    await s.edit(row.id, threshold=5_000, cooldown_ms=3_600_000)
    for values in ([4_000.0] * 10, [9e9]):
        assert (await s.send(row.router_ids[0], values)).status == "ok"
    await s.in_state(row.id, "open")
    events = await s.assert_events_equal_replay(row)
    assert len(events) == before + 1
    assert events[-1].rule["threshold"] == 5_000


async def test_a_copy_of_a_running_service_lacks_only_what_came_after_it(tmp_path: Path) -> None:
    """First the database, then the logs: they hold what the database does not know yet, and it is told again. Who polls
    by `after_sequence` hears of what happens then, wherever it stood before."""
    async with service(tmp_path / "a") as s:
        rows = [await s.breaker(**RULE) for _ in range(3)]
        load = Load(s, rows)
        await load.run(0.7)
        running = asyncio.create_task(load.run(1.5))
        await asyncio.to_thread(copy_store, tmp_path / "a", tmp_path / "b")
        await asyncio.sleep(0.7)
        accepted = list(load.sent)
        await asyncio.to_thread(copy_logs, tmp_path / "a", tmp_path / "b")
        copied_ms = s.clock.now_ms()
        await running
        project, told = s.project, {row.id: await s.events(row.id) for row in rows}
    with closing(sqlite3.connect(tmp_path / "b" / DATABASE)) as connection:
        known = connection.execute("SELECT count(*) FROM events").fetchone()[0]
    newest = max(event.sequence for events in told.values() for event in events)
    async with restored(tmp_path / "b", project) as s:
        restored_ms = s.clock.now_ms()
        for row in rows:
            await s.fresh(row.id)
            assert set(accepted) <= await logged(s, row)
            events = await s.assert_events_equal_replay(row)
            again = [(e.transition_seq, e.curr, e.ts_ms) for e in events if e.ts_ms < copied_ms - 200]
            assert again == [(e.transition_seq, e.curr, e.ts_ms) for e in told[row.id]][: len(again)]
            known -= len(again)
        assert known < 0  # some of them were not in the copy of the database
        await check_goes_on(s, rows[0])
        since = [event for event in await s.events(rows[0].id) if event.ts_ms >= restored_ms]
        query = EventQuery(project_id=project.id, breaker_id=rows[0].id, after_sequence=newest, limit=200)
        assert since
        assert since == (await s.store.events(query))[-len(since) :]


async def test_a_backup_has_the_configuration_of_one_instant(tmp_path: Path) -> None:
    """What is edited, deleted and made while it is copied is in none of its files, and all act by the database."""
    target = tmp_path / "b"
    (target / "log").mkdir(parents=True)
    async with service(tmp_path / "a") as s:
        edited, deleted, still = [await s.breaker(**RULE, threshold=100) for _ in range(3)]
        for row in (edited, deleted, still):
            assert (await s.send(row.router_ids[0], [1.0])).status == "ok"
        logs = (tmp_path / "a" / "log").glob
        with copies.pinned(tmp_path / "a" / DATABASE, lambda: logs("*.sqlite")) as files:
            for file in files:
                for _ in range(3):
                    await s.edit(edited.id, threshold=1e6)
                if await s.store.get_breaker(s.project.id, deleted.id):
                    changes = await s.store.delete_breaker(s.project.id, deleted.id, s.clock.now_ms())
                    await s.cluster.gateway.configured(s.project.id, changes)
                await s.breaker(**RULE)
                copies.copy(file, target / file.path.relative_to(tmp_path / "a"))
        shutil.copy2(tmp_path / "a" / KEY_FILE, target)
        project = s.project
    report = await verified(settings_of(target), clock=clock_of_loop())
    assert (report.faults, report.breakers) == ([], 3)
    async with restored(target, project) as s:
        found, _ = await s.store.list_breakers(project.id)
        assert [(row.id, row.version, row.rule.threshold) for row in found] == [
            (row.id, 1, 100) for row in (edited, deleted, still)
        ]
        for row in found:
            await s.fresh(row.id)
            await check_goes_on(s, row)
    assert (await verified(settings_of(target), clock=clock_of_loop())).faults == []


async def by_recover(folder: Path, later: set[str], surely: set[str]) -> None:
    dry = await command_beside("recover", "--all", "--json", "--data-dir", str(folder))
    assert (dry.exit_code, json.loads(dry.stdout)["recovered"]) == (0, False), dry.stderr
    assert set(json.loads(dry.stdout)["later"]) == later
    done = await command_beside("recover", "--all", "--yes", "--json", "--data-dir", str(folder))
    assert done.exit_code == 0, done.stderr
    assert surely <= set(json.loads(done.stdout)["later"]) <= later
    store = make_store(settings_of(folder))
    await store.open()
    try:
        assert not await store.is_behind(newest_change(settings_of(folder))), "a start has nothing to do"
    finally:
        await store.close()


async def by_start(folder: Path, later: set[str], surely: set[str]) -> None:
    """Another start has nothing to say, and changes get numbers that no log has."""
    settings, said = settings_of(folder), list[str]()
    store = make_store(settings)
    await store.open()
    try:
        await put_back.count_again(store, settings, clock_of_loop().now_ms(), said.append)
        assert said[0] == put_back.OLDER
        assert len(surely) <= int(said[1].partition(" of ")[2].split()[0]) <= len(later)
        assert not await store.is_behind(newest_change(settings))
        await put_back.count_again(store, settings, clock_of_loop().now_ms(), said.append)
        assert len(said) == 2
    finally:
        await store.close()


@pytest.mark.parametrize("put_right", [by_recover, by_start])
async def test_a_database_that_is_put_back_alone_counts_again(
    tmp_path: Path, put_right: Callable[[Path, set[str], set[str]], Awaitable[None]]
) -> None:
    """What was edited, unlinked, switched off and deleted since stands in the logs; an operator's word, or a start, has
    all breakers go by the database, and later edits count."""
    folder = tmp_path / "a"
    async with service(folder) as s:
        now, project_id = s.clock.now_ms, s.project.id
        edited, deleted, shared = [await s.breaker(**RULE, threshold=100) for _ in range(3)]
        draft = RouterDraft(name="shared")
        router, changes = await s.store.create_router(project_id, draft, now())
        await s.gateway.configured(project_id, changes)
        _, changes = await s.store.link_breakers(project_id, router.id, [shared.id, deleted.id], now())
        await s.gateway.configured(project_id, changes)
        for row in (edited, deleted, shared):
            assert (await s.send(row.router_ids[0], [1.0])).status == "ok"
        copy_store(folder, tmp_path / "older")
        for _ in range(3):
            await s.edit(edited.id, threshold=1e6)
        changes = await s.store.unlink_breaker(project_id, router.id, shared.id, now())
        changes += await s.store.delete_breaker(project_id, deleted.id, now())
        off = partial(replace, enabled=False)
        changes += (await s.store.update_router(project_id, edited.router_ids[0], off, now()))[1]
        await s.gateway.configured(project_id, changes)
        project = s.project
    for path in folder.glob(f"{DATABASE}*"):
        path.unlink()
    shutil.copy2(tmp_path / "older" / DATABASE, folder / DATABASE)
    (folder / DATABASE).chmod(0o600)
    before = await verified(settings_of(folder), clock=clock_of_loop())
    assert {fault.kind for fault in before.faults} >= {"configuration"}
    later = {edited.id, deleted.id, router.id, edited.router_ids[0], deleted.router_ids[0]}
    await put_right(folder, later, {edited.id, deleted.id})  # one router may mend another
    assert [f for f in (await verified(settings_of(folder), clock=clock_of_loop())).faults if f.kind != "log"] == []
    async with restored(folder, project) as s:
        for row in (edited, deleted, shared):
            await s.fresh(row.id)
            assert (await s.send(row.router_ids[0], [200.0] * 50)).status == "ok"
            await s.in_state(row.id, "open")
            found = await s.store.get_breaker(project.id, row.id)
            assert found is not None
            await s.edit(row.id, threshold=500)

            async def closed(row: BreakerRow = row) -> bool:
                assert (await s.send(row.router_ids[0], [400.0] * 50)).status == "ok"
                return (await s.state(row.id)).view.state == "closed"

            await until(closed)
        assert (await s.send(router.id, [900.0] * 500)).status == "ok"
        await asyncio.gather(*(s.in_state(row.id, "open") for row in (deleted, shared)))
    assert (await verified(settings_of(folder), clock=clock_of_loop())).faults == []


async def test_a_copy_of_a_stopped_service_lacks_nothing(tmp_path: Path) -> None:
    async with service(tmp_path / "a") as s:
        rows = [await s.breaker(**RULE) for _ in range(3)]
        load = Load(s, rows)
        await load.run(1.0)
        project, told = s.project, {row.id: await s.events(row.id) for row in rows}
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    async with restored(tmp_path / "b", project) as s:
        for row in rows:
            await s.fresh(row.id)
            assert set(load.sent) == await logged(s, row)
            assert (await s.events(row.id))[: len(told[row.id])] == told[row.id]
        await check_goes_on(s, rows[0])


async def test_a_dump_of_a_running_service_is_of_one_instant(postgres_server: Server, tmp_path: Path) -> None:
    """pg_dump, and pg_restore into an empty database: nothing of before is missing, and only the same key opens it."""
    if not isinstance(postgres_server, Postgres):
        pytest.skip("the programs of the existing server may not be here")
    dump = tmp_path / "breakers.dump"
    with postgres_server.database() as url, postgres_server.database(empty=True) as empty:
        async with service(tmp_path / "a", database_url=url) as s:
            rows = [await s.breaker(**RULE) for _ in range(3)]
            load = Load(s, rows)
            await load.run(0.7)
            accepted, known = list(load.sent), {row.id: await s.events(row.id) for row in rows}
            running = asyncio.create_task(load.run(1.0))
            options = ("--format=custom", f"--file={dump}", url)
            await asyncio.to_thread(postgres_server.run, "pg_dump", *options)
            await running
            project, told = await s.store.get_project(s.project.id), {row.id: await s.events(row.id) for row in rows}
        assert project is not None
        assert any(known.values())
        postgres_server.run("pg_restore", "--no-owner", f"--dbname={empty}", str(dump))
        with pytest.raises(Invalid):
            await make_store(settings_of(tmp_path / "other", database_url=empty)).open()
        (tmp_path / "b").mkdir()
        shutil.copy2(tmp_path / "a" / KEY_FILE, tmp_path / "b")
        copy = make_store(settings_of(tmp_path / "b", database_url=empty))
        await copy.open()
        assert await copy.get_project(project.id) == project
        copied = {row.id: await events_of(copy, row) for row in rows}
        await copy.close()
        async with restored(tmp_path / "b", project, database_url=empty) as s:
            for row in rows:
                assert await s.store.get_breaker(project.id, row.id) == row
                assert set(accepted) <= await logged(s, row) <= set(load.sent)
                assert copied[row.id][: len(known[row.id])] == known[row.id]
                assert copied[row.id] == told[row.id][: len(copied[row.id])]
                await s.fresh(row.id)
                events = await s.assert_events_equal_replay(row)
                assert events[: len(copied[row.id])] == copied[row.id]
            await check_goes_on(s, rows[0])
