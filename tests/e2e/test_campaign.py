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
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.campaign import Caller, Edits, Follower, Hook, Load, Project, Watch, make_project
from tests.support.cluster import until
from tests.support.invariants import (
    Evidence,
    assert_in_sequence,
    assert_logged_once,
    assert_records_agree,
    assert_told_once,
)
from tests.support.killing import ACTORS, Killer, plan, table
from tests.support.live import LiveService, serving
from tests.support.receivers import Reply

SECONDS = float(os.environ.get("CAMPAIGN_SECONDS", "300"))
KILLS_PER_MINUTE = float(os.environ.get("CAMPAIGN_KILLS_PER_MINUTE", "7.2"))
CLIENTS = 4
FOLLOWERS = 3
SETTLED_S = 60.0
NOTIFY_TIMEOUT_S = 10.0

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(SECONDS + 600)]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[LiveService]:
    environ = {"REPLICAS": "2", "ROUTER_ACTORS": "2", "ALLOW_PRIVATE_DESTINATIONS": "true"}
    with serving(tmp_path / "data", **{f"BREAKERS_{name}": value for name, value in environ.items()}) as live:
        yield live


async def test_nothing_is_lost_repeated_or_made_up(service: LiveService) -> None:
    seed = os.environ.get("CAMPAIGN_SEED") or secrets.token_hex(4)
    print(f"CAMPAIGN_SEED={seed} CAMPAIGN_SECONDS={SECONDS:.0f}")
    async with Hook() as hook:
        campaign = await prepare(service, seed, hook)
        following = [asyncio.create_task(follower.run()) for _, follower in campaign.followers]
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


@dataclass
class Campaign:
    """One run: who sends, edits, follows, watches, kills and is told."""

    projects: list[Project]
    evidence: Evidence
    load: Load
    edits: Edits
    followers: list[tuple[Project, Follower]]
    watch: Watch
    killer: Killer
    hook: Hook
    callers: list[Caller]

    @property
    def routers(self) -> list[str]:
        return [router_id for project in self.projects for router_id in project.routers]


async def prepare(live: LiveService, seed: str, hook: Hook) -> Campaign:
    callers = [sending, editing, watching] = [Caller(live, live.credentials["user_key"]) for _ in range(3)]
    projects = [
        await make_project(editing, live, hook, 20, signed=False, shared=3),
        await make_project(editing, live, hook, 10, signed=True, shared=0),
    ]
    return Campaign(
        projects=projects,
        evidence=Evidence(live.data_dir),
        load=Load(sending, seed),
        edits=Edits(editing, random.Random(f"{seed}:edits")),
        followers=[(project, Follower(live, project)) for project in projects for _ in range(FOLLOWERS)],
        watch=Watch(watching, projects[0]),
        killer=Killer(live, random.Random(f"{seed}:kills")),
        hook=hook,
        callers=callers,
    )


async def fight(campaign: Campaign, seed: str) -> None:
    """Everything at once for SECONDS; then what was begun is brought to its end."""
    stop = asyncio.Event()
    kinds = [kind for kind in ACTORS if campaign.killer.alive(kind)]
    count = max(4, round(SECONDS / 60 * KILLS_PER_MINUTE))
    planned = plan(random.Random(f"{seed}:plan"), kinds, count, SECONDS)
    async with asyncio.TaskGroup() as group:
        for project in campaign.projects:
            group.create_task(campaign.edits.run(project, stop))
            for i in range(CLIENTS):
                group.create_task(campaign.load.run(project, stop, random.Random(f"{seed}:{project.secret}:{i}")))
        group.create_task(campaign.watch.run(stop))
        group.create_task(campaign.killer.run(planned))
        await asyncio.sleep(SECONDS)
        stop.set()


async def settle(campaign: Campaign) -> None:
    for project in campaign.projects:
        await until(Watch(campaign.watch.caller, project).all_fresh, SETTLED_S)


# -- what must hold


async def check(campaign: Campaign) -> None:
    evidence = campaign.evidence
    assert campaign.load.refused == []
    assert_logged_once(evidence, campaign.load.accepted, campaign.routers)
    await check_replays(campaign, time.time_ns() // 1_000_000)
    for breaker_id, events in evidence.histories().items():
        assert_in_sequence(breaker_id, events)
    assert_records_agree(evidence)
    await check_notifications(campaign)
    for project, follower in campaign.followers:
        await until(partial(shown, campaign, project, follower), SETTLED_S)


async def check_replays(campaign: Campaign, until_ms: int) -> None:
    """The events of every breaker with one router are those of its log: all that were due by then, and no others."""
    for project in campaign.projects:
        for breaker_id in project.breakers.keys() - project.shared:
            # on a thread: the receiver of webhooks has to go on answering
            replay = campaign.evidence.replay(project.breakers[breaker_id], breaker_id, until_ms)
            expected = await asyncio.to_thread(asyncio.run, replay)
            await until(partial(stored, campaign, breaker_id, len(expected)), SETTLED_S)
            got = [event for event in campaign.evidence.history(breaker_id) if event.ts_ms <= until_ms]
            assert got == expected, f"breaker {breaker_id} of router {project.breakers[breaker_id]}"


async def check_notifications(campaign: Campaign) -> None:
    """Every delivery arrived; one that was taken came again only if the Notifier died before it could note that, or had
    waited for the answer as long as it ever does."""
    await until(partial(all_ended, campaign.evidence), SETTLED_S)
    deaths = [kill.at for kill in campaign.killer.kills if "Notifier" in kill.victims]
    for project in campaign.projects:
        for delivery_id in assert_told_once(campaign.evidence, project.id, project.channels):
            taken = [at for at, reply in campaign.hook.got[delivery_id] if reply == Reply()]
            assert taken, f"delivery {delivery_id} never arrived"
            for first, second in pairwise(taken):
                lost = second - first > NOTIFY_TIMEOUT_S or any(first - 1 < death < second for death in deaths)
                assert lost, f"delivery {delivery_id} came again"


async def all_ended(evidence: Evidence) -> bool:
    return not evidence.rows("SELECT 1 FROM outbox WHERE state = 'pending' LIMIT 1")


async def stored(campaign: Campaign, breaker_id: str, count: int) -> bool:
    return len(campaign.evidence.history(breaker_id)) >= count


async def shown(campaign: Campaign, project: Project, follower: Follower) -> bool:
    """The stream client shows every breaker as it is, and every name that is gone as closed."""
    caller = campaign.watch.caller
    listed = (await caller.ask("GET", f"{project.path}/breakers")).json()["breakers"]
    body = {"breaker_ids": [breaker["id"] for breaker in listed]}
    states = (await caller.ask("POST", f"{project.path}/breakers/state:batch", json=body)).json()["states"]
    rates = {s["name"]: (s["state"], s["allow_rate"] if s["state"] == "half_open" else None) for s in states}
    gone = {name: ("closed", None) for name in follower.states.keys() - rates.keys()}
    return len(states) == len(listed) and follower.states == rates | gone


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
            f"requests sent again: {dict(retries)}",
            f"stream connections {[f.connections for _, f in campaign.followers]}",
            f"webhooks {len(campaign.hook.requests)} for {len(campaign.hook.got)} deliveries",
            table(kills, columns),
        )
    )
