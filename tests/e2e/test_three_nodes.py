"""Three nodes on PostgreSQL: a machine is lost under load and another one comes. Nothing that was accepted is lost or
counted twice, every event is what the core says, and breakers move to the new machine by themselves."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from api import processes
from breaker_actors.core.model import Transition
from breaker_actors.core.records import SAMPLES, decode_samples
from breaker_actors.settings import Settings
from breaker_actors.stores.opening import make_log, make_store
from tests.support.cluster import replay_log
from tests.support.live import wait_for
from tests.support.nodes import Deployed, Node, Nodes, breakers, nodes
from tests.support.postgres import own_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]
BREAKERS = 12
TRIES = 3
"""Of each request: it is repeated at most twice."""
RULE = {"window_ms": 2_000, "eval_interval_ms": 200, "min_state_duration_ms": 0, "cooldown_ms": 500}


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with own_server() as server, server.database(empty=True) as url:
        yield url


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes(many=True) as found:
        found.start_head(cpus=2)
        found.add(cpus=1)
        found.add(cpus=1)
        yield found


class Load:
    """Samples for every breaker from threads, each request repeated under its key at most twice; and reads."""

    def __init__(self, live: Deployed, made: list[dict[str, Any]]) -> None:
        self._live = live
        self._made = made
        self._stop = threading.Event()
        self.accepted: dict[str, int] = {one["breaker"]["id"]: 0 for one in made}
        self.repeated = 0
        self.lost: list[str] = []
        self.reads: list[int] = []
        self.slowest_s = 0.0
        self._threads = [threading.Thread(target=self._send, args=(made[i::3],)) for i in range(3)]
        self._threads.append(threading.Thread(target=self._read))

    def _send(self, made: list[dict[str, Any]]) -> None:
        with self._live.client(self._live.credentials["user_key"]) as client:
            spell = 0
            while not self._stop.is_set():
                spell += 1
                for one in made * 4:
                    values = [500.0 if spell % 3 == 1 else 10.0] * 3
                    if self._post(client, one["router_id"], values):
                        self.accepted[one["breaker"]["id"]] += len(values)
                    time.sleep(0.01)

    def _post(self, client: httpx.Client, router_id: str, values: list[float]) -> bool:
        now = int(time.time() * 1000)
        body = {"samples": [{"router_id": router_id, "metric": "latency", "ts_ms": now, "value": v} for v in values]}
        key, said = f"{random.getrandbits(96):x}", "nothing"
        begun = time.monotonic()
        for attempt in range(TRIES):
            self.repeated += attempt > 0
            try:
                answer = client.post(
                    f"{self._live.project_path}/ingest", json=body, headers={"Idempotency-Key": key}, timeout=30
                )
                if answer.status_code == 202:
                    self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
                    return True
                said = f"{answer.status_code} {answer.text[:200]}"
            except httpx.TransportError as error:
                said = repr(error)
            time.sleep(0.5)
        self.lost.append(said)
        return False

    def _read(self) -> None:
        ids = [one["breaker"]["id"] for one in self._made]
        with self._live.client(self._live.credentials["user_key"]) as client:
            while not self._stop.is_set():
                try:
                    path = f"{self._live.project_path}/breakers/state:batch"
                    answer = client.post(path, json={"breaker_ids": ids})
                    self.reads.append(answer.status_code if len(answer.json()["states"]) == len(ids) else 0)
                except httpx.TransportError:
                    self.reads.append(0)
                time.sleep(0.2)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def events(database: str) -> dict[str, list[tuple[int, str, str, int]]]:
    """All events by breaker: number, from where, to where, when."""
    found: dict[str, list[tuple[int, str, str, int]]] = {}
    with psycopg.connect(database) as connection:
        query = "SELECT breaker_id, transition_seq, prev, curr, ts_ms FROM events ORDER BY breaker_id, transition_seq"
        for breaker_id, *event in connection.execute(query):
            found.setdefault(breaker_id, []).append(tuple(event))
    return found


def go_on(database: str, more: int, timeout_s: float = 180.0) -> None:
    """Waits until every breaker has made `more` events."""
    before = {breaker_id: len(some) for breaker_id, some in events(database).items()}

    def went_on() -> bool:
        now = events(database)
        return len(now) == BREAKERS and all(len(some) >= before.get(i, 0) + more for i, some in now.items())

    wait_for(went_on, timeout_s, 0.5)


def by_node(live: Deployed) -> dict[str, list[str]]:
    """Names of our actors on each node."""
    found: dict[str, list[str]] = {node["id"]: [] for node in live.status()["nodes"]}
    for actor in live.status()["actors"]:
        found.setdefault(actor["node_id"], []).append(actor["name"])
    return found


def victim(cluster: Nodes) -> Node:
    """The node beside the head that holds most: a RouterActor if possible."""
    beside = cluster.members[1:3]
    return max(beside, key=lambda node: (len(node.pids("ray::RouterActor")), len(node.pids("ray::BreakerActor"))))


async def of_the_log(settings: Settings, one: dict[str, Any], until_ms: int) -> tuple[int, list[int], list[Transition]]:
    """Samples in a breaker's log, the log's offsets, and the transitions of its replay."""
    store, log = make_store(settings), make_log(settings)
    await store.open()
    router_id = one["router_id"]
    slot = next(p.log_slot for p in await store.placements("router") if p.id == router_id) or ""
    records, after = [], 0
    while some := await log.read(slot, router_id, after, 1 << 60, 1_000):
        records += some
        after = some[-1].offset
    count = sum(len(decode_samples(r.payload).batch) for r in records if r.kind == SAMPLES)
    effects = await replay_log(log, slot, router_id, one["breaker"]["id"], until_ms)
    await log.close()
    await store.close()
    return count, [r.offset for r in records], [e for e in effects if isinstance(e, Transition)]


def check(database: str, settings: Settings, made: list[dict[str, Any]], load: Load) -> None:
    """What was accepted is in the log once; events are numbered without a gap and are those of the replay."""
    stored = events(database)
    for one in made:
        breaker_id = one["breaker"]["id"]
        mine = stored[breaker_id]
        assert [number for number, *_ in mine] == list(range(1, len(mine) + 1))
        logged, offsets, replayed = asyncio.run(of_the_log(settings, one, mine[-1][-1]))
        assert logged == load.accepted[breaker_id], breaker_id
        assert offsets == list(range(1, len(offsets) + 1))
        moves = [(move.transition_seq, move.prev, move.curr, move.ts_ms) for move in replayed]
        assert mine == moves[: len(mine)], breaker_id


def test_a_machine_is_lost_and_another_one_comes(cluster: Nodes, database: str, tmp_path: Path) -> None:
    data_dir, port = tmp_path / "data", str(processes.free_port())
    environ = {**cluster.driver, "BREAKERS_DATABASE_URL": database, "BREAKERS_ROUTER_ACTORS": "3"}
    options = ("--address", cluster.address, "--data-dir", str(data_dir), "--port", port, "--replicas-min", "2")
    deployed = breakers("deploy", *options, **environ)
    assert deployed.returncode == 0, deployed
    live = Deployed(data_dir)
    settings = Settings(data_dir=data_dir, database_url=database)  # type: ignore[arg-type]
    made = [live.breaker(name=f"b{i}", **RULE) for i in range(BREAKERS)]
    wait_for(lambda: len(live.actors("breaker")) == 8 and len(live.actors("router")) == 3, 120, 0.5)
    assert all(by_node(live).values()), "actors are on all nodes"
    with Load(live, made) as load:
        go_on(database, 2)
        lost = victim(cluster)
        gone = len(lost.pids("ray::"))
        assert gone
        killed = time.monotonic()
        lost.kill()
        wait_for(lambda: len(live.status()["nodes"]) == 2, 60, 0.5)
        wait_for(lambda: all(actor["state"] == "up" for actor in live.status()["actors"]), 180, 0.5)
        back_s = time.monotonic() - killed
        go_on(database, 2)
        # it has become smaller: nothing moves, and the actors of the lost node run on the others
        assert live.status()["budgets"]["breaker"] == 6
        assert all(by_node(live).values())
        cluster.add(cpus=3)
        wait_for(lambda: live.status()["budgets"]["breaker"] == 12, 90, 0.5)
        wait_for(lambda: sorted(a["holds"] for a in live.actors("breaker")) == [1] * BREAKERS, 180, 0.5)
        go_on(database, 2)
    print(f"back after {back_s:.1f} s, slowest request {load.slowest_s:.1f} s, {load.repeated} repeated")
    assert load.lost == []
    assert set(load.reads) == {200}
    wait_for(lambda: all(a["behind"] in (None, 0) for a in live.status()["actors"]), 60, 0.5)
    check(database, settings, made, load)
    live.stop()
    removed = breakers("deploy", "--remove", "--address", cluster.address, **cluster.driver)
    assert removed.returncode == 0, removed
    wait_for(lambda: not cluster.pids("ray::BreakerActor") and not cluster.pids("ray::ServeReplica"), 60, 0.5)
