"""Whose duplicate keys go first: a flood of one organisation pushes out its own."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from breaker_actors.core.log_entries import GAP, SAMPLES, Gap, RouterView, encode_samples
from breaker_actors.core.rules import parse_rule
from breaker_actors.messages import Part, RouterAssignment
from breaker_actors.router.duplicates import DuplicateKeys, KeyAges
from breaker_actors.router.group import Group, OwnedRouter
from breaker_actors.store.rows import BreakerDraft
from breaker_actors.wal.base import Append, RouterHead
from tests.support.cluster import FAST_RULE, service, until
from tests.support.owned import owned_router

KEYS_MAX = 50


async def test_a_flood_of_another_project_does_not_make_a_repeated_part_new(tmp_path: Path) -> None:
    async with service(tmp_path, duplicate_keys_max=KEYS_MAX) as s:
        mine = await s.breaker()
        org = await s.store.create_org("theirs", s.clock.now_ms())
        workspace = await s.store.create_workspace(org, "w", "w", s.clock.now_ms())
        project = await s.store.create_project(org, workspace.id, "loud", s.clock.now_ms())
        draft = BreakerDraft(rule=parse_rule(FAST_RULE), name="loud")
        loud, changes = await s.store.create_breaker(project.id, draft, s.clock.now_ms())
        await s.gateway.configured(project.id, changes)

        async def owned() -> bool:
            return (await s.send(loud.router_ids[0], [1.0])).status == "ok"

        await until(owned)
        signed = b"signed-request-1"
        assert (await s.send(mine.router_ids[0], [10.0], keys=(b"append-id-000001", signed))).status == "ok"
        for n in range(2 * KEYS_MAX):
            assert (await s.send(loud.router_ids[0], [1.0], keys=(b"loud-id-%08d" % n,))).status == "ok"
        router = s.net.actors["router-0"]
        assert len(router._owned.keys) <= KEYS_MAX
        assert router.meters.value("breakers_duplicate_keys_dropped_total") >= KEYS_MAX
        again = await s.send(mine.router_ids[0], [10.0], keys=(b"append-id-000002", signed))
        assert again.status == "duplicate"
        last = await s.send(loud.router_ids[0], [1.0], keys=(b"loud-id-%08d" % (2 * KEYS_MAX - 1),))
        assert last.status == "duplicate", "its own newest are known, too"
        assert (await s.send(loud.router_ids[0], [1.0], keys=(b"loud-id-%08d" % 0,))).status == "ok"


def test_keys_go_when_their_time_is_over_and_of_the_largest_at_the_bound() -> None:
    """Against a list that is searched through each time."""
    rng = random.Random(7)
    ages, naive, now = KeyAges(KEYS_MAX), list[tuple[int, str, bytes]](), 0
    for n in range(5_000):
        now += rng.randrange(3)
        project, key = rng.choices("abcde", (20, 5, 2, 1, 1))[0], b"%d" % n
        ages.add("o", project, now, project, key)
        naive.append((now, project, key))
        horizon = now - 40 if n % 200 < 100 else now - 400
        old = {(project, key) for at, project, key in naive if at < horizon}
        assert set(ages.expired(horizon)) == old
        naive = [entry for entry in naive if entry[1:] not in old]
        for gone in ages.beyond():
            counts = Counter(project for _, project, _ in naive)
            assert counts[gone[0]] == max(counts.values())
            assert gone == next(entry[1:] for entry in naive if entry[1] == gone[0]), "its oldest"
            naive = [entry for entry in naive if entry[1:] != gone]
        assert len(ages) == len(naive) <= KEYS_MAX
    assert set(ages.expired(now + 1)) == {entry[1:] for entry in naive}
    assert (len(ages), ages._held, ages._projects, ages._oldest) == (0, {}, {}, [])


def test_an_organisation_of_many_projects_pushes_out_its_own() -> None:
    """Each of its projects holds less than the neighbour's one, all together far more."""
    ages, gone = KeyAges(KEYS_MAX), Counter[str]()
    for n in range(20):
        ages.add("quiet", "q", n, "quiet", b"%d" % n)
    for n in range(40 * KEYS_MAX):
        project = f"p{n % 100}"
        ages.add("loud", project, 20 + n, project, b"loud-%d" % n)
        gone.update(router for router, _ in ages.beyond())
    assert gone["quiet"] == 0
    assert len(ages) == KEYS_MAX
    for n in range(KEYS_MAX):
        ages.add("third", "t", 10_000, "third", b"third-%d" % n)
        gone.update(router for router, _ in ages.beyond())
    assert gone["quiet"] == 20 - KEYS_MAX // 3, "three hold as much each"


def test_a_repetition_looks_at_no_other_item_of_its_group() -> None:
    """One request for thousands of routers that comes twice at once took a second of everybody's time."""
    routers = {f"r{n}": owned_router(f"r{n}") for n in range(3_000)}
    group = Group(routers, lambda *_: None, 1_000, lambda _: None)
    payload = encode_samples(["m"], [1], np.ones(1, np.int64), np.ones(1), np.ones(1, bool))
    took = []
    for turn in range(2):
        begun = time.thread_time()
        for n, router_id in enumerate(routers):
            keys = (b"append-%d-%05d" % (turn, n), b"the request")
            group.add(turn * len(routers) + n, Part(router_id, keys, payload, 1))
        took.append(time.thread_time() - begun)
    assert took[1] < 5 * took[0], "it took 40 times as long"
    answers = [record.answers for record in group.close()]
    assert sorted(answers) == [[n, n + len(routers)] for n in range(len(routers))]


def test_what_comes_behind_a_gap_is_no_older_than_it() -> None:
    """The clock was set back between: a log that went back in time would be taken for another owner's."""
    group = Group({"r": owned_router("r")}, lambda *_: None, 7_000, lambda _: Gap(1_000, 9_000))
    payload = encode_samples(["m"], [1], np.ones(1, np.int64), np.ones(1), np.ones(1, bool))
    group.add(0, Part("r", (b"append", b"the request"), payload, 1))
    assert [(record.append.kind, record.append.received_ms) for record in group.close()] == [
        (GAP, 9_000),
        (SAMPLES, 9_000),
    ]
    group = Group({"r": owned_router("r")}, lambda *_: None, 7_000, lambda _: Gap(1_000, 9_000), ahead_max_ms=1_000)
    group.add(0, Part("r", (b"append", b"the request"), payload, 1))
    assert group.outcomes[0].status == "clock_behind", "they would be late before they count"


def test_keys_that_came_with_a_log_outlive_a_clock_that_was_behind() -> None:
    """The log's last stamp says more of their age than the clock at that moment."""
    keys, last_ms = DuplicateKeys(KEYS_MAX, window_ms=60_000), 10_000_000
    owned = with_keys(last_ms, {b"known": 1})
    keys.adopt(owned, last_ms - 3_600_000)
    assert keys.forget(last_ms + 59_999) == 0
    assert set(owned.keys) == {b"known"}
    assert keys.forget(last_ms + 60_001) == 0
    assert owned.keys == {}


@pytest.mark.parametrize("seed", range(10))
def test_each_key_counts_once_however_often_its_router_comes_back(seed: int) -> None:
    """Routers come with what their logs have, are lost, come back, are taken anew: what is held is what a recount
    says, and none goes before its time."""
    rng, now, lives_ms = random.Random(seed), 1_000_000, 60_000
    keys = DuplicateKeys(1_000_000, window_ms=lives_ms)
    logs: list[dict[bytes, tuple[int, int]]] = [{} for _ in range(4)]  # by key: offset and time
    owned: dict[int, OwnedRouter] = {}
    for n in range(600):
        now += rng.randrange(400)
        i = rng.randrange(4)
        stored = {key: found for key, found in logs[i].items() if found[1] >= keys.horizon_ms(now)}
        if i not in owned or rng.random() < 0.1:
            owned[i] = with_keys(now, {key: offset for key, (offset, _) in stored.items()}, f"r{i}")
            keys.adopt(owned[i], now)
        elif rng.random() < 0.2:
            del owned[i]
        else:
            key = b"%d" % n
            logs[i][key] = (n, now)
            keys.note(owned[i], Append(f"r{i}", 1, n, now, SAMPLES, 1, b"", (key,), 1))
        assert keys.forget(now) == 0
        alive = [{key for key, (_, at) in log.items() if at >= keys.horizon_ms(now)} for log in logs]
        assert len(keys) == sum(map(len, alive))
        assert all(set(router.keys) == alive[i] for i, router in owned.items())
    keys.forget(now + lives_ms + 1)
    assert (len(keys), keys._of) == (0, {})


def with_keys(last_ms: int, keys: dict[bytes, int], router_id: str = "r") -> OwnedRouter:
    """A router whose log has these keys, by offset."""
    head = RouterHead(
        router_id=router_id,
        epoch=2,
        offset=2,
        last_received_ms=last_ms,
        alive_ms=last_ms,
        view_offset=0,
        view=None,
        generation=1,
        keys=tuple(keys.items()),
    )
    assignment = RouterAssignment(router_id=router_id, project_id="p", epoch=2, log_slot="s")
    return OwnedRouter(assignment, head, RouterView(version=0))
