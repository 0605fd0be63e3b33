"""Minutes of load while processes of the service are killed at random: nothing is lost, repeated or made up.

CAMPAIGN_SECONDS sets its length (default 300), CAMPAIGN_KILLS_PER_MINUTE how often something is killed (default 7.2;
with 3 the figures tell each kind of kill apart), CAMPAIGN_SEED repeats a plan.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from api.cli.verify import verified
from breaker_actors.settings import Settings
from tests.support.campaign import Caller, Edits, Follower, Hook, Load, Project, Watch, make_project
from tests.support.campaign_mutes import Muter, assert_muted_rightly
from tests.support.cluster import until
from tests.support.invariants import (
    Evidence,
    assert_in_sequence,
    assert_logged_once,
    assert_overrides_end,
    assert_records_agree,
    assert_replayed,
    assert_told_once,
    none_outlives_its_end,
)
from tests.support.killing import ACTORS, Killer, plan, table
from tests.support.live import LiveService, serving
from tests.support.receivers import Reply, Request

SECONDS = float(os.environ.get("CAMPAIGN_SECONDS", "300"))
KILLS_PER_MINUTE = float(os.environ.get("CAMPAIGN_KILLS_PER_MINUTE", "7.2"))
KILLS = max(4, round(SECONDS / 60 * KILLS_PER_MINUTE))
"""36 in five minutes."""
CLIENTS = 4
FOLLOWERS = 3
SETTLED_S = 60.0
NOTIFY_TIMEOUT_S = 10.0
LEASE_S = 12.0
"""So long nobody else sends what a Notifier has begun to send."""
UNSEEN_MAX = 1
"""Deliveries that may have come again, later than the Notifier waits for an answer, though nothing else tells why."""

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(SECONDS + 600)]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[LiveService]:
    environ = {"REPLICAS": "2", "ROUTER_ACTORS": "2", "ALLOW_PRIVATE_DESTINATIONS": "true"}
    environ["MUTE_WARNING_MS"] = "3000"
    with serving(tmp_path / "data", **{f"BREAKERS_{name}": value for name, value in environ.items()}) as live:
        yield live


async def test_nothing_is_lost_repeated_or_made_up(service: LiveService) -> None:
    seed = os.environ.get("CAMPAIGN_SEED") or secrets.token_hex(4)
    print(f"CAMPAIGN_SEED={seed} CAMPAIGN_SECONDS={SECONDS:.0f}")
    async with Witness() as hook:
        campaign = await prepare(service, seed, hook)
        following = [asyncio.create_task(follower.run()) for follower in campaign.followers]
        try:
            await fight(campaign, seed)
            await settle(campaign)
            print(summary(campaign))
            await check(campaign)
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            for caller in campaign.callers:
                await caller.http.aclose()


class Witness(Hook):
    """Sees which of its answers was the last one on a connection, and when the other side ended that."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: dict[str, list[tuple[float, float]]] = defaultdict(list)
        """Idempotency-Key -> (when it was answered, when the connection ended after that)."""
        self._last: dict[asyncio.Task[None] | None, tuple[str, float]] = {}

    def answer(self, request: Request) -> Reply:
        reply = super().answer(request)
        key = request.headers["idempotency-key"]
        self._last[asyncio.current_task()] = key, self.got[key][-1][0]
        return reply

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await super()._connected(reader, writer)
        if (last := self._last.pop(asyncio.current_task(), None)) is not None:
            self.ended[last[0]].append((last[1], time.monotonic()))

    def given_up(self, key: str, first: float, second: float) -> bool:
        """Whether the other side hung up after that answer as late as if it had not got it, and before it came again.

        A connection that is kept for the next request is dropped at once, or after a longer time."""
        return any(
            at == first and first + NOTIFY_TIMEOUT_S - 1 < end < min(second, first + LEASE_S) + 1
            for at, end in self.ended[key]
        )


@dataclass
class Campaign:
    """One run: who sends, edits, follows, watches, kills and is told."""

    projects: list[Project]
    data_dir: Path
    evidence: Evidence
    load: Load
    edits: Edits
    muter: Muter
    followers: list[Follower]
    watch: Watch
    killer: Killer
    hook: Witness
    callers: list[Caller]
    suppressed: int = 0

    @property
    def routers(self) -> list[str]:
        return [router_id for project in self.projects for router_id in project.routers]


async def prepare(live: LiveService, seed: str, hook: Witness) -> Campaign:
    callers = [sending, editing, watching] = [Caller(live, live.credentials["user_key"]) for _ in range(3)]
    projects = [
        await make_project(editing, live, hook, 20, signed=False, shared=3),
        await make_project(editing, live, hook, 10, signed=True, shared=0),
    ]
    return Campaign(
        projects=projects,
        data_dir=live.data_dir,
        evidence=Evidence(live.data_dir),
        load=Load(sending, seed),
        edits=Edits(editing, random.Random(f"{seed}:edits")),
        muter=Muter(editing, random.Random(f"{seed}:mutes")),
        followers=[Follower(live, project) for project in projects for _ in range(FOLLOWERS)],
        watch=Watch(watching, projects[0]),
        killer=Killer(live, random.Random(f"{seed}:kills")),
        hook=hook,
        callers=callers,
    )


async def fight(campaign: Campaign, seed: str) -> None:
    """Everything at once for SECONDS; then what was begun is brought to its end."""
    stop = asyncio.Event()
    planned = plan(random.Random(f"{seed}:plan"), list(ACTORS), KILLS, SECONDS)
    async with asyncio.TaskGroup() as group:
        for project in campaign.projects:
            group.create_task(campaign.edits.run(project, stop))
            group.create_task(campaign.muter.run(project, stop))
            for i in range(CLIENTS):
                group.create_task(campaign.load.run(project, stop, random.Random(f"{seed}:{project.secret}:{i}")))
        group.create_task(campaign.watch.run(stop))
        group.create_task(campaign.killer.run(planned))
        await asyncio.sleep(SECONDS)
        stop.set()


async def settle(campaign: Campaign) -> None:
    for project in campaign.projects:
        await campaign.muter.end_all(project)
        await until(Watch(campaign.watch.caller, project).all_fresh, SETTLED_S)


# -- what must hold


async def check(campaign: Campaign) -> None:
    evidence = campaign.evidence
    check_trouble(campaign)
    assert campaign.load.refused == []
    assert_logged_once(evidence, campaign.load.accepted, campaign.routers)
    await check_replays(campaign, time.time_ns() // 1_000_000)
    for breaker_id, events in evidence.histories().items():
        assert_in_sequence(breaker_id, events)
    assert_records_agree(evidence)
    assert assert_overrides_end(evidence, evidence.slots())
    await until(partial(no_override_outlives_its_end, evidence), SETTLED_S)
    report = await asyncio.to_thread(asyncio.run, verified(Settings(data_dir=campaign.data_dir)))
    assert report.faults == []
    assert report.moves
    await check_notifications(campaign)
    for follower in campaign.followers:
        await until(partial(follower.shows_all, campaign.watch.caller), SETTLED_S)


async def no_override_outlives_its_end(evidence: Evidence) -> bool:
    """A record is stored with its next event, or checkpoint."""
    return none_outlives_its_end(evidence, time.time_ns() // 1_000_000 - 10_000)


def check_trouble(campaign: Campaign) -> None:
    """All that was planned was killed, and there was something to lose: only then does it mean anything that nothing
    was."""
    killed = {kind for kill in campaign.killer.kills for kind in kill.victims}
    assert len(campaign.killer.kills) == KILLS
    assert killed == set(ACTORS) or KILLS < len(ACTORS)
    histories = campaign.evidence.histories()
    for project in campaign.projects:
        assert set(project.routers) <= set(campaign.load.accepted.values())
        assert histories.keys() & project.breakers.keys()
    assert campaign.hook.got
    reconnects = sum(follower.connections - 1 for follower in campaign.followers)
    assert reconnects > 0 or "HAProxy" not in killed


async def check_replays(campaign: Campaign, until_ms: int) -> None:
    """The events of every breaker with one router are those of its log: all that were due by then, and no others."""
    for project in campaign.projects:
        for breaker_id in project.breakers.keys() - project.shared:
            await assert_replayed(campaign.evidence, project.breakers[breaker_id], breaker_id, until_ms, SETTLED_S)


async def check_notifications(campaign: Campaign) -> None:
    """Every delivery arrived, unless it was muted, and none that was. One that was taken came again only if the
    Notifier died before it could note that, or had waited for the answer as long as it ever does."""
    ended = await until(partial(all_ended, campaign.evidence), SETTLED_S)
    deaths = [kill.at for kill in campaign.killer.kills if "Notifier" in kill.victims]
    unseen = []
    assert set(campaign.muter.done) >= {"make", "edit", "end"}
    offset_s = time.time() - time.monotonic()
    arrived = {id_: [round((at + offset_s) * 1000) for at, _ in got] for id_, got in campaign.hook.got.items()}
    for project in campaign.projects:
        for delivery_id in assert_told_once(campaign.evidence, project.id, project.channels):
            taken = [at for at, reply in campaign.hook.got[delivery_id] if reply == Reply()]
            assert taken, f"delivery {delivery_id} never arrived"
            unseen += [delivery_id] * unexplained(campaign.hook, delivery_id, taken, deaths)
        mutes = campaign.muter.mutes.values()
        campaign.suppressed += assert_muted_rightly(campaign.evidence, project, mutes, arrived, ended)
    print(f"suppressed {campaign.suppressed}")
    assert campaign.suppressed
    assert len(unseen) <= UNSEEN_MAX, f"deliveries came again and nobody died or hung up: {unseen}"


def unexplained(hook: Witness, delivery_id: str, taken: Sequence[float], deaths: Sequence[float]) -> int:
    """How often a delivery came again without a reason that was seen. Only the Notifier itself is killed with what it
    was sending: it is a process of its own, and nothing else that is killed takes it along."""
    count = 0
    for first, second in pairwise(taken):
        if any(first - 1 < death < min(second, first + LEASE_S) for death in deaths):
            continue
        assert second - first > NOTIFY_TIMEOUT_S, f"delivery {delivery_id} came again after {second - first:.1f} s"
        count += not hook.given_up(delivery_id, first, second)
    return count


async def all_ended(evidence: Evidence) -> int:
    """The number of the newest delivery once none is left to be sent, 0 while one is. Breakers go on moving, and make
    new ones."""
    ((open_, newest),) = evidence.rows("SELECT sum(state IN ('pending', 'held')), max(number) FROM outbox")
    return 0 if open_ else newest


# -- what is told


def summary(campaign: Campaign) -> str:
    kills = campaign.killer.kills
    histories = campaign.evidence.histories()
    columns = {
        "samples taken again": campaign.load.caller.answered,
        "states fresh again": campaign.watch.fresh,
        "moves shown again": campaign.watch.moved,
    }
    retries = sum((caller.retries for caller in campaign.callers), Counter())
    return "\n".join(
        (
            f"kills {len(kills)}: {dict(Counter(kind for kill in kills for kind in kill.victims))}",
            f"samples {len(campaign.load.accepted)} in {len(campaign.load.caller.answered)} requests",
            f"events {sum(map(len, histories.values()))} of {len(histories)} breakers",
            f"edits {dict(campaign.edits.done)}",
            f"mutes {dict(campaign.muter.done)}, sure for {sure_s(campaign):.0f} s",
            f"deliveries {dict(campaign.evidence.rows('SELECT state, count(*) FROM outbox GROUP BY state'))}",
            f"requests sent again: {dict(retries)}",
            f"stream connections {[f.connections for f in campaign.followers]}",
            f"webhooks {len(campaign.hook.requests)} for {len(campaign.hook.got)} deliveries",
            table(kills, columns),
        )
    )


def sure_s(campaign: Campaign) -> float:
    return sum(to - begin for mute in campaign.muter.mutes.values() for begin, to in mute.sure) / 1000
