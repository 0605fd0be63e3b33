"""Groups of commits: organisations take turns in them, and one that took too long is not tried again as it was."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any
from unittest.mock import ANY

import pytest

from breaker_actors.errors import Fenced, Invalid, Overloaded, TookTooLong, Unavailable
from breaker_actors.journal.group_size import LONG_S
from breaker_actors.journal.host import ACCESS_S, GROUP_MAX, PUT_OFF_MS, JournalHost
from breaker_actors.messages import Commit, CommitResult, Paced
from breaker_actors.settings import Settings
from breaker_actors.store.rows import AccessVersion, JournalHead
from breaker_actors.telemetry.set_aside import Asides
from tests.contract.store_world import event
from tests.support.fake_gateway import FakeClock

TRANSITION_S = 0.001
EACH = 100
"""Transitions of a commit of the flood."""


class SlowStore:
    """Takes TRANSITION_S for each transition, and more than `most` of them at once never."""

    def __init__(self, most: int = 1_000_000, poison: str = "", error: type[Exception] = TookTooLong) -> None:
        self.asides = Asides()
        self.access = AccessVersion(0, 0)
        self.most = most
        self.poison = poison
        self.error = error
        self.tried: list[list[str]] = []
        self.groups: list[int] = []
        self.asked: list[str] = []
        self.listeners: dict[str, dict[str, int]] = {}
        self.each_s = TRANSITION_S

    async def access_version(self) -> AccessVersion:
        return self.access

    async def open_journal(self, shard: int, now_ms: int = 0) -> JournalHead:
        return JournalHead(shard, 1, 0)

    async def journal_head(self, shard: int) -> JournalHead:
        return JournalHead(shard, 1, sum(self.groups))

    async def organisations_of(self, project_ids: Sequence[str]) -> dict[str, str]:
        self.asked += project_ids
        if "?" in "".join(project_ids):
            raise Unavailable
        return {project_id: project_id.partition(" ")[0] for project_id in project_ids}

    async def listeners_of(self, project_ids: Sequence[str]) -> dict[str, dict[str, int]]:
        return {id_: self.listeners[id_] for id_ in project_ids if id_ in self.listeners}

    async def commit(self, head: JournalHead, commits: Sequence[Commit]) -> tuple[JournalHead, list[CommitResult]]:
        count = sum(len(commit.events) for commit in commits)
        self.tried.append([commit.breaker_id for commit in commits])
        await asyncio.sleep(count * self.each_s)
        if count > self.most or any(commit.breaker_id == self.poison for commit in commits):
            raise self.error
        self.groups.append(count)
        return JournalHead(head.shard, head.epoch, head.sequence + count), ["ok"] * len(commits)


def commit(project_id: str, breaker_id: str, count: int = 1) -> Commit:
    moves = tuple(event(number) for number in range(1, count + 1))
    return Commit(
        breaker_id=breaker_id,
        project_id=project_id,
        epoch=1,
        events=moves,
        state="open",
        allow_rate=0.0,
        transition_seq=count,
        record=b"",
        applied_offsets={},
    )


async def started(store: SlowStore) -> JournalHost:
    journal = JournalHost(0, store, FakeClock(), Settings())  # type: ignore[arg-type]
    await journal.start()
    return journal


async def greeted(store: SlowStore) -> JournalHost:
    """One that knows 300 projects of the organisation `greedy`."""
    journal = await started(store)
    for number in range(300):
        await journal.commit([commit(f"greedy {number}", f"b{number}")])
    await asyncio.sleep(2 * ACCESS_S)
    return journal


async def test_a_flood_of_one_organisation_delays_anothers_commit_by_a_group_at_most() -> None:
    """However many projects it has, and however much each of its breakers brings."""
    store = SlowStore()
    journal = await greeted(store)
    flood = [commit(f"greedy {number}", f"b{number}", EACH) for number in range(300)]
    rest = asyncio.create_task(stored(journal, flood))
    await asyncio.sleep(0.01)
    clock = asyncio.get_running_loop().time
    begun = clock()
    assert await journal.commit([commit("quiet", "q")]) == ["ok"]
    assert clock() - begun <= 2 * GROUP_MAX * TRANSITION_S, "what is stored as it comes, and its own group"
    assert not rest.done()
    await rest
    assert sum(store.groups) == 300 + 300 * EACH + 1
    assert max(store.groups) <= GROUP_MAX
    assert sorted(store.asked) == sorted({c.project_id for c in flood} | {"quiet"}), "once"
    await journal.stop()


async def test_a_commit_waits_for_no_longer_than_groups_may_last_however_slow_the_store_is() -> None:
    """What a row takes is not known before; once it is, groups have as many as a tenth of a second has room for."""
    store = SlowStore()
    store.each_s = 0.0004
    journal = await greeted(store)
    flood = [commit(f"greedy {number}", f"b{number}", EACH) for number in range(100)]
    rest = asyncio.create_task(stored(journal, flood))
    clock = asyncio.get_running_loop().time
    await asyncio.sleep(GROUP_MAX * store.each_s + 0.1)
    begun = clock()
    assert await journal.commit([commit("quiet", "q")]) == ["ok"]
    assert clock() - begun <= 3 * LONG_S, "what is stored as it comes, and its own group"
    assert not rest.done()
    await rest
    assert sum(store.groups) == 300 + 100 * EACH + 1
    await journal.stop()


async def test_groups_grow_again_where_the_store_is_fast() -> None:
    store = SlowStore()
    journal = await started(store)
    store.each_s = 0.0004
    assert await journal.commit([commit("p", "b", GROUP_MAX)]) == ["ok"]
    store.each_s = 0.0
    for turn in range(20):
        await stored(journal, [commit(f"p{turn}", f"b{number}", EACH) for number in range(GROUP_MAX // EACH)])
    assert store.groups[1] <= GROUP_MAX // 8
    assert store.groups[-1] == GROUP_MAX
    await journal.stop()


async def test_who_listens_counts_in_groups_and_in_the_budget() -> None:
    """Ten deliveries as much as a transition, once it is known how many there are."""
    store = SlowStore()
    store.listeners = {"loud p": {"trip": 100, "recover": 100}}
    journal = await started(store)
    assert await journal.commit([commit("loud p", "b", 1), commit("still p", "c", 1)]) == ["ok", "ok"]
    await asyncio.sleep(2 * ACCESS_S)
    store.groups.clear()
    many = [commit("loud p", f"b{number}", EACH) for number in range(20)]
    answers = [answer for one in many for answer in await journal.commit([one])]
    assert answers == ["ok"] * 18 + [ANY, ANY], "1,100 each, of a budget of 20,000"
    assert max(store.groups) == EACH
    (share,) = (await journal.status()).limits
    assert (share.project_id, share.used > 20_000) == ("loud p", True)
    still = [commit("still p", f"c{number}", EACH) for number in range(20)]
    assert await journal.commit(still) == ["ok"] * 20
    await journal.stop()


async def stored(journal: JournalHost, commits: Sequence[Commit]) -> None:
    """As a BreakerActor does: what was put off comes again."""
    left = list(commits)
    while left:
        answers = await journal.commit(left)
        left = [one for one, answer in zip(left, answers, strict=True) if isinstance(answer, Paced)]


async def test_a_call_stores_a_group_of_one_organisation_at_most() -> None:
    """Whoever sent it waits for its end, and with it everybody who has something for the next call. Deliveries count
    from a project's first alert on."""
    store = SlowStore()
    store.listeners = {"loud p": {"trip": 100, "recover": 100}}
    journal = await started(store)
    loud = [commit("loud p", f"b{number}") for number in range(200)]
    answers = await journal.commit([*loud, commit("quiet p", "q")])
    assert answers[:19] + answers[-1:] == ["ok"] * 20
    off = [answer for answer in answers[19:-1] if isinstance(answer, Paced)]
    assert len(off) == 181
    assert [one.wait_ms for one in off] == sorted(one.wait_ms for one in off)
    assert off[0].wait_ms < 2 * PUT_OFF_MS < off[-1].wait_ms
    await stored(journal, [one for one, answer in zip(loud, answers, strict=False) if isinstance(answer, Paced)])
    assert sum(store.groups) == 201
    await journal.stop()


async def test_what_weighs_nothing_or_is_not_stored_is_no_reason_to_wait() -> None:
    """A change of rate waits for no trips of its organisation; nor does anybody for what a spent budget keeps away."""
    store = SlowStore()
    store.listeners = {"loud p": {"trip": 100, "recover": 100}}
    journal = await started(store)
    loud = [commit("loud p", f"b{number}") for number in range(50)]
    rate = commit("loud p", "rate", 0)
    *_, last = await journal.commit([*loud, rate])
    assert last == "ok"
    while not isinstance((await journal.commit([commit("loud p", "b")]))[0], Paced):
        pass
    spent = [commit("loud p", f"b{number}") for number in range(50)]
    *answers, other = await journal.commit([*spent, commit("loud q", "q", 1_950)])
    assert all(isinstance(answer, Paced) for answer in answers)
    assert other == "ok", "of the same organisation"
    await journal.stop()


async def test_whose_a_project_is_need_not_be_known() -> None:
    store = SlowStore()
    journal = await started(store)
    assert await journal.commit([commit("greedy ?", "b")]) == ["ok"]
    await asyncio.sleep(3 * ACCESS_S)
    assert store.asked == ["greedy ?"]
    assert await journal.commit([commit("greedy ?", "b")]) == ["ok"]
    await journal.stop()


@pytest.mark.parametrize("poison", ["", "b3"])
async def test_a_group_that_took_too_long_is_halved(poison: str) -> None:
    """One that does so alone has failed, and comes again; the others are stored."""
    store = SlowStore(most=400, poison=poison)
    journal = await started(store)
    wanted: list[Any] = ["failed" if f"b{number}" == poison else "ok" for number in range(10)]
    assert await journal.commit([commit("p", f"b{number}", EACH) for number in range(10)]) == wanted
    assert max(store.groups) <= 400
    assert sum(store.groups) == EACH * wanted.count("ok")
    await journal.stop()


class RepeatingStore(SlowStore):
    """Has stored everything before."""

    async def commit(self, head: JournalHead, commits: Sequence[Commit]) -> tuple[JournalHead, list[CommitResult]]:
        stored, results = await super().commit(head, commits)
        return stored, ["repeated"] * len(results)


async def test_a_repetition_is_ok_to_its_owner_and_no_news_on_the_feed() -> None:
    """A newer word without a number of its own, as of an override, may stand there by now."""
    journal = await started(RepeatingStore())
    assert await journal.commit([commit("p", "b")]) == ["ok"]
    page = await journal.poll(1, 0, 0)
    assert (page.entries, page.reset) == ([], False)
    await journal.stop()


async def test_what_is_refused_by_itself_is_nobody_elses_and_comes_again_later_and_alone() -> None:
    """Whatever word the store has for it. Its breaker asks for ever, each time after a longer while."""
    store = SlowStore(poison="b3", error=Invalid)
    journal = await started(store)
    wanted: list[Any] = ["failed" if f"b{number}" == "b3" else "ok" for number in range(10)]
    group = [commit("p", f"b{number}") for number in range(10)]
    assert await journal.commit(group) == wanted
    assert [(aside.kind, aside.thing) for aside in store.asides.drain()] == [("commit", "b3")]
    waits = []
    for _ in range(12):
        *_, answer = await journal.commit([commit("p", "b1"), commit("p", "b3")])
        assert isinstance(answer, Paced)
        waits.append(answer.wait_ms)
        await asyncio.sleep(answer.wait_ms / 1000)
        store.tried.clear()
        assert await journal.commit([commit("p", "b1"), commit("p", "b3"), commit("p", "b2")]) == ["ok", "failed", "ok"]
        assert store.tried == [["b1", "b2"], ["b3"]]
    assert all(1.9 * a < b < 2.1 * a for a, b in itertools.pairwise(waits[:8])), "a little of it is over by then"
    assert waits[-2:] == [60_000] * 2
    store.poison = ""
    await asyncio.sleep(60)
    assert await journal.commit([commit("p", "b3")]) == ["ok"]
    assert await journal.commit([commit("p", "b3"), commit("p", "b1")]) == ["ok", "ok"]
    assert store.tried[-1] == ["b3", "b1"]
    await journal.stop()


@pytest.mark.parametrize("error", [Unavailable, Fenced, Overloaded])
async def test_what_is_of_the_store_or_the_journal_is_of_the_whole_group(error: type[Exception]) -> None:
    store = SlowStore(poison="b3", error=error)
    journal = await started(store)
    assert await journal.commit([commit("p", f"b{number}") for number in range(10)]) == ["failed"] * 10
    assert [len(tried) for tried in store.tried] == [10]
    assert not store.asides.waiting
    assert (await journal.commit([commit("p", "b3")])) == ["failed"], "at once"
    await journal.stop()
