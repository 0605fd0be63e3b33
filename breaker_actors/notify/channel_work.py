"""One channel of the Notifier: what waits for it, what is under way, and what it may do next. No I/O, no clock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import structlog

from breaker_actors.notify.circuit import Circuit
from breaker_actors.notify.limits import Pace
from breaker_actors.notify.places import Claim
from breaker_actors.store.rows import ChannelKind, DeliveryRow, Leased, Waiting

RENEWAL = "renewal"
"""Stands among the ids under way for a renewal."""

log = structlog.get_logger()


class Work(NamedTuple):
    """A row that is leased, until `until_ms`. `spare`: for a short time only, it was in hand."""

    leased: Leased
    row: DeliveryRow
    until_ms: int
    spare: bool


class Hand:
    """Rows of a channel that are leased for a short time and sent at its places, one when another is answered: so a
    receiver that answers fast gets many in one turn, and never more at once.

    `most`: how many more it gets than places: as many as it got through, one more with each that is sent. `work`: not
    begun; `dealt`: how many there were of it. `leased`: ids whose outcome is not stored. `going`: attempts under a
    short lease, with what ends them when it does."""

    __slots__ = ("_margin_ms", "_most_max", "dealt", "going", "leased", "most", "work")

    def __init__(self, pace: Pace) -> None:
        self.most = self._most_max = pace.hand_max
        self._margin_ms = pace.hand_lease_ms - pace.hand_ms
        self.work: deque[Work] = deque()
        self.dealt = 0
        self.leased: set[str] = set()
        self.going: dict[str, tuple[Work, asyncio.Timeout]] = {}

    def deal(self, work: Sequence[Work]) -> None:
        self.work.extend(work)
        self.leased.update(one.row.id for one in work)
        self.dealt = len(self.work)

    def close_ms(self, work: Work) -> int:
        """When a row in hand may no more be begun, and a lease has to be prolonged."""
        return work.until_ms - self._margin_ms

    @property
    def wake_ms(self) -> int | None:
        """When something is to be done about it; None: it is empty."""
        return min((self.close_ms(one) for one in chain(self.work, self._began())), default=None)

    def prolong(self, now_ms: int, until_ms: int) -> list[tuple[str, asyncio.Timeout]]:
        """Attempts whose lease has to be prolonged, till then."""
        late = [(id_, one, limit) for id_, (one, limit) in self.going.items() if now_ms >= self.close_ms(one)]
        self.going.update({id_: (one._replace(until_ms=until_ms), limit) for id_, one, limit in late})
        return [(id_, limit) for id_, _, limit in late]

    def _began(self) -> Iterator[Work]:
        return (one for one, _ in self.going.values())

    def note_sent(self) -> None:
        self.most = min(self._most_max, self.most + 1)

    def give_back(self) -> list[Work]:
        """All that is not begun. The channel gets fewer the next time; where nothing was begun, none for a while."""
        left = list(self.work)
        self.work.clear()
        if left:
            self.most = min(self.most, (self.dealt - len(left)) or -self._most_max // 4)
        return left

    def overtaken(self, breaker_ids: set[str]) -> list[Work]:
        """What is not begun of breakers with another row that goes first: it was sent again by hand."""
        left = [one for one in self.work if one.row.breaker_id in breaker_ids]
        for one in left:
            self.work.remove(one)
        return left


class Queue:
    """One channel with pending rows, or with alerts to renew. `look`: some rows may be due; `later_ms`: when the next
    of the others may be; `seen`: the newest one known. `sending`: ids under way, or in hand; `taken`: its places;
    `noted`: what of the circuit is stored; `served`: the turn in which rows were taken last.

    `renew_ms`: when alerts that stand are to be sent again, None: there are none; `renewed`: the number up to which
    they were; `failures`: how often that failed in a row; `rows_first`: rows that are due come before the next batch.
    `said_silent`: the log says that it does not answer; each failed probe would say so again.
    """

    __slots__ = (
        *("circuit", "hand", "hasten", "kind", "later_ms", "look", "noted", "of", "seen", "sending", "served", "taken"),
        *("failures", "renew_ms", "renewed", "rows_first", "said_silent"),
    )

    def __init__(self, of: Waiting, kind: ChannelKind, circuit: Circuit, pace: Pace) -> None:
        self.of = of
        self.kind = kind
        self.circuit = circuit
        self.hand = Hand(pace)
        self.sending: set[str] = set()
        self.taken = 0
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
        of, handed, hand = self.of, len(self.hand.leased), 0
        if RENEWAL in self.sending or (self.sending and self.renews(now_ms)):
            room = 0
        elif self.renews(now_ms):
            room = min(1, self.circuit.capacity(now_ms))
        else:
            room = max(0, self.circuit.capacity(now_ms) - self.taken) if self.due(now_ms) else 0
            may = self.due(now_ms) and not self.hand.work and self.circuit.is_wide and self.circuit.capacity(now_ms)
            hand = max(0, self.hand.most - handed) if may else 0
        return Claim(of.channel_id, of.project_id, of.org_id, self.taken, room, self.served, handed, hand)

    def next_in_hand(self, now_ms: int) -> Work | None:
        """What is sent next where an attempt has ended, at its place; None: nothing may be."""
        work = self.hand.work
        if not work or now_ms >= self.hand.close_ms(work[0]):
            return None
        if not self.circuit.is_wide or self.circuit.capacity(now_ms) < self.taken:
            return None
        return work.popleft()

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
