"""A log that is not as it was written: nothing is counted twice or answered and lost; who owns it and who reads it say
so, and everybody else is served."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from breaker_actors.core.log_entries import VIEW
from breaker_actors.errors import BreakersError
from breaker_actors.messages import FoundDamage
from breaker_actors.router.host import RouterHost
from tests.support.cluster import until
from tests.support.commands import command_beside
from tests.support.virtual_time import clock_of_loop
from tests.unit.engine.test_poison import Running, Tenant, bystander, running

SAMPLES = 30


@asynccontextmanager
async def lived(directory: Path, damage: Callable[[Tenant], None]) -> AsyncIterator[tuple[Running, Tenant, Tenant]]:
    """A service's second life, after its first one's log was damaged: the victim of it, and another tenant."""
    async with running(directory) as run:
        victim, other = await bystander(run, "victim"), await bystander(run, "other")
        await fill(run, victim)
        await fill(run, other)
        for name in run.breaker_actors():
            await run.cluster.net.call(name, "checkpoint")
    damage(victim)
    async with running(directory) as run:
        yield run, victim, other


async def fill(run: Running, who: Tenant) -> None:
    """The breaker has counted all samples, and its record says so once it is stored."""
    for n in range(SAMPLES):
        assert await run.send(who, who.router_id, float(n)) == 202

    async def counted() -> bool:
        return bool((await run.state(who, who.breaker_id))["sample_count"] == SAMPLES)

    await until(counted, 20)


def file_of(directory: Path, router_id: str) -> Path:
    for path in (directory / "log").glob("*.sqlite"):
        with closing(sqlite3.connect(path)) as file:
            if file.execute("SELECT 1 FROM heads WHERE router_id = ?", (router_id,)).fetchone():
                return path
    raise AssertionError("no log")


async def refused(run: Running, who: Tenant) -> None:
    """Samples are answered 503 in words of their own, and operators hear of it."""

    async def is_refused() -> bool:
        return await run.send(who, who.router_id) == 503

    await until(is_refused, 20)
    sample = {"router_id": who.router_id, "metric": "latency", "value": 1.0, "ts_ms": clock_of_loop().now_ms()}
    status, body = await run.call(who, "POST", "ingest", {"samples": [sample]})
    assert (status, body["code"]) == (503, "log_damaged")

    async def is_told() -> bool:
        return any(row.kind == "log" and row.thing == who.router_id for row in await run.asides())

    await until(is_told, 20)
    assert "aside list" in (await run.call(who, "GET", "/api/readyz"))[1]["message"]


async def run_cli(*arguments: str) -> str:
    done = await command_beside(*arguments)
    assert done.exit_code == 0, done.stderr
    return done.stdout


async def recovers(directory: Path, victim: Tenant) -> None:
    """By an operator's word the victim is served again: samples are taken behind what was lost, and counted."""
    told, done = [
        await run_cli("recover", victim.router_id, *yes, "--data-dir", str(directory)) for yes in ((), ("--yes",))
    ]
    assert victim.router_id in told
    first, second = ([line.split("\t")[:4] for line in output.splitlines()] for output in (told, done))
    assert first == second, "what was announced"
    async with running(directory) as run:

        async def is_taken() -> bool:
            return await run.send(victim, victim.router_id, 1_000.0) == 202

        await until(is_taken, 20)
        await run.until_open(victim, victim.breaker_id)


async def serves(run: Running, who: Tenant) -> None:
    await run.serves(who, "more")


async def test_a_log_that_is_gone(tmp_path: Path) -> None:
    """All routers of before take nothing; what is new is served."""
    async with lived(tmp_path, lambda _: shutil.rmtree(tmp_path / "log")) as (run, victim, other):
        await refused(run, victim)
        await refused(run, other)
        await serves(run, await bystander(run, "newcomer"))
    await recovers(tmp_path, victim)


async def test_an_older_copy(tmp_path: Path) -> None:
    """A whole log, right in itself, that ends before what breakers have read: 20 samples are missing."""

    def cut_off(victim: Tenant) -> None:
        with closing(sqlite3.connect(file_of(tmp_path, victim.router_id))) as file, file:
            rows = file.execute(
                "SELECT offset, received_ms, checksum FROM records WHERE router_id = ? ORDER BY offset DESC",
                (victim.router_id,),
            ).fetchall()
            end = rows[20]
            file.execute("DELETE FROM records WHERE router_id = ? AND offset > ?", (victim.router_id, end[0]))
            file.execute(
                "UPDATE heads SET offset = ?, last_received_ms = ?, checksum = ?, seal = 0 WHERE router_id = ?",
                (*end, victim.router_id),
            )

    async with lived(tmp_path, cut_off) as (run, victim, other):
        await refused(run, victim)
        await serves(run, other)
    await recovers(tmp_path, victim)


@pytest.mark.parametrize("column", ["payload", "received_ms", "checksum"])
async def test_one_record_that_is_not_what_was_written(tmp_path: Path, column: str) -> None:
    """Found when its window is filled again. The breaker stands still, with the state it had."""
    value = {"payload": "x'00'", "received_ms": "received_ms + 1", "checksum": "checksum + 1"}[column]

    def change(victim: Tenant) -> None:
        with closing(sqlite3.connect(file_of(tmp_path, victim.router_id))) as file, file:
            middle = "SELECT max(offset) - 5 FROM records WHERE router_id = ?1"
            statement = f"UPDATE records SET {column} = {value} WHERE router_id = ?1 AND offset = ({middle})"
            assert file.execute(statement, (victim.router_id,)).rowcount == 1

    async with lived(tmp_path, change) as (run, victim, other):
        await refused(run, victim)
        assert (await run.state(victim, victim.breaker_id))["state"] == "closed"
        await serves(run, other)
    await recovers(tmp_path, victim)


@pytest.mark.parametrize("when", ["at first", "later"])
async def test_an_owner_that_was_away_hears_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """It had not begun yet when a breaker read its log, or has started anew since: it does not take samples that no
    breaker can count."""
    is_away = when == "at first"
    note_damage = RouterHost.note_damage

    async def hear(self: RouterHost, found: Sequence[FoundDamage]) -> list[str]:
        return [] if is_away else await note_damage(self, found)

    monkeypatch.setattr(RouterHost, "note_damage", hear)

    def change(victim: Tenant) -> None:
        with closing(sqlite3.connect(file_of(tmp_path, victim.router_id))) as file, file:
            middle = "SELECT max(offset) - 5 FROM records WHERE router_id = ?1"
            statement = f"UPDATE records SET payload = x'00' WHERE router_id = ?1 AND offset = ({middle})"
            file.execute(statement, (victim.router_id,))

    async with lived(tmp_path, change) as (run, victim, other):

        async def is_taken() -> bool:
            return await run.send(victim, victim.router_id) == 202

        if is_away:
            await until(is_taken, 20)
            is_away = False
        else:
            await refused(run, victim)
            await run.cluster.net.kill("router-0")
            run.cluster.net.revive("router", "router-0")

            async def is_back() -> bool:
                return await run.send(other, other.router_id) == 202

            await until(is_back, 20)
        await refused(run, victim)
        await serves(run, other)


async def test_a_routing_table_that_is_not_what_was_written(tmp_path: Path) -> None:
    """Found by the router's owner. Samples of before are split by nobody knows what; those behind it count again."""

    def change(victim: Tenant) -> None:
        with closing(sqlite3.connect(file_of(tmp_path, victim.router_id))) as file, file:
            statement = "UPDATE records SET payload = x'00' WHERE router_id = ? AND kind = ?"
            assert file.execute(statement, (victim.router_id, VIEW)).rowcount == 1

    async with lived(tmp_path, change) as (run, victim, other):
        await refused(run, victim)
        await serves(run, other)
    await recovers(tmp_path, victim)


async def test_a_log_that_is_replaced_while_it_is_in_use(tmp_path: Path) -> None:
    """After a write of unknown outcome the owner looks where the log stands: it may not be shorter than it was."""
    async with running(tmp_path) as run:
        victim = await bystander(run, "victim")
        await fill(run, victim)
        with closing(sqlite3.connect(file_of(tmp_path, victim.router_id))) as file, file:
            file.execute("DELETE FROM records")
            file.execute("DELETE FROM heads")
            file.execute("CREATE TRIGGER away BEFORE INSERT ON records BEGIN SELECT RAISE(ABORT, 'disk'); END")
        path = file_of_any(tmp_path)
        with pytest.raises((BreakersError, AssertionError)):
            assert await run.send(victim, victim.router_id) == 202
        with closing(sqlite3.connect(path)) as file, file:
            file.execute("DROP TRIGGER away")
        await refused(run, victim)


def file_of_any(directory: Path) -> Path:
    return next((directory / "log").glob("*.sqlite"))
