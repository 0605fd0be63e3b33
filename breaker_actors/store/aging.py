"""How upkeep goes through what grows old: it looks at pages in reads, which keep nobody waiting, and removes what may
go in steps that look again. What is beyond a share goes likewise, in turns.

What is old and has to stay lies where the walk begins: so it goes on behind the last row it looked at, also in the next
round, and begins anew once it has come to where nothing is old.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Literal, NamedTuple

from sqlalchemy import Column, ColumnElement, Connection, and_, select, true, tuple_

from breaker_actors.store.quotas import Excess, beyond
from breaker_actors.store.section import PARAMETERS_MAX, StorePart, chunks
from breaker_actors.store.steps import Who

SERVICE = Who("", is_large=True)
"""Whose turn and rests the steps have."""

WALK_S = 2.0
"""So long upkeep goes through one part in a round: what is left goes in the next one, and logs are trimmed between."""

Mark = tuple[int, ...]
Remove = Callable[[Connection, Sequence[int]], int]
"""Removes those of some rows that may still go; how many."""


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


class Found(NamedTuple):
    """Rows of a project that may go, and how."""

    keys: Sequence[int]
    remove: Remove


Look = Callable[[Connection, str, int], Found]
"""What may go of a project, and so much of it at most."""


class Turns:
    """Whose turn is next: who had none yet, then who had his longest ago. Known of those that are named."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, ...], int] = {}
        self._count = 0

    def of(self, named: Sequence[Excess], over: Container[tuple[str, ...]]) -> list[Excess]:
        """One of each organisation, in the order of their turns. `over`: those that have nothing to give in this round,
        which was a turn, too."""
        known = {key for one in named for key in _keys(one)}
        self._last = {key: at for key, at in self._last.items() if key in known}
        found: dict[str, Excess] = {}
        for one in sorted(named, key=lambda one: [self._last.get(key, 0) for key in _keys(one)]):
            if _keys(one)[1] not in over:
                found.setdefault(one.org_id, one)
        return list(found.values())

    def note(self, one: Excess) -> None:
        """It is having its turn."""
        self._count += 1
        self._last.update(dict.fromkeys(_keys(one), self._count))


class Aging(StorePart):
    """`_marks`: by name of a part behind which row its walk goes on; `_turns`: whose is next; `_cut_short`: names of
    what the last round did not come to the end of. Kept by this process alone."""

    _marks: dict[str, Mark]
    _turns: dict[str, Turns]
    _cut_short: set[str]

    @property
    def is_pruned(self) -> bool:
        return not self._cut_short

    def _note_end(self, name: str, is_done: bool) -> None:
        (self._cut_short.discard if is_done else self._cut_short.add)(name)

    async def _remove_old(self, part: Part, before_ms: int, page: int, pages: int, remove: Remove) -> int:
        """Goes on through a part, `pages` of so many rows at most and for WALK_S, and removes what is from before a
        time and may go, PARAMETERS_MAX rows in a transaction; how many."""
        removed, until_s = 0, perf_counter() + WALK_S
        self._note_end(part.name, False)
        for _ in range(pages):
            look = partial(_look, part=part, before_ms=before_ms, mark=self._marks.get(part.name), most=page)
            found = await self._db.read(look)
            gone, is_done = await self._in_steps(found.keys, remove, until_s)
            removed += gone
            if not is_done:
                break
            if found.last is None:
                self._marks.pop(part.name, None)
                self._note_end(part.name, True)
                break
            self._marks[part.name] = found.last
        return removed

    async def _take_turns(self, what: Literal["events", "deliveries"], look: Look) -> tuple[int, bool]:
        """Removes what is beyond shares, for WALK_S: PARAMETERS_MAX rows of each organisation, then of each again, and
        so through its shares; a round goes on where the last one ended. How many rows went, and whether that were
        all."""
        removed, until_s = 0, perf_counter() + WALK_S
        turns, over = self._turns.setdefault(what, Turns()), set[tuple[str, ...]]()
        found = dict[str, Found]()
        while some := turns.of(await self._db.read(partial(beyond, what=what)), over):
            for one in some:
                if perf_counter() > until_s:
                    return removed, False
                turns.note(one)
                gone = await self._take(one, look, found)
                removed += gone
                if not gone:
                    over.add(_keys(one)[1])
        return removed, True

    async def _take(self, one: Excess, look: Look, found: dict[str, Found]) -> int:
        """A step. `found`: by project what was found of it in this round, and has not gone yet: a look may be long."""
        for project_id, much in one.projects:
            mine = found.get(project_id)
            if mine is None or not mine.keys:
                mine = await self._db.read(partial(_look_at, look=look, project_id=project_id, much=much))
            most = min(PARAMETERS_MAX, much)
            found[project_id] = mine._replace(keys=mine.keys[most:])
            if some := mine.keys[:most]:
                return await self._steps.write_small(SERVICE, partial(_of_some, remove=mine.remove, keys=some))
        return 0

    async def _in_steps(self, keys: Sequence[int], remove: Remove, until_s: float | None = None) -> tuple[int, bool]:
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


def _look_at(c: Connection, look: Look, project_id: str, much: int) -> Found:
    return look(c, project_id, much)


def _of_some(c: Connection, remove: Remove, keys: Sequence[int]) -> int:
    return remove(c, keys)


def _keys(one: Excess) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of its organisation's turns, and of its own within them."""
    return (one.org_id,), (one.org_id, one.share)
