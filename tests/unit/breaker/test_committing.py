"""Records of breakers that changed are stored a few at a time, so that a transition does not wait for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from breaker_actors.breaker import commits as committing
from breaker_actors.messages import Commit, CommitResult
from breaker_actors.transport.peers import journal_name
from tests.support.cluster import Service, service, until

STILL = {"breaker_actors": 1, "checkpoint_interval_ms": 3_600_000}


@pytest.fixture(autouse=True)
def _no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at breakers of their own accord: each look would make a record that changed."""
    monkeypatch.setattr("breaker_actors.breaker.hosted.IDLE_MS", 1 << 50)


class Watched:
    """A Journal whose calls are noted; the first of them takes as long as `meanwhile` does."""

    def __init__(self, s: Service) -> None:
        journal = s.net.actors[journal_name(0)]
        self.calls: list[Sequence[Commit]] = []
        self._commit, journal.commit = journal.commit, self.commit

    async def commit(self, commits: Sequence[Commit]) -> list[CommitResult]:
        self.calls.append(commits)
        if len(self.calls) == 1:
            await self.meanwhile()
        results: list[CommitResult] = await self._commit(commits)
        return results

    async def meanwhile(self) -> None: ...


async def test_records_that_changed_go_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "CHECKPOINTS_MAX", 3)
    async with service(tmp_path, **STILL) as s:
        rows = [await s.breaker() for _ in range(8)]
        owner, journal = s.net.actors["breaker-0"], Watched(s)
        await owner.checkpoint()
        assert [len(commits) for commits in journal.calls] == [3, 3, 2]
        assert {c.breaker_id for commits in journal.calls for c in commits} == {row.id for row in rows}
        held = owner._hosted[rows[5].id]
        assert not held.dirty
        await s.send(rows[5].router_ids[0], [10.0])

        async def changed() -> bool:
            return bool(held.dirty)

        await until(changed)
        dirty = [h.id for h in owner._hosted.values() if h.dirty]
        journal.calls.clear()
        await owner.checkpoint()
        assert [c.breaker_id for commits in journal.calls for c in commits] == dirty


async def test_a_transition_goes_before_the_records_that_still_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "CHECKPOINTS_MAX", 2)
    async with service(tmp_path, **STILL) as s:
        rows = [await s.breaker(eval_interval_ms=60_000, cooldown_ms=60_000) for _ in range(9)]
        owner, journal = s.net.actors["breaker-0"], Watched(s)

        async def trip() -> None:
            await s.send(rows[8].router_ids[0], [900.0] * 3)

            async def asked() -> bool:
                return any(lane.weight for lane in owner._commits._lanes.values())

            await until(asked)

        monkeypatch.setattr(journal, "meanwhile", trip)
        await owner.checkpoint()
        assert [len(commits) for commits in journal.calls[:2]] == [2, 1]
        assert [(c.breaker_id, c.state) for c in journal.calls[1]] == [(rows[8].id, "open")]
        assert len(journal.calls) == 5, "the others followed, without the one that tripped"


async def test_a_storm_of_an_organisation_does_not_keep_the_transition_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stored while a call of the storm is under way, which ends behind those of other BreakerActors."""
    monkeypatch.setattr(committing, "CALL_MAX", 2)
    async with service(tmp_path, **STILL) as s:
        rows = [await s.breaker() for _ in range(7)]
        owner, journal = s.net.actors["breaker-0"], Watched(s)
        held = [owner._hosted[row.id] for row in rows]
        held[-1].org_id = "another"

        async def stored() -> None:
            assert await owner._commits._put(held[-1], held[-1].commit(())) == "ok"

        monkeypatch.setattr(journal, "meanwhile", stored)
        async with asyncio.timeout(5):
            await asyncio.gather(*(owner._commits._put(hosted, hosted.commit(())) for hosted in held[:-1]))
        called = [[commit.breaker_id for commit in commits] for commits in journal.calls]
        ids = [row.id for row in rows]
        assert called == [ids[:2], ids[6:], ids[2:4], ids[4:6]], "those of one organisation stay in order"


async def test_beside_more_storms_than_lanes_a_transition_rides_in_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many commits of others came before; nothing is kept of who has nothing under way."""
    monkeypatch.setattr(committing, "CALL_MAX", 2)
    monkeypatch.setattr(committing, "LANES", 1)
    async with service(tmp_path, **STILL) as s:
        rows = [await s.breaker() for _ in range(7)]
        owner, journal = s.net.actors["breaker-0"], Watched(s)
        held = [owner._hosted[row.id] for row in rows]
        held[-1].org_id = "another"
        await asyncio.gather(*(owner._commits._put(hosted, hosted.commit(())) for hosted in held))
        assert [len(commits) for commits in journal.calls] == [2, 2, 2, 1]
        assert rows[-1].id in {commit.breaker_id for commit in journal.calls[0]}
        lanes = owner._commits._lanes[0]
        assert (lanes._of_orgs, lanes._under_way) == ({}, [0])
