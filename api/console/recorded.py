"""The recorded samples of breakers in one replica: read from the service's log in one thread, one breaker at a time,
and kept for a while, so that whoever drags a slider does not read the log again.

Everything is bounded: who waits, how long it takes to read, how many samples are kept, and for how long. Nothing of it
is in memory until somebody opens a chart.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from quart import current_app

from api.admission.intake import Turns
from api.admission.shares import Holders
from api.context.current import callers
from api.context.replica import replica
from breaker_actors.core.model import Rule
from breaker_actors.errors import Overloaded, Unavailable
from breaker_actors.settings import Settings

if TYPE_CHECKING:
    from api.console.replays import Kept

T = TypeVar("T")

BACK_MS = 7 * 86_400_000
"""Samples that were received so long before the last one are not looked at."""
READ_S, READ_MOST_S = 4.0, 8.0
"""Where it takes longer to read all, so much is read of the newest as was read in this time; so long in all at most."""
WORK_S = 5.0
"""So long a replay may take. Reading and replay together take less than a half of WAIT_S, so that who comes next is
served whatever was asked for before; both end sooner where nobody waits for them any more."""
WAITING_MAX, WAIT_S = 16, 30.0
"""Requests that may wait for the thread or be worked on, of which keys and organisations have their shares, and for how
long each. Callers have their turns one after the other."""
KEPT_MAX, KEPT_S, KEPT_BYTES_MAX = 8, 120.0, 96 << 20
"""Breakers whose samples are kept, for how long after they were read, and how much of memory they take."""
RETRY_S = 5
EXTENSION = "breakers.console.recorded"
BUSY = "Other charts are being drawn here, one at a time. Try again in a few seconds."


class Wanted(NamedTuple):
    """Whose samples: a breaker's, or those that a breaker of this metric would get of a router."""

    project_id: str
    breaker_id: str = ""
    router_id: str = ""
    metric: str = ""


@dataclass(slots=True)
class _Entry:
    kept: Kept
    read_s: float


class Desk:
    """Reads, keeps and works on samples. `monotonic`: the clock's."""

    def __init__(self, settings: Settings, monotonic: Callable[[], float]) -> None:
        self._settings, self._monotonic = settings, monotonic
        self._turns = Turns(WAITING_MAX, "charts")
        self._working = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._entries: OrderedDict[Wanted, _Entry] = OrderedDict()

    async def work(
        self,
        wanted: Wanted,
        rule: Rule | None,
        oldest_s: float,
        todo: Callable[[Kept, Callable[[], bool]], T],
        holders: Holders | None = None,
    ) -> T:
        """What `todo` makes of the samples, in the thread; they were read at most `oldest_s` ago. It is told when it is
        late. `rule`: for those of a router; `holders`: whose turn it is, None: the current request's.

        Raises Unavailable where this process has no log, Overloaded where too many wait or it takes too long, and
        Invalid."""
        self._check_log()
        left = asyncio.Event()

        def work() -> T:
            kept, begun = self._samples(wanted, rule, oldest_s, left), self._monotonic()
            return todo(kept, lambda: left.is_set() or self._monotonic() - begun > WORK_S)

        return await self._run(work, left, holders or callers())

    async def aside(self, todo: Callable[[], T], *, with_log: bool = False) -> T:
        """The same of what needs no samples, and is too slow for the loop, for the current request. Raises
        Overloaded, and, where `todo` reads the log and this process has none, Unavailable."""
        if with_log:
            self._check_log()
        return await self._run(todo, asyncio.Event(), callers())

    def _check_log(self) -> None:
        place = self._settings.data_dir / "log"
        if self._settings.database_url is None and not place.is_dir():
            words = f"The recorded samples can't be shown here: they lie in the folder {place} of the machine that"
            raise Unavailable(f"{words} runs the routers, and this one does not have it.")

    async def _run(self, todo: Callable[[], T], left: asyncio.Event, holders: Holders) -> T:
        """One at a time. Who asked and `left` is not worked for any more."""
        turn = asyncio.create_task(self._turn(todo, left, holders))
        self._tasks.add(turn)
        turn.add_done_callback(self._over)
        try:
            return await asyncio.wait_for(asyncio.shield(turn), WAIT_S)
        except TimeoutError:
            raise Overloaded(BUSY, {"retry_after_s": RETRY_S}) from None
        finally:
            left.set()

    async def _turn(self, todo: Callable[[], T], left: asyncio.Event, holders: Holders) -> T:
        async with self._turns.turn(holders):
            if left.is_set():
                raise Overloaded(BUSY)
            self._working += 1
            try:
                return await asyncio.to_thread(todo)
            finally:
                self._working -= 1

    def _over(self, turn: asyncio.Task[Any]) -> None:
        """What nobody waits for any more is no error that nobody saw."""
        self._tasks.discard(turn)
        if not turn.cancelled():
            turn.exception()
        asyncio.get_running_loop().call_later(KEPT_S + 1, self._forget)

    def _forget(self) -> None:
        """What is too old to be used goes, also where nobody asks any more; not while the thread is at work."""
        if not self._working:
            for wanted in [w for w, entry in self._entries.items() if self._monotonic() - entry.read_s > KEPT_S]:
                del self._entries[wanted]

    # in the thread

    def _samples(self, wanted: Wanted, rule: Rule | None, oldest_s: float, left: asyncio.Event) -> Kept:
        known = self._entries.get(wanted)
        if known is not None and self._monotonic() - known.read_s <= min(oldest_s, KEPT_S):
            self._entries.move_to_end(wanted)
            return known.kept
        self._entries.pop(wanted, None)
        kept = self._read(wanted, rule, left)
        self._entries[wanted] = _Entry(kept, self._monotonic())
        while len(self._entries) > KEPT_MAX or (len(self._entries) > 1 and self._bytes() > KEPT_BYTES_MAX):
            self._entries.popitem(last=False)
        return kept

    def _bytes(self) -> int:
        return sum(entry.kept.bytes for entry in self._entries.values())

    def _read(self, wanted: Wanted, rule: Rule | None, left: asyncio.Event) -> Kept:
        """Raises Overloaded once who asked has left, or where even the newest samples take too long."""
        from api.console.replays import TooSlow, keep

        begun = self._monotonic()

        def read(within_ms: int, most_s: float) -> Kept:
            source = self._source(wanted, rule, within_ms)
            return keep(source, lambda: left.is_set() or self._monotonic() - begun > most_s)

        try:
            return read(BACK_MS, READ_S)
        except TooSlow as slow:
            newest_ms = max(1, slow.covered_ms * 4 // 5)
        if left.is_set():
            raise Overloaded(BUSY)
        try:
            kept = read(newest_ms, READ_MOST_S)
            kept.remarks = ["to read all takes too long for a screen, so only the newest samples are looked at"]
            return kept
        except TooSlow:
            words = "The log is too large to be read for a screen now; `breakers backtest --from-service` reads any."
            raise Overloaded(words, {"retry_after_s": 60}) from None

    def _source(self, wanted: Wanted, rule: Rule | None, within_ms: int) -> Any:
        from pipelines.recorded import of_breaker, of_router

        if wanted.breaker_id:
            return of_breaker(wanted.project_id, wanted.breaker_id, self._settings, within_ms)
        assert rule is not None, "what a router has is asked for with a rule"
        draft = msgspec.structs.replace(rule, metric=wanted.metric)
        return of_router(wanted.project_id, wanted.router_id, draft, self._settings, within_ms)


def desk() -> Desk:
    """The one of this replica."""
    known: Desk | None = current_app.extensions.get(EXTENSION)
    if known is None:
        parts = replica()
        known = Desk(parts.settings, parts.clock.monotonic)
        current_app.extensions[EXTENSION] = known
    return known
