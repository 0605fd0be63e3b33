"""The table of what could not be read (`breaker_actors/telemetry/set_aside.py`): at most ROWS_MAX rows, then a counter
goes up."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, func, insert, select, update

from breaker_actors.messages import Aside
from breaker_actors.store import tables as t
from breaker_actors.store.rows import AsideRow
from breaker_actors.store.section import StorePart, bump, chunks

ROWS_MAX = 10_000
DROPPED = "set_aside_dropped"
"""The counter of what found no row."""


class AsideRows(StorePart):
    async def set_aside(self, entries: Sequence[Aside]) -> None:
        if entries:
            await self._db.write(lambda c: _add(c, entries))

    async def list_aside(self, limit: int, before: int | None = None) -> list[AsideRow]:
        columns = [t.set_aside.c[f] for f in AsideRow.__struct_fields__]
        query = select(*columns).order_by(t.set_aside.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(t.set_aside.c.number < before)
        return [AsideRow(**row._mapping) for row in await self._db.read(lambda c: c.execute(query).all())]

    async def drop_aside(self, numbers: Sequence[int] | None = None) -> int:
        return await self._db.write(lambda c: _drop(c, numbers))

    async def count_aside(self) -> tuple[int, int]:
        return await self._db.read(_count)


def _add(c: Connection, entries: Sequence[Aside]) -> None:
    room = ROWS_MAX - c.execute(select(func.count()).select_from(t.set_aside)).scalar_one()
    s = t.set_aside.c
    for entry in entries:
        mine = (s.kind == entry.kind) & (s.thing == entry.thing) & (s.place == entry.place)
        again = update(t.set_aside).where(mine).values(times=s.times + 1, seen_ms=entry.seen_ms, reason=entry.reason)
        if c.execute(again).rowcount:
            continue
        if room <= 0:
            bump(c, DROPPED)
            continue
        room -= 1
        c.execute(
            insert(t.set_aside).values(
                kind=entry.kind,
                thing=entry.thing,
                place=entry.place,
                project_id=entry.project_id or None,
                reason=entry.reason,
                payload=entry.payload,
                size=entry.size,
                times=1,
                first_ms=entry.seen_ms,
                seen_ms=entry.seen_ms,
            )
        )


def _drop(c: Connection, numbers: Sequence[int] | None) -> int:
    if numbers is None:
        return c.execute(delete(t.set_aside)).rowcount
    return sum(
        c.execute(delete(t.set_aside).where(t.set_aside.c.number.in_(some))).rowcount for some in chunks(numbers)
    )


def _count(c: Connection) -> tuple[int, int]:
    rows = c.execute(select(func.count()).select_from(t.set_aside)).scalar_one()
    dropped = c.execute(select(t.counters.c.value).where(t.counters.c.name == DROPPED)).scalar()
    return rows, int(dropped or 0)
