"""Writes of thousands of rows in steps, between which all other writers have their turn.

SQLite has one writer, and so have the configuration writes of PostgreSQL: what changes thousands of breakers in one
transaction keeps everybody's trips and changes waiting for seconds.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from time import perf_counter
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import structlog
from sqlalchemy import Connection, Table, func, select

from breaker_actors.errors import NotFound
from breaker_actors.sql.database import Database
from breaker_actors.store import tables as t

T = TypeVar("T")

STEP, STEP_BYTES = 500, 1 << 20
"""What one transaction changes at most: breakers or routers, and bytes of breakers' texts, though one of them at least.
About a tenth of a second."""
REST, PAUSE_S, SHORT_S = 2, 0.05, 0.02
"""So many times as long as a step took, and PAUSE_S at least where it was not short, no other one begins: all steps of
a process take a third of a core's time, whoever asks for how many. Other processes ask SQLite for its lock again and
again, and find it free in between."""

log = structlog.get_logger()
_whole: set[asyncio.Task[Any]] = set()


LARGE_AT_ONCE = 4
"""Large changes of one organisation under way at once, whoever waits for them; the next one waits before its first
write."""

Who = tuple[str, str]
"""Whose turn it is: an organisation, and a project of it."""


async def pause(time_s: float) -> None:
    await asyncio.sleep(time_s)


def running() -> list[asyncio.Task[Any]]:
    """What goes on, whether its caller waits for it or not."""
    return list(_whole)


class Turns:
    """Gives turns to organisations in rotation, within one to its projects in rotation, within one in order. Who is
    cancelled has none. Bounded by the requests in flight."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, OrderedDict[str, deque[asyncio.Future[None]]]] = OrderedDict()
        self._is_taken = False

    async def take(self, who: Who) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who[0], OrderedDict()).setdefault(who[1], deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was given at the same moment
                self.give_back()
            raise

    def give_back(self) -> None:
        while self._waiting:
            org_id, projects = self._waiting.popitem(last=False)
            project_id, turns = projects.popitem(last=False)
            turn = turns.popleft()
            if turns:
                projects[project_id] = turns
            if projects:
                self._waiting[org_id] = projects
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False


class Steps:
    """The steps of all large changes of a process, one at a time. `live`: claims of replaces that go on here."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._turns = Turns()
        self._rested = 0.0
        self._rooms: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self.live: set[str] = set()

    async def write(self, who: Who | None, work: Callable[[Connection], T]) -> T:
        """In its turn; at once for None, which is a small change."""
        return await (self._db.write(work) if who is None else self._in_turn(who, self._db.write, work))

    async def read(self, who: Who | None, work: Callable[[Connection], T]) -> T:
        """In its turn; at once for None, which is a small change."""
        return await (self._db.read(work) if who is None else self._in_turn(who, self._db.read, work))

    async def turn_of(self, project_id: str, more: int = 0) -> Who | None:
        """Whose turn a change of a project has; None where it and the project are small. Raises NotFound."""
        return await self._db.read(partial(_who, project_id=project_id, more=more))

    async def whole(self, who: Who | None, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs a change to its end, also where the caller is cancelled: who hangs up leaves no half of it behind. A
        large one begins when its organisation has room for it; until then it is its caller's."""
        if who is None:
            return await _run_whole(work())
        room = self._rooms.setdefault(who[0], asyncio.Semaphore(LARGE_AT_ONCE))
        await room.acquire()
        return await _run_whole(work(), room.release)

    async def _in_turn(
        self, who: Who, transact: Callable[[Callable[[Connection], T]], Awaitable[T]], work: Callable[[Connection], T]
    ) -> T:
        clock = asyncio.get_running_loop().time
        await self._turns.take(who)
        try:
            if (left := self._rested - clock()) > 0:
                await pause(left)
            begun = perf_counter()
            try:
                return await transact(work)
            finally:
                took = perf_counter() - begun
                self._rested = clock() + max(REST * took, PAUSE_S if took > SHORT_S else 0.0)
        finally:
            self._turns.give_back()


def _who(c: Connection, project_id: str, more: int) -> Who | None:
    query = select(t.workspaces.c.org_id).join(t.projects, t.projects.c.workspace_id == t.workspaces.c.id)
    org_id = c.execute(query.where(t.projects.c.id == project_id)).scalar()
    if org_id is None:
        raise NotFound("There is no such project.", {"project_id": project_id})
    few = more <= STEP and all(_has_few(c, table, project_id) for table in (t.breakers, t.routers))
    return None if few else (org_id, project_id)


def _has_few(c: Connection, table: Table, project_id: str) -> bool:
    found = select(table.c.id).where(table.c.project_id == project_id).limit(STEP + 1).subquery()
    return c.execute(select(func.count()).select_from(found)).scalar_one() <= STEP


def first_few(sizes: Iterable[int]) -> int:
    """How many of what has such sizes make a step: one at least, where there is one."""
    count = taken = 0
    for size in sizes:
        taken += size
        if count == STEP or (count and taken > STEP_BYTES):
            break
        count += 1
    return count


async def _run_whole(work: Coroutine[Any, Any, T], ended: Callable[[], object] = lambda: None) -> T:
    task = asyncio.create_task(work)
    _whole.add(task)
    task.add_done_callback(_ended)
    task.add_done_callback(lambda _: ended())
    return await asyncio.shield(task)


def _ended(task: asyncio.Task[Any]) -> None:
    _whole.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("steps_ended", error=str(error))
