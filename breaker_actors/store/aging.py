"""How upkeep goes through what grows old: it looks at pages in reads, which keep nobody waiting, and removes what may
go in steps that look again. What is beyond a share goes likewise, in turns.

What is old and has to stay lies where the walk begins: so it goes on behind the last row it looked at, also in the next
round, and begins anew once it has come to where nothing is old. So do the laps through what a project has beyond its
share: a round looks at a bounded number of rows, however many of them have to stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any, Literal, NamedTuple

from sqlalchemy import Column, ColumnElement, Connection, Subquery, and_, select, true, tuple_

from breaker_actors.store.quotas import Excess, beyond
from breaker_actors.store.section import PARAMETERS_MAX, StorePart, chunks
from breaker_actors.store.steps import Who

SERVICE = Who("", is_large=True)
"""Whose turn and rests the steps have."""

WALK_S = 2.0
"""So long upkeep goes through one part in a round: what is left goes in the next one, and logs are trimmed between."""
LOOKS_MAX = 20
"""A round looks at so many pages at most of what one organisation's projects have beyond their shares."""

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


class Kept(NamedTuple):
    """Rows of a table that projects have shares of. `order`: an index of it, which begins with the project; `columns`:
    what has to be known of a row."""

    order: tuple[Column[Any], ...]
    columns: tuple[Column[Any], ...]


class Page(NamedTuple):
    """What was found on one. `keys`: of rows that may go; `last`: where the next one begins, None where none is old."""

    keys: list[int]
    last: Mark | None


class Found(NamedTuple):
    """A page of a project's rows. `keys`: of those that may go; `remove`: how; `last`: where the next page begins, None
    at the end; `has_waiting`: there are rows that may go where a whole lap finds no others."""

    keys: Sequence[int]
    remove: Remove
    last: Mark | None
    has_waiting: bool = False


class Walk(NamedTuple):
    """Laps through a project's rows, which go on in later rounds. `mark`: behind which row, () for the first one;
    `waiting`: where the first page of this lap lies that has rows which may go where there are no others; `takes_them`:
    the last lap found no others; `gave`: this one found some; `is_spent`: the last ones found nothing at all. `excess`:
    how much was beyond the share as the lap began: what gives less than comes counts as nothing."""

    mark: Mark = ()
    waiting: Mark | None = None
    takes_them: bool = False
    gave: bool = False
    is_spent: bool = False
    excess: int | None = None

    def behind(self, page: Found, much: int = 0) -> Walk:
        """Goes on behind a page on which nothing may go any more; at the end it begins anew."""
        waiting = self.mark if self.waiting is None and page.has_waiting else self.waiting
        if page.last is not None:
            return self._replace(mark=page.last, waiting=waiting)
        if self.gave and (self.excess is None or much < self.excess):
            return Walk()
        if waiting is not None and not self.takes_them:
            return Walk(waiting, takes_them=True, is_spent=self.is_spent)
        return Walk(is_spent=True)


Look = Callable[[Connection, str, int, Walk], Found]
"""A page of a project behind the mark of its walk, and so much of what may go of it at most."""


class Turns:
    """Whose turn is next: who had none yet, then who had his longest ago. `walks`: by project how far one has come.
    Known of those that are named."""

    def __init__(self) -> None:
        self.walks: dict[str, Walk] = {}
        self._last: dict[tuple[str, ...], int] = {}
        self._count = 0

    def of(self, named: Sequence[Excess], over: Container[tuple[str, ...]]) -> list[Excess]:
        """One of each organisation, in the order of their turns. `over`: those that have nothing to give in this round,
        which was a turn, too."""
        known = {key for one in named for key in _keys(one)}
        self._last = {key: at for key, at in self._last.items() if key in known}
        projects = {project_id for one in named for project_id, _ in one.projects}
        for project_id in self.walks.keys() - projects:
            del self.walks[project_id]
        found: dict[str, Excess] = {}
        for one in sorted(named, key=lambda one: [self._last.get(key, 0) for key in _keys(one)]):
            if _keys(one)[1] not in over:
                found.setdefault(one.org_id, one)
        return list(found.values())

    def note(self, one: Excess) -> None:
        """It is having its turn."""
        self._count += 1
        self._last.update(dict.fromkeys(_keys(one), self._count))


class _Round:
    """What one knows. `walks`: how far each project has come; `pages`: by project what was found, and has not gone yet;
    `looks`: by organisation at how many pages; `idle`: projects that have nothing to give; `is_cut`: some could not be
    looked through."""

    def __init__(self, walks: dict[str, Walk]) -> None:
        self.walks = walks
        self.pages: dict[str, Found] = {}
        self.looks: Counter[str] = Counter()
        self.idle: set[str] = set()
        self.is_cut = False

    def walk(self, project_id: str) -> Walk:
        return self.walks.get(project_id, Walk())

    def may_look(self, org_id: str) -> bool:
        return self.looks[org_id] < LOOKS_MAX

    def note(self, one: Excess, project_id: str, page: Found) -> None:
        """It was looked at. A page that gives something is looked at again once that has gone."""
        self.looks[one.org_id] += 1
        self.pages[project_id] = page
        much = dict(one.projects)[project_id]
        if self.walk(project_id).excess is None:
            self.walks[project_id] = self.walk(project_id)._replace(excess=much)
        if not page.keys:
            self.walks[project_id] = walk = self.walk(project_id).behind(page, much)
            if page.last is None and walk.is_spent and not walk.takes_them:
                self.idle.add(project_id)

    def take(self, project_id: str, most: int) -> tuple[Sequence[int], Remove]:
        """Some of what was found."""
        page = self.pages[project_id]
        self.pages[project_id] = page._replace(keys=page.keys[most:])
        return page.keys[:most], page.remove

    def has_gone(self, project_id: str) -> None:
        """Something of it."""
        self.walks[project_id] = self.walk(project_id)._replace(gave=True)

    def is_over(self, one: Excess) -> bool:
        """Whether it gives nothing more in this round."""
        left = [project_id for project_id, _ in one.projects if project_id not in self.idle]
        if not left:
            return True
        if self.may_look(one.org_id) or any(self.has_keys(project_id) for project_id in left):
            return False
        self.is_cut = True
        return True

    def has_keys(self, project_id: str) -> bool:
        return project_id in self.pages and bool(self.pages[project_id].keys)


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
            if perf_counter() > until_s:
                break
        return removed

    async def _take_turns(self, what: Literal["events", "deliveries"], look: Look) -> tuple[int, bool]:
        """Removes what is beyond shares, for WALK_S: PARAMETERS_MAX rows of each organisation, or what it takes to look
        at a page, then of each again, and so through its shares; a round goes on where the last one ended. How many
        rows went, and whether that were all."""
        removed, until_s = 0, perf_counter() + WALK_S
        turns, over = self._turns.setdefault(what, Turns()), set[tuple[str, ...]]()
        named = await self._db.read(partial(beyond, what=what))
        some, round_ = turns.of(named, over), _Round(turns.walks)
        while some:
            before = removed
            for one in some:
                if perf_counter() > until_s:
                    return removed, False
                turns.note(one)
                removed += await self._take(one, look, round_, until_s)
                if round_.is_over(one):
                    over.add(_keys(one)[1])
            if removed > before:
                named = await self._db.read(partial(beyond, what=what))
            some = turns.of(named, over)
        return removed, not round_.is_cut

    async def _take(self, one: Excess, look: Look, round_: _Round, until_s: float) -> int:
        """A step, or a look at a page where nothing may go. Of several projects the first one that can gives: the next
        one is asked once all laps through those before it found nothing."""
        for project_id, much in one.projects:
            if not round_.has_keys(project_id):
                if project_id in round_.idle or not round_.may_look(one.org_id):
                    continue
                walk = round_.walk(project_id)
                page = await self._db.read(partial(_look_at, look=look, project_id=project_id, much=much, walk=walk))
                round_.note(one, project_id, page)
            if round_.has_keys(project_id):
                keys, remove = round_.take(project_id, min(PARAMETERS_MAX, much))
                gone = await self._steps.write_small(SERVICE, partial(_of_some, remove=remove, keys=keys))
                if gone:
                    round_.has_gone(project_id)
                return gone
            if not round_.walk(project_id).is_spent or perf_counter() > until_s:
                break
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


@contextmanager
def alone(failed: list[Exception]) -> Iterator[None]:
    """Around a part of upkeep that keeps no other from its turn where it fails. Raise the first one at the end."""
    try:
        yield
    except Exception as error:
        failed.append(error)


def _look(c: Connection, part: Part, before_ms: int, mark: Mark | None, most: int) -> Page:
    old = part.age < before_ms
    query = select(*part.order, old.label("old"), and_(old, part.goes).label("goes")).where(part.mine)
    if mark is not None:
        query = query.where(tuple_(*part.order) > mark)
    rows = c.execute(query.order_by(*part.order).limit(most)).all()
    width = len(part.order)
    last = tuple(rows[-1][:width]) if len(rows) == most and any(row.old for row in rows) else None
    return Page([row[width - 1] for row in rows if row.goes], last)


def _look_at(c: Connection, look: Look, project_id: str, much: int, walk: Walk) -> Found:
    return look(c, project_id, much, walk)


def page_of(c: Connection, kept: Kept, project_id: str, mark: Mark, most: int) -> Subquery:
    """A page of a project's rows behind a mark; what is asked about rows is asked about those of the page alone.

    A column that is equal to a constant has no part in the order of PostgreSQL, which would walk everybody's rows by
    their key where it takes most of them for the project's: there the mark is compared with all of the index, which
    nothing else serves. SQLite walks no index whose last column is the key like that."""
    project, *rest = kept.order
    if c.dialect.name == "sqlite":
        mine = and_(project == project_id, tuple_(*rest) > mark if mark else true())
    else:
        mine = and_(tuple_(*kept.order) > (project_id, *mark) if mark else project >= project_id, project <= project_id)
    return select(*kept.columns).where(mine).order_by(*kept.order).limit(most).subquery("page")


def _of_some(c: Connection, remove: Remove, keys: Sequence[int]) -> int:
    return remove(c, keys)


def _keys(one: Excess) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of its organisation's turns, and of its own within them."""
    return (one.org_id,), (one.org_id, one.share)
