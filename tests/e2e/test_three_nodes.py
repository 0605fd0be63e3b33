"""Three nodes on PostgreSQL: machines are lost under load and others come. Every request is answered within two
repetitions; nothing that was accepted is lost or counted twice; events are what the core says, each is told, and
breakers move to new machines by themselves."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from api.launch import processes
from tests.support.campaign import RULES, Caller, Follower, Hook, Load, Project, Watch, make_project
from tests.support.cluster import until
from tests.support.invariants import (
    PostgresEvidence,
    assert_dense,
    assert_in_sequence,
    assert_logged_once,
    assert_records_agree,
    assert_replayed,
    assert_told_once,
)
from tests.support.killing import Kill, table
from tests.support.live import wait_for
from tests.support.nodes import Deployed, Node, Nodes, breakers, nodes
from tests.support.postgres import own_server
from tests.support.receivers import Reply

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]
PAUSES_S = (0.5, 10.0)
"""Before each repetition of a request: there are two at most, the second one for a machine that is busy itself."""
BREAKERS = 8
SPELLS = [rule for rule in RULES if rule["kind"] not in ("count", "delta", "percentile")]
"""Rules by which a breaker trips in a bad spell and recovers in a good one."""
CLIENTS = 3
FOLLOWERS = 3
UP_S = 90.0
BACK_S = 180.0
SETTLED_S = 120.0
NOTIFY_TIMEOUT_S = 10.0


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with own_server() as server, server.database(empty=True) as url:
        yield url


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes(many=True) as found:
        for _ in range(3):
            found.add(cpus=1) if found.members else found.start_head(cpus=1)
        yield found


@dataclass(frozen=True)
class Loss:
    """By the monotonic clock; `back`: all actors are up again."""

    at: float
    back: float


class Story:
    """What becomes of the nodes."""

    def __init__(self, cluster: Nodes, live: Deployed, evidence: PostgresEvidence, project: Project) -> None:
        self._cluster = cluster
        self._live = live
        self._evidence = evidence
        self._breakers = project.breakers
        self.losses: list[Loss] = []

    def begin(self) -> None:
        wait_for(lambda: len(self._live.actors("breaker")) == 6 and len(self._live.actors("router")) == 3, UP_S, 0.5)
        self._serves_everywhere()

    def go_on(self) -> None:
        """Lost are, one after the other, both nodes beside the head, and the one that came last: as a whole, or
        beginning with the raylet."""
        beside = sorted(self._cluster.members[1:], key=lambda node: len(self._on(node)))
        assert self._on(beside[1]), "actors are spread over the nodes"
        self._moves()
        self._lose(beside[1], Node.kill)
        self._add(cpus=1)
        self._lose(beside[0], Node.kill_raylet)
        self._add(cpus=2)
        # it has grown: each breaker has an actor of its own
        wait_for(lambda: [actor["holds"] for actor in self._live.actors("breaker")] == [1] * BREAKERS, BACK_S, 0.5)
        self._moves()
        self._lose(self._cluster.members[-1], Node.kill)
        self._add(cpus=2)

    def _lose(self, lost: Node, how: Callable[[Node], None]) -> None:
        gone = self._on(lost)
        at = time.monotonic()
        how(lost)
        wait_for(lambda: len(self._live.status()["nodes"]) == 2, UP_S, 0.5)
        wait_for(lambda: all(actor["state"] == "up" for actor in self._live.status()["actors"]), BACK_S, 0.5)
        self.losses.append(Loss(at, time.monotonic()))
        wait_for(lambda: not lost.pids("ray::"), UP_S, 0.5)
        self._cluster.remove(lost)
        print(f"{how.__name__} with {' '.join(gone)}: all up after {self.losses[-1].back - at:.1f} s")
        wait_for(self._is_budgeted, UP_S, 0.5)
        self._moves()

    def _add(self, cpus: int) -> None:
        self._cluster.add(cpus)
        wait_for(lambda: len(self._live.status()["nodes"]) == 3, UP_S, 0.5)
        wait_for(self._is_budgeted, UP_S, 0.5)
        self._serves_everywhere()
        self._moves()

    def _on(self, node: Node) -> list[str]:
        """Names of our actors there."""
        pids = set(node.pids())
        return [actor["name"] for actor in self._live.status()["actors"] if actor["pid"] in pids]

    def _is_budgeted(self) -> bool:
        status = self._live.status()
        cpus = sum(node["cpus"] for node in status["nodes"])
        return bool(status["budgets"].get("breaker") == 2 * cpus)

    def _moves(self) -> None:
        """Waits until every breaker has made two more events."""
        before = self._counts()
        wait_for(lambda: all(self._counts()[i] >= before[i] + 2 for i in self._breakers), BACK_S, 0.5)

    def _counts(self) -> Counter[str]:
        return Counter(dict(self._evidence.rows("SELECT breaker_id, count(*) FROM events GROUP BY breaker_id")))

    def _serves_everywhere(self) -> None:
        """Each node's own proxy does."""
        for node in self._cluster.members:
            url = httpx.URL(self._live.base_url).join("/api/readyz")
            if node.proxy_port is not None:
                url = url.copy_with(port=node.proxy_port)
            wait_for(partial(_is_ready, url), UP_S, 0.5)


def _is_ready(url: httpx.URL) -> bool:
    try:
        return httpx.get(url, timeout=20, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


async def test_machines_are_lost_and_others_come(cluster: Nodes, database: str, tmp_path: Path) -> None:
    live = await asyncio.to_thread(deploy, cluster, database, tmp_path / "data")
    evidence = PostgresEvidence(database)
    callers = [sending, watching] = [Caller(live, live.credentials["user_key"], PAUSES_S) for _ in range(2)]
    async with Hook() as hook:
        project = await make_project(watching, live, hook, BREAKERS, rules=SPELLS)
        story = Story(cluster, live, evidence, project)
        await asyncio.to_thread(story.begin)
        load, watch = Load(sending, "three nodes"), Watch(watching, project)
        followers = [Follower(live, project) for _ in range(FOLLOWERS)]
        following = [asyncio.create_task(follower.run()) for follower in followers]
        stop = asyncio.Event()
        using = [asyncio.create_task(load.run(project, stop, random.Random(i))) for i in range(CLIENTS)]
        using.append(asyncio.create_task(watch.run(stop)))
        try:
            try:
                await asyncio.to_thread(story.go_on)
            finally:
                stop.set()
                await asyncio.gather(*using)
            print(summary(callers, load, watch, followers, story.losses))
            await until(watch.all_fresh, SETTLED_S)
            await check(evidence, project, load)
            await check_told(evidence, project, hook, story.losses)
            for follower in followers:
                await until(partial(follower.shows_all, watching), SETTLED_S)
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            for caller in callers:
                await caller.http.aclose()
    await asyncio.to_thread(take_down, cluster, live)


def deploy(cluster: Nodes, database: str, data_dir: Path) -> Deployed:
    environ = {
        **cluster.driver,
        "BREAKERS_DATABASE_URL": database,
        "BREAKERS_ROUTER_ACTORS": "3",
        "BREAKERS_ALLOW_PRIVATE_DESTINATIONS": "true",
    }
    options = ("--address", cluster.address, "--data-dir", str(data_dir), "--port", str(processes.free_port()))
    # as many as may become more: then each asks for a core, and there is one on each node
    deployed = breakers("deploy", *options, "--replicas-min", "3", "--replicas-max", "4", **environ)
    assert deployed.returncode == 0, deployed
    return Deployed(data_dir)


def take_down(cluster: Nodes, live: Deployed) -> None:
    live.stop()
    removed = breakers("deploy", "--remove", "--address", cluster.address, **cluster.driver)
    assert removed.returncode == 0, removed
    wait_for(lambda: not cluster.pids("ray::BreakerActor") and not cluster.pids("ray::ServeReplica"), 60, 0.5)


# -- what must hold


async def check(evidence: PostgresEvidence, project: Project, load: Load) -> None:
    assert load.refused == []
    assert set(load.accepted.values()) == set(project.routers)
    assert_logged_once(evidence, load.accepted, project.routers)
    assert_dense(evidence, project.routers)
    until_ms = time.time_ns() // 1_000_000
    for breaker_id, router_id in project.breakers.items():
        await assert_replayed(evidence, router_id, breaker_id, until_ms, SETTLED_S)
        assert_in_sequence(breaker_id, evidence.history(breaker_id))
    assert_records_agree(evidence)


async def check_told(evidence: PostgresEvidence, project: Project, hook: Hook, losses: list[Loss]) -> None:
    """Every event was told once to each channel, and nothing else was; again only if a node was lost meanwhile, which
    may have been the Notifier's, or the answer came too late."""

    async def all_ended() -> bool:
        return not evidence.rows("SELECT 1 FROM outbox WHERE state = 'pending' LIMIT 1")

    await until(all_ended, SETTLED_S)
    told = assert_told_once(evidence, project.id, project.channels)
    assert told
    assert hook.got.keys() <= {delivery_id for (delivery_id,) in evidence.rows("SELECT id FROM outbox")}
    for delivery_id in told:
        taken = [at for at, reply in hook.got[delivery_id] if reply == Reply()]
        assert taken, f"delivery {delivery_id} never arrived"
        for first, second in pairwise(taken):
            lost = any(first < loss.back and loss.at < second for loss in losses)
            assert lost or second - first > NOTIFY_TIMEOUT_S, f"delivery {delivery_id} came again"


def summary(callers: list[Caller], load: Load, watch: Watch, followers: list[Follower], losses: list[Loss]) -> str:
    kills = [Kill(loss.at, ("node",)) for loss in losses]
    columns = {
        "samples taken again": load.caller.answered,
        "states fresh again": watch.fresh,
        "moves shown again": watch.moved,
    }
    return "\n".join(
        (
            f"samples {len(load.accepted)} in {len(load.caller.answered)} requests",
            f"requests sent again: {dict(sum((caller.retries for caller in callers), Counter()))}",
            f"slowest request {max(caller.slowest_s for caller in callers):.1f} s",
            f"stream connections {[follower.connections for follower in followers]}",
            table(kills, columns),
        )
    )
