"""Who gets the places of deliveries: organisations in turn, within one its projects, within one its channels. Pure.

An organisation may have as many places as are left free: one alone half of all, of two a third each, of k that take all
they may the (k+1)th part each. The same part is left for whoever comes, so however slow the receivers of some are, the
alert of another organisation finds a place at once. In one turn it gets `begun_max` rows at most: so however fast its
receivers are, others' come in between.

A place is a request at a receiver, and a channel has few of them. Whoever has one may get more rows than that in hand,
to go on with at its places (`hand`): so an organisation with one channel gets as many rows a turn as one with sixty.
Of rows in hand of all there are as many at most as places; an organisation may have `begun_max` of them, and as many as
are left free.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from breaker_actors.notify.limits import Pace


class Claim(NamedTuple):
    """One channel. `taken`: its places now; `room`: how many more it may use; `served`: the turn in which it got some
    last; `handed`: rows that it got in hand and whose outcome is not stored; `hand`: how many more it may get so, if it
    has a place."""

    channel_id: str
    project_id: str
    org_id: str
    taken: int
    room: int
    served: int
    handed: int = 0
    hand: int = 0


class Share(NamedTuple):
    """What a channel gets: so many places, and rows in hand beyond them."""

    places: int
    hand: int


_TAKEN, _SERVED, _HANDED = attrgetter("taken"), attrgetter("served"), attrgetter("handed")


class _Channels:
    """The channels of a project. Nobody looks at which comes next before the project has its turn."""

    def __init__(self, claims: Sequence[Claim]) -> None:
        self.places: int = sum(map(_TAKEN, claims))
        self.handed: int = sum(map(_HANDED, claims))
        self.served = max(map(_SERVED, claims))
        self._claims = claims
        self._got: dict[int, tuple[int, int]] = {}
        self._next: list[tuple[int, int, int]] | None = None

    @property
    def rows(self) -> int:
        return self.places + self.handed

    def peek(self) -> tuple[Claim, int, int] | None:
        """Who gets the next row, and how many places and rows in hand it got in this turn; None: nobody has room."""
        if self._next is None:
            claims = enumerate(self._claims)
            self._next = [(one.taken + one.handed, one.served, n) for n, one in claims if one.room or one.hand]
            heapq.heapify(self._next)
        if not self._next:
            return None
        n = self._next[0][2]
        return (self._claims[n], *self._got.get(n, (0, 0)))

    def take(self, *, in_hand: bool) -> None:
        """Whoever `peek` names has it."""
        assert self._next is not None
        before, served, n = self._next[0]
        places, hand = self._got.get(n, (0, 0))
        places, hand = self._got[n] = (places, hand + 1) if in_hand else (places + 1, hand)
        self.handed += in_hand
        self.places += not in_hand
        if places < self._claims[n].room or hand < self._claims[n].hand:
            heapq.heapreplace(self._next, (before + 1, served, n))
        else:
            heapq.heappop(self._next)

    def skip(self) -> None:
        """Whoever `peek` names gets nothing more in this turn."""
        assert self._next is not None
        heapq.heappop(self._next)


class _Projects:
    """The projects of an organisation."""

    def __init__(self, projects: Iterable[Sequence[Claim]]) -> None:
        self._channels = [_Channels(claims) for claims in projects]
        self.places: int = sum(channels.places for channels in self._channels)
        self.handed: int = sum(channels.handed for channels in self._channels)
        self._before = self.rows
        self.served = max(channels.served for channels in self._channels)
        self._next = [(channels.rows, channels.served, n) for n, channels in enumerate(self._channels)]
        heapq.heapify(self._next)

    @property
    def rows(self) -> int:
        return self.places + self.handed

    @property
    def given(self) -> int:
        """Rows it got in this turn."""
        return self.rows - self._before

    def take(self, may: Callable[[int], bool], may_hand: bool) -> tuple[Claim, bool] | None:
        """Gives the next row to a channel of the project whose turn it is; and whether it is one in hand. `may`:
        whether one may have a place that has so many before; one without any may. `may_hand`: whether whoever has a
        place may have rows in hand."""
        while self._next:
            _, served, n = self._next[0]
            channels = self._channels[n]
            following = channels.peek()
            if following is None:
                heapq.heappop(self._next)
                continue
            claim, places, hand = following
            in_hand = places == claim.room or not may(claim.taken + places)
            if in_hand and not (claim.taken + places and may_hand and hand < claim.hand):
                channels.skip()
                continue
            channels.take(in_hand=in_hand)
            self.handed += in_hand
            self.places += not in_hand
            heapq.heapreplace(self._next, (channels.rows, served, n))
            return claim, in_hand
        return None


def shared_out(claims: Iterable[Claim], pace: Pace) -> dict[str, Share]:
    """What each channel gets now. Who has fewest rows comes first, of several who was served longest ago: among
    organisations, among the projects of one, and among the channels of one. What it costs goes by the rows that are
    given; each claim is only put beside the others of its project."""
    orgs = _by_org(claims)
    places = sum(org.places for org in orgs.values())
    handed = sum(org.handed for org in orgs.values())
    waiting = [(org.rows, org.served, n, org) for n, org in enumerate(orgs.values())]
    heapq.heapify(waiting)
    more: dict[str, Share] = {}
    while waiting:
        _, served, n, org = waiting[0]
        may = partial(_is_free, org.places, places, pace)
        may_hand = org.handed < min(pace.begun_max, pace.total_max - handed)
        found = org.take(may, may_hand) if may(0) and org.given < pace.begun_max else None
        if found is None:
            heapq.heappop(waiting)
            continue
        claim, in_hand = found
        handed += in_hand
        places += not in_hand
        got = more.get(claim.channel_id, Share(0, 0))
        more[claim.channel_id] = Share(got.places + (not in_hand), got.hand + in_hand)
        heapq.heapreplace(waiting, (org.rows, served, n, org))
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
