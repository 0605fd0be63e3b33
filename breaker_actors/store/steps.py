"""Who writes configuration when: organisations in rotation, and thousands of rows in steps.

SQLite has one writer, and so have the configuration writes of PostgreSQL: what changes thousands of breakers in one
transaction, or asks for hundreds of changes at once, would keep everybody's trips and changes waiting for seconds.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from time import perf_counter, thread_time
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary

import structlog
from sqlalchemy import Connection, Table, func, select

from breaker_actors.errors import NotFound, Overloaded, Unavailable
from breaker_actors.sql.database import Database
from breaker_actors.store import tables as t
from breaker_actors.store.pending import is_half_full, org_of

T = TypeVar("T")


class Transact(Protocol):
    """A way to the database."""

    def __call__(self, work: Callable[[Connection], T]) -> Coroutine[Any, Any, T]: ...


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
LONG_S, LONG_PART, SLOW_S = 0.1, 0.1, 10.0
"""An organisation whose small changes took LONG_PART of a core, and LONG_S beyond it, rests with the large ones for
SLOW_S: one change may turn out long, or there are many. A usual one takes a hundredth of a second."""
WAITING_MAX, TURN_S = 256, 10.0
"""Changes of one organisation that wait for their turn in a process, and how long each does; then they are refused."""
ORGS_KNOWN_MAX = 100_000
CARRIED_S, CARRIED_AGAIN_S = 60.0, 0.2
"""How long a step waits for its organisation's earlier changes to be carried into the routers' logs."""


class Who(NamedTuple):
    """Whose turn it is, and whether what is written is large: then it has a turn, and rests, for each step."""

    org_id: str
    project_id: str = ""
    is_large: bool = False


async def pause(time_s: float) -> None:
    await asyncio.sleep(time_s)


def running() -> list[asyncio.Task[Any]]:
    """What goes on, whether its caller waits for it or not."""
    return list(_whole)


class _AtWork(Generic[T]):
    """The work of a transaction, whose thread goes on where the caller has left. `begun`: when it first did."""

    def __init__(self, work: Callable[[Connection], T]) -> None:
        self.begun: float | None = None
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._is_on = False
        self._then: Callable[[], object] | None = None

    def __call__(self, c: Connection) -> T:
        self.begun = self.begun or perf_counter()
        self._is_on = True
        try:
            return self._work(c)
        finally:
            self._is_on = False
            with suppress(RuntimeError):  # the process ends
                self._loop.call_soon_threadsafe(self._ended)

    def then(self, act: Callable[[], object]) -> None:
        """Has this done once no thread is at it."""
        if self._is_on:
            self._then = act
        else:
            act()

    def _ended(self) -> None:
        act, self._then = self._then, None
        if act is not None:
            act()


class Turns:
    """Gives turns to organisations in rotation, within one to its projects in rotation, within one in order. Who is
    cancelled has none. Raises Overloaded for more than WAITING_MAX of an organisation, and for a small change that
    waits for TURN_S; steps wait."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, OrderedDict[str, deque[asyncio.Future[None]]]] = OrderedDict()
        self._is_taken = False

    async def take(self, who: Who, is_first: bool = False) -> None:
        """Returns when it is its turn. `is_first`: before all others of its organisation, since it holds up the large
        changes of everybody; it still waits for one of each other organisation."""
        if not self._is_taken:
            self._is_taken = True
            return
        self.refuse_crowd(who)
        projects = self._waiting.setdefault(who.org_id, OrderedDict())
        turn = asyncio.get_running_loop().create_future()
        turns = projects.setdefault(who.project_id, deque())
        if is_first:
            turns.appendleft(turn)
            projects.move_to_end(who.project_id, last=False)
        else:
            turns.append(turn)
        try:
            async with asyncio.timeout(None if who.is_large else TURN_S):
                await self._given(who, turn)
        except TimeoutError:
            raise _overloaded() from None

    def refuse_crowd(self, who: Who) -> None:
        """Raises Overloaded where as many of an organisation wait as may."""
        if sum(map(len, self._waiting.get(who.org_id, {}).values())) >= WAITING_MAX:
            raise _overloaded()

    async def _given(self, who: Who, turn: asyncio.Future[None]) -> None:
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(who, turn)
            else:  # it was given at the same moment
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

    def _forget(self, who: Who, turn: asyncio.Future[None]) -> None:
        """Who went away takes up no room."""
        projects = self._waiting.get(who.org_id, OrderedDict())
        if turn in (turns := projects.get(who.project_id, deque())):
            turns.remove(turn)
            if not turns:
                del projects[who.project_id]
            if not projects:
                del self._waiting[who.org_id]


class Steps:
    """All configuration writes of a process, one at a time. Large ones, step by step, and those of organisations whose
    writes were long share a third of the time. `live`: claims of replaces that go on here."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._turns = Turns()
        self._large_turns = Turns()
        self._rested = 0.0
        self._spent: dict[str, tuple[float, float]] = {}  # by organisation: seconds of a core beyond its part, and when
        self._slow: dict[str, float] = {}  # organisations whose last writes were long, and until when they are slow
        self._orgs: dict[str, str] = {}
        self._rooms: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self.live: set[str] = set()

    async def write(self, who: Who, work: Callable[[Connection], T]) -> T:
        """One step, or the whole of a small change. A step waits while too much of its organisation is on its way."""
        if who.is_large:
            await self._until_carried(who)
        return await self.write_small(who, work)

    async def write_small(self, who: Who, work: Callable[[Connection], T]) -> T:
        """A change of a few rows. Raises Overloaded where too many of its organisation wait, or it does for TURN_S. Who
        is cancelled has asked for nothing until the transaction begins; then it goes on, and its turn with it."""
        return await self._in_turn(who, self._db.write, work, writes=True)

    async def read(self, who: Who, work: Callable[[Connection], T]) -> T:
        """What a change is to be, decided by what there is: thousands of rows may be read for it, and nothing written.
        Raises Overloaded as `write_small` does."""
        if self._rests(who):
            return await self._in_turn(who, self._db.read_in_turn, work, writes=False)
        return await self._db.read(self._counted(who, work))

    async def whose(self, project_id: str) -> Who:
        """Who a small change of a project belongs to. Raises NotFound."""
        if (org_id := self._orgs.get(project_id)) is None:
            org_id = await self._db.look_up(partial(_org, project_id=project_id))
            if len(self._orgs) >= ORGS_KNOWN_MAX:
                self._orgs.clear()
            self._orgs[project_id] = org_id
        return Who(org_id, project_id)

    async def turn_of(self, project_id: str, more: int = 0) -> Who:
        """The same of a change that is large where it, or the project, is. Raises NotFound, and Overloaded where it
        would get no turn anyway: before anything of the project is read for it."""
        who = await self.whose(project_id)
        for turns in (self._turns, self._large_turns):
            turns.refuse_crowd(who)
        return who._replace(is_large=not await self._db.read(partial(_is_small, project_id=project_id, more=more)))

    async def whole(self, who: Who, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs a change to its end, also where the caller is cancelled: who hangs up leaves no half of it behind. A
        large one begins when its organisation has room for it; until then it is its caller's."""
        if not who.is_large:
            return await _run_whole(work())
        room = self._rooms.setdefault(who.org_id, asyncio.Semaphore(LARGE_AT_ONCE))
        await room.acquire()
        return await _run_whole(work(), room.release)

    def _rests(self, who: Who) -> bool:
        """Whether what it does waits with the large ones."""
        return who.is_large or self._is_slow(who.org_id)

    async def _in_turn(self, who: Who, transact: Transact, work: Callable[[Connection], T], writes: bool) -> T:
        """A transaction in the turns that it needs, which are given back when it has ended, whoever left before."""
        clock = asyncio.get_running_loop().time
        with ExitStack() as held:
            if rests := self._rests(who):
                await self._large_turns.take(who)
                held.callback(self._large_turns.give_back)
                if (left := self._rested - clock()) > 0:
                    await pause(left)
            if writes:
                await self._turns.take(who, is_first=rests)
                held.callback(self._turns.give_back)
            at_work = _AtWork(self._counted(who, work))
            if rests:
                held.callback(self._rest_from, at_work)
            try:
                return await transact(at_work)
            except asyncio.CancelledError:
                at_work.then(held.pop_all().close)
                raise

    def _rest_from(self, at_work: _AtWork[Any]) -> None:
        """The large ones rest as it took from where its work began: what it waited for a thread or a lock is no part of
        that."""
        if at_work.begun is not None:
            took = perf_counter() - at_work.begun
            rest = max(REST * took, PAUSE_S if took > SHORT_S else 0.0)
            self._rested = asyncio.get_running_loop().time() + rest

    def _counted(self, who: Who, work: Callable[[Connection], T]) -> Callable[[Connection], T]:
        """The work of a transaction, whose part of a core counts where it is of a small change, also where its caller
        has left: a thread goes on with what it began."""
        if who.is_large:
            return work
        loop = asyncio.get_running_loop()

        def timed(c: Connection) -> T:
            begun = thread_time()
            try:
                return work(c)
            finally:
                with suppress(RuntimeError):  # the process ends
                    loop.call_soon_threadsafe(self._count, who.org_id, thread_time() - begun)

        return timed

    def _count(self, org_id: str, spent_s: float) -> None:
        """A small change of an organisation took so much of a core, or the look before it."""
        now = asyncio.get_running_loop().time()
        before, at = self._spent.get(org_id, (0.0, now))
        left = max(0.0, before - LONG_PART * (now - at)) + spent_s
        if len(self._spent) >= ORGS_KNOWN_MAX:
            self._spent.clear()
        self._spent[org_id] = (min(left, LONG_S), now)
        if left > LONG_S:
            self._slow[org_id] = now + SLOW_S

    def _is_slow(self, org_id: str) -> bool:
        until = self._slow.get(org_id)
        if until is not None and until <= asyncio.get_running_loop().time():
            del self._slow[org_id]
            return False
        return until is not None

    async def _until_carried(self, who: Who) -> None:
        """Until the routers' logs have taken most of what the organisation has changed."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        while await self._db.read(partial(is_half_full, org_id=who.org_id)):
            if clock() - begun > CARRIED_S:
                raise Unavailable("too many changes of this organisation are on their way into the routers' logs")
            await pause(CARRIED_AGAIN_S)


def _overloaded() -> Overloaded:
    message = "Too many changes of this organisation wait for their turn. Try again with fewer at once."
    return Overloaded(message, {"retry_after_s": 1})


def _org(c: Connection, project_id: str) -> str:
    found: str | None = c.execute(org_of(project_id)).scalar()
    if found is None:
        raise NotFound("There is no such project.", {"project_id": project_id})
    return found


def _is_small(c: Connection, project_id: str, more: int) -> bool:
    return more <= STEP and all(_has_few(c, table, project_id) for table in (t.breakers, t.routers))


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
