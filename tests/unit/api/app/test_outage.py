"""The database is away for a while: what needs no database goes on, the rest says so, and all recovers by itself."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from api.app import create_app
from api.problems import Causes
from breaker_actors.clock import SystemClock
from breaker_actors.errors import Unavailable
from breaker_actors.persistence import DATABASE
from breaker_actors.transport.peers import journal_name
from tests.support.asgi import ask
from tests.support.cluster import FAST_RULE, service, until
from tests.support.web_world import TIMING, World


async def away(*_: Any) -> Any:
    raise Unavailable("the database does not answer: connection refused")


def stored_events(data_dir: Path) -> int:
    """How many events there are, whatever the store says."""
    with closing(sqlite3.connect(data_dir / DATABASE)) as connection:
        return int(connection.execute("SELECT count(*) FROM events").fetchone()[0])


async def test_reads_and_streams_go_on_while_the_store_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with service(tmp_path, checkpoint_interval_ms=100) as s:
        app = create_app(s.gateway, s.cluster.settings, SystemClock(), TIMING, owns_gateway=False)
        _, key = await s.store.create_key(s.project.org_id, "user", "u", s.clock.now_ms())
        path, headers = f"/v1/projects/{s.project.id}", {"Authorization": f"Bearer {key}"}
        async with app.test_app() as running:
            client = running.test_client()

            async def status(method: str, rest: str, **more: Any) -> int:
                response = await client.open(rest, method=method, headers=headers, **more)
                return int(response.status_code)

            made = await client.post(f"{path}/breakers", headers=headers, json=FAST_RULE | {"name": "checkout"})
            breaker = (await made.get_json())["breaker"]
            state, batch = f"{path}/breakers/{breaker['id']}/state", f"{path}/breakers/state:batch"
            ids = {"breaker_ids": [breaker["id"]]}

            async def send(value: float) -> int:
                sample = {"router_id": breaker["router_id"], "metric": "latency", "value": value}
                return await status("POST", f"{path}/ingest", json=[sample | {"ts_ms": s.clock.now_ms()}])

            async def ready() -> bool:
                return await status("GET", "/api/readyz") == 200

            assert await send(1.0) == 202
            assert [await status("GET", state), await status("POST", batch, json=ids)] == [200, 200]
            assert await status("GET", f"{path}/status") == 200  # which breakers there are is remembered from here on
            async with client.request(f"{path}/breakers/state:stream", headers=headers) as stream:
                await stream.send_complete()
                await asyncio.wait_for(stream.receive(), 5)
                with monkeypatch.context() as outage:
                    for door in ("read", "write", "write_rows"):
                        outage.setattr(s.store._db, door, away)  # type: ignore[attr-defined]
                    assert await status("GET", "/api/readyz") == 503
                    assert await status("GET", "/api/healthz") == 200
                    answer = await client.get(state, headers=headers)
                    assert (await answer.get_json())["state"] == "closed"
                    assert await status("POST", batch, json=ids) == 200
                    assert await status("GET", f"{path}/status") == 200
                    assert await status("GET", f"{path}/events") == 503
                    assert await status("POST", f"{path}/breakers", json=FAST_RULE) == 503
                    assert await send(900.0) == 202  # the sample log is another file, and it answers
                    assert await status("GET", state) == 200

                    async def decided() -> bool:
                        return bool(s.net.actors[journal_name(0)]._doubtful)

                    await until(decided)  # it tripped, but nobody is told before that is stored
                    assert (await s.fresh(breaker["id"])).view.state == "closed"
                    assert stored_events(tmp_path) == 0
                await until(ready)  # probes are answered for half a second alike
                heard = b""
                async with asyncio.timeout(10):
                    while b'"open"' not in heard:
                        heard += await stream.receive()
                await stream.disconnect()

            async def told() -> bool:
                return [e.curr for e in await s.events(breaker["id"])][:1] == ["open"]

            await until(told)


async def test_samples_are_refused_while_the_log_is_away_and_a_retry_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("breaker_actors.gateway.gateway.INGEST_S", 0.3)
    async with service(tmp_path) as s:
        app = create_app(s.gateway, s.cluster.settings, SystemClock(), TIMING, owns_gateway=False)
        row = await s.breaker(kind="count", threshold=100, window_ms=60_000)
        path = f"/v1/projects/{s.project.id}/ingest"
        async with app.test_app() as running:
            client = running.test_client()
            sample = {"router_id": row.router_ids[0], "metric": "latency", "value": 1, "ts_ms": s.clock.now_ms()}
            headers = {"Idempotency-Key": "once"}
            with monkeypatch.context() as outage:
                outage.setattr(s.cluster.log, "append", away)
                refused = await client.post(path, json=[sample], headers=headers)
                assert refused.status_code == 503
            words = [(await client.post(path, json=[sample], headers=headers)).status_code for _ in range(2)]
            assert words == [202, 202]

            async def counted() -> bool:
                return (await s.state(row.id)).view.sample_count == 1

            await until(counted)


async def test_answers_do_not_say_where_the_database_is_and_the_log_does_once(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refused(*_: Any) -> Any:
        raise Unavailable("the database does not answer", {}, 'connection to server at "db.local", port 5432 failed')

    monkeypatch.setattr("api.problems.CAUSES", Causes(world.clock.monotonic))
    monkeypatch.setattr(world.store._db, "look_up", refused)
    for _ in range(3):
        answer = await world.call("GET", "breakers", "eb_user_" + "0" * 64)
        assert answer.status_code == 503
        assert (await answer.get_json())["message"] == "the database does not answer"
        page = await ask(world.app, "POST", "/console/sign-in", [], b"key=eb_user_" + b"0" * 64)
        assert page.status == 503
        assert "db.local" not in page.body.decode()
    told = capsys.readouterr()
    assert (told.out + told.err).count("db.local") == 1
