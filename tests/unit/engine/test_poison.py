"""What can't be read is set aside, and everybody else goes on: over HTTP, through restarts, and after an upgrade."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace
from quart import Quart
from sqlalchemy import select
from typer.testing import CliRunner

from api.app import create_app
from api.cli.main import app as cli
from breaker_actors.core.log_entries import BREAKER, SAMPLES, VIEW, RouterView, decode_view, encode_entry
from breaker_actors.core.model import Record
from breaker_actors.messages import RouterRef
from breaker_actors.persistence import DATABASE, make_log, make_store
from breaker_actors.settings import Settings
from breaker_actors.store import migrations
from breaker_actors.store import tables as t
from breaker_actors.store.rows import AsideRow, RouterDraft
from breaker_actors.store.sql_store import SqlStore
from breaker_actors.wal.base import Append
from tests.support.cluster import FAST_RULE, until
from tests.support.fresh import migrated
from tests.support.in_process import LocalCluster
from tests.support.virtual_time import clock_of_loop
from tests.support.web_world import TIMING

RULE = {**FAST_RULE, "window_ms": 5_000}
BAD: Any = "static\n"


NEWER = {
    "projects": ("breakers_version", "replacing", "override_max_ms"),
    "breakers": ("control", "shadow_of"),
    "routers": ("reached_offset",),
    "events": ("before", "checksum", "hidden_by", '"by"', "comment"),
    "records": ("event_checksum", "checksum"),
    "outbox": ("mute_id",),
}
"""Columns that came since c930192."""


@dataclass
class Tenant:
    """An organisation with a project, a key, and a breaker with its router."""

    project_id: str
    workspace_id: str
    keys: dict[str, str]
    breaker_id: str = ""
    router_id: str = ""


class Running:
    """One life of the service on a data directory."""

    def __init__(self, store: SqlStore, cluster: LocalCluster, app: Quart) -> None:
        self.store = store
        self.cluster = cluster
        self.app = app

    async def call(self, who: Tenant, method: str, path: str, body: Any = None, key: str = "user") -> tuple[int, Any]:
        full = path if path.startswith("/") else f"/v1/projects/{who.project_id}/{path}"
        headers = {"Authorization": f"Bearer {who.keys[key]}"}
        more = {"json": body} if body is not None else {}
        answer = await self.app.test_client().open(full, method=method, headers=headers, **more)
        data = await cast(Any, answer).get_data()
        return answer.status_code, msgspec.json.decode(data) if data and "json" in answer.content_type else None

    async def tenant(self, name: str) -> Tenant:
        now, store = clock_of_loop().now_ms(), self.store
        org = await store.create_org(name, now)
        workspace = await store.create_workspace(org, "w", "w", now)
        project = await store.create_project(org, workspace.id, name, now)
        keys = {
            "user": (await store.create_key(org, "user", "u", now))[1],
            "admin": (await store.create_key(org, "admin", "a", now))[1],
        }
        return Tenant(project.id, workspace.id, keys)

    async def make_breaker(self, who: Tenant, name: str, **rule: Any) -> tuple[str, str]:
        status, made = await self.call(who, "POST", "breakers", {**RULE, **rule, "name": name})
        assert status == 201, made
        return made["breaker"]["id"], made["breaker"]["router_ids"][0]

    async def send(self, who: Tenant, router_id: str, value: float = 1.0) -> int:
        sample = {"router_id": router_id, "metric": "latency", "value": value, "ts_ms": clock_of_loop().now_ms()}
        return (await self.call(who, "POST", "ingest", {"samples": [sample]}))[0]

    async def state(self, who: Tenant, breaker_id: str) -> dict[str, Any]:
        status, body = await self.call(who, "GET", f"breakers/{breaker_id}/state")
        assert status == 200, body
        return dict(body)

    async def serves(self, who: Tenant, name: str) -> None:
        """Samples are taken and counted, states answered, breakers and routers made and linked."""
        before = (await self.state(who, who.breaker_id)).get("transition_seq", 0)
        assert await self.send(who, who.router_id, 1_000.0) == 202
        await self.until_open(who, who.breaker_id, before)
        made, _ = await self.make_breaker(who, name)
        status, router = await self.call(who, "POST", "routers", {"name": name, "breaker_ids": [made]})
        assert status == 201, router
        status, linked = await self.call(
            who, "POST", f"routers/{router['id']}/breakers", {"breaker_ids": [who.breaker_id]}
        )
        assert status == 200, linked
        assert await self.send(who, router["id"]) == 202
        assert (await self.call(who, "GET", "/api/readyz"))[0] == 200

    async def until_open(self, who: Tenant, breaker_id: str, _: int = 0) -> None:
        async def is_open() -> bool:
            return bool((await self.state(who, breaker_id))["state"] == "open")

        await until(is_open, 20)

    def breaker_actors(self) -> list[str]:
        return [name for name in self.cluster.net.actors if name.startswith("breaker-")]

    async def stop_breakers(self) -> None:
        for name in self.breaker_actors():
            await self.cluster.net.kill(name)

    async def asides(self) -> list[AsideRow]:
        return await self.store.list_aside(1_000)


@asynccontextmanager
async def running(directory: Path, **changes: Any) -> AsyncIterator[Running]:
    settings = Settings(data_dir=directory, breaker_actors=2, router_actors=1, rate_events_per_s=0, **changes)
    settings = settings.model_copy(update={"rate_requests_per_s": 0})
    migrated(directory / DATABASE)
    store = make_store(settings)
    await store.open()
    async with LocalCluster(store, make_log(settings), clock_of_loop(), settings) as cluster:
        app = create_app(cluster.gateway, settings, clock_of_loop(), TIMING, owns_gateway=False)
        async with app.test_app():
            yield Running(store, cluster, app)


async def bystander(run: Running, name: str = "bystander", **rule: Any) -> Tenant:
    who = await run.tenant(name)
    who.breaker_id, who.router_id = await run.make_breaker(who, "watched", **rule)
    return who


async def noted(run: Running, check: Callable[[list[AsideRow]], bool]) -> list[AsideRow]:
    async def rows() -> list[AsideRow] | None:
        found = await run.asides()
        return found if check(found) else None

    found: list[AsideRow] = await until(rows)
    return found


async def poison_router(run: Running, who: Tenant) -> str:
    """What c930192 did of `{"mode": "static\\n"}`: its check let the word through, the store took it as it came. With
    breakers it answered 500."""
    draft = RouterDraft(name="poison", mode=BAD)
    row, changes = await run.store.create_router(who.project_id, draft, clock_of_loop().now_ms())
    await run.cluster.gateway.configured(who.project_id, changes)
    return row.id


# the round's reproduction


async def test_one_request_ends_nobodys_ingest(tmp_path: Path) -> None:
    """Refused at the door; and where such a row lies there, everybody else is served, before and after a restart."""
    async with running(tmp_path) as run:
        victim, attacker = await bystander(run), await bystander(run, "attacker")
        assert (await run.call(attacker, "POST", "routers", {"mode": "static\n"}))[0] == 422
        slug = {"name": "n", "slug": "ok\n"}
        assert (await run.call(attacker, "POST", "/v1/workspaces", slug, "admin"))[0] == 422
        router_id = await poison_router(run, attacker)
        await run.serves(victim, "at once")
        await noted(run, lambda rows: any(r.kind == "log" and r.thing == router_id for r in rows))
    async with running(tmp_path) as run:
        await run.serves(victim, "after a restart")
        await run.serves(attacker, "the attacker's own other router")
        status, ready = await run.call(victim, "GET", "/api/readyz")
        assert (status, ready["status"]) == (200, "ready")
        assert ready["set_aside"] >= 1
        assert "breakers aside list" in ready["message"]
        assert await run.send(attacker, router_id) == 202, "its samples are kept"
        link = {"breaker_ids": [attacker.breaker_id]}
        assert (await run.call(attacker, "POST", f"routers/{router_id}/breakers", link))[0] == 422
        status, patched = await run.call(attacker, "PATCH", f"routers/{router_id}", {"mode": "canary"})
        assert status == 200, patched
        other, _ = await run.make_breaker(attacker, "other")
        assert (await run.call(attacker, "POST", f"routers/{router_id}/breakers", {"breaker_ids": [other]}))[0] == 200
        assert await run.send(attacker, router_id, 1_000.0) == 202
        await run.until_open(attacker, other)
        assert (await run.cluster.gateway.status()).set_aside == len(await run.asides())


# an old data directory


def _without_payloads(c: sqlite3.Connection) -> None:
    """The outbox, which is empty, as it was before schema 0023: SQLite drops no column that points to another table."""
    made = [sql for (sql,) in c.execute("SELECT sql FROM sqlite_master WHERE tbl_name = 'outbox' AND sql NOT NULL")]
    c.execute("DROP TABLE outbox")
    c.execute("DROP TABLE alert_payloads")
    for sql in made:
        lines = [line for line in sql.splitlines() if "payload_id" not in line]
        if lines:
            c.execute(re.sub(r",\s*\)\s*$", ")", "\n".join(lines)))


async def make_c930192(directory: Path) -> tuple[Tenant, Tenant, list[str], str]:
    """A data directory as c930192 left it: a mode with a line end in routers, in changes that wait and in a log, one of
    its routers deleted, and a slug with one."""
    async with running(directory) as run:
        victim, attacker = await bystander(run), await bystander(run, "attacker")
        in_log = await poison_router(run, attacker)
        waiting = []
        for _ in range(2):
            draft = RouterDraft(name="poison", mode=BAD)
            waiting.append((await run.store.create_router(attacker.project_id, draft, 1))[0].id)
        for enabled in (False, True):
            edit = partial(replace, enabled=enabled)
            await run.store.update_router(attacker.project_id, in_log, edit, 1)
        gone = (await run.store.create_router(attacker.project_id, RouterDraft(mode=BAD), 1))[0].id
        await run.store.delete_router(attacker.project_id, gone, 1)
    with closing(sqlite3.connect(directory / DATABASE)) as c:
        c.execute("UPDATE workspaces SET slug = ? WHERE id = ?", ("ok\n", attacker.workspace_id))
        _without_payloads(c)
        for table in (
            "declared",
            "set_aside",
            "idempotency_keys",
            "identity",
            "stored",
            "mutes",
            "mappings",
            "console_sessions",
        ):  # what came since
            c.execute(f"DROP TABLE {table}")
        for index in ("ix_outbox_project_number", "ix_outbox_held", "ix_outbox_held_number"):
            c.execute(f"DROP INDEX {index}")
        for index in ("ix_breakers_shadow_of", "ix_audit_target", "ix_audit_org", "ix_events_outage"):
            c.execute(f"DROP INDEX {index}")
        for index in ("ix_gone_names_until_ms", "ix_gone_names_project_until"):
            c.execute(f"DROP INDEX {index}")
        c.execute("DROP INDEX ix_outbox_outage")
        c.execute("CREATE INDEX ix_outbox_incident ON outbox (incident, channel_id)")
        for table, columns in NEWER.items():
            for column in columns:
                c.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        c.execute("UPDATE alembic_version SET version_num = '0007'")
        c.commit()
        assert c.execute("SELECT count(*) FROM routers WHERE mode = ?", (BAD,)).fetchone() == (4,)
        assert c.execute("SELECT count(*) FROM changes").fetchone()[0] >= 5
    return victim, attacker, [in_log, *waiting], gone


async def test_the_upgrade_repairs_a_poisoned_data_directory(tmp_path: Path) -> None:
    victim, attacker, router_ids, gone = await make_c930192(tmp_path)
    done = await asyncio.to_thread(CliRunner().invoke, cli, ["db", "upgrade", "--data-dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    for id_ in (*router_ids, gone):
        assert f"repaired router {id_}: mode 'static\\n' is 'static' now" in done.output
    assert f"repaired workspace {attacker.workspace_id}: slug 'ok\\n' is 'ok' now" in done.output
    assert done.output.count("repaired change") >= 5
    assert done.output.endswith(f"upgraded to schema {migrations.HEAD}\n")
    with closing(sqlite3.connect(tmp_path / DATABASE)) as c:
        for (entries,) in c.execute("SELECT entries FROM changes"):
            for kind, payload in msgspec.msgpack.decode(entries):
                assert kind != VIEW or decode_view(payload).mode == "static"
    async with running(tmp_path) as run:
        await run.serves(victim, "victim")
        await run.serves(attacker, "attacker")
        for router_id in router_ids:
            row = await run.store.get_router(attacker.project_id, router_id)
            assert row is not None
            assert row.mode == "static"
        other, _ = await run.make_breaker(attacker, "by the repaired one")
        for router_id in router_ids:
            path = f"routers/{router_id}/breakers"
            assert (await run.call(attacker, "POST", path, {"breaker_ids": [other]}))[0] == 200
        assert await run.send(attacker, router_ids[0], 1_000.0) == 202
        await run.until_open(attacker, other)

        async def settled() -> bool:
            return not await run.store.pending_changes(100)

        await until(settled)
        placed = {p.id for p in await run.store.placements("router")}
        assert gone not in placed, "the deleted router went with its last change"


async def test_without_the_repair_all_others_are_served(tmp_path: Path) -> None:
    """The rows as they are, and only the table that the program needs."""
    victim, _, router_ids, gone = await make_c930192(tmp_path)
    migrations.upgrade(f"sqlite:///{tmp_path / DATABASE}")
    with closing(sqlite3.connect(tmp_path / DATABASE)) as c:
        c.execute("DELETE FROM changes WHERE id > (SELECT max(id) - 3 FROM changes)")  # those of the repair
        bad = msgspec.msgpack.encode([(VIEW, encode_entry(RouterView(version=9, mode=BAD)))])
        c.execute("UPDATE changes SET entries = ?", (bad,))
        c.execute("UPDATE routers SET mode = ? WHERE id IN (?, ?, ?, ?)", (BAD, *router_ids, gone))
        c.commit()
    async with running(tmp_path) as run:
        await run.serves(victim, "victim")
        await noted(run, lambda rows: {r.thing for r in rows if r.kind == "log"} >= set(router_ids))
        assert not await run.store.pending_changes(100), "what can't be read holds up no later change"
    async with running(tmp_path) as run:
        await run.serves(victim, "again")


# one thing at a time


async def damage(run: Running, table: Any, column: str, value: Any, **where: str) -> None:
    matching = [table.c[name] == wanted for name, wanted in where.items()]
    kind = table.c[column].type

    def work(c: Any) -> None:
        raw = c.connection.dbapi_connection
        names = " AND ".join(f"{name} = ?" for name in where)
        assert raw.execute(f"UPDATE {table.name} SET {column} = ? WHERE {names}", (value, *where.values())).rowcount, (
            matching,
            kind,
        )

    await run.store._db.write(work)


Damage = tuple[str, str, Any]
DAMAGES: list[Damage] = [
    ("records", "record", b"\xff\x00nonsense"),
    ("records", "record", msgspec.msgpack.encode({"created_ms": 1})),
    ("records", "settings", b"\xc1"),
    ("records", "cut", "{"),
    ("records", "cut", '{"a": "b"}'),
    ("breakers", "rule", '{"kind": "sum"}'),
    ("breakers", "metadata", "[]"),
    ("breakers", "actions", "7"),
]


@pytest.mark.parametrize(("table", "column", "value"), DAMAGES, ids=lambda v: str(v)[:20])
async def test_a_breakers_rows_that_cant_be_read(tmp_path: Path, table: str, column: str, value: Any) -> None:
    """Its neighbours on the same actors and in the same project are served; it answers, or says what is wrong."""
    async with running(tmp_path, checkpoint_interval_ms=100) as run:
        stays_open = {"cooldown_ms": 60_000}
        who, victim = await bystander(run, "broken", **stays_open), await bystander(run)
        neighbour, _ = await run.make_breaker(who, "neighbour")
        assert await run.send(who, who.router_id, 1_000.0) == 202
        await run.until_open(who, who.breaker_id)
        for name in run.breaker_actors():
            await run.cluster.net.actors[name].checkpoint()
    async with running(tmp_path) as run:
        await run.stop_breakers()
        key = "id" if table == "breakers" else "breaker_id"
        await damage(run, t.metadata.tables[table], column, value, **{key: who.breaker_id})
    async with running(tmp_path) as run:
        await run.serves(victim, "victim")
        assert (await run.state(who, neighbour))["state"] == "closed"
        assert (await run.state(who, who.breaker_id))["state"] == "open", "it is not lost what it was"
        status, listed = await run.call(who, "GET", "breakers")
        assert status == 200
        assert {b["id"] for b in listed["breakers"]} == {who.breaker_id, neighbour}
        rows = await noted(run, bool)
        assert {r.kind for r in rows} == {"state" if column in ("record", "settings") else "row"}
        await run.cluster.retention.round()
        assert (await run.call(who, "DELETE", f"breakers/{who.breaker_id}"))[0] == 204


def bit_flipped(stored: bytes) -> bytes:
    """A record that can be read, with another time."""
    record = msgspec.msgpack.decode(stored, type=Record)
    return msgspec.msgpack.encode(replace(record, created_ms=record.created_ms ^ 1))


@pytest.mark.parametrize("changed", [lambda _: b"\xc1", bit_flipped], ids=["nonsense", "a bit"])
async def test_a_breaker_whose_record_was_changed_goes_on_as_it_was(
    tmp_path: Path, changed: Callable[[bytes], bytes]
) -> None:
    """Its state is stored beside the record, its window comes from the log, its transitions are numbered on."""
    async with running(tmp_path) as run:
        who = await bystander(run)
        assert await run.send(who, who.router_id, 1_000.0) == 202
        await run.until_open(who, who.breaker_id)
        await run.stop_breakers()
        record = select(t.records.c.record).where(t.records.c.breaker_id == who.breaker_id)
        stored = await run.store._db.read(lambda c: c.execute(record).scalar_one())
        await damage(run, t.records, "record", changed(stored), breaker_id=who.breaker_id)
    async with running(tmp_path) as run:
        assert (await run.state(who, who.breaker_id))["state"] == "open"
        assert [(row.kind, row.thing) for row in await noted(run, bool)] == [("state", who.breaker_id)]

        async def recovering() -> bool:
            return bool((await run.state(who, who.breaker_id))["state"] != "open")

        await until(recovering, 20)
        _, events = await run.call(who, "GET", f"events?breaker_id={who.breaker_id}")
        assert [e["to_state"] for e in events["events"]][-1] == "open"
        assert len(events["events"]) >= 2


@pytest.mark.parametrize("entries", [b"\xc1", msgspec.msgpack.encode([[VIEW, b"\xc1"]]), b"\x90"])
async def test_a_change_that_cant_be_read_holds_up_nobody(tmp_path: Path, entries: bytes) -> None:
    async with running(tmp_path) as run:
        who, victim = await bystander(run, "broken"), await bystander(run)
        await run.cluster.net.kill("router-0")
        row = (await run.store.create_router(who.project_id, RouterDraft(breaker_ids=(who.breaker_id,)), 1))[0]
        await damage(run, t.changes, "entries", entries, router_id=row.id)
    async with running(tmp_path) as run:
        await run.serves(victim, "victim")
        other, _ = await run.make_breaker(who, "other")
        assert (await run.call(who, "POST", f"routers/{row.id}/breakers", {"breaker_ids": [other]}))[0] == 200
        assert await run.send(who, row.id, 1_000.0) == 202
        await run.until_open(who, other)
        assert not await run.store.pending_changes(10)
        if entries != b"\x90":  # an empty one says nothing, and can be read
            assert {r.thing for r in await noted(run, bool)} == {row.id}


async def append_raw(run: Running, router_id: str, kind: int, payload: bytes) -> int:
    """Puts a record into a router's log, as its owner would: the owner takes the log anew behind it."""
    router = run.cluster.net.actors["router-0"]._owned.by_id[router_id]
    offset = router.offset + 1
    record = Append(
        router_id,
        router.epoch,
        offset,
        router.stamp(clock_of_loop().now_ms()),
        kind,
        router.view_offset,
        payload,
        (),
        router.generation,
    )
    assert await run.cluster.log.append(router.slot, [record]) == [True]
    return int(offset)


@pytest.mark.parametrize("kind", [SAMPLES, BREAKER, VIEW, 4, 0, 99])
@pytest.mark.parametrize("payload", [b"", b"\xff" * 40, msgspec.msgpack.encode({"version": 3, "mode": "static\n"})])
async def test_a_record_of_a_log_that_cant_be_read_is_passed_over(tmp_path: Path, kind: int, payload: bytes) -> None:
    """By its router's owner and by its breakers, when they restart and when they run; what comes behind it counts."""
    async with running(tmp_path) as run:
        who, victim = await bystander(run, "broken"), await bystander(run)
        assert await run.send(who, who.router_id) == 202
        offset = await append_raw(run, who.router_id, kind, payload)
        await run.cluster.net.kill("router-0")
        run.cluster.net.revive("router", "router-0")
        await run.serves(victim, "victim")
        await run.serves(who, "itself")
    async with running(tmp_path) as run:
        await run.serves(victim, "victim again")
        ref = RouterRef(who.router_id, "router-0", "router-0", 0)
        assert (await run.cluster.log.read("router-0", ref.router_id, offset - 1, offset, 1))[0].payload == payload
        if kind in (SAMPLES, VIEW):
            rows = await noted(run, bool)
            assert {(r.kind, r.thing, r.place) for r in rows} == {("log", who.router_id, offset)}


async def test_a_machine_that_fails_takes_nobody_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A breaker whose timers raise is set aside as a whole: its stored state is answered, others' timers fire."""
    async with running(tmp_path) as run:
        who, victim = await bystander(run, "broken"), await bystander(run)
        assert await run.send(who, who.router_id, 1_000.0) == 202
        await run.until_open(who, who.breaker_id)
        for name in run.breaker_actors():
            for held in run.cluster.net.actors[name]._hosted.values():
                if held.id == who.breaker_id:
                    monkeypatch.setattr(type(held.breaker), "advance", _failing(held.breaker), raising=True)
        rows = await noted(run, bool)
        assert [(r.kind, r.thing) for r in rows] == [("state", who.breaker_id)]
        await run.serves(victim, "victim")
        assert (await run.state(who, who.breaker_id))["state"] == "open"


def _failing(broken: Any) -> Any:
    real = type(broken).advance

    def advance(self: Any, *args: Any) -> Any:
        if self is broken:
            raise ZeroDivisionError("a bug")
        return real(self, *args)

    return advance


async def test_a_channel_sealed_with_another_key(tmp_path: Path) -> None:
    """It is listed, with nothing in it; it can be given anew, and it can be deleted."""
    async with running(tmp_path) as run:
        who = await bystander(run)
        channel = {"channel": "email", "config": {"to": ["a@x.example"]}}
        made = []
        for _ in range(3):
            status, body = await run.call(who, "POST", "notification-channels", channel)
            assert status == 201, body
            made.append(body["channel"]["id"])
            made_config = body["channel"]["config"]
        await damage(run, t.channels, "config", b"x" * 40, id=made[0])
        await damage(run, t.channels, "events", "nonsense", id=made[1])
        status, listed = await run.call(who, "GET", "notification-channels")
        assert status == 200
        lists = [found for found in listed.values() if isinstance(found, list)]
        assert [c["config"] for c in lists[0]] == [{}, made_config, made_config]
        path = f"notification-channels/{made[0]}"
        status, refused = await run.call(who, "PATCH", path, {"name": "n"})
        assert (status, refused["code"]) == (422, "validation_failed")
        assert (await run.call(who, "PATCH", path, {"config": {"to": ["b@x.example"]}}))[0] == 200
        assert (await run.call(who, "GET", path))[1]["config"]["to"] == ["b@x.example"]
        await damage(run, t.channels, "config", b"y" * 40, id=made[0])
        assert (await run.call(who, "DELETE", path))[0] == 204
        assert await run.send(who, who.router_id, 1_000.0) == 202
        await run.until_open(who, who.breaker_id)
        assert {r.kind for r in await noted(run, lambda rows: len(rows) == 2)} == {"channel", "row"}


async def test_a_commit_that_cant_be_stored_holds_up_no_other(tmp_path: Path) -> None:
    """The Journal tries the halves of its group apart until the bad one is alone."""
    from breaker_actors.journal.host import JournalHost
    from breaker_actors.messages import Commit

    async with running(tmp_path) as run:
        who = await bystander(run)
        real, seen = run.store.commit, []

        async def commit(head: Any, commits: Any) -> Any:
            seen.append(len(commits))
            if any(c.breaker_id == "bad" for c in commits):
                raise RuntimeError("cannot be bound")
            return await real(head, commits)

        run.store.commit = commit  # type: ignore[method-assign]
        journal: JournalHost = run.cluster.net.actors["journal-0"]
        one = Commit(
            breaker_id=who.breaker_id, project_id=who.project_id, epoch=0, events=(), state="closed", allow_rate=1.0,
            transition_seq=0, record=b"", applied_offsets={},
        )  # fmt: skip
        results = await journal._write([one, one, replace(one, breaker_id="bad"), one, one])
        assert results == ["fenced", "fenced", "failed", "fenced", "fenced"]
        run.store.commit = real  # type: ignore[method-assign]
        assert ("commit", "bad") in {(r.kind, r.thing) for r in await noted(run, bool)}
