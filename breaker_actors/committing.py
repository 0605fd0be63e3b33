"""What breakers have stored: transitions at once, and now and then the records of all that have changed.

Gets effects from the host of a BreakerActor; hands Commits to the Journals, one lane each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from breaker_actors.core.model import Effect
from breaker_actors.core.records import decode_breaker
from breaker_actors.errors import BreakersError
from breaker_actors.held import Held
from breaker_actors.lane import Lane
from breaker_actors.messages import Commit, CommitResult
from breaker_actors.meters import Meters
from breaker_actors.net import JournalPeer, Net, journal_name
from breaker_actors.tally import count_events

RETRY_S = 0.2
CHECKPOINTS_MAX = 200
"""So many wait for a Journal at a time: no transition waits behind more."""


class Commits:
    """The lanes of one BreakerActor. `drop(held)` is called for a breaker that has gone to another owner."""

    def __init__(self, net: Net, meters: Meters, drop: Callable[[Held], None]) -> None:
        self._net = net
        self._meters = meters
        self._drop = drop
        self._lanes: dict[int, Lane[Commit, CommitResult]] = {}

    def look(self) -> None:
        """Tells how the lanes stand (see Meters.watch)."""
        lanes = self._lanes.values()
        self._meters.gauge("breakers_lane_waiting", sum(lane.weight for lane in lanes), lane="commit")
        self._meters.total("breakers_lane_calls_total", sum(lane.calls for lane in lanes), lane="commit")

    async def close(self) -> None:
        for lane in self._lanes.values():
            await lane.close()

    async def publish(self, held: Held, effects: tuple[Effect, ...]) -> None:
        """Commits until the journal has answered. Nothing more is applied to this breaker meanwhile."""
        commit = held.commit(effects)
        held.dirty = False
        while not held.dropped:
            result = await self._result(held, commit, self._put(held, commit))
            if result == "ok":
                held.note_committed()
                count_events(self._meters, commit.events)
                return
            if result == "fenced":
                self._let_go(held)
                return
            self._meters.count("breakers_commit_retries_total")
            await asyncio.sleep(RETRY_S)

    async def checkpoint(self, breakers: Iterable[Held]) -> None:
        """Stores the records that changed since last time, CHECKPOINTS_MAX at a time."""
        changed = [held for held in breakers if held.dirty]
        for first in range(0, len(changed), CHECKPOINTS_MAX):
            await self._checkpoint(changed[first : first + CHECKPOINTS_MAX])

    async def _checkpoint(self, changed: Sequence[Held]) -> None:
        waiting = []
        for held in changed:
            if not held.dirty or held.blocked or held.dropped or held.breaker is None:
                continue
            commit = held.commit(())
            held.dirty = False
            waiting.append((held, commit, self._put(held, commit)))
        for held, commit, answer in waiting:
            result = await self._result(held, commit, answer)
            if result == "fenced" and held.committed and held.committed.transition_seq == commit.transition_seq:
                self._let_go(held)
            elif result == "ok":
                self._meters.count("breakers_checkpoints_total")
            else:
                self._meters.count("breakers_commit_retries_total", result == "failed")
                held.dirty = True

    @staticmethod
    async def _result(held: Held, commit: Commit, answer: asyncio.Future[CommitResult]) -> CommitResult:
        try:
            result = await answer
        except BreakersError:
            return "failed"
        if result == "ok" and commit.settings is not None:
            held.stored_version = decode_breaker(commit.settings).version
        return result

    def _let_go(self, held: Held) -> None:
        self._meters.count("breakers_fenced_total")
        self._drop(held)

    def _put(self, held: Held, commit: Commit) -> asyncio.Future[CommitResult]:
        lane = self._lanes.get(held.shard)
        if lane is None:
            peer = JournalPeer(self._net, journal_name(held.shard))
            # bounded by what is held here: a breaker has at most one commit and one checkpoint waiting
            lane = self._lanes[held.shard] = Lane(peer.commit, weight_max=1 << 30, call_weight_max=1_000)
        return lane.put(commit)
