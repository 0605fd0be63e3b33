"""How upkeep goes through what grows old: it looks at pages in reads, which keep nobody waiting, and removes what may
go in steps that look again.

What is old and has to stay lies where the walk begins: so it goes on behind the last row it looked at, also in the next
round, and begins anew once it has come to where nothing is old.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from sqlalchemy import Column, ColumnElement, Connection, and_, select, true, tuple_

from breaker_actors.store.section import StorePart, chunks
from breaker_actors.store.steps import Who

SERVICE = Who("", is_large=True)
"""Whose turn and rests the steps have."""

WALK_S = 2.0
"""So long upkeep goes through one part in a round: what is left goes in the next one, and logs are trimmed between."""

Mark = tuple[int, ...]


class Part(NamedTuple):
    """A table, or a part of it, whose rows lie about in order of their `age` by `order`, which ends with the key.
    `goes`: what may go when it is old; `mine`: what belongs to the part."""

    name: str
    age: Column[Any]
    order: tuple[Column[Any], ...]
    goes: ColumnElement[bool] = true()
    mine: ColumnElement[bool] = true()


class Page(NamedTuple):
    """What was found on one. `keys`: of rows that may go; `last`: where the next one begins, None where none is old."""

    keys: list[int]
    last: Mark | None


class Aging(StorePart):
    """`_marks`: by name of a part behind which row its walk goes on; kept by this process alone."""

    _marks: dict[str, Mark]

    async def _remove_old(
        self, part: Part, before_ms: int, page: int, pages: int, remove: Callable[[Connection, Sequence[int]], int]
    ) -> int:
        """Goes on through a part, `pages` of so many rows at most and for WALK_S, and removes what is from before a
        time and may go, PARAMETERS_MAX rows in a transaction; how many."""
        removed, until_s = 0, perf_counter() + WALK_S
        for _ in range(pages):
            look = partial(_look, part=part, before_ms=before_ms, mark=self._marks.get(part.name), most=page)
            found = await self._db.read(look)
            gone, is_done = await self._in_steps(found.keys, remove, until_s)
            removed += gone
            if not is_done:
                break
            if found.last is None:
                self._marks.pop(part.name, None)
                break
            self._marks[part.name] = found.last
        return removed

    async def _in_steps(
        self, keys: Sequence[int], remove: Callable[[Connection, Sequence[int]], int], until_s: float | None = None
    ) -> tuple[int, bool]:
        """Each step has its turn and its rest, which are as long as others' large changes make them: none begins after
        a time, WALK_S from now where none is given. How many rows went, and whether that were all."""
        removed, until_s = 0, perf_counter() + WALK_S if until_s is None else until_s
        for some in chunks(keys):
            if perf_counter() > until_s:
                return removed, False
            removed += await self._steps.write_small(SERVICE, partial(_of_some, remove=remove, keys=some))
        return removed, True


def _look(c: Connection, part: Part, before_ms: int, mark: Mark | None, most: int) -> Page:
    old = part.age < before_ms
    query = select(*part.order, old.label("old"), and_(old, part.goes).label("goes")).where(part.mine)
    if mark is not None:
        query = query.where(tuple_(*part.order) > mark)
    rows = c.execute(query.order_by(*part.order).limit(most)).all()
    width = len(part.order)
    last = tuple(rows[-1][:width]) if len(rows) == most and any(row.old for row in rows) else None
    return Page([row[width - 1] for row in rows if row.goes], last)


def _of_some(c: Connection, remove: Callable[[Connection, Sequence[int]], int], keys: Sequence[int]) -> int:
    return remove(c, keys)
