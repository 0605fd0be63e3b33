"""Who gets the places of deliveries: organisations in turn, within one its projects, within one its channels. Pure.

An organisation may have as many places as are left free: one alone half of all, of two a third each, of k that take all
they may the (k+1)th part each. The same part is left for whoever comes, so however slow the receivers of some are, the
alert of another organisation finds a place at once. In one turn it gets `begun_max` at most, and `begun_beside_max`
while another one has something to begin: so however fast its receivers are, others' come in between, and soon again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from breaker_actors.notify.limits import Pace

SETTLED_TURNS = 3
"""What a fast receiver took is settled after so many turns."""


class Claim(NamedTuple):
    """One channel. `taken`: its places now; `room`: how many more it may use; `served`: the turn in which it got some
    last."""

    channel_id: str
    project_id: str
    org_id: str
    taken: int
    room: int
    served: int


_TAKEN, _SERVED = attrgetter("taken"), attrgetter("served")


class _Channels:
    """The channels of a project. Nobody looks at which comes next before the project has its turn."""

    def __init__(self, claims: Sequence[Claim]) -> None:
        self.taken: int = sum(map(_TAKEN, claims))
        self.served = max(map(_SERVED, claims))
        self.has_room = any(claim.room for claim in claims)
        self._claims = claims
        self._next: list[tuple[int, int, int]] | None = None

    def peek(self) -> tuple[Claim, int] | None:
        """Who gets the next place, and how many it has before; None: nobody has room."""
        if self._next is None:
            self._next = [(one.taken, one.served, n) for n, one in enumerate(self._claims) if one.room]
            heapq.heapify(self._next)
        return (self._claims[self._next[0][2]], self._next[0][0]) if self._next else None

    def take(self) -> None:
        """Whoever `peek` names has it."""
        assert self._next is not None
        before, served, n = self._next[0]
        self.taken += 1
        if before + 1 < self._claims[n].taken + self._claims[n].room:
            heapq.heapreplace(self._next, (before + 1, served, n))
        else:
            heapq.heappop(self._next)


class _Projects:
    """The projects of an organisation."""

    def __init__(self, projects: Iterable[Sequence[Claim]]) -> None:
        self._channels = [_Channels(claims) for claims in projects]
        self.taken: int = sum(channels.taken for channels in self._channels)
        self._before = self.taken
        self.served = max(channels.served for channels in self._channels)
        self.has_room = any(channels.has_room for channels in self._channels)
        self._next = [(channels.taken, channels.served, n) for n, channels in enumerate(self._channels)]
        heapq.heapify(self._next)

    def is_busy(self, turn: int) -> bool:
        """Whether it has something to begin, or soon may have: what it got in one of the last turns is not settled yet.
        Who waits for slow receivers makes nobody's turns short. `turn`: the last one."""
        return self.has_room or (self.taken > 0 and turn - self.served < SETTLED_TURNS)

    @property
    def given(self) -> int:
        """Places it got in this turn."""
        return self.taken - self._before

    def take(self, may: Callable[[int], bool]) -> Claim | None:
        """Gives the next place to a channel: that of the project whose turn it is. `may`: whether one may have it that
        has so many before; a project whose first one may not has none that may."""
        while self._next:
            _, served, n = self._next[0]
            channels = self._channels[n]
            following = channels.peek()
            if following is None or not may(following[1]):
                heapq.heappop(self._next)
                continue
            channels.take()
            self.taken += 1
            heapq.heapreplace(self._next, (channels.taken, served, n))
            return following[0]
        return None


def shared_out(claims: Iterable[Claim], pace: Pace) -> dict[str, int]:
    """How many more places each channel gets now. Who has fewest comes first, of several who was served longest ago:
    among organisations, among the projects of one, and among the channels of one. What it costs goes by the places that
    are given; each claim is only put beside the others of its project."""
    orgs = _by_org(claims)
    total = sum(org.taken for org in orgs.values())
    waiting = [(org.taken, org.served, n, org) for n, org in enumerate(orgs.values())]
    heapq.heapify(waiting)
    more: dict[str, int] = {}
    last = max((org.served for org in orgs.values()), default=0)
    begun_max = pace.begun_max if sum(org.is_busy(last) for org in orgs.values()) < 2 else pace.begun_beside_max
    while waiting:
        mine, served, n, org = waiting[0]
        may = partial(_is_free, mine, total, pace)
        claim = org.take(may) if may(0) and org.given < begun_max else None
        if claim is None:
            heapq.heappop(waiting)
            continue
        total += 1
        more[claim.channel_id] = more.get(claim.channel_id, 0) + 1
        heapq.heapreplace(waiting, (org.taken, served, n, org))
    return more


def _is_free(mine: int, total: int, pace: Pace, before: int) -> bool:
    """Whether an organisation with so many of all places that are taken may have one more, for a channel that has
    `before` of them. One beside another is only for channels of an organisation with less than half as many as are
    free, and while less than `second_slot_max` are taken."""
    free = pace.total_max - total
    return mine < free and (not before or (2 * mine < free and total < pace.second_slot_max))


def _by_org(claims: Iterable[Claim]) -> dict[str, _Projects]:
    found: dict[str, dict[str, list[Claim]]] = {}
    for claim in claims:
        found.setdefault(claim.org_id, {}).setdefault(claim.project_id, []).append(claim)
    return {org_id: _Projects(projects.values()) for org_id, projects in found.items()}
