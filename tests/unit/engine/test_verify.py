"""`breakers verify` finds what was done to stored bytes, rows and files, each by its name; and nothing where nothing
was done."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from api.cli.verify import FOUND, Report, _show, verified
from breaker_actors.core.log_entries import SAMPLES, VIEW
from breaker_actors.core.model import Control, Override
from breaker_actors.errors import Invalid
from breaker_actors.messages import Fault, MoreFaults
from breaker_actors.persistence import DATABASE, KEY_FILE, make_store
from breaker_actors.settings import Settings
from breaker_actors.store.checksums import event_checksum
from breaker_actors.store.faults import SEVERAL
from breaker_actors.store.rows import BreakerRow, EventQuery
from breaker_actors.wal.chain import Row, checksum
from tests.support.cluster import until
from tests.support.commands import command_beside
from tests.support.virtual_time import clock_of_loop
from tests.unit.engine.test_poison import RULE, Running, Tenant, bystander, running

OUTAGES = 3


@dataclass
class Data:
    """A data directory with two tenants, each with a breaker that tripped and recovered a few times, and a channel."""

    folder: Path
    victim: Tenant
    other: Tenant
    channel_id: str

    @contextmanager
    def store(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.folder / DATABASE, isolation_level=None)) as connection:
            yield connection

    @property
    def log_path(self) -> Path:
        (path,) = (self.folder / "log").glob("*.sqlite")
        return path

    @contextmanager
    def log(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.log_path, isolation_level=None)) as connection:
            yield connection

    def copy(self, folder: Path) -> Data:
        shutil.copytree(self.folder, folder)
        return Data(folder, self.victim, self.other, self.channel_id)


async def _outages(run: Running, who: Tenant) -> None:
    for _ in range(OUTAGES):
        await run.send(who, who.router_id, 1_000.0)
        await run.until_open(who, who.breaker_id)

        async def closed() -> bool:
            await run.send(who, who.router_id, 1.0)
            return bool((await run.state(who, who.breaker_id))["state"] == "closed")

        await until(closed, 30)


async def _by_hand(run: Running, who: Tenant) -> None:
    """It is throttled for a while; forced closed, it trips unseen, and that is ended; it observes, and trips unseen."""
    throttled = {"kind": "throttle", "allow_rate": 0.5, "by": "ann", "reason": "half the fleet"}
    await _control(run, who, 300, **throttled)
    await until(lambda: _is(run, who, "half_open"), 20)
    await until(lambda: _is(run, who, "closed"), 20)
    await _control(run, who, 60_000, kind="force_closed", by="ann", reason="a false alarm")
    await _trip_unseen(run, who)
    await _control(run, who, None, by="bob", comment="it was none")
    await _recover(run, who)
    await _control(run, who, None, mode="observe", by="bob")
    await _trip_unseen(run, who)
    await _control(run, who, None, mode="enforce", by="bob")
    await _recover(run, who)


async def _is(run: Running, who: Tenant, state: str) -> bool:
    return bool((await run.state(who, who.breaker_id))["state"] == state)


async def _control(run: Running, who: Tenant, for_ms: int | None, **fields: Any) -> None:
    """An override of so many ms; None: mode and no override."""
    now = clock_of_loop().now_ms()

    def edit(row: BreakerRow) -> BreakerRow:
        if for_ms is None:
            return msgspec.structs.replace(row, control=Control(**fields))
        override = Override(**fields, since_ms=now, until_ms=now + for_ms, version=row.version + 1)
        return msgspec.structs.replace(row, control=Control(override=override))

    _, changes = await run.store.update_breaker(who.project_id, who.breaker_id, edit, now)
    await run.cluster.gateway.configured(who.project_id, changes)


async def _trip_unseen(run: Running, who: Tenant) -> None:
    async def tripped() -> bool:
        await run.send(who, who.router_id, 1_000.0)
        query = EventQuery(project_id=who.project_id, breaker_id=who.breaker_id, limit=1)
        (newest,) = await run.store.events(query)
        return newest.hidden_by is not None and newest.curr == "open"

    await until(tripped, 30)


async def _recover(run: Running, who: Tenant) -> None:
    async def closed() -> bool:
        await run.send(who, who.router_id, 1.0)
        return bool((await run.state(who, who.breaker_id))["state"] == "closed")

    await until(closed, 30)


async def _live(folder: Path, **settings: Any) -> Data:
    async with running(folder, **settings) as run:
        quick = {"cooldown_ms": 100, "window_ms": 200, "recovery_allow_rate_ramp_steps": 1}
        victim, other = await bystander(run, "victim", **quick), await bystander(run, "other", **quick)
        hook = {"channel": "webhook", "config": {"url": "http://hook.example/"}, "name": "hook"}
        status, made = await run.call(victim, "POST", "notification-channels", hook)
        assert status == 201, made
        await asyncio.sleep(2)  # events that come within a second of it may not have been known to it
        for who in (victim, other):
            await _outages(run, who)
        await _by_hand(run, victim)
        for name in run.breaker_actors():
            await run.cluster.net.call(name, "checkpoint")
        return Data(folder, victim, other, made["channel"]["id"])


_made: dict[str, Data] = {}


@pytest.fixture
async def data(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Data:
    if "clean" not in _made:
        _made["clean"] = await _live(tmp_path_factory.mktemp("clean") / "data")
    return _made["clean"].copy(tmp_path / "data")


async def look(data: Data) -> Report:
    return await verified(Settings(data_dir=data.folder), clock=clock_of_loop())


# -- what is done to it ------------------------------------------------------------------------------------------------


def store(sql: str) -> Callable[[Data], None]:
    """A change of the database. {breaker}, {router}, {project} and {channel} are the victim's."""

    def do(data: Data) -> None:
        of = {"breaker": data.victim.breaker_id, "router": data.victim.router_id}
        of |= {"project": data.victim.project_id, "channel": data.channel_id}
        with data.store() as connection:
            assert connection.execute(sql.format(**of)).rowcount > 0

    return do


def log(*statements: str) -> Callable[[Data], None]:
    """Changes of the victim's log."""

    def do(data: Data) -> None:
        with data.log() as connection:
            for sql in statements:
                assert connection.execute(sql.format(router=data.victim.router_id)).rowcount > 0

    return do


def flip_a_bit(data: Data) -> None:
    with data.log() as connection:
        where = "WHERE router_id = ? AND offset = 9"
        ((payload,),) = connection.execute(f"SELECT payload FROM records {where}", (data.victim.router_id,))
        flipped = bytes([payload[0], *payload[1:-1], payload[-1] ^ 1])
        connection.execute(f"UPDATE records SET payload = ? {where}", (flipped, data.victim.router_id))


def rechained(change: Callable[[Row], Row]) -> Callable[[Data], None]:
    """A change of a samples record by who makes all checksums right again, but for the head's."""

    def do(data: Data) -> None:
        with data.log() as connection:
            columns = "router_id, offset, received_ms, kind, view_offset, payload, before, checksum"
            query = f"SELECT {columns} FROM records WHERE router_id = ? ORDER BY offset"
            rows = [Row(*row) for row in connection.execute(query, (data.victim.router_id,))]
            at = next(n for n, row in enumerate(rows) if row.kind == SAMPLES and n > 8)
            rows[at] = change(rows[at])
            for n in range(at, len(rows)):
                before = rows[n - 1].checksum or 0
                rows[n] = rows[n]._replace(before=before, checksum=checksum(before, *rows[n][:6]))
            connection.execute("DELETE FROM records WHERE router_id = ?", (data.victim.router_id,))
            connection.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)", _as_stored(rows))

    return do


def _as_stored(rows: list[Row]) -> Iterator[tuple[Any, ...]]:
    """In the order of the table's columns."""
    return ((*row[:5], row.before, row.checksum, row.payload) for row in rows)


def trim_too_far(data: Data) -> None:
    """Records that a breaker has not read yet are gone, and the head says that this is right."""
    mine = "WHERE router_id = '{router}'"
    log(f"UPDATE heads SET floor = 12 {mine}", f"DELETE FROM records {mine} AND offset < 12 AND kind <> {VIEW}")(data)
    store("UPDATE records SET cut = json_set(cut, '$.\"{router}\"', 3) WHERE breaker_id = '{breaker}'")(data)


def remove_log(data: Data) -> None:
    for path in (data.folder / "log").iterdir():
        path.unlink()


def overwrite_log(data: Data) -> None:
    data.log_path.write_bytes(b"no log" * 10_000)


def overwrite_pages(data: Data) -> None:
    """In the middle of the database, as a disk does that loses some."""
    with data.store() as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ((root,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'ix_events_project_newest'")
    with (data.folder / DATABASE).open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(bytes(4096))


def another_event(data: Data) -> None:
    """What an older copy of a part of the database would hold: right in itself, and followed by something else."""
    with data.store() as connection:
        connection.row_factory = sqlite3.Row
        which = (data.victim.breaker_id,)
        query = "SELECT * FROM events WHERE breaker_id = ? AND transition_seq = 3"
        row = dict(connection.execute(query, which).fetchone())
        row |= {"name": "older", "rule": json.loads(row["rule"]), "agg": json.loads(row["agg"])}
        checksum = event_checksum(row, row["before"])
        assignments = "name = 'older', checksum = ? WHERE breaker_id = ? AND transition_seq = 3"
        connection.execute(f"UPDATE events SET {assignments}", (checksum, *which))


DAMAGE: dict[str, tuple[Callable[[Data], None], str, str]] = {
    "a flipped bit": (flip_a_bit, "log", "record 9 is missing, or not what was written"),
    "a record removed": (
        log("DELETE FROM records WHERE router_id = '{router}' AND offset = 8"),
        "log",
        "record 8 is missing",
    ),
    "records swapped": (
        log(
            "UPDATE records SET offset = -8 WHERE router_id = '{router}' AND offset = 8",
            "UPDATE records SET offset = 8 WHERE router_id = '{router}' AND offset = 9",
            "UPDATE records SET offset = 9 WHERE router_id = '{router}' AND offset = -8",
        ),
        "log",
        "records 8 to 9 are missing, or not what was written",
    ),
    "the last record removed": (
        log(
            "DELETE FROM records WHERE router_id = '{router}'"
            " AND offset = (SELECT offset FROM heads WHERE router_id = '{router}')"
        ),
        "log",
        "its last one, is missing",
    ),
    "the head removed": (log("DELETE FROM heads WHERE router_id = '{router}'"), "log", "lie there without a head"),
    "the head changed": (
        log("UPDATE heads SET offset = offset - 1 WHERE router_id = '{router}'"),
        "log",
        "its head is not what was written",
    ),
    "an older copy of the log": (
        log(
            "DELETE FROM records WHERE router_id = '{router}' AND offset > 10",
            "UPDATE heads SET offset = 10, seal = 0, checksum = (SELECT checksum FROM records"
            " WHERE router_id = '{router}' AND offset = 10) WHERE router_id = '{router}'",
        ),
        "log",
        "records 11 to ",
    ),
    "a record received before the one before it": (
        rechained(lambda row: row._replace(received_ms=1)),
        "log",
        "was received before the one before it",
    ),
    "a record under another view": (
        rechained(lambda row: row._replace(view_offset=row.view_offset + 1)),
        "log",
        "was split by view",
    ),
    "a record that can't be read": (
        rechained(lambda row: row._replace(payload=b"\xff" * 8)),
        "log",
        "can't be read",
    ),
    "a request twice": (
        log("INSERT INTO keys SELECT router_id, offset + 1, key, received_ms FROM keys WHERE router_id = '{router}'"),
        "log",
        "one request lies in it twice",
    ),
    "a wrong count of bytes": (
        log("UPDATE heads SET bytes = bytes * 2 WHERE router_id = '{router}'"),
        "log",
        "its head counts",
    ),
    "trimmed too far": (
        trim_too_far,
        "log",
        "are trimmed, but a breaker has read up to record 3 only",
    ),
    "the log gone": (remove_log, "log", "is missing"),
    "no log file": (overwrite_log, "log", "file is not a database"),
    "lost pages of the database": (overwrite_pages, "file", ""),
    "older settings in the database": (
        store("UPDATE breakers SET version = 2 WHERE id = '{breaker}'"),
        "configuration",
        "of its settings, the database version 2: the database is older",
    ),
    "an older routing table in the database": (
        store("UPDATE routers SET version = 0 WHERE id = '{router}'"),
        "configuration",
        "its log has version 1 of the routing table, the database 0: the database is older",
    ),
    "an event removed": (
        store("DELETE FROM events WHERE breaker_id = '{breaker}' AND transition_seq = 3"),
        "event",
        "event 3 is missing",
    ),
    "the last event removed": (
        store(
            "DELETE FROM events WHERE sequence = (SELECT max(sequence) FROM events WHERE breaker_id = '{breaker}')"
            " AND breaker_id = '{breaker}'"
        ),
        "state",
        "its last event leads to",
    ),
    "an event changed": (
        store("UPDATE events SET curr = 'half_open' WHERE breaker_id = '{breaker}' AND transition_seq = 1"),
        "event",
        "event 1 moves from closed to half_open, which no breaker does",
    ),
    "an event that does not follow": (
        store("UPDATE events SET prev = 'half_open' WHERE breaker_id = '{breaker}' AND transition_seq = 4"),
        "event",
        "event 4 moves from half_open, event 3 led to closed",
    ),
    "an event out of time": (
        store("UPDATE events SET ts_ms = 1 WHERE breaker_id = '{breaker}' AND transition_seq = 4"),
        "event",
        "event 4 happened before event 3",
    ),
    "another value than the log's": (
        store("UPDATE events SET value = 123.5 WHERE breaker_id = '{breaker}' AND transition_seq = 4"),
        "event",
        "by its log it is",
    ),
    "a reason changed": (
        store("UPDATE events SET reason = 'other' WHERE breaker_id = '{breaker}' AND transition_seq = 4"),
        "event",
        "event 4 is not what was written",
    ),
    "a hidden move shown": (
        store("UPDATE events SET hidden_by = NULL WHERE breaker_id = '{breaker}' AND hidden_by = 'override'"),
        "event",
        ", by its log it is closed to open at ",
    ),
    "a move that was seen hidden": (
        store("UPDATE events SET hidden_by = 'observe' WHERE breaker_id = '{breaker}' AND transition_seq = 2"),
        "event",
        "event 3 moves from half_open, event 1 led to open",
    ),
    "hidden by something else": (
        store("UPDATE events SET hidden_by = 'observe' WHERE breaker_id = '{breaker}' AND hidden_by = 'override'"),
        "event",
        ", hidden by observe), by its log it is ",
    ),
    "another operator": (
        store("UPDATE events SET by = 'eve' WHERE breaker_id = '{breaker}' AND reason = 'override_expired'"),
        "event",
        ", by eve: half the fleet), by its log it is ",
    ),
    "another word of why": (
        store("UPDATE events SET comment = 'no' WHERE breaker_id = '{breaker}' AND reason = 'override_expired'"),
        "event",
        ", by ann: no), by its log it is ",
    ),
    "an operator's move that is the machine's": (
        store("UPDATE events SET reason = 'recovered' WHERE breaker_id = '{breaker}' AND reason = 'override_expired'"),
        "event",
        " (recovered, ",
    ),
    "an operator's move that no machine makes": (
        store("UPDATE events SET reason = 'cooldown_elapsed' WHERE breaker_id = '{breaker}' AND reason = 'throttled'"),
        "event",
        " moves from closed to half_open, which no breaker does",
    ),
    "a hidden move of an operator": (
        store("UPDATE events SET hidden_by = 'observe' WHERE breaker_id = '{breaker}' AND reason = 'throttled'"),
        "event",
        " moves from closed to half_open, which no breaker does",
    ),
    "an operator's move that was never made": (
        store("UPDATE events SET reason = 'forced_open' WHERE breaker_id = '{breaker}' AND transition_seq = 1"),
        "event",
        " (forced_open, ",
    ),
    "an event without its checksum": (
        store("UPDATE events SET checksum = NULL WHERE breaker_id = '{breaker}' AND transition_seq = 4"),
        "event",
        "event 5 was written behind another event 4",
    ),
    "an event of another history": (another_event, "event", "event 4 was written behind another event 3"),
    "a state of another history": (
        store("UPDATE records SET event_checksum = event_checksum + 1 WHERE breaker_id = '{breaker}'"),
        "state",
        "is not the one that its state was stored with",
    ),
    "a cut changed": (
        store("UPDATE records SET cut = replace(cut, ':', ':1') WHERE breaker_id = '{breaker}'"),
        "state",
        "how far it has read, is not what was written",
    ),
    "another state": (
        store("UPDATE records SET state = 'open' WHERE breaker_id = '{breaker}'"),
        "state",
        "its row says open",
    ),
    "a record of a breaker that can't be read": (
        store("UPDATE records SET record = x'ff' WHERE breaker_id = '{breaker}'"),
        "state",
        "its record can't be read",
    ),
    "a rule that can't be read": (
        store("UPDATE breakers SET rule = '{{' WHERE id = '{breaker}'"),
        "configuration",
        "can't be read",
    ),
    "a link to a breaker that is not there": (
        store("UPDATE links SET breaker_id = 'nobody' WHERE breaker_id = '{breaker}'"),
        "configuration",
        "names one of breakers that is not there",
    ),
    "a sealed secret of another row": (
        store("UPDATE projects SET ingest_secret = (SELECT ingest_secret FROM projects WHERE id <> '{project}')"),
        "configuration",
        "does not open the stored ingest secret",
    ),
    "a delivery removed": (
        store("DELETE FROM outbox WHERE channel_id = '{channel}' AND kind = 'trip' AND transition_seq = 4"),
        "delivery",
        "tells of the end of an outage, none tells of its beginning",
    ),
    "an end removed": (
        store("DELETE FROM outbox WHERE channel_id = '{channel}' AND kind = 'recover' AND transition_seq = 3"),
        "delivery",
        "no delivery tells of the recover",
    ),
    "a delivery of another kind": (
        store("UPDATE outbox SET kind = 'recover' WHERE channel_id = '{channel}' AND transition_seq = 4"),
        "delivery",
        "its event is another one",
    ),
    "deliveries out of order": (
        store("UPDATE outbox SET number = number + 1000 WHERE channel_id = '{channel}' AND transition_seq = 1"),
        "delivery",
        "comes behind that of transition",
    ),
    "a delivery of no event": (
        store("UPDATE outbox SET sequence = 1000 WHERE channel_id = '{channel}' AND transition_seq = 1"),
        "delivery",
        "tells of an event that is not there",
    ),
    "a delivery that no mute holds": (
        store(
            "UPDATE outbox SET state = 'held', ended_ms = NULL WHERE channel_id = '{channel}' AND transition_seq = 4"
        ),
        "delivery",
        "is held, and no mute is named",
    ),
    "a recovery that is held": (
        store("UPDATE outbox SET state = 'held', mute_id = 'm' WHERE channel_id = '{channel}' AND kind = 'recover'"),
        "delivery",
        "is held, and is no trip that waits",
    ),
    "two trips held at once": (
        store("UPDATE outbox SET state = 'held', mute_id = 'm' WHERE channel_id = '{channel}' AND kind = 'trip'"),
        "delivery",
        "which is held as well",
    ),
    "a suppressed delivery that goes on": (
        store("UPDATE outbox SET state = 'suppressed', mute_id = 'm', ended_ms = NULL WHERE channel_id = '{channel}'"),
        "delivery",
        "is suppressed, and has not ended",
    ),
    "a wrong count of events": (
        store("UPDATE stored SET used = used + 1 WHERE of_id = '{project}' AND what = 'events'"),
        "count",
        "events are there",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
async def test_damage_is_found(data: Data, what: str) -> None:
    plant, kind, words = DAMAGE[what]
    plant(data)
    report = await look(data)
    told = [fault for fault in report.faults if fault.kind == kind and words in fault.words]
    assert told, report.faults
    assert data.other.router_id not in {fault.of for fault in report.faults} or what in ("the log gone", "no log file")


async def test_nothing_is_found_where_nothing_was_done(data: Data) -> None:
    report = await look(data)
    assert report.faults == []
    assert (report.logs, report.breakers, report.passed_over) == (2, 2, {})
    assert report.moves >= 2 * 3 * OUTAGES
    assert report.records > report.moves


async def test_a_breaker_with_a_second_router_is_said_to_have_one(tmp_path: Path) -> None:
    """Its life begins in the log of the first: that is compared, and is no log that begins later than it did. Where
    that log is gone, what the second tells alone is not enough."""
    async with running(tmp_path / "data") as run:
        who = await bystander(run, "shared")
        first, _ = await run.make_breaker(who, "of the first")
        _, router_id = await run.make_breaker(who, "of the second")
        link = {"breaker_ids": [who.breaker_id, first]}
        assert (await run.call(who, "POST", f"routers/{router_id}/breakers", link))[0] == 200
        for at in (who.router_id, router_id):
            await run.send(who, at, 1.0)
        settings = Settings(data_dir=tmp_path / "data")
        report = await verified(settings, clock=clock_of_loop())
        assert (report.faults, report.breakers, report.passed_over) == ([], 3, {})
        with closing(sqlite3.connect(next((tmp_path / "data" / "log").glob("*.sqlite")), isolation_level=None)) as log:
            log.execute("DELETE FROM records WHERE router_id = ?", (who.router_id,))
        report = await verified(settings, clock=clock_of_loop())
        assert report.passed_over == {SEVERAL: 1}


async def test_the_command_says_what_it_found(data: Data) -> None:
    for damaged in (False, True):
        if damaged:
            flip_a_bit(data)
        for options in ((), ("--json",)):
            done = await command_beside("verify", "--data-dir", str(data.folder), *options)
            assert done.exit_code == (FOUND if damaged else 0), done.stderr
            if options:
                faults = json.loads(done.stdout)["faults"]
                assert [(fault["kind"], fault["of"]) for fault in faults] == [("log", data.victim.router_id)] * damaged
            else:
                assert ("nothing is wrong" in done.stdout) is not damaged
                assert (f"log\t{data.victim.router_id}\trecord 9" in done.stdout) is damaged


async def test_a_key_that_is_missing_is_not_made(data: Data) -> None:
    """Neither by a look nor by a start: a new one opens nothing, and would be taken for that of the backup."""
    (data.folder / KEY_FILE).unlink()
    before = {path.name for path in data.folder.iterdir()}
    with pytest.raises(Invalid, match=r"secret\.key is missing"):
        await look(data)
    with pytest.raises(Invalid, match=r"secret\.key is missing"):
        make_store(Settings(data_dir=data.folder))
    assert {path.name for path in data.folder.iterdir()} == before


async def test_a_database_that_is_older_than_its_logs(tmp_path: Path) -> None:
    """As when it alone is put back: what was edited, linked and deleted since stands in the logs."""
    folder = tmp_path / "data"
    async with running(folder) as run:
        who = await bystander(run, "shared")
        deleted, _ = await run.make_breaker(who, "deleted")
        again, _ = await run.make_breaker(who, "made again before")
        assert (await run.call(who, "POST", f"routers/{who.router_id}/breakers", {"breaker_ids": [again]}))[0] == 200
        for _ in range(3):
            assert (await run.call(who, "PATCH", f"breakers/{again}", {"threshold": 7}))[0] == 200
        assert (await run.call(who, "DELETE", f"breakers/{again}"))[0] == 204
        made = {**RULE, "name": "made again before", "id": again}
        assert (await run.call(who, "POST", "breakers", made))[0] == 201
        assert (await run.call(who, "POST", f"routers/{who.router_id}/breakers", {"breaker_ids": [again]}))[0] == 200
        with closing(sqlite3.connect(folder / DATABASE)) as c:
            c.execute("VACUUM INTO ?", (str(tmp_path / "older.sqlite"),))
        assert (await run.call(who, "PATCH", f"breakers/{who.breaker_id}", {"threshold": 7}))[0] == 200
        assert (await run.call(who, "PATCH", f"routers/{who.router_id}", {"enabled": False}))[0] == 200
        assert (await run.call(who, "DELETE", f"breakers/{deleted}"))[0] == 204
    settings = Settings(data_dir=folder)
    report = await verified(settings, clock=clock_of_loop())
    assert report.faults == []
    (tmp_path / "older.sqlite").replace(folder / DATABASE)
    report = await verified(settings, clock=clock_of_loop())
    found = {fault.of: fault.words for fault in report.faults if fault.kind == "configuration"}
    assert "has version 2 of its settings, the database version 1" in found.pop(who.breaker_id)
    assert "has its end, the database version 1" in found.pop(deleted)
    assert "of the routing table, the database" in found.pop(who.router_id)
    assert again not in found
    assert all("of the routing table" in words for words in found.values())


async def test_a_service_may_run_meanwhile(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as run:
        who = await bystander(run, "busy", cooldown_ms=100, window_ms=200, recovery_allow_rate_ramp_steps=1)
        busy = asyncio.create_task(_outages(run, who))
        looks = 0
        while not busy.done():
            report = await verified(Settings(data_dir=tmp_path / "data"), clock=clock_of_loop())
            assert report.faults == []
            looks += 1
        await busy
        assert looks > 3


async def test_a_database_of_postgresql(tmp_path: Path, postgres_url: str) -> None:
    """The logs lie in it, too."""
    settings = {"database_url": postgres_url, "secret_key": "ab" * 32}

    async def found() -> list[tuple[str, str]]:
        report = await verified(Settings(data_dir=tmp_path, **settings), clock=clock_of_loop())  # type: ignore[arg-type]
        return [(fault.kind, fault.words) for fault in report.faults]

    data = await _live(tmp_path / "data", **settings)
    assert await found() == []
    with psycopg.connect(postgres_url) as connection:
        of = (data.victim.router_id,)
        connection.execute('DELETE FROM log_records WHERE router_id = %s AND "offset" = 8', of)
        connection.execute("UPDATE log_heads SET bytes = bytes * 2 WHERE router_id = %s", of)
    told = await found()
    assert [kind for kind, _ in told] == ["log"] * 2
    assert "record 8 is missing" in told[0][1]
    assert "its head counts" in told[1][1]
    with psycopg.connect(postgres_url) as connection:
        of = (data.other.breaker_id,)
        connection.execute("DELETE FROM events WHERE breaker_id = %s AND transition_seq = 2", of)
        connection.execute("UPDATE events SET value = 7.5 WHERE breaker_id = %s AND transition_seq = 1", of)
    more = [fault for fault in await found() if fault not in told]
    assert [kind for kind, _ in more] == ["event", "event", "count", "event"]
    assert [words for _, words in more[:2]] == ["event 1 is not what was written", "event 2 is missing"]
    assert "by its log it is" in more[3][1]
    with pytest.raises(Invalid, match=r"secret\.key is missing"):
        await verified(Settings(data_dir=tmp_path / "no key", database_url=postgres_url))  # type: ignore[arg-type]
    assert not (tmp_path / "no key").exists()


def test_what_is_only_counted_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    more = [MoreFaults("event", "p-1", 1_234), MoreFaults("file", "", 5)]
    _show(Report([Fault("event", "b", "words", "p-1")], more))
    shown = capsys.readouterr()
    assert "and 1,234 more of kind event of project p-1\nand 5 more of kind file\n" in shown.out
    assert "1,240 faults: 1,235 event, 5 file" in shown.err
