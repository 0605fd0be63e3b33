"""What breakers have stored: transitions at once, and now and then the records of all that have changed.

Gets effects from the host of a BreakerActor; hands Commits to the Journals, over LANES lanes each. A call ends when all
of it is stored, which in a storm is after calls of all BreakerActors: an organisation has one lane at a time, so its
storm leaves the others free for the transitions of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

from breaker_actors.breaker.hosted import Effects, HostedBreaker, read_later, reading_rows
from breaker_actors.breaker.metrics import count_events
from breaker_actors.breaker.slices import SLICE_ROWS, Slice, Slices
from breaker_actors.core.log_entries import decode_breaker
from breaker_actors.errors import BreakersError
from breaker_actors.messages import Commit, CommitResult, Paced
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport.lane import Lane
from breaker_actors.transport.peers import JournalPeer, Net, journal_name

RETRY_S = 0.2
CHECKPOINTS_MAX = 200
"""So many wait for a Journal at a time: no transition waits behind more."""
WIDE_ROWS = SLICE_ROWS // 5
"""From so many rows of work on the record of a breaker has a turn: a millisecond of ranking."""
CALL_MAX = 1_000
"""Commits of one call."""
LANES = 4
"""Calls in flight to one Journal: beside storms of so many organisations, less one, the next one's goes at once."""


class JournalLanes:
    """The lanes to one Journal. An organisation stays in one while something of it is under way, so what comes of it
    stays in order; with nothing under way it takes the lane with least."""

    def __init__(self, peer: JournalPeer) -> None:
        # bounded by what is held here: a breaker has at most one commit and one checkpoint waiting
        self._lanes: list[Lane[Commit, CommitResult | Paced]] = [
            Lane(peer.commit, weight_max=1 << 30, call_weight_max=CALL_MAX) for _ in range(LANES)
        ]
        self._under_way = [0] * LANES
        self._of_orgs: dict[str, tuple[int, int]] = {}
        """In which lane an organisation is, and how many of its commits are under way."""

    @property
    def weight(self) -> int:
        """What waits."""
        return sum(lane.weight for lane in self._lanes)

    @property
    def calls(self) -> int:
        return sum(lane.calls for lane in self._lanes)

    def put(self, commit: Commit, org: str, project: str) -> asyncio.Future[CommitResult | Paced]:
        at, n = self._of_orgs.get(org) or (self._under_way.index(min(self._under_way)), 0)
        future = self._lanes[at].put(commit, org, project)
        self._of_orgs[org] = at, n + 1
        self._under_way[at] += 1
        future.add_done_callback(lambda _: self._ended(org))
        return future

    def _ended(self, org: str) -> None:
        at, n = self._of_orgs.pop(org)
        self._under_way[at] -= 1
        if n > 1:
            self._of_orgs[org] = at, n - 1

    async def close(self) -> None:
        for lane in self._lanes:
            await lane.close()


class Commits:
    """What one BreakerActor has stored."""

    def __init__(self, net: Net, meters: Meters, slices: Slices) -> None:
        self._net = net
        self._meters = meters
        self._slices = slices
        self._lanes: dict[int, JournalLanes] = {}

    def look(self, meters: Meters) -> None:
        """Tells how the lanes stand (see Meters.watch)."""
        lanes = self._lanes.values()
        meters.gauge("breakers_lane_waiting", sum(lane.weight for lane in lanes), lane="commit")
        meters.total("breakers_lane_calls_total", sum(lane.calls for lane in lanes), lane="commit")

    async def close(self) -> None:
        for lanes in self._lanes.values():
            await lanes.close()

    async def publish(self, hosted: HostedBreaker, effects: Effects) -> bool:
        """Commits until the journal has answered. Nothing more is applied to this breaker meanwhile. False: it has gone
        to another owner, and nothing was stored."""
        commit = hosted.commit(effects)
        hosted.dirty = False
        while not hosted.dropped:
            result = await self._result(hosted, commit, self._put(hosted, commit))
            if result == "ok":
                hosted.note_committed()
                count_events(self._meters, commit.events)
                return True
            if result == "fenced":
                self._meters.count("breakers_fenced_total")
                return False
            read_later(hosted)
            if isinstance(result, Paced):
                await asyncio.sleep(result.wait_ms / 1000)
                continue
            self._meters.count("breakers_commit_retries_total")
            await asyncio.sleep(RETRY_S)
        return True

    async def checkpoint(self, breakers: Iterable[HostedBreaker]) -> AsyncIterator[HostedBreaker]:
        """Stores the records that changed since last time, CHECKPOINTS_MAX at a time; yields the breakers that have
        gone to another owner. A record tells the value of a window: those of wide ones have turns with all long work
        and rests, since each takes others' time; all others let others in between alone, since there are many."""
        changed, work = [hosted for hosted in breakers if hosted.dirty], self._slices.work(())
        for first in range(0, len(changed), CHECKPOINTS_MAX):
            async for hosted in self._checkpoint(changed[first : first + CHECKPOINTS_MAX], work):
                yield hosted

    async def _checkpoint(self, changed: Sequence[HostedBreaker], work: Slice) -> AsyncIterator[HostedBreaker]:
        waiting, light = [], 0
        for hosted in changed:
            if not _is_to_be_stored(hosted):
                continue
            if (rows := reading_rows(hosted)) >= WIDE_ROWS:
                await work.worked(rows)
            elif (light := light + rows) >= SLICE_ROWS:
                light = 0
                await asyncio.sleep(0)
            if not _is_to_be_stored(hosted):
                continue
            commit = hosted.commit(())
            hosted.dirty = False
            waiting.append((hosted, commit, self._put(hosted, commit)))
        for hosted, commit, answer in waiting:
            result = await self._result(hosted, commit, answer)
            if result == "fenced" and hosted.committed and hosted.committed.transition_seq == commit.transition_seq:
                self._meters.count("breakers_fenced_total")
                yield hosted
            elif result == "ok":
                self._meters.count("breakers_checkpoints_total")
            else:
                self._meters.count("breakers_commit_retries_total", result == "failed")
                hosted.dirty = True

    @staticmethod
    async def _result(
        hosted: HostedBreaker, commit: Commit, answer: asyncio.Future[CommitResult | Paced]
    ) -> CommitResult | Paced:
        try:
            result = await answer
        except BreakersError:
            return "failed"
        if result == "ok" and commit.settings is not None:
            hosted.stored_version = decode_breaker(commit.settings).version
        return result

    def _put(self, hosted: HostedBreaker, commit: Commit) -> asyncio.Future[CommitResult | Paced]:
        lanes = self._lanes.get(hosted.shard)
        if lanes is None:
            lanes = self._lanes[hosted.shard] = JournalLanes(JournalPeer(self._net, journal_name(hosted.shard)))
        return lanes.put(commit, hosted.org_id, hosted.project_id)


def _is_to_be_stored(hosted: HostedBreaker) -> bool:
    """Whether it changed, and nothing is under way for it. Who rests has nothing, and may do so for long."""
    if not hosted.dirty or hosted.breaker is None or hosted.dropped:
        return False
    return hosted.resting or not hosted.blocked
