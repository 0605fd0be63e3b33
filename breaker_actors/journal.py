"""The Journal (stop 12 of a sample's life): the single writer of events and records of a shard of projects.

Gets Commits from BreakerActors, stores them in group transactions, then wakes the replicas' long polls and, when
somebody may have to be told, the Notifier. Nothing is visible before it is stored. Feed entries are kept in memory, at
most feed_entries_max; who lags further is reset.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Literal

from breaker_actors.errors import BreakersError, Fenced, Unavailable
from breaker_actors.lane import Lane
from breaker_actors.messages import EVERY_PROJECT, Commit, CommitResult, FeedEntry, FeedPage, JournalFigures
from breaker_actors.meters import Meters
from breaker_actors.settings import Settings
from breaker_actors.stores.base import JournalHead, Store
from breaker_actors.stores.rows import alert_of

GROUP_MAX = 2_000
PAGE_MAX = 5_000
ACCESS_S = 0.4
"""How often the store is asked whether keys or secrets were changed: by the command line nobody is told."""


class JournalHost:
    """Everything a Journal does, without Ray. `start()` fences its predecessor. `nudge` is called after a commit that
    somebody may have to be told of; it must not wait. `superseded` is called when a newer one holds the shard."""

    def __init__(
        self,
        shard: int,
        store: Store,
        settings: Settings,
        nudge: Callable[[], None] = lambda: None,
        superseded: Callable[[], None] = lambda: None,
    ) -> None:
        self.shard = shard
        self._store = store
        self._nudge = nudge
        self._superseded = superseded
        self._head: JournalHead | None = None
        self._entries: deque[FeedEntry] = deque(maxlen=settings.feed_entries_max)
        self._position = 0
        self._news = asyncio.Event()
        # projects of commits with an unknown outcome; every project at most
        self._doubtful: set[str] = set()
        # bounded by the breakers there are: each has at most one commit and one checkpoint in flight
        self._group: Lane[Commit, CommitResult] = Lane(self._write, weight_max=1 << 30, call_weight_max=GROUP_MAX)
        self._watching: asyncio.Task[None] | None = None
        self.meters = Meters("journal", f"journal-{shard}")
        self.meters.watch(self._look)

    async def start(self) -> None:
        access = await self._store.access_version()
        self._head = await self._store.open_journal(self.shard)
        self._watching = asyncio.create_task(self._watch_access(access))

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._group.close()
        self._news.set()

    async def ready(self) -> None:
        """Returns while this journal holds its shard."""
        self._holding()

    async def status(self) -> JournalFigures:
        head = self._holding()
        return JournalFigures(epoch=head.epoch, sequence=head.sequence, position=self._position)

    async def commit(self, commits: Sequence[Commit]) -> list[CommitResult]:
        """Stores commits, each for itself; "failed" ones may be sent again."""
        self._holding()
        futures = [self._group.put(c) for c in commits]
        return [await self._result(f) for f in futures]

    async def announce(self, kind: Literal["config", "keys"], project_ids: Sequence[str]) -> None:
        """Tells replicas that something beside states has changed. Raises Unavailable in a journal that was replaced:
        whoever listens to its successor would not hear of it."""
        await self._hold()
        sequence = self._holding().sequence
        self._push([FeedEntry(sequence, kind, project_id) for project_id in project_ids])

    async def poll(self, epoch: int, after: int, wait_s: float) -> FeedPage:
        """Entries after a position of this epoch; waits up to wait_s for the first one."""
        mine = self._holding().epoch
        oldest = self._position - len(self._entries)
        if epoch != mine or after < oldest or after > self._position:
            return FeedPage(mine, self._position, [], reset=True)
        if after == self._position and wait_s > 0:
            await self._wait(wait_s)
            oldest = self._position - len(self._entries)
            if after < oldest:
                return FeedPage(mine, self._position, [], reset=True)
        count = min(self._position - after, PAGE_MAX)
        start = after - oldest
        return FeedPage(mine, after + count, [self._entries[i] for i in range(start, start + count)])

    # ------------------------------------------------------------------ inside

    def _holding(self) -> JournalHead:
        if self._head is None:
            raise Unavailable("this journal does not hold its shard")
        return self._head

    async def _hold(self) -> None:
        """Looks whether a newer journal has taken the shard, and whether what nobody knew the outcome of was stored."""
        held = self._holding()
        stored = await self._store.journal_head(self.shard)
        if self._head is not held:
            return
        if stored.epoch != held.epoch:
            self._give_up()
        elif self._doubtful and stored != held:
            self._go_on_from(stored)

    def _give_up(self) -> None:
        """Stays silent for good. It may have been our own opening, sent twice, that took the shard: the process ends,
        and its successor opens anew if it has none yet."""
        self._head = None
        self._superseded()

    async def _wait(self, wait_s: float) -> None:
        news = self._news
        try:
            async with asyncio.timeout(wait_s):
                await news.wait()
        except TimeoutError:
            pass

    async def _watch_access(self, known: int) -> None:
        """Announces changes of who may do what, whoever made them (semantics.md section 6: within a second)."""
        while True:
            await asyncio.sleep(ACCESS_S)
            with contextlib.suppress(BreakersError):
                await self._hold()
                found = await self._store.access_version()
                if found != known:
                    await self.announce("keys", [EVERY_PROJECT])
                    known = found

    @staticmethod
    async def _result(future: asyncio.Future[CommitResult]) -> CommitResult:
        try:
            return await future
        except BreakersError:
            return "failed"

    async def _write(self, commits: list[Commit]) -> list[CommitResult]:
        head = self._holding()
        try:
            with self.meters.timed("breakers_journal_commit_seconds"):
                self._head, results = await self._store.commit(head, commits)
        except BreakersError as error:
            self.meters.count("breakers_journal_commits_total", len(commits), result="failed")
            self._doubtful.update(c.project_id for c in commits if c.events or c.announce)
            if isinstance(error, Fenced):
                await self._find_place(head)
            raise
        self._doubtful.clear()  # had it been stored, this one would have been fenced
        if any(alert_of(e.prev, e.curr) for c, r in zip(commits, results, strict=True) if r == "ok" for e in c.events):
            self._nudge()
        self._count(commits, results)
        sequence = self._head.sequence
        self._push(
            [
                FeedEntry(sequence, "state", c.project_id, c.breaker_id, c.state, c.allow_rate, c.transition_seq)
                for c, result in zip(commits, results, strict=True)
                if result == "ok" and (c.events or c.announce)
            ]
        )
        return results

    async def _find_place(self, head: JournalHead) -> None:
        """The stored row is not where we left it: a commit of unknown outcome was ours and done (go on behind it, its
        commits come again), or a newer journal has taken the shard."""
        stored = await self._store.journal_head(self.shard)
        if stored.epoch == head.epoch:
            self._go_on_from(stored)
        else:
            self._give_up()

    def _go_on_from(self, stored: JournalHead) -> None:
        """Its commits come again if their owners still live; replicas look for themselves."""
        self._head = stored
        self._push([FeedEntry(stored.sequence, "config", project_id) for project_id in sorted(self._doubtful)])
        self._doubtful.clear()

    def _count(self, commits: list[Commit], results: list[CommitResult]) -> None:
        self.meters.observe("breakers_journal_group_commits", len(commits))
        for result, n in Counter(results).items():
            self.meters.count("breakers_journal_commits_total", n, result=result)
        events = sum(len(c.events) for c, result in zip(commits, results, strict=True) if result == "ok")
        self.meters.count("breakers_events_total", events)

    def _look(self) -> None:
        """How things stand (see Meters.watch)."""
        self.meters.gauge("breakers_lane_waiting", self._group.weight, lane="journal")
        self.meters.total("breakers_lane_calls_total", self._group.calls, lane="journal")

    def _push(self, entries: list[FeedEntry]) -> None:
        if entries:
            self.meters.count("breakers_feed_entries_total", len(entries), kind=entries[0].kind)
            self._entries.extend(entries)
            self._position += len(entries)
            news, self._news = self._news, asyncio.Event()
            news.set()
