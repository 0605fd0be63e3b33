"""What was stored and can't be read: it is set aside, counted and shouted about once, and everybody else goes on.

Every part that decodes stored bytes does so through an `Asides`: `attempt` runs the decoding, notes what failed and
answers None. What was noted goes to the table `set_aside` (`store/operational/set_aside.py`), of parts without a store
by way of the Directory. Known to at most KNOWN_MAX, waiting at most WAITING_MAX; beyond that the oldest go, counted.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar, get_args
from zlib import crc32

import structlog

from breaker_actors.clock import SystemClock
from breaker_actors.messages import PAYLOAD_MAX, Aside, AsideKind

T = TypeVar("T")

REASON_MAX = 500
WAITING_MAX = 1_000
KNOWN_MAX = 10_000
KINDS: tuple[AsideKind, ...] = get_args(AsideKind)

log = structlog.get_logger()
_now_ms = SystemClock().now_ms


class Asides:
    """What one part of the service has set aside. Safe to use from the threads of the store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: OrderedDict[tuple[str, str, int], Aside] = OrderedDict()
        self._known: OrderedDict[tuple[AsideKind, str, int], None] = OrderedDict()
        self.counts: Counter[AsideKind] = Counter()
        self.untold = 0
        """Entries that were forgotten before the table had them."""

    @property
    def waiting(self) -> int:
        """How many entries the table does not have yet."""
        return len(self._waiting)

    def attempt(
        self,
        work: Callable[[], T],
        kind: AsideKind,
        thing: str,
        payload: bytes = b"",
        place: int = 0,
        project_id: str = "",
    ) -> T | None:
        """Runs a pure piece of work on stored bytes; None when it fails, whatever with, and that is noted."""
        try:
            return work()
        except Exception as error:
            self.note(kind, thing, error, payload, place, project_id)
            return None

    def note(
        self,
        kind: AsideKind,
        thing: str,
        error: Exception,
        payload: bytes = b"",
        place: int = 0,
        project_id: str = "",
    ) -> None:
        """Sets one thing aside; a repetition of what is known counts for nothing."""
        entry = Aside(
            kind=kind,
            thing=thing,
            place=place,
            project_id=project_id,
            reason=f"{type(error).__name__}: {error}"[:REASON_MAX],
            payload=bytes(payload[:PAYLOAD_MAX]),
            size=len(payload),
            seen_ms=_now_ms(),
        )
        with self._lock:
            if entry.key in self._known:
                self._known.move_to_end(entry.key)
                return
            self._known[entry.key] = None
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
            self.counts[kind] += 1
            self._queue([entry])
        log.error("set_aside", kind=kind, thing=thing, place=place, project_id=project_id, reason=entry.reason)

    def known(self) -> list[tuple[AsideKind, str, int]]:
        """Kind, thing and place of what was set aside, as far as it is still known; the oldest first."""
        with self._lock:
            return list(self._known)

    def drain(self) -> list[Aside]:
        """What waits for the table; `put_back` what could not be told."""
        with self._lock:
            entries = list(self._waiting.values())
            self._waiting.clear()
        return entries

    def put_back(self, entries: Iterable[Aside]) -> None:
        with self._lock:
            self._queue(entries)

    def _queue(self, entries: Iterable[Aside]) -> None:
        for entry in entries:
            self._waiting[entry.key] = entry
        while len(self._waiting) > WAITING_MAX:
            self._waiting.popitem(last=False)
            self.untold += 1


_reading: ContextVar[Asides | None] = ContextVar("reading", default=None)


@contextmanager
def reading_for(asides: Asides) -> Iterator[None]:
    """Columns that can't be read in this block are noted there."""
    token = _reading.set(asides)
    try:
        yield
    finally:
        _reading.reset(token)


def note_column(column: str, text: object, error: Exception) -> None:
    """A JSON column of the row being read can't be decoded. Outside of a store's transaction it is only logged."""
    payload = text if isinstance(text, bytes) else str(text).encode("utf-8", "replace")
    (_reading.get() or Asides()).note("row", column, error, payload, crc32(payload))
