"""Pages of the console that are open: each hears that something of its project changed, and fetches what it shows anew.

What is told is small and merged while a page is not asked for it: which breakers moved, whether configuration changed,
and which of the breakers on the page have other figures. Figures are no feed entries, so they are read here, once every
TICK_S for all pages of a project together; organisations take turns. Where nothing changes nothing is told.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
import structlog

from api.admission.shares import Holders, Shares, owner
from breaker_actors.errors import BreakersError, Overloaded
from breaker_actors.messages import EVERY_PROJECT, FeedEntry, StateReading
from breaker_actors.sql.readers import read_for
from breaker_actors.store.base import ReplicaStore
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport.turns import Turns

log = structlog.get_logger(__name__)

TICK_S = 2.0
TOLD_MAX = 200
"""Breakers named at once; of more a page is told that many moved."""
WATCHED_MAX = 200
"""Breakers on one page."""
READ_MAX = 500
"""Breakers of one project whose figures are read with one tick; the others have their turn with the next."""
LOOKS_MAX = 8
"""Projects that are looked at side by side. One that waits for its owners, a second or so, holds up none but where so
many wait; then organisations take turns."""
PAGES_MAX, OF_SESSION_MAX = 2_000, 20
"""Pages open on one replica, of which keys and organisations have their shares, and those of one session."""
AGAIN_S = 1.0
PROVEN_MS = 60_000
"""So long after access was changed session and project of a new page are looked at once more, as in `feed`."""

Find = Callable[[str, Sequence[str]], Awaitable[Mapping[str, StateReading]]]


class News(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a page is told. `config`: something was set otherwise; `moved`: breakers that have another state or rate;
    `figures`: breakers of the page that have other figures; `many`: more than can be named."""

    config: bool = False
    many: bool = False
    moved: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()


class Listener:
    """One open page. `token`: of its session; `whose`: who takes turns with others; `watched`: breakers it shows the
    figures of, or so it says. `end`: what ended it, "over" its session, "gone" its project; "" while it is open."""

    def __init__(self, project_id: str, token: str, whose: str, watched: Collection[str]) -> None:
        self.project_id, self.token, self.whose = project_id, token, whose
        self.watched = frozenset(list(watched)[:WATCHED_MAX])
        self.end: Literal["", "over", "gone"] = ""
        self._moved: dict[str, None] = {}
        self._figures: dict[str, None] = {}
        self._config = self._many = False
        self._news = asyncio.Event()

    def moved(self, breaker_id: str) -> None:
        self._note(self._moved, breaker_id)

    def figures(self, breaker_id: str) -> None:
        self._note(self._figures, breaker_id)

    def config(self) -> None:
        self._config = True
        self._news.set()

    def cut(self, end: Literal["over", "gone"]) -> None:
        self.end = end
        self._news.set()

    def _note(self, names: dict[str, None], breaker_id: str) -> None:
        if len(names) < TOLD_MAX:
            names[breaker_id] = None
        elif breaker_id not in names:
            self._many = True
        self._news.set()

    async def waited(self, within_s: float) -> bool:
        """Whether something changed, or ended it, within so long."""
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def news(self) -> News:
        """What has changed since the last time."""
        self._news.clear()
        news = News(self._config, self._many, tuple(self._moved), tuple(self._figures))
        self._config = self._many = False
        self._moved.clear()
        self._figures.clear()
        return news


class Listeners:
    """All open pages of a replica. `find`: states of those of some ids that are breakers of a project; `now_ms`: the
    wall clock."""

    def __init__(self, store: ReplicaStore, find: Find, now_ms: Callable[[], int], meters: Meters) -> None:
        self._store, self._find, self._now_ms = store, find, now_ms
        self._of: dict[str, set[Listener]] = {}
        self._known: dict[str, dict[str, Any]] = {}
        self._absent: dict[str, set[str]] = {}
        """What pages watch and is no breaker of the project; forgotten when its configuration changes."""
        self._turn: dict[str, int] = {}
        self._line: Turns[str] = Turns(lambda _: 1)
        self._in_line = asyncio.Semaphore(0)
        self._due: set[str] = set()
        """Projects that wait for a look or have one."""
        self._places = Shares("open pages of the console", PAGES_MAX, OF_SESSION_MAX)
        self._access_changed = asyncio.Event()
        self._changed_ms = -PROVEN_MS
        self._tasks: list[asyncio.Task[None]] = []
        self._meters = meters
        meters.watch(lambda: meters.gauge("breakers_console_pages", len(self)))

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def start(self) -> None:
        """Needs a running loop."""
        loops = (self._tick(), self._watch_access(), *(self._look_on() for _ in range(LOOKS_MAX)))
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def stop(self) -> None:
        for listener in self._all():
            listener.cut("over")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def admit(self, token: str, holders: Holders) -> None:
        """Refuses a page while its session, its key and organisation (`holders`), or all have as many as they may."""
        of_session = sum(listener.token == token for listener in self._all())
        if of_session >= OF_SESSION_MAX or self._places.full(holders):
            self._meters.count("breakers_streams_refused_total")
            raise Overloaded("Too many pages of the console are open.", {"retry_after_s": 5})

    @contextmanager
    def listening(self, project_id: str, token: str, holders: Holders, watched: Collection[str]) -> Iterator[Listener]:
        """A page while it is open. Raises Overloaded where too many are."""
        self.admit(token, holders)
        listener = Listener(project_id, token, owner(holders)[1], watched)
        self._of.setdefault(project_id, set()).add(listener)
        self._places.add(holders, 1)
        if self._now_ms() - self._changed_ms < PROVEN_MS:
            self._access_changed.set()
        try:
            yield listener
        finally:
            self._places.give_back(holders)
            self._of[project_id].discard(listener)
            if not self._of[project_id]:
                for kept in (self._of, self._known, self._absent, self._turn):
                    kept.pop(project_id, None)

    def hear(self, entry: FeedEntry) -> None:
        """An entry of the feed."""
        if entry.kind == "keys":
            self._access_was_changed()
            return
        if entry.kind == "config" and entry.project_id == EVERY_PROJECT:
            self.start_over()
            return
        if entry.kind == "config":
            self._absent.pop(entry.project_id, None)
        for listener in self._of.get(entry.project_id, ()):
            if entry.kind == "config":
                listener.config()
            else:
                listener.moved(entry.breaker_id)

    def start_over(self) -> None:
        """Anything may have changed."""
        self._absent.clear()
        self._access_was_changed()
        for listener in self._all():
            listener.config()

    def _access_was_changed(self) -> None:
        self._changed_ms = self._now_ms()
        self._access_changed.set()

    def _all(self) -> list[Listener]:
        return [listener for some in self._of.values() for listener in some]

    async def _watch_access(self) -> None:
        """Ends the pages of sessions that are over, of who signed out and of keys that are revoked, and the pages of
        projects that are deleted."""
        while True:
            await self._access_changed.wait()
            self._access_changed.clear()
            listeners = self._all()
            tokens = sorted({listener.token for listener in listeners})
            project_ids = sorted({listener.project_id for listener in listeners})
            try:
                valid = await self._store.live_sessions(tokens, self._now_ms()) if tokens else set()
                there = await self._store.live_projects(project_ids) if project_ids else set()
            except BreakersError as error:
                log.warning("sessions_not_checked", error=str(error))
                self._access_changed.set()
                await asyncio.sleep(AGAIN_S)
                continue
            for listener in listeners:
                if listener.token not in valid:
                    listener.cut("over")
                elif listener.project_id not in there:
                    listener.cut("gone")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for project_id, listeners in self._of.items():
                if project_id not in self._due:
                    self._due.add(project_id)
                    self._line.append(next(iter(listeners)).whose, project_id)
                    self._in_line.release()

    async def _look_on(self) -> None:
        """Has one project after the other looked at, in the turns of their organisations."""
        while True:
            await self._in_line.acquire()
            (project_id,) = self._line.take(0)
            try:
                await self._look(project_id)
            except BreakersError as error:
                log.warning("figures_not_read", project_id=project_id, error=str(error))
            except Exception:  # a bug: the next look at it may go well, and others' do
                log.error("figures_failed", project_id=project_id, traceback=traceback.format_exc(limit=8))
            self._due.discard(project_id)

    async def _look(self, project_id: str) -> None:
        """Reads the figures of breakers that pages show, in their organisation's turns, and tells the pages of those
        that are other ones. What is no breaker of the project is looked up once, until something of it was set
        otherwise."""
        pages = self._of.get(project_id, set())
        watched = {id_ for page in pages for id_ in page.watched}
        if not watched:
            return
        read_for(next(iter(pages)).whose)
        # a change that is heard of meanwhile drops this set, and with it what is noted below
        absent = self._absent.setdefault(project_id, set())
        absent &= watched
        ids = sorted(watched - absent)
        first = self._turn.get(project_id, 0) if len(ids) > READ_MAX else 0
        some = ids[first : first + READ_MAX]
        self._turn[project_id] = first + READ_MAX if first + READ_MAX < len(ids) else 0
        if not some:
            return
        readings = await self._find(project_id, some)
        absent.update(set(some) - readings.keys())
        listeners = self._of.get(project_id)
        if listeners is None:
            return
        before = self._known.get(project_id, {})
        told = {id_: _figures(readings[id_]) for id_ in some if id_ in readings}
        self._known[project_id] = {id_: before[id_] for id_ in ids if id_ in before} | told
        changed = {id_ for id_, figures in told.items() if id_ in before and before[id_] != figures}
        for listener in listeners:
            for id_ in sorted(changed & listener.watched):
                listener.figures(id_)


def _figures(reading: StateReading) -> tuple[Any, ...]:
    """What a page shows of a breaker beside its settings."""
    view = reading.view
    return view.state, view.allow_rate, view.value, view.sample_count, view.verdict, view.held_back, reading.stale
