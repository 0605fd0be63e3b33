"""Which part of each log is still needed: by breakers that read it, and by windows that reach back to it.

All breakers of the service are looked at, AT_ONCE of them in one read, and of each what it has read is decoded once: a
breaker that has left thousands of routers names all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, bindparam, delete, func, select, tuple_, union_all

from breaker_actors.core.log_entries import decode_breaker
from breaker_actors.core.model import Record
from breaker_actors.messages import LogFloor, RouterRef
from breaker_actors.store import tables as t
from breaker_actors.store.quotas import add_ended_links
from breaker_actors.store.rows import ForgottenLinks
from breaker_actors.store.section import IDS, PARAMETERS_MAX, StorePart, by_ids, chunks
from breaker_actors.store.steps import Who
from breaker_actors.telemetry.set_aside import Asides

SETTLED_WITHIN_MS = 3_600_000
"""How long after it was written a change lies in the log at the latest, for what depends on its time there."""
AT_ONCE = PARAMETERS_MAX
_SERVICE = Who("", is_large=True)

_decode_record = msgspec.msgpack.Decoder(Record).decode

_B, _L, _E, _R = t.breakers.c, t.links.c, t.ended_links.c, t.records.c
_PAGE = select(_R.breaker_id).where(_R.breaker_id > bindparam("after")).order_by(_R.breaker_id).limit(AT_ONCE)
_PAGE_OF_ENDED = (
    select(_E.breaker_id).distinct().where(_E.breaker_id > bindparam("after")).order_by(_E.breaker_id).limit(AT_ONCE)
)
_READERS = (
    select(_R.breaker_id, _R.record, _R.cut, _R.settings, _B.rule)
    .join(t.breakers, _B.id == _R.breaker_id)
    .where(_R.breaker_id.in_(IDS))
)
_LINKS = select(_L.breaker_id, _L.router_id, _L.since_offset).where(
    _L.breaker_id.in_(IDS), _L.since_offset.is_not(None)
)
_ENDED = select(
    _E.breaker_id, _E.router_id, _E.since_offset, _E.until_offset, _E.ended_ms, _E.log_slot, _E.change_id
).where(_E.breaker_id.in_(IDS), _E.since_offset.is_not(None))
_CUTS = select(_B.id, _B.owner, _R.cut).join(t.records, _R.breaker_id == _B.id).where(_B.id.in_(IDS))
_HUNG_ON = union_all(
    *(select(of.breaker_id, of.router_id).where(of.breaker_id.in_(IDS)) for of in (_L, _E)),
)
_KEY = tuple_(_E.breaker_id, _E.router_id, _E.change_id)
"""Of one end: a link that began and ended anew since has another change."""


class LogNeeds(StorePart):
    async def log_floors(self) -> list[LogFloor]:
        floors = await self._db.read(_Floors)  # first: a change that is in a log by now waits there, or is settled
        after: str | None = ""
        while after is not None:
            after = await self._db.read(partial(floors.look, after=after, asides=self.asides))
        return floors.told()

    async def forget_ended_links(self, after: str) -> ForgottenLinks:
        page = await self._db.read(partial(_page, query=_PAGE_OF_ENDED, after=after))
        if not page:
            return ForgottenLinks()
        found = await self._db.read(partial(_forgettable, breaker_ids=page, asides=self.asides))
        gone = [await self._steps.write_small(_SERVICE, partial(_forget, ended=some)) for some in chunks(found)]
        left = await self._db.read(partial(_left, breaker_ids=page))
        return ForgottenLinks(count=sum(gone), left=left, after=page[-1])


class _Reader(NamedTuple):
    """Up to where a breaker has read its routers' logs, and back to when its window reaches (None: it holds nothing, or
    nobody can read what)."""

    cut: dict[str, int]
    since_ms: int | None

    def offset(self, link: Row[Any]) -> int:
        """Up to where it has read through a link."""
        return self.cut.get(link.router_id, int(link.since_offset))


class _Floors:
    """Per router with a log: the smallest cut of its breakers and the earliest time that a window of them reaches. A
    change that waits may lie in the log already: nobody knows who needs it. Of a router that is gone, without an owner
    and a project: what breakers that hung on it still need."""

    def __init__(self, c: Connection) -> None:
        r = t.routers.c
        owners = t.routers.join(t.projects, t.projects.c.id == r.project_id)
        owners = owners.join(t.workspaces, t.workspaces.c.id == t.projects.c.workspace_id)
        known = select(r.id, r.owner, r.log_slot, r.project_id, t.workspaces.c.org_id).select_from(owners)
        self._routers = {row.id: row for row in c.execute(known.where(r.log_slot.is_not(None)))}
        self._gone: dict[str, str] = {}
        self._lowest: dict[str, tuple[int, int | None]] = {}
        for router_id in c.execute(select(t.changes.c.router_id).distinct()).scalars():
            if router_id in self._routers:
                self._need(router_id, 0, None)

    def look(self, c: Connection, after: str, asides: Asides) -> str | None:
        """Takes in what some breakers need, those behind an id; the last of them, or None: there are no more."""
        page = _page(c, _PAGE, after)
        readers = _readers(c, page, asides)
        for link in by_ids(c, _LINKS, page):
            if (reader := readers.get(link.breaker_id)) is not None and link.router_id in self._routers:
                self._need(link.router_id, reader.offset(link), reader.since_ms)
        for link in by_ids(c, _ENDED, page):
            if (reader := readers.get(link.breaker_id)) is None:
                continue
            if link.router_id not in self._routers and link.log_slot is not None:
                self._gone[link.router_id] = link.log_slot
            if link.router_id in self._routers or link.router_id in self._gone:
                self._need(link.router_id, reader.offset(link), reader.since_ms)
        return page[-1] if page else None

    def _need(self, router_id: str, offset: int, since_ms: int | None) -> None:
        known_offset, known_ms = self._lowest.get(router_id, (offset, None))
        times = [at_ms for at_ms in (known_ms, since_ms) if at_ms is not None]
        self._lowest[router_id] = min(known_offset, offset), min(times, default=None)

    def told(self) -> list[LogFloor]:
        lowest: dict[str, tuple[int | None, int | None]] = {**self._lowest}
        return [
            *(
                LogFloor(id_, r.owner or "", r.log_slot, *lowest.get(id_, (None, None)), r.project_id, r.org_id)
                for id_, r in self._routers.items()
            ),
            *(LogFloor(router_id, "", slot, *lowest[router_id]) for router_id, slot in self._gone.items()),
        ]


def _page(c: Connection, query: Any, after: str) -> list[str]:
    return list(c.execute(query, {"after": after}).scalars())


def _readers(c: Connection, breaker_ids: Sequence[str], asides: Asides) -> dict[str, _Reader]:
    """Without those that were set aside: they read nothing."""
    rows = by_ids(c, _READERS, breaker_ids)
    return {row.breaker_id: _Reader(row.cut, _since_ms(row, asides)) for row in rows if row.cut is not None}


def _since_ms(row: Row[Any], asides: Asides) -> int | None:
    if row.record is None:
        return None
    record = asides.attempt(lambda: _decode_record(row.record), "state", row.breaker_id, row.record)
    settings = None
    if row.settings is not None:
        settings = asides.attempt(lambda: decode_breaker(row.settings), "state", row.breaker_id, row.settings)
    if record is None:
        return None
    told = None if settings is None else settings.rule
    window_ms: int = max(row.rule.window_ms, 0 if told is None else told.window_ms)
    return record.now_ms - window_ms


def _forgettable(c: Connection, breaker_ids: Sequence[str], asides: Asides) -> list[tuple[str, str, int]]:
    """Links that ended, were read to their end, and that no window reaches any more."""

    def found() -> Iterator[tuple[str, str, int]]:
        readers = _readers(c, breaker_ids, asides)
        for link in by_ids(c, _ENDED, breaker_ids):
            reader = readers.get(link.breaker_id)
            if reader is None or reader.since_ms is None or link.until_offset is None:
                continue
            if reader.offset(link) >= link.until_offset and reader.since_ms > link.ended_ms + SETTLED_WITHIN_MS:
                yield link.breaker_id, link.router_id, link.change_id

    return list(found())


def _forget(c: Connection, ended: Sequence[tuple[str, str, int]]) -> int:
    """Takes them from what their projects have, too; how many there were."""
    mine = _KEY.in_(ended)
    of = select(_B.project_id, func.count()).join_from(t.ended_links, t.breakers, _B.id == _E.breaker_id)
    for project_id, count in c.execute(of.where(mine).group_by(_B.project_id).order_by(_B.project_id)).all():
        add_ended_links(c, project_id, -count)
    return c.execute(delete(t.ended_links).where(mine)).rowcount


def _left(c: Connection, breaker_ids: Sequence[str]) -> dict[str, list[tuple[str, RouterRef]]]:
    """See `ForgottenLinks`. Of breakers that nobody owns, or that were set aside, nothing."""
    hung_on: dict[str, set[str]] = {}
    for breaker_id, router_id in by_ids(c, _HUNG_ON, breaker_ids):
        hung_on.setdefault(breaker_id, set()).add(router_id)
    left: dict[str, list[tuple[str, RouterRef]]] = {}
    for row in by_ids(c, _CUTS, breaker_ids):
        for router_id, offset in (row.cut or {}).items() if row.owner else ():
            if router_id not in hung_on.get(row.id, ()):
                left.setdefault(row.owner, []).append((row.id, RouterRef(router_id, "", "", 0, offset)))
    return left
