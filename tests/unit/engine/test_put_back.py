"""A database that is put back alone, beside logs that went on: what a start has counted again, and what it leaves."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from api.cli.verify import verified
from api.launch import put_back
from breaker_actors.core.log_entries import BREAKER
from breaker_actors.errors import Unavailable
from breaker_actors.persistence import DATABASE, make_log, make_store, newest_change
from breaker_actors.store.rows import BreakerRow, ProjectRow, RouterDraft
from breaker_actors.store.sql_store import SqlStore
from breaker_actors.wal.base import Append
from tests.support.cluster import Service, service
from tests.support.commands import command_beside
from tests.support.virtual_time import clock_of_loop
from tests.unit.engine.test_backup import RULE, copy_file, restored, settings_of


def put_old_one_back(folder: Path, old: Path) -> None:
    for side in ("-wal", "-shm"):
        (folder / f"{DATABASE}{side}").unlink(missing_ok=True)
    old.replace(folder / DATABASE)
    (folder / DATABASE).chmod(0o600)


async def edited_since(tmp_path: Path) -> tuple[Path, ProjectRow, list[BreakerRow]]:
    """Four breakers, each edited once since the database was copied."""
    folder = tmp_path / "a"
    async with service(folder) as s:
        rows = [await s.breaker(**RULE) for _ in range(4)]
        for row in rows:
            await s.send(row.router_ids[0], [1.0])
        copy_file(folder / DATABASE, tmp_path / "old")
        for row in rows:
            await s.edit(row.id, threshold=1e6)
        project = s.project
    put_old_one_back(folder, tmp_path / "old")
    return folder, project, rows


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[SqlStore]:
    store = make_store(settings_of(folder))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def start(folder: Path) -> list[str]:
    """What a start says of it."""
    said = list[str]()
    async with opened(folder) as store:
        await put_back.count_again(store, settings_of(folder), clock_of_loop().now_ms(), said.append)
    return said


async def kinds(folder: Path) -> set[str]:
    return {fault.kind for fault in (await verified(settings_of(folder), clock=clock_of_loop())).faults}


async def trips(s: Service, row: BreakerRow, router_id: str) -> None:
    """The breaker goes by a threshold of 100."""
    await s.fresh(row.id)
    assert (await s.send(router_id, [200.0] * 50)).status == "ok"
    await s.in_state(row.id, "open")


async def test_what_one_start_leaves_the_next_one_takes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many changes were made between them: their numbers hide what the logs have."""
    folder, project, rows = await edited_since(tmp_path)
    whole, calls = SqlStore.tell_again, 0

    async def fails(*args: Any) -> list[str]:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise Unavailable("the database does not answer")
        return await whole(*args)

    with monkeypatch.context() as patched:
        patched.setattr(SqlStore, "tell_again", fails)
        said = await start(folder)
    assert said == [put_back.OLDER, put_back.LEFT.format(why="the database does not answer")]
    async with restored(folder, project) as s:
        for threshold in (7, 8, 9):
            await s.edit(rows[0].id, threshold=threshold)
    async with opened(folder) as store:
        assert await store.is_behind(newest_change(settings_of(folder)))
    assert (await start(folder))[0] == put_back.OLDER
    assert "configuration" not in await kinds(folder)
    assert await start(folder) == []


async def test_recovering_some_routers_leaves_the_others_to_the_start(tmp_path: Path) -> None:
    folder, _, rows = await edited_since(tmp_path)
    for row in rows[:3]:
        done = await command_beside("recover", row.router_ids[0], "--yes", "--data-dir", str(folder))
        assert done.exit_code == 0, done.stderr
    assert (await start(folder))[0] == put_back.OLDER
    assert "configuration" not in await kinds(folder)


async def test_a_log_that_nobody_can_read_ends_no_start(tmp_path: Path) -> None:
    """The others' breakers go by the database; its own are looked at again with the next start."""
    folder, _, rows = await edited_since(tmp_path)
    settings, router_id = settings_of(folder), rows[0].router_ids[0]
    for path in (folder / "log").glob("*.sqlite"):
        query = "SELECT epoch, offset, last_received_ms, view_offset, turn FROM heads WHERE router_id = ?"
        with closing(sqlite3.connect(path)) as c:
            if (head := c.execute(query, (router_id,)).fetchone()) is not None:
                slot, (epoch, offset, received_ms, view, turn) = path.stem, head
    log = make_log(settings)
    record = Append(router_id, epoch, offset + 1, received_ms + 1, BREAKER, view, b"\xc1", generation=turn)
    assert await log.append(slot, [record]) == [True]
    await log.close()
    for _ in range(2):
        said = await start(folder)
        assert said[0] == put_back.OLDER
        assert said[1] == put_back.LEFT.format(why=put_back.UNREAD.format(what="1 router"))


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("by", ["one", "--all", "start"])
async def test_a_breaker_that_left_its_own_router_since(tmp_path: Path, by: str, is_stored: bool) -> None:
    """It is there again, by the database's settings, whichever log has which of its versions, and whether anything of
    it was stored when the database was copied."""
    folder = tmp_path / "a"
    async with service(folder) as s:
        now, project = s.clock.now_ms, s.project
        row = await s.breaker(**RULE, threshold=100)
        router, changes = await s.store.create_router(project.id, RouterDraft(name="shared"), now())
        await s.gateway.configured(project.id, changes)
        _, changes = await s.store.link_breakers(project.id, router.id, [row.id], now())
        await s.gateway.configured(project.id, changes)
        own = row.router_ids[0]
        for router_id in (own, router.id):
            await s.send(router_id, [1.0])
        await s.fresh(row.id)
        if is_stored:
            await asyncio.sleep(60)
        copy_file(folder / DATABASE, tmp_path / "old")
        await s.edit(row.id, threshold=1e6)
        changes = await s.store.unlink_breaker(project.id, own, row.id, now())
        await s.gateway.configured(project.id, changes)
        await s.edit(row.id, threshold=2e6)
    put_old_one_back(folder, tmp_path / "old")
    if by != "start":
        done = await command_beside("recover", own if by == "one" else by, "--yes", "--data-dir", str(folder))
        assert done.exit_code == 0, done.stderr
    await start(folder)
    assert "configuration" not in await kinds(folder)
    async with restored(folder, project) as s:
        await trips(s, row, own)
