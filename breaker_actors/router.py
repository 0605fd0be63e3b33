"""RouterActor's inside (stop 7 of a sample's life): stamps, appends to the sample log, splits by linked breaker.

Gets Parts from replicas and changes from the Directory; hands records to the owners of the linked breakers. All that
touches a router's log goes through one group lane, so one log transaction is in flight and offsets stay dense.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from breaker_actors.clock import Clock
from breaker_actors.core.records import BREAKER, GAP, SAMPLES, VIEW, Gap
from breaker_actors.delivery import Subscription
from breaker_actors.errors import BreakersError, NotOwner, Unavailable
from breaker_actors.fanout import FanOut
from breaker_actors.guard import one_round
from breaker_actors.knocking import KNOCK_MS
from breaker_actors.lane import Lane
from breaker_actors.messages import LogFloor, Outcome, Part, RouterAssignment, RouterFigures
from breaker_actors.meters import Meters
from breaker_actors.net import NOT_NOW, UNSENT, Net
from breaker_actors.settings import Settings
from breaker_actors.staging import Change, Group, OwnedRouter, Staged
from breaker_actors.stores.base import ChangeRow
from breaker_actors.stores.samplelog import RouterHead, SampleLog
from breaker_actors.trimming import Trimming

GAP_MIN_MS = 1_000
RECORD_ROWS_MAX = 10_000
RETRIES_MS = 30_000
KINDS = {SAMPLES: "samples", BREAKER: "breaker", VIEW: "view", GAP: "gap"}


class _Promise(msgspec.Struct, frozen=True):
    upto_ms: int
    pairs: Sequence[tuple[str, str]]


class _Attach(msgspec.Struct, frozen=True):
    owner: str
    wants: Sequence[tuple[str, str, int]]


class _Take(msgspec.Struct, frozen=True):
    assignments: Sequence[RouterAssignment]


class _Release(msgspec.Struct, frozen=True):
    router_ids: Sequence[str]


class _Beat(msgspec.Struct, frozen=True):
    pass


class _Knock(msgspec.Struct, frozen=True):
    pass


_Item = Part | Change | _Promise | _Attach | _Take | _Release | _Beat | _Knock


def _weigh(item: _Item) -> int:
    return item.weight() if isinstance(item, Part) else 0


class RouterHost:
    """Everything a RouterActor does, without Ray. Start with `start()`, end with `stop()`."""

    def __init__(self, name: str, incarnation: str, log: SampleLog, net: Net, clock: Clock, settings: Settings) -> None:
        self.name = name
        self.incarnation = incarnation
        self._log = log
        self._clock = clock
        self._settings = settings
        self._routers: dict[str, OwnedRouter] = {}
        self._key_ages: deque[tuple[int, str, bytes]] = deque()
        self._fanout = FanOut(net, self._routers, settings.lane_samples_max)
        self._trimming = Trimming(log, settings.log_retention_ms, settings.log_bytes_max)
        self._work: Lane[_Item, Any] = Lane(
            self._run, weigh=_weigh, weight_max=settings.lane_samples_max, call_weight_max=RECORD_ROWS_MAX
        )
        self._up_ms = 0
        self._reached_ms = 0
        # a missed heartbeat or knock alone is no outage
        self._outage_ms = GAP_MIN_MS + settings.heartbeat_interval_ms
        self._unreached_ms = GAP_MIN_MS + KNOCK_MS
        # append ids must outlive every retry of a replica
        self._keys_ms = max(settings.duplicate_window_ms, RETRIES_MS)
        self._doubtful = False
        self._beating: asyncio.Task[None] | None = None
        self.meters = Meters("router", name)
        self.meters.watch(self._look)
        self._records: Counter[int] = Counter()
        self._bytes = self._samples = 0

    # ------------------------------------------------------------------ calls

    def start(self) -> None:
        """Begins the heartbeat. Nothing is owned until `take`."""
        self._beating = asyncio.create_task(self._beat())

    async def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        await self._work.close()
        await self._fanout.close()

    async def append(self, parts: Sequence[Part]) -> list[Outcome]:
        """Appends samples; one outcome per part. "ok" means durable in the log."""
        futures: list[asyncio.Future[Outcome] | Outcome] = []
        for part in parts:
            try:
                futures.append(self._work.put(part))
            except BreakersError:
                futures.append(Outcome("full"))
        return [f if isinstance(f, Outcome) else await self._outcome(f) for f in futures]

    @staticmethod
    async def _outcome(future: asyncio.Future[Outcome]) -> Outcome:
        try:
            return await future
        except BreakersError:
            return Outcome("failed")

    async def knock(self) -> None:
        """A replica got through to here: samples could be taken now, if there were any."""
        await self._work.put(_Knock())

    async def take(self, assignments: Sequence[RouterAssignment]) -> list[str]:
        """Becomes the owner of routers; answers the ids that were not fenced by a higher epoch."""
        taken: list[str] = await self._work.put(_Take(assignments))
        return taken

    async def change(self, changes: Sequence[ChangeRow]) -> dict[int, int]:
        """Appends configuration changes; change id -> offset of its first record. Repeating one is harmless. After one
        that failed no other of its router is appended: an old view must not come behind a newer one."""
        offsets: dict[int, int] = {}
        stuck: set[str] = set()
        for row in changes:
            if row.router_id in stuck:
                continue
            outcome: Outcome = await self._work.put(Change(row, b"change:%09d" % row.id))
            if outcome.word in ("ok", "duplicate"):
                offsets[row.id] = outcome.offset
            elif outcome.word == "not_owner":
                raise NotOwner(f"router {row.router_id} is not owned here")
            else:
                stuck.add(row.router_id)
        return offsets

    async def attach(self, owner: str, wants: Sequence[tuple[str, str, int]]) -> list[int]:
        """Subscribes breakers [(router_id, breaker_id, breaker epoch)] of an owner; answers for each the offset after
        which deliveries start (what lies before is read from the log), -1 when the router is not owned here."""
        answer: list[int] = await self._work.put(_Attach(owner, wants))
        return answer

    async def promise(self, upto_ms: int, pairs: Sequence[tuple[str, str]]) -> list[tuple[int, int]]:
        """Promises that nothing stamped <= upto_ms will come any more; answers per (router_id, breaker_id) the offset
        of the last record that was sent to the breaker and the end of the log: nothing between them concerns it.
        UNSENT when it is not subscribed here, NOT_NOW when no samples can be taken."""
        answer: list[tuple[int, int]] = await self._work.put(_Promise(upto_ms, pairs))
        return answer

    async def release(self, router_ids: Sequence[str]) -> None:
        """Routers that were deleted, or go to another owner: nothing is appended here any more."""
        await self._work.put(_Release(router_ids))

    async def trim(self, floors: Sequence[LogFloor], gone: Sequence[tuple[str, str]]) -> int:
        """Drops what is older than the retention (earlier near the byte bound) and nobody needs any more, and routers
        [(slot, router_id)] that are gone for good; answers how many records went."""
        return await self._trimming.run(floors, gone, self._clock.now_ms())

    async def lacking(self, owner: str, listeners: Mapping[str, tuple[int, int]]) -> tuple[str, list[str], list[str]]:
        """This process's incarnation; which of these routers are not its own; to which of them others than those
        breakers of that owner (how many, and the sum of their epochs) are subscribed."""
        known = {i: self._routers[i].listeners(owner) for i in listeners if i in self._routers}
        lost = [i for i in listeners if i not in known]
        return self.incarnation, lost, [i for i, found in known.items() if found != tuple(listeners[i])]

    async def status(self) -> RouterFigures:
        slots = sorted({router.slot for router in self._routers.values()})
        sizes = {slot: await self._log.size_bytes(slot) for slot in slots}
        return RouterFigures(routers=len(self._routers), waiting=self._work.weight, log_bytes=sizes)

    async def incarnation_id(self) -> str:
        return self.incarnation

    async def report(self) -> tuple[str, dict[str, int]]:
        """This process's incarnation and what it owns, with epochs."""
        return self.incarnation, {r.id: r.epoch for r in self._routers.values()}

    # ------------------------------------------------------------------ the group

    async def _run(self, items: list[_Item]) -> list[Any]:
        """One group: everything in arrival order, samples and changes in one log transaction."""
        if self._doubtful:
            await self._reread()
        now = self._clock.now_ms()
        await self._note_outage(items, now)
        results: list[Any] = [None] * len(items)
        group = Group(self._routers, self._trimming.full, now, results)
        for index, item in enumerate(items):
            if isinstance(item, Part | Change):
                group.add(index, item)
        staged = group.close()
        if group.duplicate_parts:
            self.meters.count("breakers_duplicate_parts_total", group.duplicate_parts)
            self.meters.count("breakers_duplicate_samples_total", group.duplicate_samples)
        if staged and not await self._write(staged, results):
            return [self._unknown(i) if r is None else r for i, r in zip(items, results, strict=True)]
        for index, item in enumerate(items):
            if results[index] is None:
                try:
                    results[index] = await self._control(item, now)
                except BreakersError as error:
                    results[index] = error
        self._fanout.flush()
        return results

    @staticmethod
    def _unknown(item: _Item) -> Outcome | BreakersError:
        """The log may or may not have taken the group: samples and changes are sent again, the rest is asked again."""
        samples = isinstance(item, Part | Change)
        return Outcome("failed") if samples else Unavailable("the sample log does not answer")

    async def _write(self, staged: list[Staged], results: list[Any]) -> bool:
        """Appends and, where the log took it, answers and hands on. False: the outcome is not known."""
        by_slot: dict[str, list[Staged]] = {}
        for record in staged:
            by_slot.setdefault(record.router.slot, []).append(record)
        try:
            for slot, records in by_slot.items():
                with self.meters.timed("breakers_log_append_seconds"):
                    taken = await self._log.append(slot, [r.append for r in records])
                for record, ok in zip(records, taken, strict=True):
                    self._appended(record, ok, results)
        except BreakersError:
            self.meters.count("breakers_log_failures_total")
            self._doubtful = True
            return False
        self._up_ms = self._clock.now_ms()
        self._forget_keys()
        self._fanout.flush()
        return True

    def _appended(self, record: Staged, ok: bool, results: list[Any]) -> None:
        router, append = record.router, record.append
        if not ok:
            self.meters.count("breakers_log_refusals_total")
            self._routers.pop(router.id, None)
            for index in record.answers:
                results[index] = Outcome("not_owner")
            return
        self._count_append(record)
        self._trimming.note(router.slot, len(append.payload))
        router.offset, router.last_ms = append.offset, append.received_ms
        if append.kind == GAP:
            router.gap_ms = append.received_ms
        for key in append.keys:
            router.keys[key] = append.offset
            self._key_ages.append((append.received_ms, router.id, key))
        for index in record.answers:
            results[index] = Outcome("ok", append.offset)
        self._fanout.hand_on(record)

    def _count_append(self, record: Staged) -> None:
        self._records[record.append.kind] += 1
        self._bytes += len(record.append.payload)
        if record.columns is not None:
            self._samples += len(record.columns.batch)

    def _look(self) -> None:
        """How things stand (see Meters.watch)."""
        for kind, n in self._records.items():
            self.meters.total("breakers_log_records_total", n, kind=KINDS[kind])
        self.meters.total("breakers_log_bytes_total", self._bytes)
        self.meters.total("breakers_log_samples_total", self._samples)
        self.meters.gauge("breakers_routers_held", len(self._routers))
        self.meters.gauge("breakers_duplicate_keys", len(self._key_ages))
        self.meters.gauge("breakers_log_size_bytes", self._trimming.size_bytes)
        self.meters.total("breakers_log_trimmed_total", self._trimming.by_retention, reason="retention")
        self.meters.total("breakers_log_trimmed_total", self._trimming.by_size, reason="size")
        self.meters.gauge("breakers_lane_waiting", self._work.weight, lane="log")
        self.meters.total("breakers_lane_calls_total", self._work.calls, lane="log")
        self._fanout.look(self.meters)

    def _forget_keys(self) -> None:
        """Duplicate keys live duplicate_window_ms; beyond duplicate_keys_max the oldest go early, counted."""
        horizon = self._clock.now_ms() - self._keys_ms
        while self._key_ages:
            expired = self._key_ages[0][0] < horizon
            if not expired and len(self._key_ages) <= self._settings.duplicate_keys_max:
                return
            _, router_id, key = self._key_ages.popleft()
            if not expired:
                self.meters.count("breakers_duplicate_keys_dropped_total")
            if (router := self._routers.get(router_id)) is not None:
                router.keys.pop(key, None)

    # ------------------------------------------------------------------ control items

    async def _control(self, item: _Item, now: int) -> Any:
        if isinstance(item, _Take):
            return await self._take(item.assignments, now)
        if isinstance(item, _Attach):
            return [self._attach(item.owner, *want) for want in item.wants]
        if isinstance(item, _Promise):
            return await self._promise(item)
        if isinstance(item, _Release):
            await self._let_go(item.router_ids, now)
        return None

    async def _let_go(self, router_ids: Sequence[str], now: int) -> None:
        """Notes that samples could be taken until now: the next owner's gap, if there has to be one, begins here."""
        slots = {router.slot for i in router_ids if (router := self._routers.pop(i, None)) is not None}
        if self._away_since(now) is not None:
            return
        with contextlib.suppress(BreakersError):
            for slot in sorted(slots):
                await self._log.alive(slot, self.incarnation, now)

    async def _take(self, assignments: Sequence[RouterAssignment], now: int) -> list[str]:
        by_slot: dict[str, list[RouterAssignment]] = {}
        for assignment in assignments:
            by_slot.setdefault(assignment.log_slot, []).append(assignment)
        taken: list[str] = []
        gaps: list[tuple[OwnedRouter, int]] = []
        up = self._up_ms
        for slot, group in by_slot.items():
            wanted = {a.router_id: a for a in group}
            for head in await self._heads(slot, [(a.router_id, a.epoch) for a in group], now):
                router = OwnedRouter(wanted[head.router_id], head)
                old = self._routers.get(head.router_id)
                self._adopt(router, head, now, old)
                taken.append(router.id)
                # this process knows better than the log until when it took samples itself
                since = max(head.alive_ms, head.last_received_ms, router.durable_ms, up if old else 0)
                router.since_ms = since
                if head.offset and (old is None or now - since >= self._outage_ms):
                    if since == head.last_received_ms and now - since < GAP_MIN_MS:
                        router.gap_ms = await self._gap_at_end(slot, head)
                    gaps.append((router, since))
        try:
            await self._write_gaps(gaps, await self._past(max((since for _, since in gaps), default=0), now))
        except BreakersError:
            self._up_ms = up
            raise
        return taken

    async def _gap_at_end(self, slot: str, head: RouterHead) -> int:
        """The stamp of a router's last record when that is a gap: its owner was never reached, so the gap goes on."""
        records = await self._log.read(slot, head.router_id, head.offset - 1, head.offset, 1)
        return records[0].received_ms if records and records[0].kind == GAP else 0

    async def _past(self, last_ms: int, now: int) -> int:
        """The time, once it lies behind an earlier owner's last stamp: on another node the clock may be behind."""
        if last_ms <= now:
            return now
        await asyncio.sleep(min(last_ms - now, self._settings.max_clock_skew_ms) / 1000)
        return self._clock.now_ms()

    async def _heads(self, slot: str, routers: list[tuple[str, int]], now: int) -> list[RouterHead]:
        horizon = now - self._keys_ms
        heads = await self._log.take(slot, self.incarnation, routers, now, horizon)
        self._up_ms = max(self._up_ms, now)
        return heads

    def _adopt(self, router: OwnedRouter, head: RouterHead, now: int, old: OwnedRouter | None) -> None:
        """A re-taken router keeps its listeners; they are told to read what they were not sent."""
        if old is not None:
            router.promised_ms, router.durable_ms, router.gap_ms = old.promised_ms, old.durable_ms, old.gap_ms
            for subscription in old.subscriptions.values():
                router.subscriptions[subscription.breaker_id] = subscription
                if subscription.sent < head.offset:
                    self._fanout.mark(subscription, head.offset)
        router.promised_ms = max(router.promised_ms, head.alive_ms)
        self._routers[router.id] = router
        noted = old.keys if old is not None else {}
        self._key_ages.extend((now, router.id, key) for key in router.keys if key not in noted)

    async def _write_gaps(self, candidates: list[tuple[OwnedRouter, int]], now: int) -> None:
        """A span in which no samples could be taken becomes a record of its own (semantics.md section 2). What goes on
        from the last gap is part of it, however short."""
        group = Group(self._routers, frozenset(), now, [])
        for router, since in candidates:
            stamp = router.stamp(now)
            if stamp - since >= (1 if since == router.gap_ms else GAP_MIN_MS):
                group.gap(router, Gap(since, stamp))
        if staged := group.close():
            self.meters.count("breakers_log_gaps_total", len(staged))
            if not await self._write(staged, []):
                raise Unavailable("the sample log does not answer")

    async def _reread(self) -> None:
        """After a write of unknown outcome: where does the log stand really?"""
        routers = list(self._routers.values())
        assignments = [RouterAssignment(router_id=r.id, project_id="", epoch=r.epoch, log_slot=r.slot) for r in routers]
        now = self._clock.now_ms()
        outage_from = self._up_ms
        taken = await self._take(assignments, now)
        for router in routers:
            if router.id not in taken:
                self._routers.pop(router.id, None)
        self._doubtful = False
        self._up_ms = outage_from
        self._fanout.flush()

    def _away_since(self, now: int) -> int | None:
        """Until when samples could be taken, when that is longer ago than a missed heartbeat or knock explains: this
        process slept, its log was away, or nobody could bring anything. None: they can be taken."""
        slept = now - self._up_ms >= self._outage_ms
        alone = now - self._reached_ms >= self._unreached_ms
        if not slept and not alone:
            return None
        return min(self._up_ms if slept else now, self._reached_ms if alone else now)

    async def _note_outage(self, items: Sequence[_Item], now: int) -> None:
        """An outage ends with the first sign of a caller; a change of configuration follows what there was of it."""
        reached = any(isinstance(item, Part | _Knock) for item in items)
        away = self._away_since(now)
        if away is not None:
            changed = {item.row.router_id for item in items if isinstance(item, Change)}
            silent = [r for r in self._routers.values() if r.offset and (reached or r.id in changed)]
            gaps = [(r, max(away, r.since_ms, r.last_ms, r.durable_ms)) for r in silent]
            await self._write_gaps(gaps, now)
            self._up_ms = now if reached else self._up_ms
        if reached:
            self._reached_ms = now

    def _attach(self, owner: str, router_id: str, breaker_id: str, epoch: int) -> int:
        router = self._routers.get(router_id)
        if router is None:
            return -1
        known = router.subscriptions.get(breaker_id)
        if known is None or known.epoch <= epoch:
            if known is not None:
                known.live = False
            router.subscriptions[breaker_id] = Subscription(router_id, breaker_id, epoch, owner, router.offset)
        return router.offset

    async def _promise(self, item: _Promise) -> list[tuple[int, int]]:
        """Durable before it is given: a later gap must not swallow a timer that fired under it. None is given while
        no samples can be taken: that silence will have been a gap."""
        if self._away_since(self._clock.now_ms()) is not None:
            return [NOT_NOW] * len(item.pairs)
        by_slot: dict[str, list[OwnedRouter]] = {}
        for router in {r.id: r for i, _ in item.pairs if (r := self._routers.get(i))}.values():
            router.promised_ms = max(router.promised_ms, item.upto_ms)
            if item.upto_ms > router.durable_ms:
                by_slot.setdefault(router.slot, []).append(router)
        for slot, routers in by_slot.items():
            held = [(r.id, r.epoch) for r in routers]
            for router, mine in zip(
                routers, await self._log.promise(slot, self.incarnation, held, item.upto_ms), strict=True
            ):
                if mine:
                    router.durable_ms = item.upto_ms
                else:  # another owner has taken over: what we were sent is not all there is
                    self.meters.count("breakers_log_refusals_total")
                    self._routers.pop(router.id, None)
        return [self._sent(router_id, breaker_id) for router_id, breaker_id in item.pairs]

    def _sent(self, router_id: str, breaker_id: str) -> tuple[int, int]:
        router = self._routers.get(router_id)
        subscription = None if router is None else router.subscriptions.get(breaker_id)
        return UNSENT if router is None or subscription is None else (subscription.sent, router.offset)

    async def _beat(self) -> None:
        """Every heartbeat_interval_ms: notes in the log's store that samples could be taken until now."""
        while True:
            await asyncio.sleep(self._settings.heartbeat_interval_ms / 1000)
            await one_round("router heartbeat", self._beat_once())

    async def _beat_once(self) -> None:
        with contextlib.suppress(BreakersError):
            await self._work.put(_Beat())
            now = self._clock.now_ms()
            if self._away_since(now) is not None:
                return
            for slot in sorted({r.slot for r in self._routers.values()}):
                await self._log.alive(slot, self.incarnation, now)
            self._up_ms = max(self._up_ms, self._clock.now_ms())
