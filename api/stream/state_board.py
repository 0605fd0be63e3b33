"""What this replica knows of one project's states, as its stream clients see them: by stream name. Pure, no waiting.

A board is loaded from a stored snapshot at a Journal position and then follows the feed from there. Clients hold
states by name and can't evict, so two boards are compared by name: a name that is gone gets a last `closed`.

A new client is told a board piece by piece in the order of names (api/stream/reading.py). The bytes of a piece are made
once for all clients, and again when one of its breakers has moved.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from api.stream.sse import encode_state
from breaker_actors.core.model import StateWord
from breaker_actors.messages import FeedEntry
from breaker_actors.store.rows import StoredState, StreamSnapshot

PIECE_MAX = 500
"""Messages handed to a socket at once."""
PIECE_BYTES_MAX = 65_536
"""Bytes handed to a socket at once: a reader that stops holds no more than that beyond the buffers of its socket."""
GROWTH = 32
"""Bytes by which a message can grow when its breaker moves: a longer word for the state and a number for the rate."""


class BreakerEntry:
    """One breaker on a board, with its message encoded once for all clients."""

    __slots__ = ("message", "name", "seq")

    def __init__(self, name: str, state: StateWord, allow_rate: float, seq: int) -> None:
        self.name = name
        self.move(state, allow_rate, seq)

    def move(self, state: StateWord, allow_rate: float, seq: int) -> None:
        """It has a new state."""
        self.seq = seq
        self.message = encode_state(self.name, state, allow_rate)

    def says(self, other: BreakerEntry | None) -> bool:
        """Whether a client that was told `other` has been told this."""
        return other is not None and other.message == self.message


class Page:
    """Neighbours in the order of names: one piece for all clients, kept until one of them moves."""

    __slots__ = ("_data", "_shown")

    def __init__(self, shown: list[BreakerEntry]) -> None:
        self._shown = shown
        self._data: bytes | None = None

    def moved(self) -> None:
        self._data = None

    def behind(self, name: str | None) -> bytes:
        """What stands behind a name: all of it, but for clients that have read a part on an older board."""
        if name is not None and name >= self._shown[0].name:
            return b"".join([shown.message for shown in self._shown if shown.name > name])
        if self._data is None:
            self._data = b"".join([shown.message for shown in self._shown])
        return self._data


def pages(shown: Iterable[BreakerEntry]) -> Iterator[list[BreakerEntry]]:
    """Splits what is in the order of names into pieces; two of one name stay together."""
    page: list[BreakerEntry] = []
    size = 0
    for one in shown:
        weight = len(one.message) + GROWTH
        if page and (size + weight > PIECE_BYTES_MAX or len(page) >= PIECE_MAX) and one.name != page[-1].name:
            yield page
            page, size = [], 0
        page.append(one)
        size += weight
    if page:
        yield page


def stream_names(states: Iterable[StoredState]) -> dict[str, str]:
    """Stream name per breaker id, oldest first: its name, or its id when an older breaker has that name."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for state in states:
        names[state.breaker_id] = state.breaker_id if state.name in taken else state.name
        taken.add(state.name)
    return names


class Board:
    """States of a project at a position of the feed."""

    def __init__(self, snapshot: StreamSnapshot) -> None:
        self._position = snapshot.position
        names = stream_names(snapshot.states)
        self._shown = {
            s.breaker_id: BreakerEntry(names[s.breaker_id], s.state, s.allow_rate, s.transition_seq)
            for s in snapshot.states
        }
        current = set(names.values())
        gone = [_last(name) for name in snapshot.gone if name not in current]
        laid = list(pages(sorted((*self._shown.values(), *gone), key=lambda shown: shown.name)))
        self._pages = [Page(page) for page in laid]
        self._ends = [page[-1].name for page in laid]

    def apply(self, entry: FeedEntry) -> BreakerEntry | None:
        """Follows one state entry; what to push, or None when it says nothing new."""
        shown = self._shown.get(entry.breaker_id)
        # Entries of one transaction share a sequence, so only the snapshot's own position bounds them from below.
        if entry.sequence <= self._position or shown is None or entry.transition_seq < shown.seq:
            return None
        before = shown.message
        shown.move(entry.state, entry.allow_rate, entry.transition_seq)
        if shown.message == before:
            return None
        self._pages[bisect_left(self._ends, shown.name)].moved()
        return shown

    def piece(self, after: str | None) -> tuple[bytes, str | None]:
        """The next piece of what a new client gets: the states now of names behind `after`, from the first one when
        that is None, and `closed` for names that are gone. With it the name it reaches to; None: to the end."""
        at = 0 if after is None else bisect_right(self._ends, after)
        if at >= len(self._pages):
            return b"", None
        return self._pages[at].behind(after), self._ends[at] if at + 1 < len(self._pages) else None

    def diff_from(self, old: Board) -> list[BreakerEntry]:
        """What brings a client of an older board of this project up to date."""
        before, now = old._by_name(), self._by_name()
        gone = [_last(name) for name in before if name not in now]
        return gone + [shown for name, shown in now.items() if not shown.says(before.get(name))]

    def _by_name(self) -> dict[str, BreakerEntry]:
        return {shown.name: shown for shown in self._shown.values()}


def _last(name: str) -> BreakerEntry:
    """What is said of a name that goes: a client can't forget it, so it must not block anything."""
    return BreakerEntry(name, "closed", 1.0, 0)
