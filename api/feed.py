"""Stop 13 of a sample's life: one pump per Journal shard hears of changes and offers them to every stream client here.

A project's board is loaded for its first client and dropped with its last. Nobody is ever waited for: a client whose
queue is full is cut off; it comes back and gets a snapshot. The same entries tell the caches what to forget.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Sequence
from itertools import cycle
from typing import Literal

import structlog

from api.board import Board
from api.caches import Caches
from api.sse import HEARTBEAT, StreamTiming
from breaker_actors.clock import Clock
from breaker_actors.errors import BreakersError, NotFound, Overloaded, Unavailable
from breaker_actors.gateway import Gateway
from breaker_actors.messages import EVERY_PROJECT, FeedEntry, FeedPage
from breaker_actors.meters import Meters
from breaker_actors.settings import Settings

log = structlog.get_logger(__name__)

WAIT_S = 0.5
"""How long a poll waits for news: an answer twice a second shows that the feed is alive."""
POLL_S = 3.0
"""A poll that takes so long is lost: streams must not wait for the call's own limit."""
FRESH_S = 1.0
"""Silence after which the caches are bypassed (semantics.md section 6: a rotation takes effect within a second)."""
Ending = Literal["left", "slow", "gone", "revoked", "stopped"]
"""Why a stream ended: its client left, was too slow, its project or its key is gone, or this replica stops."""
BEATS = 20
"""In so many turns all projects get their heartbeats."""
BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)


class Subscriber:
    """One stream client: a bounded queue and the task that writes to the socket. `key`: the organisation and the id of
    the API key it came with."""

    def __init__(self, queue_max: int, task: asyncio.Task[object] | None, key: tuple[str, str] | None) -> None:
        self.key = key
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(queue_max)
        self._task = task
        self.live = False
        self.ended: Ending = "left"

    def offer(self, message: bytes) -> bool:
        """False when the client is too slow for its queue."""
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            return False
        return True

    async def next(self) -> bytes:
        """All that waits, in one piece."""
        chunk = [await self._queue.get()]
        while not self._queue.empty():
            chunk.append(self._queue.get_nowait())
        return b"".join(chunk)

    def cut(self, why: Ending) -> None:
        """Ends the client's task wherever it waits, be it in a write nobody reads.

        The response is left unfinished, so the server drops the connection: a clean end would silence one public
        client for good.
        """
        self.ended = why
        if self._task is not None:
            self._task.cancel()


class Watch:
    """One project with clients: its board, and what arrived while the board was being (re)loaded."""

    def __init__(self) -> None:
        self.subscribers: set[Subscriber] = set()
        self.board: Board | None = None
        self.loaded = asyncio.Event()
        self.stale = True
        self.overrun = False
        self.loading: asyncio.Task[None] | None = None
        self.pending: list[FeedEntry] = []
        self.turn = random.randrange(BEATS)

    def push(self, message: bytes) -> list[Subscriber]:
        """Offers a message to every live client; those that could not take it."""
        return [s for s in self.subscribers if s.live and not s.offer(message)]


class Feed:
    """Pumps, boards and clients of one replica."""

    def __init__(
        self,
        gateway: Gateway,
        settings: Settings,
        clock: Clock,
        meters: Meters,
        timing: StreamTiming | None = None,
        shards: Sequence[int] = (0,),
    ) -> None:
        self._gateway = gateway
        self._settings = settings
        self._clock = clock
        self._meters = meters
        self._timing = timing or StreamTiming()
        self._heard: dict[int, float | None] = dict.fromkeys(shards)
        self._watches: dict[str, Watch] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._access_changed = asyncio.Event()
        self.ended = 0
        """Streams so far that are over."""
        self.caches = Caches(gateway.store, self.fresh)
        meters.watch(lambda: meters.gauge("breakers_stream_clients", self.stream_count()))

    # life cycle

    def start(self) -> None:
        """Starts the pumps and the heartbeat; needs a running loop."""
        self._tasks = [asyncio.create_task(self._pump(shard)) for shard in self._heard]
        self._tasks += [asyncio.create_task(self._beat()), asyncio.create_task(self._watch_keys())]

    async def stop(self) -> None:
        """Cuts every client off and ends every task."""
        self.cut_all()
        loading = [w.loading for w in self._watches.values() if w.loading is not None]
        for task in (tasks := self._tasks + loading):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks = []

    def cut_all(self) -> None:
        """Drops all connections of stream clients, e.g. before this replica goes away."""
        for subscriber in [s for watch in self._watches.values() for s in watch.subscribers]:
            subscriber.cut("stopped")

    def fresh(self) -> bool:
        """Whether every shard was heard from within the last second."""
        now = self._clock.monotonic()
        return all(heard is not None and now - heard <= FRESH_S for heard in self._heard.values())

    # clients

    def stream_count(self, project_id: str | None = None) -> int:
        """Open streams of one project, or of all."""
        chosen = [watch for name, watch in self._watches.items() if project_id in (None, name)]
        return sum(len(watch.subscribers) for watch in chosen)

    def admit(self, project_id: str) -> None:
        """Refuses a client while the project has as many streams as it may have here."""
        if self.stream_count(project_id) >= self._settings.streams_per_project_max:
            self._meters.count("breakers_streams_refused_total")
            raise Overloaded("Too many open streams of this project.", {"retry_after_s": 5})

    def subscribe(self, project_id: str, key: tuple[str, str] | None = None) -> Subscriber:
        """Registers the calling task as a client. It gets nothing before `snapshot` has made it live."""
        watch = self._watches.setdefault(project_id, Watch())
        subscriber = Subscriber(self._settings.subscriber_queue_max, asyncio.current_task(), key)
        watch.subscribers.add(subscriber)
        self._meters.count("breakers_streams_opened_total")
        self._reload(project_id, watch, only_if_stale=True)
        return subscriber

    async def snapshot(self, project_id: str, subscriber: Subscriber) -> bytes:
        """All states as one piece; every later change is in the subscriber's queue, none is lost or doubled between."""
        watch = self._watches[project_id]
        await watch.loaded.wait()
        assert watch.board is not None
        subscriber.live = True
        return watch.board.everything()

    def unsubscribe(self, project_id: str, subscriber: Subscriber) -> None:
        """Forgets a client, and the project's board with its last one."""
        self.ended += 1
        self._meters.count("breakers_streams_closed_total", reason=subscriber.ended)
        watch = self._watches.get(project_id)
        if watch is None:
            return
        watch.subscribers.discard(subscriber)
        if not watch.subscribers:
            del self._watches[project_id]
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
        self.caches.forget_all()
        self._access_changed.set()
        for project_id, watch in self._watches.items():
            self._reload(project_id, watch)

    def _follow(self, entry: FeedEntry) -> None:
        if entry.kind == "config" and entry.project_id == EVERY_PROJECT:
            self._start_over()
            return
        if entry.kind == "keys":
            self.caches.forget_access()
            self._access_changed.set()
            return
        if entry.kind == "config":
            self.caches.forget_project(entry.project_id)
        watch = self._watches.get(entry.project_id)
        if watch is not None and entry.kind == "config":
            self._reload(entry.project_id, watch)
        elif watch is not None:
            self._show(watch, entry)

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
        message = watch.board.apply(entry)
        if message is not None:
            self._push(watch, message)

    def _push(self, watch: Watch, message: bytes) -> None:
        slow = watch.push(message)
        self._meters.count("breakers_stream_messages_total", len(watch.subscribers) - len(slow))
        for subscriber in slow:
            subscriber.live = False
            subscriber.cut("slow")

    async def _watch_keys(self) -> None:
        """Cuts the streams of keys that are revoked: new requests of theirs are refused anyway."""
        while True:
            await self._access_changed.wait()
            self._access_changed.clear()
            try:
                await self._cut_revoked()
            except BreakersError as error:
                log.warning("keys_not_checked", error=str(error))
                self._access_changed.set()
                await asyncio.sleep(BACKOFF_S[-1])

    async def _cut_revoked(self) -> None:
        keyed = [s for watch in self._watches.values() for s in watch.subscribers if s.key is not None]
        for org_id in {s.key[0] for s in keyed if s.key is not None}:
            valid = {(org_id, row.id) for row in await self._gateway.store.list_keys(org_id)}
            for subscriber in keyed:
                if subscriber.key is not None and subscriber.key[0] == org_id and subscriber.key not in valid:
                    subscriber.cut("revoked")

    # boards

    def _reload(self, project_id: str, watch: Watch, only_if_stale: bool = False) -> None:
        """Has the board loaded (again); several requests during one load make one more load."""
        watch.stale = watch.stale or not only_if_stale
        if watch.stale and watch.loading is None:
            watch.loading = asyncio.create_task(self._load(project_id, watch))

    async def _load(self, project_id: str, watch: Watch) -> None:
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
                self._swap(watch, Board(snapshot))
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
        for message in board.since(old) if old is not None else ():
            self._push(watch, message)

    async def _beat(self) -> None:
        """One timer for all clients: a comment every few seconds keeps proxies and one impatient client at ease.
        Projects have their turns spread over that time, so that messages need not wait for all of them."""
        for turn in cycle(range(BEATS)):
            await asyncio.sleep(self._timing.heartbeat_s / BEATS)
            for watch in [watch for watch in self._watches.values() if watch.turn == turn]:
                self._push(watch, HEARTBEAT)
