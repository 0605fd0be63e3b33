"""A RouterActor becomes the owner of routers, or asks the log where they stand after a write of unknown outcome.

What lies between an earlier owner's last sign of life and now is owed to the router as a gap. What duplicate keys a
log has is read before the router is taken, beside appends, for they may be many: then only those are asked for that
came since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from breaker_actors.clock import Clock
from breaker_actors.core.log_entries import GAP, RouterView, decode_view
from breaker_actors.errors import LogDamaged
from breaker_actors.messages import RouterAssignment
from breaker_actors.router.appends import Appends
from breaker_actors.router.group import OwnedRouter
from breaker_actors.router.outage import GAP_MIN_MS
from breaker_actors.router.owned import OwnedRouters
from breaker_actors.telemetry.set_aside import Asides
from breaker_actors.wal.base import RouterHead, SampleLog
from breaker_actors.wal.reader import view_at

KEYS_AT_ONCE = 5_000
"""Duplicate keys in one read of a log: some 10 ms, in which nothing else is done here."""


class Takeover:
    """Takes routers over under the name of one process. `skew_max_ms`: so far another node's clock may be ahead."""

    def __init__(
        self,
        log: SampleLog,
        incarnation: str,
        owned: OwnedRouters,
        appends: Appends,
        clock: Clock,
        skew_max_ms: int,
        asides: Asides,
    ) -> None:
        self._log = log
        self._incarnation = incarnation
        self._owned = owned
        self._appends = appends
        self._clock = clock
        self._skew_max_ms = skew_max_ms
        self._asides = asides
        self._begun: dict[str, tuple[int, bytes]] = {}
        """By router up to where its keys were read, while there are more."""

    async def learn(self, slot: str, assignments: Sequence[RouterAssignment], until: float) -> dict[str, int]:
        """Reads the duplicate keys of routers that are not owned here yet; answers up to which offset, for those that
        are ready to be acquired. Ends soon after `until` (the loop's time); the next call goes on from there. Raises
        Unavailable when the log does not answer."""
        wanted = {a.router_id: a for a in assignments if a.router_id not in self._owned.by_id}
        at = {router_id: self._begun.get(router_id, (0, b"")) for router_id in wanted}
        left = dict(at)
        while left:
            each = max(1, KEYS_AT_ONCE // len(left))
            pages = await self._log.keys(slot, left, each)
            now = self._clock.now_ms()
            left = {}
            for router_id, page in pages.items():
                if page:
                    self._owned.keys.learn(wanted[router_id], page, now)
                    at[router_id] = page[-1][:2]
                if len(page) == each:
                    left[router_id] = self._begun[router_id] = at[router_id]
                else:
                    self._begun.pop(router_id, None)
            self._owned.forget_keys(now)
            if asyncio.get_running_loop().time() > until:
                break
        return {router_id: offset for router_id, (offset, _) in at.items() if router_id not in left}

    async def acquire(
        self, assignments: Sequence[RouterAssignment], now: int, keys_upto: Mapping[str, int] | None = None
    ) -> list[str]:
        """Acquires routers; returns the ids that were not fenced by a higher epoch. `keys_upto`: what `learn` answered;
        of those owned here already it is known anyway. Raises Unavailable when the log does not answer; some may be
        owned then."""
        asked = [a.router_id for a in assignments]
        owned = {i: self._owned.by_id[i].offset for i in asked if i in self._owned.by_id}
        known = {**(keys_upto or {}), **owned}
        by_slot: dict[str, list[RouterAssignment]] = {}
        for assignment in assignments:
            by_slot.setdefault(assignment.log_slot, []).append(assignment)
        taken: list[str] = []
        gaps: list[tuple[OwnedRouter, int]] = []
        outages = self._owned.outages
        up_ms = outages.up_ms
        for slot, group in by_slot.items():
            wanted = {a.router_id: a for a in group}
            for head in await self._heads(slot, group, now, known):
                old = self._owned.by_id.get(head.router_id)
                router = await self._router(wanted[head.router_id], head)
                _succeed(router, head, old)
                # this process knows better than the log until when it took samples itself
                since = max(head.alive_ms, head.last_received_ms, router.durable_watermark_ms, up_ms if old else 0)
                router.since_ms = since
                self._owned.adopt(router, head.log_bytes, now)
                taken.append(router.id)
                if router.damage:
                    self._owned.note_damage(router.id, router.damage, head.offset)
                    continue
                outages.owed.found(router.id, head.last_received_ms)
                if head.offset and (old is None or outages.is_long(since, now)):
                    if since == head.last_received_ms and now - since < GAP_MIN_MS:
                        router.gap_ms = await self._gap_at_end(router, head)
                    gaps.append((router, since))
        now = await self._past(max((since for _, since in gaps), default=0), now)
        for router, since in [g for g in gaps if not g[0].damage]:
            outages.owed.owe(router, since, now)
        return taken

    async def reread(self) -> None:
        """After a write of unknown outcome: where does the log stand really?"""
        routers = list(self._owned.by_id.values())
        assignments = [
            RouterAssignment(
                router_id=r.id,
                project_id=r.project_id,
                epoch=r.epoch,
                log_slot=r.slot,
                reached_offset=r.offset,
                org_id=r.org_id,
            )
            for r in routers
        ]
        up_ms = self._owned.outages.up_ms
        taken = await self.acquire(assignments, self._clock.now_ms())
        for router in routers:
            if router.id not in taken:
                self._owned.forget(router.id)
        self._appends.is_doubtful = False
        self._owned.outages.still_up_to(up_ms)
        self._owned.fanout.flush()

    async def _heads(
        self, slot: str, group: Sequence[RouterAssignment], now: int, keys_upto: Mapping[str, int]
    ) -> list[RouterHead]:
        routers, horizon = [(a.router_id, a.epoch) for a in group], self._owned.keys.horizon_ms(now)
        taking = self._log.acquire(slot, self._incarnation, routers, now, horizon, keys_upto)
        heads = await self._appends.noting(taking)
        self._owned.outages.worked(now)
        return heads

    async def _router(self, assignment: RouterAssignment, head: RouterHead) -> OwnedRouter:
        """The router as its log has it; one whose log is damaged splits nothing."""
        series_max = self._owned.series_max
        if not head.damage:
            try:
                return OwnedRouter(assignment, head, await self._view_in_force(assignment.log_slot, head), series_max)
            except LogDamaged as error:
                head = replace(head, damage=str(error))
        return OwnedRouter(assignment, head, RouterView(version=0), series_max)

    async def _view_in_force(self, slot: str, head: RouterHead) -> RouterView:
        """The newest view in a router's log that can be read."""
        if (payload := head.view) is None:
            return RouterView(version=0)
        where = (head.router_id, payload, head.view_offset)
        view = self._asides.attempt(partial(decode_view, payload), "log", *where)
        return view or await view_at(self._log, slot, head.router_id, head.view_offset, self._asides)

    async def _gap_at_end(self, router: OwnedRouter, head: RouterHead) -> int:
        """The stamp of a router's last record when that is a gap: its owner was never reached, so the gap goes on."""
        try:
            records = await self._log.read(router.slot, router.id, head.offset - 1, head.offset, 1)
        except LogDamaged as error:
            self._owned.note_damage(router.id, str(error), head.offset)
            return 0
        return records[0].received_ms if records and records[0].kind == GAP else 0

    async def _past(self, last_ms: int, now: int) -> int:
        """The time, once it lies behind an earlier owner's last stamp: on another node the clock may be behind."""
        if last_ms <= now:
            return now
        await asyncio.sleep(min(last_ms - now, self._skew_max_ms) / 1000)
        return self._clock.now_ms()


def _succeed(router: OwnedRouter, head: RouterHead, old: OwnedRouter | None) -> None:
    """Keeps the watermark that this process gave for a router before it acquired it anew, and what is wrong with it."""
    if old is not None:
        router.damage = router.damage or old.damage
        router.watermark_ms, router.durable_watermark_ms, router.gap_ms = (
            old.watermark_ms,
            old.durable_watermark_ms,
            old.gap_ms,
        )
    router.watermark_ms = max(router.watermark_ms, head.alive_ms)
