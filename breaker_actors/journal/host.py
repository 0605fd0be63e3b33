"""The Journal (stop 12 of a sample's life): the single writer of events and records of a shard of projects.

Gets Commits from BreakerActors, stores them in group transactions, then wakes the replicas' long polls and, when
somebody may have to be told, the Notifier. Nothing is visible before it is stored. Feed entries are kept in memory, at
most feed_entries_max; who lags further is reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from breaker_actors.clock import Clock
from breaker_actors.errors import BreakersError, Fenced, Overloaded, TookTooLong, Unavailable
from breaker_actors.journal.group_size import GroupSize
from breaker_actors.journal.listeners import Listeners
from breaker_actors.journal.newest import Newest
from breaker_actors.journal.transition_budgets import Budgets
from breaker_actors.journal.transition_lines import TransitionLines
from breaker_actors.journal.unstorable import Unstorable
from breaker_actors.messages import (
    EVERY_PROJECT,
    SESSIONS,
    Commit,
    CommitResult,
    FeedEntry,
    FeedPage,
    JournalFigures,
    Paced,
)
from breaker_actors.settings import Settings
from breaker_actors.store.base import JournalStore
from breaker_actors.store.rows import AccessVersion, JournalHead, alert_of
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport.lane import Lane

GROUP_MAX = 2_000
"""Transitions of one group with their deliveries (`listeners.py`), and commits; fewer where they take long
(`group_size.py`). Whoever comes while one is stored is in the next one."""
PUT_OFF_MS, PUT_OFF_MAX_MS = 100, 5_000
"""Of one organisation a call stores as much as a group, whoever sent it has others that wait for its end; what is
beyond comes again, later by so much for each group before it."""
ORGS_KNOWN_MAX = 100_000
BURST_MIN = 20_000
"""Transitions that a project may store at once: all of 10,000 breakers trip and begin to recover unpaced."""
PAGE_MAX = 5_000
ACCESS_S = 0.4
"""How often the store is asked whether keys or secrets were changed: by the command line nobody is told."""


class JournalHost:
    """Everything a Journal does, without Ray. `start()` fences its predecessor. `nudge` is called after a commit that
    somebody may have to be told of; it must not wait. `superseded` is called when a newer one holds the shard."""

    def __init__(
        self,
        shard: int,
        store: JournalStore,
        clock: Clock,
        settings: Settings,
        nudge: Callable[[], None] = lambda: None,
        superseded: Callable[[], None] = lambda: None,
    ) -> None:
        self.shard = shard
        self._store = store
        self._clock = clock
        self._nudge = nudge
        self._superseded = superseded
        self._head: JournalHead | None = None
        self._entries: deque[FeedEntry] = deque(maxlen=settings.feed_entries_max)
        self._position = 0
        self._news = asyncio.Event()
        # projects of commits with an unknown outcome; every project at most
        self._doubtful: set[str] = set()
        self._orgs: dict[str, str] = {}
        self._unknown: set[str] = set()
        self._listeners = Listeners(store)
        self._size = GroupSize(GROUP_MAX)
        self.meters = Meters("journal", f"journal-{shard}")
        self._newest = Newest(self.meters)
        # bounded by the breakers there are: each has at most one commit and one checkpoint in flight
        self._group: Lane[Commit, CommitResult] = Lane(
            partial(self._newest.in_order, self._write),
            weigh=self._listeners.weight,
            weight_max=1 << 30,
            call_weight_max=GROUP_MAX,
        )
        self._watching: asyncio.Task[None] | None = None
        per_minute = settings.transitions_per_minute_max
        self._budgets = Budgets(per_minute, max(per_minute, BURST_MIN))
        self._unstorable = Unstorable()
        self._lines = TransitionLines(self.meters)
        self.meters.watch(self._look)
        self.meters.watch_asides(store.asides)

    async def start(self) -> None:
        access = await self._store.access_version()
        self._head = await self._store.open_journal(self.shard, self._clock.now_ms())
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
        limits = self._budgets.limits(asyncio.get_running_loop().time())
        return JournalFigures(epoch=head.epoch, sequence=head.sequence, position=self._position, limits=limits)

    async def commit(self, commits: Sequence[Commit]) -> list[CommitResult | Paced]:
        """Stores commits, each for itself; "failed" ones may be sent again, Paced ones after a while: of those whose
        project's budget is spent, of what is more than a group of one organisation, and of what was refused by itself
        before (`unstorable.py`). Nobody else waits behind those."""
        self._holding()
        if self._listeners.has_new(commits):
            self._listeners.hear(commits)
            with contextlib.suppress(BreakersError):
                await self._listeners.learn()
            self._holding()
        costs = [self._listeners.cost(c) for c in commits]
        taken = Counter[str]()
        answers = [self._answer(c, cost, taken) for c, cost in zip(commits, costs, strict=True)]
        return [
            a if isinstance(a, Paced) else await self._result(c, cost, a)
            for c, cost, a in zip(commits, costs, answers, strict=True)
        ]

    def _answer(self, commit: Commit, cost: int, taken: Counter[str]) -> asyncio.Future[CommitResult] | Paced:
        """Its result to come, or when it is to come again: it was refused by itself, others of its organisation fill
        the call, or its project's budget is spent. `taken`: rows that the call stores for each organisation before
        it."""
        if rest_s := self._unstorable.wait_s(commit.breaker_id, asyncio.get_running_loop().time()):
            return Paced(math.ceil(rest_s * 1000))
        rows, owner = self._listeners.rows(commit), self._orgs.get(commit.project_id, commit.project_id)
        if rows and taken[owner] and taken[owner] + rows > GROUP_MAX:
            taken[owner] += rows
            self.meters.count("breakers_journal_commits_total", result="put_off")
            return Paced(min(PUT_OFF_MAX_MS, math.ceil(PUT_OFF_MS * taken[owner] / GROUP_MAX)))
        if (paced := self._pace(commit, cost)) is not None:
            return paced
        taken[owner] += rows
        return self._group.put(commit, self._owner_of(commit), commit.project_id)

    def _pace(self, commit: Commit, cost: int) -> Paced | None:
        if not commit.events:
            return None
        now = asyncio.get_running_loop().time()
        wait_s = self._budgets.wait_s(commit.project_id, commit.breaker_id, cost, now)
        return Paced(math.ceil(wait_s * 1000)) if wait_s else None

    def _owner_of(self, commit: Commit) -> str:
        """Organisations take turns in the group; for a moment each project that is new here has one of its own."""
        org_id = self._orgs.get(commit.project_id)
        if org_id is None:
            self._unknown.add(commit.project_id)
            return commit.project_id
        return org_id

    async def _learn_owners(self) -> None:
        """A project keeps its organisation for ever."""
        if self._unknown:
            asked, self._unknown = sorted(self._unknown), set()
            if len(self._orgs) + len(asked) > ORGS_KNOWN_MAX:
                self._orgs.clear()
            self._orgs |= await self._store.organisations_of(asked)

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

    async def _watch_access(self, known: AccessVersion) -> None:
        """Announces changes of who may do what, whoever made them (semantics.md section 6: within a second)."""
        while True:
            await asyncio.sleep(ACCESS_S)
            self._budgets.forget(asyncio.get_running_loop().time())
            with contextlib.suppress(BreakersError):
                await self._hold()
                await self._learn_owners()
                await self._listeners.learn()
                found = await self._store.access_version()
                if found != known:
                    only_sessions = found.access == known.access
                    await self.announce("keys", [SESSIONS if only_sessions else EVERY_PROJECT])
                    known = found

    async def _result(self, commit: Commit, cost: int, future: asyncio.Future[CommitResult]) -> CommitResult:
        try:
            return await future
        except BreakersError:
            self._budgets.refund(commit.project_id, cost)
            return "failed"

    async def _write(self, commits: list[Commit]) -> list[CommitResult]:
        """Stores a group. When one of its commits can't be stored at all, whatever the reason, the others are: halves
        are tried apart until it is alone; it is set aside, and comes again if its breaker still wants it, after a while
        and alone. So are those of a group that took too long, which the same again would, too."""
        if len(commits) > 1 and any(c.breaker_id in self._unstorable for c in commits):
            others = [c for c in commits if c.breaker_id not in self._unstorable]
            results = iter(await self._write(others) if others else ())
            kept = set(map(id, others))
            return [next(results) if id(c) in kept else (await self._write([c]))[0] for c in commits]
        try:
            return await self._write_group(commits)
        except TookTooLong:
            if len(commits) == 1:
                return ["failed"]
        except (Fenced, Overloaded, Unavailable):
            raise
        except Exception as error:
            if len(commits) == 1:
                self._unstorable.note(commits[0].breaker_id, asyncio.get_running_loop().time())
                where = (commits[0].breaker_id, error, commits[0].record, 0, commits[0].project_id)
                self._store.asides.note("commit", *where)
                self.meters.count("breakers_journal_commits_total", result="failed")
                return ["failed"]
        half = len(commits) // 2
        return await self._write(commits[:half]) + await self._write(commits[half:])

    async def _write_group(self, commits: list[Commit]) -> list[CommitResult]:
        head, clock = self._holding(), asyncio.get_running_loop().time
        begun = clock()
        try:
            with self.meters.timed("breakers_journal_commit_seconds"):
                self._head, results = await self._store.commit(head, commits)
        except BreakersError as error:
            self.meters.count("breakers_journal_commits_total", len(commits), result="failed")
            self._doubtful.update(c.project_id for c in commits if c.events or c.announce)
            if isinstance(error, Fenced):
                await self._find_place(head)
            raise
        self._size.learn(sum(map(self._listeners.weight, commits)), clock() - begun)
        self._group.call_weight_max = self._size.rows
        self._doubtful.clear()  # had it been stored, this one would have been fenced
        for commit in commits:
            self._unstorable.forget(commit.breaker_id)
        judged = list(zip(commits, results, strict=True))
        # Of a repetition nobody knows whether it was told of, but to the feed: newer words may stand there by now.
        stored = [commit for commit, result in judged if result in ("ok", "repeated")]
        for commit in stored:
            self._newest.note(commit)
        if any(alert_of(e.prev, e.curr) for c in stored for e in c.events if e.hidden_by != "override"):
            self._nudge()
        self._count(stored, results)
        sequence = self._head.sequence
        self._push(
            [
                FeedEntry(sequence, "state", c.project_id, c.breaker_id, c.state, c.allow_rate, c.transition_seq)
                for c, result in judged
                if result == "ok" and c.seen()
            ]
        )
        self._lines.write(stored, asyncio.get_running_loop().time())
        return ["ok" if result == "repeated" else result for result in results]

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

    def _count(self, stored: list[Commit], results: list[CommitResult]) -> None:
        self.meters.observe("breakers_journal_group_commits", len(results))
        for result, n in Counter(results).items():
            self.meters.count("breakers_journal_commits_total", n, result=result)
        self.meters.count("breakers_events_total", sum(len(c.events) for c in stored))

    def _look(self) -> None:
        """How things stand (see Meters.watch)."""
        self.meters.total("breakers_transitions_paced_total", self._budgets.paced)
        self.meters.gauge("breakers_transitions_waiting", self._budgets.waiting)
        self.meters.gauge("breakers_lane_waiting", self._group.weight, lane="journal")
        self.meters.total("breakers_lane_calls_total", self._group.calls, lane="journal")

    def _push(self, entries: list[FeedEntry]) -> None:
        if entries:
            self.meters.count("breakers_feed_entries_total", len(entries), kind=entries[0].kind)
            self._entries.extend(entries)
            self._position += len(entries)
            news, self._news = self._news, asyncio.Event()
            news.set()
