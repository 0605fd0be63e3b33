"""One channel of the Notifier: what waits for it, what is under way, and what it may do next. No I/O, no clock."""

from __future__ import annotations

import structlog

from breaker_actors.notify.circuit import Circuit
from breaker_actors.notify.places import Claim
from breaker_actors.store.rows import ChannelKind, Waiting

RENEWAL = "renewal"
"""Stands among the ids under way for a renewal."""

log = structlog.get_logger()


class Queue:
    """One channel with pending rows, or with alerts to renew. `look`: some rows may be due; `later_ms`: when the next
    of the others may be; `seen`: the newest one known. `sending`: ids under way; `noted`: what of the circuit is
    stored; `served`: the turn in which rows were taken last.

    `renew_ms`: when alerts that stand are to be sent again, None: there are none; `renewed`: the number up to which
    they were; `failures`: how often that failed in a row; `rows_first`: rows that are due come before the next batch.
    `said_silent`: the log says that it does not answer; each failed probe would say so again.
    """

    __slots__ = (
        *("circuit", "hasten", "kind", "later_ms", "look", "noted", "of", "seen", "sending", "served"),
        *("failures", "renew_ms", "renewed", "rows_first", "said_silent"),
    )

    def __init__(self, of: Waiting, kind: ChannelKind, circuit: Circuit) -> None:
        self.of = of
        self.kind = kind
        self.circuit = circuit
        self.sending: set[str] = set()
        self.seen = 0
        self.look = True
        self.later_ms: int | None = None
        self.hasten = False
        self.noted = circuit.revision
        self.served = 0
        self.renew_ms: int | None = None
        self.renewed = self.failures = 0
        self.rows_first = self.said_silent = False

    def due(self, now_ms: int) -> bool:
        return self.look or (self.later_ms is not None and self.later_ms <= now_ms)

    def renews(self, now_ms: int) -> bool:
        """Whether its next place is for a renewal."""
        return self.renew_ms is not None and self.renew_ms <= now_ms and not (self.rows_first and self.due(now_ms))

    def claim(self, now_ms: int) -> Claim:
        """The places it may use. A renewal goes alone: an end that is sent beside it could arrive before it, and the
        alert would stand again."""
        taken, of = len(self.sending), self.of
        if RENEWAL in self.sending or (taken and self.renews(now_ms)):
            room = 0
        elif self.renews(now_ms):
            room = min(1, self.circuit.capacity(now_ms))
        else:
            room = max(0, self.circuit.capacity(now_ms) - taken) if self.due(now_ms) else 0
        return Claim(of.channel_id, of.project_id, of.org_id, taken, room, self.served)

    @property
    def is_idle(self) -> bool:
        """Nothing is under way, nor to be renewed."""
        return not self.sending and self.renew_ms is None

    def is_silent(self, now_ms: int) -> bool:
        return self.circuit.capacity(now_ms) == 0 and self.circuit.state == "open"

    def note_stored(self, mark: tuple[int, int]) -> None:
        """A revision of the circuit is stored."""
        moved, self.noted = mark[0] != self.noted[0], mark
        where = {"project_id": self.of.project_id, "channel_id": self.circuit.channel_id, "kind": self.kind}
        if moved and self.circuit.state == "open" and not self.said_silent:
            self.said_silent = True
            log.warning("channel_silent", **where, error=self.circuit.last_error)
        elif moved and self.circuit.state != "open" and self.said_silent:
            self.said_silent = False
            log.info("channel_answers", **where)
