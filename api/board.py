"""What this replica knows of one project's states, as its stream clients see them: by stream name. Pure, no waiting.

A board is loaded from a stored snapshot at a Journal position and then follows the feed from there. Clients hold
states by name and can't evict, so two boards are compared by name: a name that is gone gets a last `closed`.
"""

from __future__ import annotations

from collections.abc import Iterable

from api.sse import encode_state
from breaker_actors.core.model import StateWord
from breaker_actors.messages import FeedEntry
from breaker_actors.stores.base import StoredState, StreamSnapshot


class Shown:
    """One breaker on a board, with its message encoded once for all clients."""

    __slots__ = ("message", "name", "seq")

    def __init__(self, name: str, state: StateWord, allow_rate: float, seq: int) -> None:
        self.name = name
        self.seq = seq
        self.message = encode_state(name, state, allow_rate)


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
            s.breaker_id: Shown(names[s.breaker_id], s.state, s.allow_rate, s.transition_seq) for s in snapshot.states
        }
        current = set(names.values())
        self._gone = [encode_state(name, "closed", 1.0) for name in snapshot.gone if name not in current]

    def apply(self, entry: FeedEntry) -> bytes | None:
        """Follows one state entry; the message to push, or None when it says nothing new."""
        old = self._shown.get(entry.breaker_id)
        # Entries of one transaction share a sequence, so only the snapshot's own position bounds them from below.
        if entry.sequence <= self._position or old is None or entry.transition_seq < old.seq:
            return None
        new = Shown(old.name, entry.state, entry.allow_rate, entry.transition_seq)
        self._shown[entry.breaker_id] = new
        return new.message if new.message != old.message else None

    def everything(self) -> bytes:
        """The snapshot a new client gets: every breaker, and `closed` for names that are gone."""
        return b"".join([shown.message for shown in self._shown.values()] + self._gone)

    def since(self, old: Board) -> list[bytes]:
        """The messages that bring a client of an older board of this project up to date."""
        before, now = old._by_name(), self._by_name()
        gone = [encode_state(name, "closed", 1.0) for name in before if name not in now]
        return gone + [message for name, message in now.items() if before.get(name) != message]

    def _by_name(self) -> dict[str, bytes]:
        return {shown.name: shown.message for shown in self._shown.values()}
