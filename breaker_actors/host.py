"""BreakerActor's inside (stop 8 of a sample's life): applies log records to the breakers assigned here, in log order.

Gets Deliveries from routers' owners; hands Commits to the Journal. Everything that a breaker misses (start, restart, a
full lane, a lost call) it reads from the log. Applying is synchronous; while a commit or a read is under way for a
breaker, its input waits in its inbox.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from sys import intern
from typing import Any

import msgspec

from breaker_actors.catchup import CatchUp
from breaker_actors.clock import Clock
from breaker_actors.committing import Commits
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Effect, RateChange, Record
from breaker_actors.core.records import (
    BREAKER,
    GAP,
    SAMPLES,
    VIEW,
    BreakerSet,
    SampleColumns,
    decode_breaker,
    decode_gap,
    decode_samples,
)
from breaker_actors.errors import BreakersError
from breaker_actors.guard import one_round
from breaker_actors.held import Held, Item, mark, shared
from breaker_actors.lagging import figures
from breaker_actors.listening import Listening
from breaker_actors.messages import (
    BreakerAssignment,
    BreakerFigures,
    Delivery,
    RouterRef,
    StateReading,
    Target,
)
from breaker_actors.meters import Meters
from breaker_actors.net import NOT_NOW, UNSENT, Net, RouterPeer
from breaker_actors.settings import Settings
from breaker_actors.stores.samplelog import SampleLog
from breaker_actors.tally import count_losses, look
from breaker_actors.timers import Timers

BEAT_S = 0.5
OVERDUE_MS = 1_000

_decode_record = msgspec.msgpack.Decoder(Record).decode


class BreakerHost:
    """Everything a BreakerActor does, without Ray. Start with `start()`, end with `stop()`."""

    def __init__(self, name: str, incarnation: str, log: SampleLog, net: Net, clock: Clock, settings: Settings) -> None:
        self.name = name
        self.incarnation = incarnation
        self._log = CatchUp(log, self._take_and_settle)
        self._net = net
        self._clock = clock
        self._settings = settings
        self._held: dict[str, Held] = {}
        self._timers = Timers(clock, self._fire)
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening = Listening(name, net, self._held, settings.owner_timeout_ms / 1000, self._work)
        self._checkpoint_at = 0.0
        self._checkpointing: asyncio.Task[None] | None = None
        self.meters = Meters("breaker", name)
        self._commits = Commits(net, self.meters, self._drop)
        self.meters.watch(self._look)
        self._lag = self.meters.histogram("breakers_evaluation_lag_seconds")
        self._applied = self._samples_applied = 0

    # ------------------------------------------------------------------ calls

    def start(self) -> None:
        """Begins timers and the regular work. Nothing is held until `assign`."""
        self._spawn(self._timers.run())
        self._spawn(self._beat())

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._commits.close()

    async def checkpoint(self) -> None:
        """Stores the records that changed since last time."""
        await self._commits.checkpoint(self._held.values())

    async def report(self) -> tuple[str, dict[str, int]]:
        """This process's incarnation and what it holds, with epochs."""
        return self.incarnation, {h.id: h.epoch for h in self._held.values()}

    async def status(self) -> BreakerFigures:
        return await figures(self._net, list(self._held.values()), self._listening.missing_count, self._clock.now_ms())

    async def assign(self, assignments: Sequence[BreakerAssignment]) -> None:
        """Takes breakers under new epochs; restoring goes on in the background."""
        taken = []
        for assignment in assignments:
            known = self._held.get(assignment.breaker_id)
            if known is not None:
                if known.epoch >= assignment.epoch:
                    continue
                self._drop(known)
            held = self._held[assignment.breaker_id] = Held(assignment)
            taken.append((held, assignment.record))
        if taken:
            self._spawn(self._restore(taken))

    async def drop(self, epochs: Sequence[tuple[str, int]]) -> None:
        """Lets go of breakers [(id, the new owner's epoch)] that have moved on."""
        for breaker_id, epoch in epochs:
            held = self._held.get(breaker_id)
            if held is not None and held.epoch < epoch:
                self._drop(held)

    async def link(self, links: Sequence[tuple[str, RouterRef]]) -> None:
        """Breakers start to hang on one more router; a link that is known already is left as it is."""
        wants = []
        for breaker_id, router in links:
            held = self._held.get(breaker_id)
            current = router.until_offset is None
            if held is not None and current and held.routers.get(router.router_id) != router:
                held.routers[router.router_id] = shared(router)
                held.cut.setdefault(router.router_id, router.since_offset)
                wants.append((held, router.router_id))
        await self._listening.attach_and_work(wants)

    async def routers_moved(self, owners: Mapping[str, str]) -> None:
        """Routers (id -> owner) were taken over: listen there."""
        wants = []
        for held in self._held.values():
            for router_id in [i for i in held.routers if i in owners]:
                ref = held.routers[router_id]
                held.routers[router_id] = msgspec.structs.replace(ref, owner=intern(owners[router_id]))
                wants.append((held, router_id))
        await self._listening.attach_and_work(wants)

    async def states(self, breaker_ids: Sequence[str], wait_s: float) -> list[StateReading]:
        """Committed states of the breakers held here; waits up to wait_s for those that are being restored."""
        held = [h for h in map(self._held.get, breaker_ids) if h is not None]
        starting = [asyncio.ensure_future(h.until_ready()) for h in held if not h.ready]
        if starting:
            _, late = await asyncio.wait(starting, timeout=wait_s)
            for waiter in late:
                waiter.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        now = self._clock.now_ms()
        return [StateReading(breaker_id=h.id, view=h.view(now)) for h in held if h.ready and not h.dropped]

    async def deliver(self, delivery: Delivery) -> list[tuple[str, int]]:
        """Applies or queues a lane's call; answers (breaker_id, epoch) of what is not held under that epoch."""
        refused = []
        bodies: list[SampleColumns | bytes | None] = [None] * len(delivery.records)
        for target in delivery.targets:
            held = self._held.get(target.breaker_id)
            if held is None or held.epoch != target.epoch:
                refused.append((target.breaker_id, target.epoch))
            else:
                self._accept(held, target, delivery, bodies)
        for _, received_ms, _, _ in delivery.records:
            self._count_lag(received_ms)
        return refused

    def _look(self) -> None:
        """How things stand (see Meters.watch)."""
        look(self.meters, self._held.values())
        self.meters.total("breakers_records_applied_total", self._applied)
        self.meters.total("breakers_samples_applied_total", self._samples_applied)
        self.meters.gauge("breakers_unattached", self._listening.missing_count)
        self._commits.look()

    def _count_lag(self, since_ms: int) -> None:
        self._lag.add(max(0, self._clock.now_ms() - since_ms) / 1000)

    # ------------------------------------------------------------------ applying

    def _accept(
        self, held: Held, target: Target, delivery: Delivery, bodies: list[SampleColumns | bytes | None]
    ) -> None:
        if target.spans is None:
            held.push(mark(target.router_id, target.upto))
            self._work(held)
            return
        after = target.after
        for index, start, stop in target.spans:
            offset, received_ms, kind, payload = delivery.records[index]
            body = bodies[index]
            if body is None:
                body = bodies[index] = decode_samples(payload) if kind == SAMPLES else payload
            item = Item(target.router_id, after, offset, received_ms, kind, body, start, stop)
            if held.blocked or held.inbox:
                held.push(item)
            else:
                self._take_in(held, item)
            after = offset
        if held.inbox:
            self._work(held)

    def _take_in(self, held: Held, item: Item) -> None:
        """One item for a breaker that is free: skip, read the log first, or apply."""
        if not held.wants(item.router_id, item.offset):
            return
        if item.body is None or item.after > held.cut[item.router_id]:
            held.blocked = True
            self.meters.count("breakers_catch_ups_total")
            self._spawn(self._read_alone(held, item.router_id, item.offset))
            return
        effects = self._apply(held, item)
        if effects or held.needs_refill:
            held.blocked = True
            self._spawn(self._settle_alone(held, effects))
        elif held.breaker is not None:
            self._timers.schedule(held)
            self._show(held)

    @staticmethod
    def _show(held: Held) -> None:
        """From its creation (or restore) on a breaker answers reads."""
        if not held.ready:
            held.note_committed()
            held.be_ready()

    def _work(self, held: Held) -> None:
        """Applies what waits until the breaker is blocked or nothing is left."""
        while held.inbox and not held.blocked and not held.dropped:
            item = held.pop()
            self._take_in(held, item)
            if item.body is not None:
                self._count_lag(item.received_ms)
        if not held.blocked and not held.dropped:
            self._keep_promise(held)

    def _apply(self, held: Held, item: Item) -> tuple[Effect, ...]:
        """The synchronous heart: one log record into one breaker."""
        held.cut[item.router_id] = item.offset
        held.dirty = True
        self._applied += 1
        if item.kind == VIEW:
            held.leave(item.router_id, item.offset)
            return ()
        if item.kind == BREAKER:
            assert isinstance(item.body, bytes)
            return self._set(held, decode_breaker(item.body), item.received_ms)
        if held.breaker is None:
            return ()
        if item.kind == SAMPLES:
            assert isinstance(item.body, SampleColumns)
            self._samples_applied += item.stop - item.start
            return held.breaker.ingest(item.body.rows(item.start, item.stop), item.received_ms)
        if item.kind == GAP:
            assert isinstance(item.body, bytes)
            gap = decode_gap(item.body)
            return held.breaker.gap(gap.from_ms, gap.to_ms)
        return ()

    def _set(self, held: Held, settings: BreakerSet, now_ms: int) -> tuple[Effect, ...]:
        """A record of this breaker's settings: creation, change or end."""
        if settings.breaker_id != held.id or (held.settings and settings.version <= held.settings.version):
            return ()
        if settings.rule is None:
            self._drop(held)
            return ()
        if held.breaker is None:
            if not settings.created:
                return ()
            held.settings = settings
            held.breaker, effects = Breaker.create(
                settings.rule,
                now_ms,
                after_seq=settings.after_seq,
                window_samples_max=self._settings.window_samples_max,
            )
            return effects
        effects = held.breaker.advance(now_ms - 1)
        if effects:
            held.draft(effects)  # these moves were made under the rule and name before the change
        rate = held.breaker.allow_rate
        held.settings = settings
        held.needs_refill = held.breaker.configure(settings.rule, now_ms)
        if held.breaker.allow_rate != rate:
            effects = (*effects, RateChange(ts_ms=now_ms, allow_rate=held.breaker.allow_rate))
        return effects

    # ------------------------------------------------------------------ settling

    async def _settle(self, held: Held, effects: tuple[Effect, ...]) -> None:
        """Makes effects durable and visible, then refills the window if new settings ask for it."""
        if effects:
            await self._commits.publish(held, effects)
        if held.needs_refill and not held.dropped:
            held.needs_refill = False
            await self._log.refill([held])

    async def _take_and_settle(self, held: Held, item: Item) -> None:
        await self._settle(held, self._apply(held, item))
        self._count_lag(item.received_ms)

    async def _settle_alone(self, held: Held, effects: tuple[Effect, ...]) -> None:
        await self._settle(held, effects)
        self._unblock(held)

    def _unblock(self, held: Held) -> None:
        held.blocked = False
        if held.dropped:
            return
        if held.breaker is not None:
            self._timers.schedule(held)
            self._show(held)
        self._work(held)

    def _drop(self, held: Held) -> None:
        held.dropped = True
        held.clear()
        held.be_ready()
        count_losses(self.meters, held)
        if self._held.get(held.id) is held:
            del self._held[held.id]

    # ------------------------------------------------------------------ restoring and catching up

    async def _restore(self, taken: list[tuple[Held, bytes | None]]) -> None:
        """Records at their cuts, windows from the log before them, then everything after them."""
        group = [held for held, _ in taken]
        for held, record in taken:
            if record is not None and held.settings is not None and held.settings.rule is not None:
                held.breaker = Breaker.restore(
                    held.settings.rule,
                    _decode_record(record),
                    window_samples_max=self._settings.window_samples_max,
                )
                held.noted = held.losses()
                held.note_committed()
        await self._log.refill([h for h in group if h.breaker is not None])
        await self._listening.attach([(h, router_id) for h in group for router_id in h.routers])
        await self._log.read_all(group)
        for held in group:
            self._unblock(held)

    async def _read_alone(self, held: Held, router_id: str, upto: int) -> None:
        await self._log.read(router_id, [held], upto)
        self._unblock(held)

    async def _beat(self) -> None:
        """Every half second: listen anew where that failed; every checkpoint interval: store what changed."""
        self._checkpoint_at = asyncio.get_running_loop().time() + self._settings.checkpoint_interval_ms / 1000
        while True:
            await asyncio.sleep(BEAT_S)
            await one_round("breaker beat", self._beat_once())

    async def _beat_once(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._checkpoint_at:
            self._checkpoint_at = now + self._settings.checkpoint_interval_ms / 1000
            if self._checkpointing is None or self._checkpointing.done():  # one at a time, however slow the journal
                self._checkpointing = self._spawn(self.checkpoint())
            await self._listening.watch()
        await self._listening.again()

    # ------------------------------------------------------------------ timers

    async def _fire(self, due: list[Held], upto_ms: int) -> None:
        """Asks the routers' owners for their promises and fires what nobody can contradict any more."""
        due = [held for held in due if not self._is_waiting(held, upto_ms)]
        pairs: dict[str, list[tuple[Held, str]]] = {}
        for held in due:
            for router in held.routers.values():
                pairs.setdefault(router.owner, []).append((held, router.router_id))
        answers: dict[tuple[str, str], tuple[int, int]] = {}
        for got in await asyncio.gather(*(self._promises(owner, wanted, upto_ms) for owner, wanted in pairs.items())):
            answers.update(got)
        for held in due:
            sent = {router_id: answers.get((router_id, held.id), UNSENT) for router_id in held.routers}
            if held.dropped:
                continue
            if sent and all(answer == UNSENT for answer in sent.values()):
                # nobody promised: silence may only mean that nothing can arrive (semantics.md section 2)
                self.meters.count("breakers_unpromised_total")
                self._timers.later(held)
                continue
            if passed_over := sum(answer == UNSENT for answer in sent.values()):
                self.meters.count("breakers_passed_over_total", passed_over)
            held.promised = (upto_ms, sent)
            if not held.blocked and not held.inbox:
                self._keep_promise(held)
            if held.promised is not None:
                self._timers.later(held)

    async def _promises(
        self, owner: str, wanted: list[tuple[Held, str]], upto_ms: int
    ) -> dict[tuple[str, str], tuple[int, int]]:
        """Answers per (router_id, breaker_id), UNSENT where one is missing; those are listened to anew."""
        pairs = [(router_id, held.id) for held, router_id in wanted]
        answers = [UNSENT] * len(pairs)
        with contextlib.suppress(BreakersError, TimeoutError):
            async with asyncio.timeout(self._settings.owner_timeout_ms / 1000):
                answers = await RouterPeer(self._net, owner).promise(upto_ms, pairs)
        for (held, router_id), answer in zip(wanted, answers, strict=True):
            if answer == UNSENT:
                self._listening.missing(held, router_id)
        return dict(zip(pairs, (UNSENT if answer == NOT_NOW else answer for answer in answers), strict=True))

    def _is_waiting(self, held: Held, now_ms: int) -> bool:
        """Whether what a promise counted on may still be on its way. If it does not come the log is read: a call that
        ran twice, or a predecessor of ours that still answers, may have taken it."""
        if held.promised is None or now_ms < held.promised[0]:
            return False
        if now_ms - held.promised[0] < OVERDUE_MS:
            self._timers.later(held)
            return True
        for router_id, (offset, _) in held.promised[1].items():
            if held.wants(router_id, offset):
                held.push(mark(router_id, offset))
        self._work(held)
        return held.blocked

    def _keep_promise(self, held: Held) -> None:
        """Fires timers up to a promised time once everything sent before it has been applied. What lies between that
        and the end of the log concerns others: the cut moves over it, so that it may be trimmed."""
        if held.promised is None or held.breaker is None:
            return
        upto_ms, sent = held.promised
        if any(held.cut.get(router_id, 0) < offset for router_id, (offset, _) in sent.items()):
            return
        held.promised = None
        held.looked_ms = upto_ms
        for router_id, (_, end) in sent.items():
            if router_id in held.routers:
                held.cut[router_id] = max(held.cut[router_id], end)
        if (due := held.breaker.next_wake()) is not None and due <= upto_ms:
            self.meters.observe("breakers_timer_lag_seconds", max(0, self._clock.now_ms() - due) / 1000)
        effects = held.breaker.advance(upto_ms)
        held.dirty = True
        if effects:
            held.blocked = True
            self._spawn(self._settle_alone(held, effects))
        else:
            self._timers.schedule(held)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
