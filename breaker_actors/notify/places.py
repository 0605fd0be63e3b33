"""Who gets the places of deliveries: organisations in turn, within one its projects, within one its channels. Pure.

An organisation may have as many places as are left free: one alone half of all, of two a third each, of k that take all
they may the (k+1)th part each. The same part is left for whoever comes, so however slow the receivers of some are, the
alert of another organisation finds a place at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, repeat, takewhile
from operator import itemgetter
from typing import NamedTuple

from breaker_actors.notify.limits import Pace


class Claim(NamedTuple):
    """One channel. `taken`: its places now; `room`: how many more it may use; `served`: the turn in which it got some
    last."""

    channel_id: str
    project_id: str
    org_id: str
    taken: int
    room: int
    served: int


class _Part(NamedTuple):
    """Channels together: their places, when they were served last, and their next places (channel, how many it has
    before) in order."""

    taken: int
    served: int
    following: Iterator[tuple[Claim, int]]


class _Taken:
    """Places by organisation."""

    def __init__(self, orgs: Mapping[str, _Part], pace: Pace) -> None:
        self._by_org = {org_id: org.taken for org_id, org in orgs.items()}
        self._total = sum(self._by_org.values())
        self._pace = pace

    def is_free(self, org_id: str, before: int = 0) -> bool:
        """Whether an organisation may have one more, for a channel that has `before` of them. One beside another is
        only for channels of an organisation with less than half as many as are free, and while less than
        `second_slot_max` are taken."""
        mine, free = self._by_org[org_id], self._pace.total_max - self._total
        return mine < free and (not before or (2 * mine < free and self._total < self._pace.second_slot_max))

    def take(self, org_id: str) -> None:
        self._by_org[org_id] += 1
        self._total += 1


def shared_out(claims: Iterable[Claim], pace: Pace) -> dict[str, int]:
    """How many more places each channel gets now."""
    orgs = _by_org(claims, pace)
    taken = _Taken(orgs, pace)
    some = [
        org._replace(following=takewhile(lambda place: taken.is_free(place[0].org_id), org.following))
        for org in orgs.values()
    ]
    more: dict[str, int] = {}
    for claim, before in _together(some).following:
        if taken.is_free(claim.org_id, before):
            taken.take(claim.org_id)
            more[claim.channel_id] = more.get(claim.channel_id, 0) + 1
    return more


def _by_org(claims: Iterable[Claim], pace: Pace) -> dict[str, _Part]:
    """The channels of an organisation in turn, as far as there may be places for it: it may have many thousands, and
    most often there is one place free, or none."""
    found: dict[str, dict[str, list[Claim]]] = {}
    for claim in claims:
        found.setdefault(claim.org_id, {}).setdefault(claim.project_id, []).append(claim)
    taken = {org_id: sum([one.taken for some in of.values() for one in some]) for org_id, of in found.items()}
    free = pace.total_max - sum(taken.values())
    return {
        org_id: _together([_of_project(some, max(0, free - taken[org_id])) for some in projects.values()])
        for org_id, projects in found.items()
    }


def _of_project(claims: Sequence[Claim], most: int) -> _Part:
    """`most`: places that there may be for it."""
    wanting = _first([one for one in claims if one.room], most)
    parts = [_Part(one.taken, one.served, zip(repeat(one, one.room), count(one.taken))) for one in wanting]
    taken, served = sum([one.taken for one in claims]), max([one.served for one in claims], default=0)
    return _Part(taken, served, _together(parts).following)


def _first(claims: Sequence[Claim], most: int) -> Sequence[Claim]:
    """Those among which the next `most` places go, in the order they came in."""
    if len(claims) <= most:
        return claims
    turns = [(one.taken, one.served, n) for n, one in enumerate(claims)]
    return [claims[n] for n in sorted([n for *_, n in heapq.nsmallest(most, turns)])]


def _together(parts: Sequence[_Part]) -> _Part:
    """Parts in turn: who has fewest places comes first, of several who was served longest ago."""
    ranked = (zip(count(part.taken), repeat(part.served), part.following) for part in parts)
    following = (place for *_, place in heapq.merge(*ranked, key=itemgetter(0, 1)))
    return _Part(sum(part.taken for part in parts), max((part.served for part in parts), default=0), following)
