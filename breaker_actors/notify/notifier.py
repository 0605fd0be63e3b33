"""The Notifier: takes due rows of the outbox under its epoch and delivers them, in order per breaker and channel.

Each channel is a queue of its own with a circuit breaker, a bounded number of deliveries at once and pauses of its
own; nothing of one channel waits for another, and organisations take turns (`places`). A row is leased before it is
sent and settled when its outcome is known; what a crash leaves leased is sent again once the lease is over, under the
same id. All else that matters is in the row.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from itertools import islice
from typing import Any

import structlog
from msgspec.structs import replace

from breaker_actors.clock import Clock
from breaker_actors.errors import BreakersError, Fenced, Unavailable
from breaker_actors.notify.channel_work import RENEWAL, Queue
from breaker_actors.notify.circuit import Circuit
from breaker_actors.notify.limits import ATTEMPTS_MIN, Pace
from breaker_actors.notify.model import LATE, SEALED, UNREADABLE, Attempt, Destination, RenewingSender, message_of
from breaker_actors.notify.mute_keeper import MuteKeeper
from breaker_actors.notify.places import shared_out
from breaker_actors.notify.renewals import Renewals
from breaker_actors.settings import Settings
from breaker_actors.store.base import OutboxStore
from breaker_actors.store.rows import UNREADABLE_ALERT, ChannelKind, DeliveryResult, DeliveryRow, Leased, Waiting
from breaker_actors.telemetry.guard import run_supervised
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport.lane import Lane

RETRY_S = 0.2
SWEPT_MAX, SWEEP_S = 10, 1.0
SWEEP_REST, SWEEP_REST_MAX_MS = 10, 60_000
"""So many channels that don't answer are looked through at a time, or as many as that lasts, and no others for so many
times as long as it took, a minute at most: what waits for them may be any number of rows."""
GONE_MAX = 500
"""Of so many channels that are gone rows are ended at a time, with rests like those after a sweep."""
POLL_REST, POLL_REST_MAX_MS = 10, 30_000
"""So many times as long as it took to look through all channels with pending rows they are not looked through again,
half a minute at most: an organisation may have a hundred thousand of them, and others' deliveries wait meanwhile."""
LOOKED_BACK = 1_000

Idle = Callable[[asyncio.Event, int], Awaitable[None]]
log = structlog.get_logger()


async def rest(wake: asyncio.Event, ms: int) -> None:
    """Waits until woken, at most so long; attempts under way get their turn in any case."""
    if ms <= 0:
        await asyncio.sleep(0)
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ms / 1000):
            await wake.wait()


class NotifierHost:
    """Everything the Notifier does, without Ray. `start()` fences its predecessor. `chance` spreads retries; `idle` is
    how it waits (tests let time leap there). `superseded` is called when a newer one has taken over."""

    def __init__(
        self,
        store: OutboxStore,
        sender: RenewingSender,
        clock: Clock,
        settings: Settings,
        *,
        pace: Pace | None = None,
        chance: random.Random | None = None,
        idle: Idle = rest,
        superseded: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._sender = sender
        self._clock = clock
        self._timeout_ms = settings.notify_timeout_ms
        self._give_up_ms = settings.notify_give_up_ms
        self._pace = pace or Pace()
        self._chance = chance or random.Random()  # nosec B311 # jitter of retries
        self._idle = idle
        self._superseded = superseded
        self.meters = Meters("notifier", "notifier")
        self.meters.watch_asides(store.asides)
        self._mutes = MuteKeeper(store, clock, settings, self.meters)
        self._renewals = Renewals(store, sender, clock, settings, self._pace, self._chance, self.meters)
        self._epoch = 0
        self._holding = False
        self._queues: dict[str, Queue] = {}
        self._wake = asyncio.Event()
        self._news = True
        self._poll_ms = self._newest = 0
        self._poll_rest_ms = self._pace.poll_ms
        self._sweep_ms = 0
        self._silent: list[str] = []
        self._rested_ms = 0
        self._gone: dict[str, None] = {}  # channels that are not there and have pending rows
        self._cancel_ms = 0
        self._turns = 0
        self._turning = asyncio.Lock()
        self._draining = False
        # bounded by total_max: one entry per delivery under way
        self._settling: Lane[tuple[str, DeliveryResult | None], None] = Lane(self._settle, weight_max=1 << 30)
        self._loop: asyncio.Task[None] | None = None
        self._sends: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begins to deliver; older Notifiers can take nothing from here on."""
        self._epoch = await self._store.open_notifier()
        self._holding = True
        self._loop = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends at once, as a crash would; attempts under way come again."""
        tasks = [*self._sends, *([self._loop] if self._loop is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._settling.close()

    async def drain(self, wait_s: float) -> None:
        """Takes nothing more and waits for what is under way: a restart after it repeats nothing."""
        self._draining = True
        async with self._turning:
            pass  # what is being leased now is under way after it
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self._sends:
                    await asyncio.wait(self._sends)

    async def nudge(self) -> None:
        """There are new rows."""
        self._news = True
        self._wake.set()

    @property
    def under_way(self) -> int:
        """Deliveries between lease and settlement."""
        return len(self._sends)

    async def ready(self) -> None:
        """Returns while this Notifier may take rows."""
        if not self._holding:
            raise Unavailable("this notifier was replaced, or has not started")

    async def _run(self) -> None:
        while self._holding:
            self._wake.clear()
            now, turns = self._clock.now_ms(), self._turns
            async with self._turning:
                await run_supervised("notifier", self._turn(now))
            if self._turns == turns:
                await asyncio.sleep(RETRY_S)
            # The next look is never farther off than that, unless the clock was set back since the turn began.
            left_ms = min(self._wake_ms(now) - self._clock.now_ms(), self._pace.poll_ms)
            await self._idle(self._wake, left_ms)

    async def _turn(self, now: int) -> None:
        """Looks what waits, ends what can't be sent, sends what may be. Counts as a turn unless something failed."""
        try:
            # a clock that was set back must not put these off
            self._poll_ms = min(self._poll_ms, now + self._poll_rest_ms)
            self._sweep_ms = min(self._sweep_ms, now + self._pace.sweep_ms)
            self._rested_ms = min(self._rested_ms, now + SWEEP_REST_MAX_MS)
            self._cancel_ms = min(self._cancel_ms, now + SWEEP_REST_MAX_MS)
            if self._news or now >= min(self._poll_ms, self._mutes.due_ms(now)):
                await self._survey(now)
            for one in await self._renewals.survey(now):
                if one.version is not None and one.kind is not None:
                    self._renewals.begin(self._queue(one, one.version, one.kind, now), now)
            await self._send_some(now)
            await self._cancel(now)
            if now >= self._sweep_ms:
                await self._begin_sweep(now)
            await self._sweep(now)
            self._turns += 1
        except Fenced:
            self._holding = False
            log.warning("notifier_replaced")
            self._superseded()
        except BreakersError as error:
            log.warning("outbox_not_reached", error=str(error))

    def _wake_ms(self, now: int) -> int:
        """When something is to be done though nothing happens: an attempt that ends wakes the loop by itself, also for
        rows that are due and found no place."""
        sweep_ms = self._rested_ms if self._silent else self._sweep_ms
        times = [self._poll_ms, self._mutes.due_ms(now), self._renewals.due_ms, sweep_ms]
        times += [self._cancel_ms] if self._gone else []
        for queue in self._queues.values():
            if queue.circuit.capacity(now) == 0:
                times.append(queue.circuit.wake_ms())
                continue
            if not queue.look and queue.later_ms is not None and queue.later_ms > now:
                times.append(queue.later_ms)
            if queue.renew_ms is not None and queue.renew_ms > now:
                times.append(queue.renew_ms)
        return min(times)

    async def _survey(self, now: int) -> None:
        """Which channels have pending rows, and whether they are still those of before. What mutes hold back no more is
        among them. Unasked all are looked through, with rests; after news those that have new rows."""
        unasked, self._news = now >= self._poll_ms, False
        due = unasked or now >= self._mutes.due_ms(now)
        released = await self._mutes.work(self._epoch, now) if due else ()
        begun = self._clock.monotonic()
        # Rows of two writers may come in another order than their numbers.
        waiting = await self._store.waiting_channels(None if unasked else self._newest - LOOKED_BACK, released)
        for one in waiting:
            if one.version is None or one.kind is None:
                self._gone[one.channel_id] = None
                continue
            queue = self._queue(one, one.version, one.kind, now)
            if unasked or one.newest > queue.seen or one.channel_id in released:
                queue.seen = max(queue.seen, one.newest)
                queue.look = True
            self._newest = max(self._newest, one.newest)
        if unasked:
            there = {one.channel_id for one in waiting}
            self._queues = {id_: queue for id_, queue in self._queues.items() if id_ in there or not queue.is_idle}
            took_ms = round(1000 * (self._clock.monotonic() - begun))
            self._poll_rest_ms = max(self._pace.poll_ms, min(POLL_REST_MAX_MS, POLL_REST * took_ms))
            self._poll_ms = now + self._poll_rest_ms

    def _queue(self, one: Waiting, version: str, kind: ChannelKind, now: int) -> Queue:
        """The channel's queue; one that was edited gets a new circuit: it may be another receiver."""
        queue = self._queues.get(one.channel_id)
        if queue is None or queue.circuit.version != version:
            where = (one.channel_id, b"" if one.circuit is None else one.circuit.record)
            known = partial(Circuit, one.channel_id, version, one.circuit, self._pace, now)
            circuit = self._store.asides.attempt(known, "state", *where)
            if circuit is None:  # what was known of the receiver can't be read: it is met anew
                circuit = Circuit(one.channel_id, version, None, self._pace, now)
            if queue is None:
                queue = self._queues[one.channel_id] = Queue(one, kind, circuit)
            else:
                queue.circuit, queue.noted, queue.look = circuit, circuit.revision, True
        return queue

    async def _cancel(self, now: int) -> None:
        """Ends what waits for channels that are gone or disabled, a bounded part of it, others are sent to in
        between."""
        if not self._gone or now < self._cancel_ms:
            return
        some = list(islice(self._gone, GONE_MAX))
        begun = self._clock.monotonic()
        try:
            counts, is_all = await self._store.cancel_deliveries(self._epoch, some, now)
        finally:
            self._cancel_ms = now + _rest_ms(self._clock.monotonic() - begun)
        for channel_id, count in counts.items():
            self.meters.count("breakers_notifications_unsent_total", count, state="cancelled")
            log.info("notifications_cancelled", channel_id=channel_id, count=count)
        if is_all:
            for channel_id in some:
                del self._gone[channel_id]

    async def _begin_sweep(self, now: int) -> None:
        """Sets the gauges, and notes which channels don't answer."""
        self._sweep_ms = now + self._pace.sweep_ms
        silent = [id_ for id_, queue in self._queues.items() if queue.is_silent(now)]
        self._silent = self._silent or silent  # those that were not reached yet come first
        depth, oldest_ms = await self._store.outbox_depth()
        self.meters.gauge("breakers_outbox_depth", depth)
        self.meters.gauge("breakers_outbox_age_seconds", 0 if oldest_ms is None else max(0, now - oldest_ms) / 1000)
        self.meters.gauge("breakers_channels_silent", len(silent))
        await self._mutes.set_gauge()

    async def _sweep(self, now: int) -> None:
        """Gives up what waited too long for channels that don't answer; a few of them at a time, others are sent to in
        between."""
        if now < self._rested_ms:
            return
        begun = self._clock.monotonic()
        try:
            for _ in range(min(SWEPT_MAX, len(self._silent))):
                id_ = self._silent.pop(0)
                queue = self._queues.get(id_)
                if queue is None or not queue.is_silent(now):
                    continue
                error = f"not tried: the channel does not answer ({queue.circuit.last_error})"
                counts = await self._store.give_up_deliveries(self._epoch, id_, now, now - self._give_up_ms, error)
                self._count_unsent(queue, counts)
                if self._clock.monotonic() - begun > SWEEP_S:
                    break
        finally:  # what can't be looked through now is not tried again and again meanwhile
            self._rested_ms = now + _rest_ms(self._clock.monotonic() - begun)

    def _count_unsent(self, queue: Queue, counts: dict[str, int]) -> None:
        for state, count in counts.items():
            if count:
                self.meters.count("breakers_notifications_unsent_total", count, state=state)
                log.warning("notifications_unsent", channel_id=queue.circuit.channel_id, state=state, count=count)

    async def _send_some(self, now: int) -> None:
        claims = [] if self._draining else [queue.claim(now) for queue in self._queues.values()]
        claims = [claim for claim in claims if claim.room or claim.taken]  # most may be of channels that don't answer
        wants = shared_out(claims, self._pace)
        if sum(wants.values()) >= min(self._pace.begun_max, self._pace.begun_beside_max):
            self._wake.set()  # some may have room for more in the next turn
        for id_ in [id_ for id_ in wants if self._queues[id_].renews(now)]:
            del wants[id_]
            self._queues[id_].sending.add(RENEWAL)
            self._begin(self._renew(self._queues[id_]))
        if not wants:
            return
        held = {id_ for channel_id in wants for id_ in self._queues[channel_id].sending}
        until_ms = now + self._timeout_ms + self._pace.lease_margin_ms
        for channel_id in wants:
            self._queues[channel_id].look = self._queues[channel_id].rows_first = False
            self._queues[channel_id].served = self._turns
        for leased in await self._store.lease_deliveries(self._epoch, wants, held, now, until_ms):
            queue = self._queues[leased.channel_id]
            queue.later_ms = leased.later_ms
            queue.look |= bool(leased.dropped) or (leased.later_ms is not None and leased.later_ms <= now)
            self._count_unsent(queue, leased.dropped)
            if not leased.rows and queue.renews(now):
                self._wake.set()  # its renewal let rows go first, and there were none
            for row in leased.rows:
                queue.sending.add(row.id)
                self._begin(self._deliver(queue, leased, row, until_ms))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)

    async def _renew(self, queue: Queue) -> None:
        """One part of a channel's alerts that stand, and what it taught about the channel."""
        try:
            circuit, seq = queue.circuit, queue.circuit.seq
            attempt = await self._renewals.renew(self._epoch, queue)
            if attempt is not None:
                queue.hasten |= circuit.note(attempt, seq, self._clock.now_ms())
                await self._settled(circuit.channel_id, None)
        finally:
            queue.sending.discard(RENEWAL)
            self._wake.set()

    async def _deliver(self, queue: Queue, leased: Leased, row: DeliveryRow, until_ms: int) -> None:
        """One attempt, from lease to settlement."""
        try:
            if self._clock.now_ms() > until_ms - self._timeout_ms:
                return  # we slept through the lease: somebody else may be sending it, and if not, it is taken again
            circuit, seq, begun = queue.circuit, queue.circuit.seq, self._clock.monotonic()
            attempt = await self._attempt(leased, row)
            now = self._clock.now_ms()
            self.meters.observe("breakers_notification_seconds", self._clock.monotonic() - begun, channel=queue.kind)
            queue.hasten |= circuit.note(attempt, seq, now)
            tried = self._judge(row, attempt, now)
            self._count(queue, row, tried)
            await self._settled(leased.channel_id, tried)
        except Exception as error:  # a bug: better sent again later than again and again
            # without its text: that may hold anything of what was to be sent
            trace = "".join(traceback.format_tb(error.__traceback__, limit=8))
            log.error("delivery_failed", delivery_id=row.id, error=type(error).__name__, trace=trace)
            await asyncio.sleep((self._timeout_ms + self._pace.lease_margin_ms) / 1000)
        finally:
            queue.sending.discard(row.id)
            queue.look = True
            self._wake.set()

    async def _attempt(self, leased: Leased, row: DeliveryRow) -> Attempt:
        if leased.config is None:
            return Attempt(result="refused", error=SEALED)
        if row.told == UNREADABLE_ALERT:
            return Attempt(result="refused", error=UNREADABLE)
        to = Destination(channel_id=leased.channel_id, kind=leased.kind, config=leased.config, org_id=leased.org_id)
        try:
            async with asyncio.timeout((self._timeout_ms + self._pace.lease_margin_ms / 2) / 1000):
                return await self._sender.send(to, message_of(row, leased.project_name))
        except TimeoutError:
            return LATE
        except Exception as error:  # a sender never raises; a bug in one must not take the queue with it
            log.error("sender_failed", delivery_id=row.id, error=type(error).__name__)
            return Attempt(result="retry", error=f"internal error ({type(error).__name__})")

    def _judge(self, row: DeliveryRow, attempt: Attempt, now: int) -> DeliveryResult:
        """What becomes of the row after an attempt."""
        ended = DeliveryResult(delivery_id=row.id, result="sent", at_ms=now, status=attempt.status, error=attempt.error)
        if attempt.result == "sent":
            return ended
        since = now if row.since_ms is None else row.since_ms
        too_old = now - since >= self._give_up_ms and row.attempts >= ATTEMPTS_MIN
        if attempt.result == "refused" or too_old:
            return replace(ended, result="dead")
        pause = max(self._pace.retry_ms(row.attempts, self._chance), attempt.retry_after_ms or 0)
        return replace(ended, result="retry", next_ms=now + pause)

    def _count(self, queue: Queue, row: DeliveryRow, tried: DeliveryResult) -> None:
        result = {"sent": "delivered"}.get(tried.result, tried.result)
        self.meters.count("breakers_notifications_total", channel=queue.kind, result=result)
        if tried.result == "dead":
            self.meters.count("breakers_notifications_unsent_total", state="dead")
            log.warning(
                "notification_dead",
                delivery_id=row.id,
                channel_id=row.channel_id,
                breaker_id=row.breaker_id,
                name=row.told.name,
                kind=row.kind,
                attempts=row.attempts,
                error=tried.error,
            )

    async def _settled(self, channel_id: str, tried: DeliveryResult | None) -> None:
        """Returns when the outcome is stored; its place stays taken until then. None: of a renewal there is none."""
        while True:
            try:
                return await self._settling.put((channel_id, tried))
            except BreakersError:
                await asyncio.sleep(RETRY_S)

    async def _settle(self, entries: list[tuple[str, DeliveryResult | None]]) -> Sequence[None]:
        """Stores outcomes with what they taught about their channels."""
        touched = {id_: queue for id_, _ in entries if (queue := self._queues.get(id_)) is not None}
        changed = {id_: queue.circuit for id_, queue in touched.items() if queue.circuit.revision != queue.noted}
        hasten = [id_ for id_, queue in touched.items() if queue.hasten]
        marks = {id_: circuit.revision for id_, circuit in changed.items()}
        rows = [circuit.row() for circuit in changed.values()]
        outcomes = [tried for _, tried in entries if tried is not None]
        try:
            if outcomes or rows or hasten:
                await self._store.settle_deliveries(self._epoch, outcomes, rows, hasten)
        except BreakersError as error:
            log.warning("outcomes_not_stored", count=len(entries), error=str(error))
            raise
        for id_, mark in marks.items():
            touched[id_].note_stored(mark)
        for id_ in hasten:
            touched[id_].hasten = False
            touched[id_].look = True
        return [None] * len(entries)


def _rest_ms(took_s: float) -> int:
    """For how long rows that can't be sent are left alone, after a look at them that took so long."""
    return min(SWEEP_REST_MAX_MS, SWEEP_REST * round(1000 * took_s))
