"""What breakers read from routers' logs: their windows after a restore, and everything they have not been sent.

Reads are repeated until the log answers, so a breaker that reads stays blocked meanwhile and nothing is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from breaker_actors.core.records import BREAKER, SampleColumns, decode_breaker
from breaker_actors.errors import BreakersError
from breaker_actors.held import END_OF_LOG, Held, Item
from breaker_actors.logreader import LogReader, concerned
from breaker_actors.messages import RouterRef
from breaker_actors.stores.samplelog import SampleLog

RETRY_S = 0.2


class CatchUp:
    """`apply(held, item)` takes one record in and returns when its effects are durable."""

    def __init__(self, log: SampleLog, apply: Callable[[Held, Item], Awaitable[None]]) -> None:
        self._reader = LogReader(log)
        self._apply = apply

    async def refill(self, group: list[Held]) -> None:
        """Fills windows from what the log has at and below each breaker's cut."""
        while True:
            try:
                return await self._refill(group)
            except BreakersError:
                await asyncio.sleep(RETRY_S)

    async def read(self, router_id: str, group: list[Held], upto: int) -> None:
        """Applies a router's log after the cuts of blocked breakers, in order, up to an offset."""
        while True:
            try:
                return await self._read(router_id, group, upto)
            except BreakersError:
                await asyncio.sleep(RETRY_S)

    async def read_all(self, group: list[Held]) -> None:
        """Applies all logs of blocked breakers to their ends. What brings a breaker to life is read first."""
        born = [(held, await self._birthplace(held)) for held in group if held.breaker is None]
        rest = [(held, router_id) for held in group for router_id in list(held.routers)]
        for pairs in (born, rest):
            by_router: dict[str, list[Held]] = {}
            for held, router_id in pairs:
                by_router.setdefault(router_id, []).append(held)
            for router_id, listeners in by_router.items():
                await self.read(router_id, listeners, END_OF_LOG)

    async def _birthplace(self, held: Held) -> str:
        """The router whose log holds the creation of a breaker: the first record of the link that it was made with."""
        for router in held.routers.values() if len(held.routers) > 1 else ():
            while True:
                try:
                    record = await self._reader.at(router, router.since_offset + 1)
                    break
                except BreakersError:
                    await asyncio.sleep(RETRY_S)
            if record is not None and record.kind == BREAKER:
                told = decode_breaker(record.payload)
                if told.breaker_id == held.id and told.created:
                    return router.router_id
        return next(iter(held.routers), "")

    async def _refill(self, group: list[Held]) -> None:
        """May be repeated: begins with empty windows. Links that have ended count as long as a window reaches them."""
        for each in group:
            if each.breaker is not None:
                each.breaker.unload()
        for router, listeners in _by_router(group):
            uptos = {h.id: h.cut.get(router.router_id, 0) for h in listeners}
            since = {h.id: h.breaker.reload_after_ms for h in listeners if h.breaker is not None}
            by_id = {h.id: h for h in listeners}
            async for record in self._reader.back(router, max(uptos.values()), min(since.values(), default=0)):
                splitter = await self._reader.splitter(router, record)
                for breaker_id, body, start, stop in concerned(record, splitter):
                    held = by_id.get(breaker_id)
                    if held is None or held.breaker is None or record.offset > uptos[breaker_id]:
                        continue
                    if not isinstance(body, SampleColumns) or record.received_ms <= since[breaker_id]:
                        continue
                    if body.metric_at(start) == held.breaker.rule.metric:  # it may have had another one then
                        held.breaker.load(body.rows(start, stop), record.received_ms)

    async def _read(self, router_id: str, group: list[Held], upto: int) -> None:
        listeners = {h.id: h for h in group if not h.dropped and router_id in h.routers}
        if not listeners:
            return
        router = next(iter(listeners.values())).routers[router_id]
        last = start = min(h.cut[router_id] for h in listeners.values())
        async for record in self._reader.after(router, start, upto):
            splitter = await self._reader.splitter(router, record)
            for breaker_id, body, first, stop in concerned(record, splitter):
                held = listeners.get(breaker_id)
                if held is not None and held.wants(router_id, record.offset):
                    item = Item(router_id, 0, record.offset, record.received_ms, record.kind, body, first, stop)
                    await self._apply(held, item)
            last = record.offset
        for held in listeners.values():
            if router_id in held.routers:
                held.cut[router_id] = max(held.cut[router_id], last)


def _by_router(group: Iterable[Held]) -> list[tuple[RouterRef, list[Held]]]:
    found: dict[str, tuple[RouterRef, list[Held]]] = {}
    for held in group:
        for router in {**held.former, **held.routers}.values():
            found.setdefault(router.router_id, (router, []))[1].append(held)
    return list(found.values())
