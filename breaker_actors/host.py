"""BreakerActor's inside (stop 8 of a sample's life): applies log records to the breakers assigned here, in log order.

Gets Deliveries from routers' owners; hands Commits to the Journal. Everything that a breaker misses (start, restart, a
full lane, a lost call) it reads from the log. Applying is synchronous; while a commit or a read is under way for a
breaker, its input waits in its inbox.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from breaker_actors.clock import Clock
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
from breaker_actors.held import Held, Item, mark
from breaker_actors.lane import Lane
from breaker_actors.logreader import LogReader, concerned
from breaker_actors.messages import (
    BreakerAssignment,
    Commit,
    CommitResult,
    Delivery,
    RouterRef,
    StateReading,
    Target,
)
from breaker_actors.net import JournalPeer, Net, RouterPeer, journal_name
from breaker_actors.settings import Settings
from breaker_actors.stores.samplelog import SampleLog
from breaker_actors.timers import Timers

RETRY_S = 0.2
BEAT_S = 0.5
LISTENLESS_S = 3.0
END_OF_LOG = 1 << 62

_decode_record = msgspec.msgpack.Decoder(Record).decode


class BreakerHost:
    """Everything a BreakerActor does, without Ray. Start with `start()`, end with `stop()`."""

    def __init__(self, name: str, incarnation: str, log: SampleLog, net: Net, clock: Clock, settings: Settings) -> None:
        self.name = name
        self.incarnation = incarnation
        self._reader = LogReader(log)
        self._net = net
        self._clock = clock
        self._settings = settings
        self._held: dict[str, Held] = {}
        self._journals: dict[int, Lane[Commit, CommitResult]] = {}
        self._timers = Timers(clock, self._fire)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unattached: dict[tuple[str, str], float] = {}
        self._incarnations: dict[str, str] = {}
        self._checkpoint_at = 0.0
        self._checkpointing: asyncio.Task[None] | None = None
        self.counters: dict[str, int] = {"applied": 0, "fenced": 0, "catch_ups": 0, "passed_over": 0, "unpromised": 0}

    # ------------------------------------------------------------------ calls

    def start(self) -> None:
        """Begins timers and the regular work. Nothing is held until `assign`."""
        self._spawn(self._timers.run())
        self._spawn(self._beat())

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for lane in self._journals.values():
            await lane.close()

    async def report(self) -> tuple[str, dict[str, int]]:
        """This process's incarnation and what it holds, with epochs."""
        return self.incarnation, {h.id: h.epoch for h in self._held.values()}

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

    async def link(self, links: Sequence[tuple[str, RouterRef]]) -> None:
        """Breakers start to hang on one more router; a link that is known already is left as it is."""
        wants = []
        for breaker_id, router in links:
            held = self._held.get(breaker_id)
            if held is not None and held.routers.get(router.router_id) != router:
                held.routers[router.router_id] = router
                held.cut.setdefault(router.router_id, router.since_offset)
                wants.append((held, router.router_id))
        await self._attach(wants)
        for held, _ in wants:
            self._work(held)

    async def routers_moved(self, owners: Mapping[str, str]) -> None:
        """Routers (id -> owner) were taken over: listen there."""
        wants = []
        for held in self._held.values():
            for router_id in held.routers.keys() & owners.keys():
                ref = held.routers[router_id]
                held.routers[router_id] = msgspec.structs.replace(ref, owner=owners[router_id])
                wants.append((held, router_id))
        await self._attach(wants)
        for held, _ in wants:
            self._work(held)

    async def states(self, breaker_ids: Sequence[str], wait_s: float) -> list[StateReading]:
        """Committed states of the breakers held here; waits up to wait_s for those that are being restored."""
        held = [h for h in map(self._held.get, breaker_ids) if h is not None]
        starting = [asyncio.ensure_future(h.ready.wait()) for h in held if not h.ready.is_set()]
        if starting:
            _, late = await asyncio.wait(starting, timeout=wait_s)
            for waiter in late:
                waiter.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        now = self._clock.now_ms()
        return [StateReading(breaker_id=h.id, view=h.view(now)) for h in held if h.ready.is_set() and not h.dropped]

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
        return refused

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
        cut = held.cut.get(item.router_id)
        if cut is None or item.offset <= cut:
            return
        if item.body is None or item.after > cut:
            held.blocked = True
            self.counters["catch_ups"] += 1
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
        if not held.ready.is_set():
            held.note_committed()
            held.ready.set()

    def _work(self, held: Held) -> None:
        """Applies what waits until the breaker is blocked or nothing is left."""
        while held.inbox and not held.blocked and not held.dropped:
            self._take_in(held, held.pop())
        if not held.blocked and not held.dropped:
            self._keep_promise(held)

    def _apply(self, held: Held, item: Item) -> tuple[Effect, ...]:
        """The synchronous heart: one log record into one breaker."""
        held.cut[item.router_id] = item.offset
        held.dirty = True
        self.counters["applied"] += 1
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
            return held.breaker.ingest(item.body.batch.slice(item.start, item.stop), item.received_ms)
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

    # ------------------------------------------------------------------ committing

    async def _settle(self, held: Held, effects: tuple[Effect, ...]) -> None:
        """Makes effects durable and visible, then refills the window if new settings ask for it."""
        if effects:
            await self._publish(held, effects)
        if held.needs_refill and not held.dropped:
            held.needs_refill = False
            await self._until_done(self._load, [held])

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

    async def _publish(self, held: Held, effects: tuple[Effect, ...]) -> None:
        """Commits until the journal has answered. Nothing more is applied to this breaker meanwhile."""
        commit = held.commit(effects)
        while not held.dropped:
            try:
                result = await self._journal(held.shard).put(commit)
            except BreakersError:
                result = "failed"
            if result == "ok":
                self._stored(held, commit)
                held.note_committed()
                return
            if result == "fenced":
                self.counters["fenced"] += 1
                self._drop(held)
                return
            await asyncio.sleep(RETRY_S)

    @staticmethod
    def _stored(held: Held, commit: Commit) -> None:
        if commit.settings is not None:
            held.stored_version = decode_breaker(commit.settings).version

    def _journal(self, shard: int) -> Lane[Commit, CommitResult]:
        lane = self._journals.get(shard)
        if lane is None:
            peer = JournalPeer(self._net, journal_name(shard))
            # bounded by what is held here: a breaker has at most one commit and one checkpoint waiting
            lane = self._journals[shard] = Lane(peer.commit, weight_max=1 << 30, call_weight_max=1_000)
        return lane

    async def _checkpoint(self) -> None:
        """Stores the records that changed since last time, in as few calls as the lane makes of it."""
        due = [h for h in self._held.values() if h.dirty and not h.blocked and h.breaker is not None]
        waiting = []
        for held in due:
            held.dirty = False
            commit = held.commit(())
            waiting.append((held, commit, self._journal(held.shard).put(commit)))
        for held, commit, future in waiting:
            try:
                result = await future
            except BreakersError:
                result = "failed"
            if result == "fenced" and held.committed and held.committed.transition_seq == commit.transition_seq:
                self.counters["fenced"] += 1
                self._drop(held)
            elif result == "ok":
                self._stored(held, commit)
            else:
                held.dirty = True

    def _drop(self, held: Held) -> None:
        held.dropped = True
        held.inbox.clear()
        held.ready.set()
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
                held.note_committed()
        await self._until_done(self._load, [h for h in group if h.breaker is not None])
        await self._attach([(h, router_id) for h in group for router_id in h.routers])
        by_router: dict[str, list[Held]] = {}
        for held in group:
            for router_id in held.routers:
                by_router.setdefault(router_id, []).append(held)
        for router_id, listeners in by_router.items():
            await self._until_done(self._catch_up, router_id, listeners, END_OF_LOG)
        for held in group:
            self._unblock(held)

    async def _until_done(self, step: Any, *args: Any) -> None:
        """Repeats a read of the log until the log answers."""
        while True:
            try:
                await step(*args)
                return
            except BreakersError:
                await asyncio.sleep(RETRY_S)

    async def _load(self, group: list[Held]) -> None:
        """Refills windows from what the log has at and below each breaker's cut; may be repeated from the start."""
        for listener in group:
            if listener.breaker is not None:
                listener.breaker.unload()
        for router, listeners in self._by_router(group):
            upto = max(h.cut[router.router_id] for h in listeners)
            since = {h.id: self._window_start(h) for h in listeners}
            by_id = {h.id: h for h in listeners}
            async for record in self._reader.back(router, upto, min(since.values())):
                splitter = await self._reader.splitter(router, record)
                for breaker_id, body, start, stop in concerned(record, splitter):
                    held = by_id.get(breaker_id)
                    if held is None or record.offset > held.cut[router.router_id] or held.breaker is None:
                        continue
                    if isinstance(body, SampleColumns) and record.received_ms > since[breaker_id]:
                        held.breaker.load(body.batch.slice(start, stop), record.received_ms)

    @staticmethod
    def _window_start(held: Held) -> int:
        assert held.breaker is not None
        return held.breaker.reload_after_ms

    @staticmethod
    def _by_router(group: Iterable[Held]) -> list[tuple[RouterRef, list[Held]]]:
        found: dict[str, tuple[RouterRef, list[Held]]] = {}
        for held in group:
            for router in held.routers.values():
                found.setdefault(router.router_id, (router, []))[1].append(held)
        return list(found.values())

    async def _read_alone(self, held: Held, router_id: str, upto: int) -> None:
        await self._until_done(self._catch_up, router_id, [held], upto)
        self._unblock(held)

    async def _catch_up(self, router_id: str, group: list[Held], upto: int) -> None:
        """Applies a router's log after the cuts of blocked breakers, in order, up to an offset."""
        listeners = {h.id: h for h in group if not h.dropped and router_id in h.routers}
        if not listeners:
            return
        router = next(iter(listeners.values())).routers[router_id]
        last = start = min(h.cut[router_id] for h in listeners.values())
        async for record in self._reader.after(router, start, upto):
            splitter = await self._reader.splitter(router, record)
            for breaker_id, body, start, stop in concerned(record, splitter):
                held = listeners.get(breaker_id)
                if held is not None and not held.dropped and held.cut.get(router_id, END_OF_LOG) < record.offset:
                    item = Item(router_id, 0, record.offset, record.received_ms, record.kind, body, start, stop)
                    await self._settle(held, self._apply(held, item))
            last = record.offset
        for held in listeners.values():
            if router_id in held.cut:
                held.cut[router_id] = max(held.cut[router_id], last)

    # ------------------------------------------------------------------ listening to routers

    async def _attach(self, wants: list[tuple[Held, str]]) -> None:
        """Subscribes breakers with their routers' owners; what was logged before is marked to be read."""
        by_owner: dict[str, list[tuple[Held, str]]] = {}
        for held, router_id in wants:
            router = held.routers.get(router_id)
            if router is not None and not held.dropped:  # the link may have ended meanwhile
                by_owner.setdefault(router.owner, []).append((held, router_id))
        for owner, pairs in by_owner.items():
            await self._attach_to(owner, pairs)

    async def _attach_to(self, owner: str, pairs: list[tuple[Held, str]]) -> None:
        heads = [-1] * len(pairs)
        if owner:
            peer = RouterPeer(self._net, owner)
            with contextlib.suppress(BreakersError):
                if owner not in self._incarnations:
                    self._incarnations[owner] = await peer.incarnation()
                heads = await peer.attach(self.name, [(router_id, held.id, held.epoch) for held, router_id in pairs])
        for (held, router_id), head in zip(pairs, heads, strict=True):
            if router_id not in held.routers or held.dropped:
                continue
            if head < 0:
                self._unattached.setdefault((held.id, router_id), asyncio.get_running_loop().time())
                continue
            self._unattached.pop((held.id, router_id), None)
            if head > held.cut.get(router_id, 0):
                held.push(mark(router_id, head))

    async def _reattach(self) -> None:
        """Listens anew. Who finds nobody to listen to for LISTENLESS_S reads the log: the router may be gone, and the
        breaker's own end may be the last thing in there."""
        now = asyncio.get_running_loop().time()
        wants = []
        for (breaker_id, router_id), since in list(self._unattached.items()):
            held = self._held.get(breaker_id)
            if held is None or router_id not in held.routers:
                del self._unattached[breaker_id, router_id]
                continue
            wants.append((held, router_id))
            if now - since >= LISTENLESS_S:
                self._unattached[breaker_id, router_id] = now
                held.push(mark(router_id, END_OF_LOG))
        await self._attach(wants)
        for held, _ in wants:
            self._work(held)

    async def _watch_routers(self) -> None:
        """A router's owner that restarted has forgotten us, whether or not anybody told."""
        owners: dict[str, list[tuple[Held, str]]] = {}
        for held in self._held.values():
            for router in held.routers.values():
                owners.setdefault(router.owner, []).append((held, router.router_id))
        await asyncio.gather(*(self._watch_router(owner, wants) for owner, wants in owners.items()))

    async def _watch_router(self, owner: str, wants: list[tuple[Held, str]]) -> None:
        with contextlib.suppress(BreakersError, TimeoutError):
            async with asyncio.timeout(self._settings.owner_timeout_ms / 1000):
                incarnation = await RouterPeer(self._net, owner).incarnation()
            if self._incarnations.get(owner) != incarnation:
                self._incarnations[owner] = incarnation
                await self._attach(wants)
                for held, _ in wants:
                    self._work(held)

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
                self._checkpointing = self._spawn(self._checkpoint())
            await self._watch_routers()
        if self._unattached:
            await self._reattach()

    # ------------------------------------------------------------------ timers

    async def _fire(self, due: list[Held], upto_ms: int) -> None:
        """Asks the routers' owners for their promises and fires what nobody can contradict any more."""
        pairs: dict[str, list[tuple[str, str]]] = {}
        for held in due:
            for router in held.routers.values():
                pairs.setdefault(router.owner, []).append((router.router_id, held.id))
        answers: dict[tuple[str, str], int] = {}
        for got in await asyncio.gather(*(self._promises(owner, wanted, upto_ms) for owner, wanted in pairs.items())):
            answers.update(got)
        for held in due:
            sent = {router_id: answers.get((router_id, held.id), -1) for router_id in held.routers}
            if held.dropped:
                continue
            if all(offset < 0 for offset in sent.values()) and sent:
                # nobody promised: silence may only mean that nothing can arrive (semantics.md section 2)
                self.counters["unpromised"] += 1
                self._timers.later(held)
                continue
            self.counters["passed_over"] += sum(offset < 0 for offset in sent.values())
            held.promised = (upto_ms, sent)
            if not held.blocked and not held.inbox:
                self._keep_promise(held)

    async def _promises(self, owner: str, pairs: list[tuple[str, str]], upto_ms: int) -> dict[tuple[str, str], int]:
        """Sent offsets per (router, breaker); missing answers are left out and listened to anew."""
        answer: list[int] = [-1] * len(pairs)
        with contextlib.suppress(BreakersError, TimeoutError):
            async with asyncio.timeout(self._settings.owner_timeout_ms / 1000):
                answer = await RouterPeer(self._net, owner).promise(upto_ms, pairs)
        now = asyncio.get_running_loop().time()
        for (router_id, breaker_id), sent in zip(pairs, answer, strict=True):
            if sent < 0:
                self._unattached.setdefault((breaker_id, router_id), now)
        return dict(zip(pairs, answer, strict=True))

    def _keep_promise(self, held: Held) -> None:
        """Fires timers up to a promised time once everything sent before it has been applied."""
        if held.promised is None or held.breaker is None:
            return
        upto_ms, sent = held.promised
        if any(held.cut.get(router_id, 0) < offset for router_id, offset in sent.items()):
            return
        held.promised = None
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
