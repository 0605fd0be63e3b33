"""BreakerActor's inside (stop 8 of a sample's life): applies log records to the breakers assigned here, in log order.

Gets Deliveries from routers' owners; hands Commits to the Journal. Everything that a breaker misses (start, restart, a
full lane, a lost call) it reads from the log. Applying is synchronous; while a commit or a read is under way for a
breaker, its input waits in its inbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial

import msgspec
import structlog

from breaker_actors.breaker.applying import Applying, ReadLog, Rest, Todo
from breaker_actors.breaker.background import Assigned, BreakerTasks, LogReads, Refills, Restores
from breaker_actors.breaker.commits import Commits
from breaker_actors.breaker.deliveries import Deliveries
from breaker_actors.breaker.hosted import NO_VIEW, Effects, HostedBreaker, forget_left, read_later, reading_rows, relink
from breaker_actors.breaker.recovery import Entries, Recovery, host_breaker, restore_record
from breaker_actors.breaker.subscriptions import Subscriptions, Want
from breaker_actors.breaker.watermarks import ROUND_S, Watermarks
from breaker_actors.breaker.window_memory import WindowShares
from breaker_actors.clock import Clock
from breaker_actors.messages import (
    ActorReport,
    BreakerAssignment,
    BreakerEpoch,
    BreakerFigures,
    Delivery,
    Readings,
    RouterRef,
    StateReading,
)
from breaker_actors.settings import Settings
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport.peers import DirectoryPeer, Net
from breaker_actors.wal.base import SampleLog

BEAT_S = 0.5

log = structlog.get_logger()


class BreakerHost:
    """Everything a BreakerActor does, without Ray. Start with `start()`, end with `stop()`."""

    def __init__(self, name: str, incarnation: str, log: SampleLog, net: Net, clock: Clock, settings: Settings) -> None:
        self.name = name
        self.incarnation = incarnation
        self._tasks = BreakerTasks()
        self._asides = self._tasks.asides
        self._log = Recovery(log, net, self._asides, self._tasks.slices, settings.owner_timeout_ms / 1000)
        self._directory = DirectoryPeer(net)
        self._clock = clock
        self._settings = settings
        self._hosted: dict[str, HostedBreaker] = {}
        self.meters = Meters("breaker", name)
        self._subscriptions = Subscriptions(name, net, self._hosted, settings.owner_timeout_ms / 1000)
        self._watermarks = Watermarks(net, self._subscriptions, settings.owner_timeout_ms, clock, self.meters)
        self._timers = self._watermarks.timers
        samples_max = settings.window_samples_max
        self._applying = Applying(self._watermarks, self._asides, clock, self.meters, samples_max)
        self._windows = WindowShares(
            samples_max, settings.window_project_samples_max, settings.window_all_samples_max, self._tasks.slices
        )
        self._reads = LogReads(
            self._tasks,
            read=lambda router_id, group, upto: self._apply_entries(self._log.read(router_id, group, upto), group),
            free=self._go_on_later,
        )
        self._refills = Refills(self._tasks, self._log.refill)
        self._restores = Restores(self._tasks, self._restore_group, self._host_anew)
        self._deliveries = Deliveries(self._hosted, self._applying, self._step)
        self._commits = Commits(net, self.meters, self._tasks.slices)
        self._checkpoint_at = 0.0
        self._checkpointing: asyncio.Task[None] | None = None
        self.meters.watch(lambda: self._applying.look(self._hosted.values()))
        for part in (self._subscriptions, self._windows, self._commits):
            self.meters.watch(partial(part.look, self.meters))
        self.meters.watch_asides(self._asides)

    # ------------------------------------------------------------------ calls

    def start(self) -> None:
        """Begins timers and the regular work. Nothing is hosted until `assign`."""
        self._checkpoint_at = asyncio.get_running_loop().time() + self._settings.checkpoint_interval_ms / 1000
        self._tasks.every(ROUND_S, "timers", self._fire_due, at_once=True)
        self._tasks.every(BEAT_S, "breaker beat", self._beat_once, at_once=False)

    async def stop(self) -> None:
        await self._tasks.stop()
        await self._commits.close()

    async def checkpoint(self) -> None:
        """Stores the records that changed since last time."""
        async for gone in self._commits.checkpoint(self._hosted.values()):
            self._drop(gone)

    async def report(self) -> ActorReport:
        """Returns this process's incarnation and the breakers that it hosts, with epochs."""
        return ActorReport(incarnation=self.incarnation, epochs={h.id: h.epoch for h in self._hosted.values()})

    async def status(self) -> BreakerFigures:
        found = await self._subscriptions.figures(self._clock.now_ms())
        latest_ms = self._clock.now_ms() + self._settings.clock_step_max_ms
        ahead = sum(h.breaker is not None and h.breaker.now_ms > latest_ms for h in self._hosted.values())
        return msgspec.structs.replace(found, limits=self._windows.limits(), ahead=ahead)

    async def assign(self, assignments: Sequence[BreakerAssignment]) -> None:
        """Hosts breakers under new epochs; restoring goes on in the background."""
        taken: dict[str, Assigned] = {}
        for assignment in assignments:
            known = self._hosted.get(assignment.breaker_id)
            if known is not None:
                if known.epoch >= assignment.epoch:
                    continue
                self._drop(known)
            hosted = self._hosted[assignment.breaker_id] = host_breaker(assignment, self._asides)
            if not hosted.aside:
                taken.setdefault(hosted.project_id, []).append((hosted, assignment))
        self._restores.begin(list(taken.values()))  # no project waits for another's commits

    async def drop(self, epochs: Sequence[BreakerEpoch]) -> None:
        """Lets go of breakers that have moved on, to an owner under a later epoch."""
        for moved in epochs:
            hosted = self._hosted.get(moved.breaker_id)
            if hosted is not None and hosted.epoch < moved.epoch:
                self._drop(hosted)

    async def link(self, links: Sequence[tuple[str, RouterRef]]) -> None:
        """Links breakers to one more router each; a link that is known already is left as it is. One that has an end is
        forgotten (see `forget_left`)."""
        wants = []
        for breaker_id, router in links:
            hosted = self._hosted.get(breaker_id)
            if hosted is not None and router.until_offset is not None:
                forget_left(hosted, router)
            elif hosted is not None and hosted.routers.get(router.router_id) != router:
                relink(hosted, router)
                hosted.applied_offsets.setdefault(router.router_id, router.since_offset)
                wants.append((hosted, router.router_id))
        await self._subscribe(wants)

    async def routers_moved(self, owners: Mapping[str, str]) -> None:
        """Subscribes at the new owners of routers (id -> owner)."""
        wants = []
        for hosted in self._hosted.values():
            for router_id in [i for i in hosted.routers if i in owners]:
                ref = hosted.routers[router_id]
                relink(hosted, msgspec.structs.replace(ref, owner=owners[router_id]))
                wants.append((hosted, router_id))
        await self._subscribe(wants)

    async def states(self, breaker_ids: Sequence[str], wait_s: float) -> Readings:
        """Returns committed states of the breakers hosted here; waits up to `wait_s` for those being restored."""
        hosted = [h for h in map(self._hosted.get, breaker_ids) if h is not None]
        if starting := [h.starting() for h in hosted if not h.ready]:
            await asyncio.wait(starting, timeout=wait_s)
        now, readings = self._clock.now_ms(), Readings()
        work = self._tasks.slices.work(hosted)
        for each in (h for h in hosted if h.ready):
            await work.worked(reading_rows(each))
            if not each.dropped:
                self._step(each, partial(_read_state, each, now, readings))
            if each.aside:
                readings.append(StateReading(breaker_id=each.id, project_id=each.project_id, view=NO_VIEW, aside=True))
        return readings

    async def deliver(self, delivery: Delivery) -> list[BreakerEpoch]:
        """Applies or queues a lane's call; returns what is refused, since it is not hosted under that epoch."""
        return await self._deliveries.take(delivery)

    # ------------------------------------------------------------------ applying

    def _step(self, hosted: HostedBreaker, step: Callable[[], Todo | None]) -> bool:
        """A synchronous step of one breaker, and what has to be done for it to go on. False: the step failed; that
        breaker is set aside as a whole, and no other one."""
        todo, is_fine = None, True
        try:
            todo = step()
        except Exception as error:
            self._tasks.set_aside(hosted, error)
            is_fine = False
        if todo is not None or hosted.dropped:
            self._go_on(hosted, todo)
        return is_fine

    def _go_on(self, hosted: HostedBreaker, todo: Todo | None) -> None:
        """Starts what a blocked breaker waits for."""
        if hosted.is_over:
            self._drop(hosted)
        elif isinstance(todo, ReadLog):
            self._reads.ask(hosted, todo.router_id, todo.upto)
        elif isinstance(todo, Rest):
            self._go_on_later(hosted)
        elif todo is not None:
            self._tasks.spawn(self._settle(hosted, todo.effects), hosted)

    def _go_on_later(self, hosted: HostedBreaker) -> None:
        """A blocked breaker goes on when its turn comes."""

        def step() -> int:
            begun = self._applying.worked
            self._step(hosted, partial(self._applying.unblock, hosted))
            return self._applying.worked - begun

        self._tasks.slices.put(hosted, step)

    async def _settle(self, hosted: HostedBreaker, effects: Effects) -> None:
        """Commits, then refills the window if new settings ask for it."""
        await self._commit(hosted, effects)
        if hosted.needs_refill:
            read_later(hosted)
            await self._refills.fill(hosted)
        self._go_on_later(hosted)

    async def _commit(self, hosted: HostedBreaker, effects: Effects) -> None:
        """Commits effects: durable, then visible."""
        if effects and not await self._commits.publish(hosted, effects):
            self._drop(hosted)

    async def _apply_entries(self, entries: Entries, group: Sequence[HostedBreaker]) -> None:
        """Applies what is read from the log for breakers of one project; the effects of each entry are settled before
        the next one is read. A window that lacks samples is filled before the breaker's next entry, with those of the
        others that do."""
        lacking: dict[str, HostedBreaker] = {}
        applying, work = self._applying, self._tasks.slices.work(group)
        try:
            async with aclosing(entries):
                async for hosted, item in entries:
                    if hosted.needs_refill:
                        await self._refills.fill_now([*lacking.values(), hosted])
                        lacking.clear()
                    begun = applying.worked
                    while not hosted.dropped and (effects := applying.catch_up(hosted, item)) is not None:
                        await self._commit(hosted, effects)
                        await work.worked(applying.worked - begun)
                        begun = applying.worked
                    effects = applying.apply(hosted, item)
                    done = applying.worked - begun
                    if hosted.is_over:
                        self._drop(hosted)
                    await self._commit(hosted, effects)
                    if hosted.needs_refill:
                        lacking[hosted.id] = hosted
                    applying.count_lag(item.received_ms)
                    await work.worked(done)
        except Exception:
            await self._refills.fill_now(lacking.values())
            raise
        await self._refills.fill_now(lacking.values())

    def _drop(self, hosted: HostedBreaker) -> None:
        """A breaker was deleted, or has gone to another owner."""
        self._applying.end(hosted)
        if self._hosted.get(hosted.id) is hosted:
            del self._hosted[hosted.id]

    # ------------------------------------------------------------------ restoring and subscribing

    def _host_anew(self, failed: Assigned) -> list[Assigned]:
        """Begins with breakers anew; each is a group of its own."""
        for hosted, _ in failed:
            self._drop(hosted)
        again = [[(host_breaker(assignment, self._asides), assignment)] for _, assignment in failed]
        self._hosted.update({hosted.id: hosted for ((hosted, _),) in again})
        return again

    async def _restore_group(self, taken: Assigned) -> None:
        """Records at their applied offsets, windows from the log before them, then everything after them."""
        now, samples_max = self._clock.now_ms(), self._settings.window_samples_max
        for hosted, assignment in taken:
            self._step(hosted, partial(restore_record, hosted, assignment, now, samples_max, self._asides))
        group = [hosted for hosted, _ in taken if not hosted.dropped]
        await self._log.refill([h for h in group if h.breaker is not None])
        await self._subscriptions.subscribe([(h, router_id) for h in group for router_id in h.routers])
        await self._apply_entries(self._log.read_all(group), group)
        for hosted in group:
            self._go_on_later(hosted)

    async def _subscribe(self, wants: Sequence[Want]) -> None:
        """Subscribes breakers to routers; they read from the log what they missed."""
        await self._subscriptions.subscribe(wants)
        for hosted, _ in wants:
            self._go_on(hosted, self._applying.work(hosted))

    async def _beat_once(self) -> None:
        """Subscribes where that failed; every checkpoint interval: stores what changed, checks all subscriptions, tells
        of damaged logs again."""

        async def renew(owner: str, wants: Sequence[Want]) -> None:
            await self._subscribe(await self._subscriptions.to_renew(owner, wants))

        await self._windows.check(self._hosted.values())
        now = asyncio.get_running_loop().time()
        if now >= self._checkpoint_at:
            self._checkpoint_at = now + self._settings.checkpoint_interval_ms / 1000
            self._log.damages.renew()
            if self._checkpointing is None or self._checkpointing.done():  # one at a time, however slow the journal
                self._checkpointing = self._tasks.spawn(self.checkpoint())
            await asyncio.gather(*(renew(*owned) for owned in self._subscriptions.by_owner().items()))
        await self._subscribe(await self._subscriptions.to_retry())
        await self._log.damages.tell()
        await self._directory.report_asides(self._asides)

    # ------------------------------------------------------------------ timers

    async def _fire_due(self) -> None:
        """Fires the timers that are due, as far as nobody can contradict them any more."""
        due, now = await self._timers.due()
        try:
            free, overdue = self._watermarks.sort(due, now)
            for hosted in overdue:
                self._go_on(hosted, self._applying.work(hosted))
            await self._fire(free + [hosted for hosted in overdue if not hosted.blocked], now)
        except Exception:
            for hosted in due:
                self._timers.later(hosted)
            raise

    async def _fire(self, due: Sequence[HostedBreaker], upto_ms: int) -> None:
        answers = await self._watermarks.request(due, upto_ms)
        end = self._applying.slice_end()
        for hosted in due:
            if hosted.dropped:
                continue
            is_given = self._watermarks.accept(hosted, answers, upto_ms)
            if is_given and not hosted.blocked and not hosted.inbox:
                is_over = self._applying.worked >= end
                fire = self._applying.rest if is_over else self._applying.apply_watermark
                if not self._step(hosted, partial(fire, hosted)) or is_over:
                    continue
            if not is_given or hosted.watermark is not None:
                self._timers.later(hosted)


def _read_state(hosted: HostedBreaker, now_ms: int, readings: list[StateReading]) -> None:
    view = hosted.view(now_ms)
    readings.append(StateReading(breaker_id=hosted.id, project_id=hosted.project_id, view=view))
