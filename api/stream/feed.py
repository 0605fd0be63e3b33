"""Stop 13 of a sample's life: one pump per Journal shard hears of changes and offers them to every stream client here.

A project's board is loaded for its first client and kept for a moment after its last, so that clients which come and
go cost one load. Nobody is ever waited for: a client that is behind gets the latest states (api/stream/backlog.py), one
that takes nothing is cut; it comes back and gets a snapshot. The same entries tell the caches what to forget.
"""

from __future__ import annotations

import asyncio
import os
import random
import traceback
from collections.abc import Callable, Collection, Iterable
from itertools import cycle

import structlog

from api.admission.outgoing import Direct
from api.lookup.caches import Caches
from api.stream.backlog import Backlog
from api.stream.org_streams import OrgStreams
from api.stream.sse import StreamTiming
from api.stream.state_board import Board, BreakerEntry
from api.stream.subscriber import Subscriber
from breaker_actors.clock import Clock
from breaker_actors.errors import BreakersError, NotFound, Overloaded, Unavailable
from breaker_actors.gateway.gateway import Gateway
from breaker_actors.messages import EVERY_PROJECT, FeedEntry, FeedPage
from breaker_actors.settings import Settings
from breaker_actors.sql.readers import read_for
from breaker_actors.telemetry.meters import Meters

log = structlog.get_logger(__name__)

WAIT_S = 0.5
"""How long a poll waits for news: an answer twice a second shows that the feed is alive."""
POLL_S = 3.0
"""A poll that takes so long is lost: streams must not wait for the call's own limit."""
FRESH_S = 1.0
"""Silence after which the caches are bypassed (semantics.md section 6: a rotation takes effect within a second)."""
BEATS = 20
"""In so many turns all projects get their heartbeats."""
KEPT_S = 10.0
"""A board without clients follows the feed for so long: a client that comes back needs no load."""
PROVEN_S = 60.0
"""So long after access was changed the key of a new stream is looked at once more: a request may have been proven
before, and registers only when its answer has begun."""
KEPT_MAX = 16
"""Boards without clients that are kept; of more, the one that has had none for longest goes."""
BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)


class Watch:
    """One project with clients: its board, and what arrived while the board was being (re)loaded. `org_id`: whose the
    project is; "": its clients came without a key."""

    def __init__(self, settings: Settings, meters: Meters, org_id: str) -> None:
        self.org_id = org_id
        keep, most = settings.subscriber_queue_max, 2 * settings.breakers_per_project_max
        self.backlog = Backlog(keep, keep + most, self._taken_by_all)
        self.subscribers: set[Subscriber] = set()
        self.board: Board | None = None
        self.loaded = asyncio.Event()
        self.stale = True
        self.overrun = False
        self.loading: asyncio.Task[None] | None = None
        self.pending: list[FeedEntry] = []
        self.turn = random.randrange(BEATS)  # nosec B311 # spreads heartbeats, keeps no secret
        self._meters = meters
        self._waking = False

    def subscribe(self, key: tuple[str, str] | None, direct: Direct | None) -> Subscriber:
        """A client that is written to by the calling task."""
        subscriber = Subscriber(self.backlog, asyncio.current_task(), key, self._meters, direct)
        self.subscribers.add(subscriber)
        return subscriber

    def now(self) -> Board:
        """The board as far as the backlog goes; once `loaded` is set there is one."""
        assert self.board is not None
        return self.board

    def push(self, shown: Iterable[BreakerEntry]) -> None:
        """Has every live client told of states; those that the backlog can't bring up to date any more are cut."""
        lost = self.backlog.lost
        for one in shown:
            self.backlog.add(one.name, one.message)
        for subscriber in tuple(self.subscribers) if self.backlog.lost > lost else ():
            if subscriber.live and subscriber.taken < self.backlog.lost:
                subscriber.cut("slow")
        if not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        """Once for all that is pushed in one turn of the loop."""
        self._waking = False
        for subscriber in self.subscribers:
            subscriber.wake()

    def beat(self) -> None:
        """A heartbeat for clients that wait; one that has taken nothing for too many of them is cut."""
        for subscriber in tuple(self.subscribers):
            if subscriber.live and not subscriber.beat():
                subscriber.cut("slow")

    def _taken_by_all(self) -> int:
        return min((s.taken for s in self.subscribers if s.live), default=self.backlog.newest)


class Feed:
    """Pumps, boards and clients of one replica."""

    def __init__(
        self,
        gateway: Gateway,
        settings: Settings,
        clock: Clock,
        meters: Meters,
        timing: StreamTiming | None = None,
    ) -> None:
        self._gateway = gateway
        self._settings = settings
        self._clock = clock
        self._meters = meters
        self._timing = timing or StreamTiming()
        self._heard: dict[int, float | None] = {}
        self._watches: dict[str, Watch] = {}
        self._orgs = OrgStreams.of(settings, os.environ)
        self._left: dict[str, float] = {}
        """When the last client of a kept board left, the longest ago first."""
        self._tasks: list[asyncio.Task[None]] = []
        self._access_changed = asyncio.Event()
        self._unchecked: set[str] = set()
        self._changed_s = -PROVEN_S
        self.ended = 0
        """Streams so far that are over."""
        self.caches = Caches(gateway.store, self.fresh, clock.monotonic)
        self.ears: list[Callable[[FeedEntry], None]] = []
        """Who is told of each entry, behind the caches; "config" of EVERY_PROJECT: anything may have changed."""
        meters.watch(lambda: meters.gauge("breakers_stream_clients", self.stream_count()))

    # life cycle

    def start(self) -> None:
        """Starts the pumps and the heartbeat; needs a running loop."""
        loops = (self._beat(), self._watch_keys())
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        for shard in range(self._settings.journals):
            self.follow(shard)

    def follow(self, shard: int) -> None:
        """Starts a pump for the shard, unless there is one."""
        if shard not in self._heard:
            self._heard[shard] = None
            self._tasks.append(asyncio.create_task(self._pump(shard)))

    async def stop(self) -> None:
        """Cuts every client off and ends every task."""
        self.cut_all()
        loading = [w.loading for w in self._watches.values() if w.loading is not None]
        for task in (tasks := self._tasks + loading):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks, self._heard = [], {}

    def cut_all(self) -> None:
        """Drops all connections of stream clients, e.g. before this replica goes away."""
        for subscriber in [s for watch in self._watches.values() for s in watch.subscribers]:
            subscriber.cut("stopped")

    def fresh(self) -> bool:
        """Whether a shard was heard from within the last second: changes of configuration and access are told by all
        Journals, so that one of them that is away costs nothing."""
        now = self._clock.monotonic()
        return any(heard is not None and now - heard <= FRESH_S for heard in self._heard.values())

    # clients

    def stream_count(self, project_id: str | None = None) -> int:
        """Open streams of one project, or of all."""
        chosen = [watch for name, watch in self._watches.items() if project_id in (None, name)]
        return sum(len(watch.subscribers) for watch in chosen)

    def admit(self, project_id: str, org_id: str) -> None:
        """Refuses a client while the project, or its organisation, has as many streams as it may have here."""
        try:
            self._orgs.admit(org_id)
            if self.stream_count(project_id) >= self._settings.streams_per_project_max:
                limit = {"limit": "BREAKERS_STREAMS_PER_PROJECT_MAX", "retry_after_s": 5}
                raise Overloaded("Too many open streams of this project.", limit)
        except Overloaded:
            self._meters.count("breakers_streams_refused_total")
            raise

    def subscribe(
        self, project_id: str, key: tuple[str, str] | None = None, direct: Direct | None = None
    ) -> Subscriber:
        """Registers the calling task as a client. It gets nothing before `snapshot` has made it live. `direct`: where
        it can be written to while it waits."""
        watch = self._watches.get(project_id)
        if watch is None:
            watch = self._watches[project_id] = Watch(self._settings, self._meters, "" if key is None else key[0])
        self._left.pop(project_id, None)
        subscriber = watch.subscribe(key, direct)
        self._orgs.opened(_org_of(subscriber))
        if key is not None and self._clock.monotonic() - self._changed_s < PROVEN_S:
            self._check_keys(project_id)  # it may have been revoked since it was proven
        self._meters.count("breakers_streams_opened_total")
        self._reload(project_id, watch, only_if_stale=True)
        return subscriber

    async def snapshot(self, project_id: str, subscriber: Subscriber) -> bytes:
        """The first piece of all states, all of them when they are few; `subscriber.next()` gives the others and then
        what has changed since: no change is lost or doubled."""
        watch = self._watches[project_id]
        await watch.loaded.wait()
        return subscriber.begin(watch.now)

    def unsubscribe(self, project_id: str, subscriber: Subscriber) -> None:
        """Forgets a client. The board of a project that now has none is kept for a moment."""
        self.ended += 1
        self._orgs.closed(_org_of(subscriber))
        self._meters.count("breakers_streams_closed_total", reason=subscriber.ended)
        watch = self._watches.get(project_id)
        if watch is None:
            return
        watch.subscribers.discard(subscriber)
        if not watch.subscribers:
            self._left[project_id] = self._clock.monotonic()
            if len(self._left) > KEPT_MAX:
                self._drop(next(iter(self._left)))

    def _drop(self, project_id: str) -> None:
        """Forgets a project that has no clients."""
        self._left.pop(project_id, None)
        watch = self._watches.pop(project_id)
        if watch.loading is not None:
            watch.loading.cancel()

    # what the journal says

    async def _pump(self, shard: int) -> None:
        epoch, after, failures = 0, 0, 0
        while True:
            try:
                async with asyncio.timeout(POLL_S):
                    page = await self._gateway.feed(shard, epoch, after, WAIT_S)
                self._take(page, reset=page.reset or page.epoch != epoch)
                epoch, after, failures = page.epoch, page.position, 0
                self._heard[shard] = self._clock.monotonic()
                continue
            except (Unavailable, TimeoutError) as error:
                self._meters.count("breakers_feed_failures_total")
                log.warning("feed_unavailable", shard=shard, failures=failures, error=str(error))
            except Exception:
                self._meters.count("breakers_feed_failures_total")
                log.error("feed_failed", shard=shard, failures=failures, traceback=traceback.format_exc())
            await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
            failures += 1

    def _take(self, page: FeedPage, reset: bool) -> None:
        if reset:
            self._meters.count("breakers_feed_resets_total")
            self._start_over()
        for entry in page.entries:
            self._follow(entry)

    def _start_over(self) -> None:
        """Anything may have changed."""
        self._changed_s = self._clock.monotonic()
        self.caches.forget_all()
        _tell(self.ears, FeedEntry(0, "config", EVERY_PROJECT))
        self._check_keys(EVERY_PROJECT)
        for project_id in tuple(self._watches):
            self._renew(project_id)

    def _follow(self, entry: FeedEntry) -> None:
        if entry.kind == "config" and entry.project_id == EVERY_PROJECT:
            self._start_over()
            return
        if entry.kind == "keys":
            self._changed_s = self._clock.monotonic()
            self.caches.forget_access(entry.project_id)
            self._check_keys(entry.project_id)
            _tell(self.ears, entry)
            return
        if entry.kind == "config":
            self.caches.forget_project(entry.project_id)
        _tell(self.ears, entry)
        watch = self._watches.get(entry.project_id)
        if watch is not None and entry.kind == "config":
            self._renew(entry.project_id)
        elif watch is not None:
            self._show(watch, entry)

    def _renew(self, project_id: str) -> None:
        """The board is no longer right: loaded again for its clients, forgotten without."""
        if project_id in self._left:
            self._drop(project_id)
        else:
            self._reload(project_id, self._watches[project_id])

    def _show(self, watch: Watch, entry: FeedEntry) -> None:
        """A state entry goes to the board at once, and to the next board if one is on its way."""
        if watch.loading is not None:
            watch.pending.append(entry)
            # A load that outlasts this many entries is void; it starts over from a later position.
            if len(watch.pending) > self._settings.feed_entries_max:
                watch.pending.clear()
                watch.overrun = True
        if watch.board is None:
            return
        shown = watch.board.apply(entry)
        if shown is not None:
            watch.push([shown])

    def _check_keys(self, project_id: str) -> None:
        """Has the keys looked at that streams of the project, or all, came with. Without streams there are none."""
        if project_id == EVERY_PROJECT or project_id in self._watches:
            self._unchecked.add(project_id)
            self._access_changed.set()

    async def _watch_keys(self) -> None:
        """Cuts the streams of keys that are revoked: new requests of theirs are refused anyway."""
        while True:
            await self._access_changed.wait()
            self._access_changed.clear()
            named, self._unchecked = self._unchecked, set()
            try:
                await self._cut_revoked(named)
            except BreakersError as error:
                log.warning("keys_not_checked", error=str(error))
                self._unchecked |= named
                self._access_changed.set()
                await asyncio.sleep(BACKOFF_S[-1])

    async def _cut_revoked(self, project_ids: Collection[str]) -> None:
        watches = [w for name, w in self._watches.items() if {name, EVERY_PROJECT} & set(project_ids)]
        keyed = [(s, s.key) for watch in watches for s in watch.subscribers if s.key is not None]
        if not keyed:
            return
        valid = await self._gateway.store.live_keys(sorted({key_id for _, (_, key_id) in keyed}))
        for subscriber, (_, key_id) in keyed:
            if key_id not in valid:
                subscriber.cut("revoked")

    # boards

    def _reload(self, project_id: str, watch: Watch, only_if_stale: bool = False) -> None:
        """Has the board loaded (again); several requests during one load make one more load."""
        watch.stale = watch.stale or not only_if_stale
        if watch.stale and watch.loading is None:
            watch.loading = asyncio.create_task(self._load(project_id, watch))

    async def _load(self, project_id: str, watch: Watch) -> None:
        """Reads the board in its organisation's turns, also where the feed began it."""
        read_for(watch.org_id)
        failures = 0
        while watch.stale:
            watch.stale = watch.overrun = False
            watch.pending.clear()
            try:
                snapshot = await self._gateway.store.stream_snapshot(project_id, self._clock.now_ms())
            except NotFound:
                watch.stale = True
                for subscriber in watch.subscribers:
                    subscriber.cut("gone")
                break
            except Exception as error:
                self._meters.count("breakers_board_loads_total", result="failed")
                log.warning("snapshot_failed", project_id=project_id, failures=failures, error=str(error))
                watch.stale = True
                await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
                failures += 1
            else:
                self._swap(watch, await asyncio.to_thread(Board, snapshot))
        watch.loading = None

    def _swap(self, watch: Watch, board: Board) -> None:
        """Takes the new board, brought up to what has arrived meanwhile, and tells the clients the differences."""
        self._meters.count("breakers_board_loads_total", result="overrun" if watch.overrun else "ok")
        if watch.overrun:
            watch.stale = True
            return
        for entry in watch.pending:
            board.apply(entry)
        old, watch.board = watch.board, board
        watch.loaded.set()
        if old is not None:
            watch.push(board.diff_from(old))

    async def _beat(self) -> None:
        """One timer for all clients: a comment every few seconds keeps proxies and one impatient client at ease.
        Projects have their turns spread over that time, so that messages need not wait for all of them."""
        for turn in cycle(range(BEATS)):
            await asyncio.sleep(self._timing.heartbeat_s / BEATS)
            now = self._clock.monotonic()
            for project_id in [name for name, left in self._left.items() if now - left >= KEPT_S]:
                self._drop(project_id)
            for shard in range(self._gateway.journals()):  # those that came later; a stream follows its own at once
                self.follow(shard)
            for watch in [watch for watch in self._watches.values() if watch.turn == turn]:
                watch.beat()


def _org_of(subscriber: Subscriber) -> str:
    """ "": it came without a key."""
    return subscriber.key[0] if subscriber.key is not None else ""


def _tell(ears: Iterable[Callable[[FeedEntry], None]], entry: FeedEntry) -> None:
    for ear in ears:
        ear(entry)
