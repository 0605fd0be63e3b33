"""Who is next where many wait, and how much of each may wait: a line in which owners take turns, shares of a bound.

An owner is whoever must not make others wait: a project, or an organisation. Where projects take turns, organisations
do first, and the projects of one among themselves: many projects get it no more than one. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

KNOWN_MAX = 10_000
"""Owners that wait for nothing now, of which is known what they had."""


class Turns(Generic[T]):
    """A line in which the owner that had least is next, by weight; those of one owner stay in order. An owner comes in
    as if it had had as much as the one served then, so nobody saves up turns. `weigh` is asked when an item's turn has
    come; none counts less than 1."""

    def __init__(self, weigh: Callable[[T], int]) -> None:
        self._weigh = weigh
        self._lines: dict[str, deque[T]] = {}
        # a heap: what each owner had, a number that grows, the owner
        self._waiting: list[tuple[int, int, str]] = []
        self._first: tuple[int, int, str] | None = None
        self._number = 0
        # of owners that wait for nothing: what they had, KNOWN_MAX at most and none when nobody waits
        self._had: dict[str, int] = {}
        self._served = 0

    def __bool__(self) -> bool:
        return bool(self._lines)

    def append(self, owner: str, item: T) -> None:
        line = self._lines.get(owner)
        if line is None:
            line = self._lines[owner] = deque()
            self._wait(max(self._served, self._had.pop(owner, 0)), owner)
        line.append(item)

    def _wait(self, had: int, owner: str) -> None:
        self._number += 1
        heappush(self._waiting, (had, self._number, owner))

    def take(self, weight_max: int) -> list[T]:
        """What a call carries: those that are next, one at least, up to a weight. Who does not fit is the first one of
        the next call, however many come, unless he has something in this one."""
        taken: list[T] = []
        waiting, weigh, room, begun = self._waiting, self._weigh, weight_max, self._number
        turn, self._first = self._first, None
        while turn or waiting:
            turn = turn or heappop(waiting)
            had, number, owner = turn
            line = self._lines[owner]
            while (weight := weigh(line[0])) <= room or not taken:
                taken.append(line.popleft())
                if had > self._served:
                    self._served = had
                had += weight or 1
                room -= weight
                if not line or (waiting and waiting[0][0] <= had):
                    break
            else:
                if had > turn[0]:
                    self._wait(had, owner)
                elif number > begun:
                    heappush(waiting, turn)
                else:
                    self._first = turn
                return taken
            turn = None
            if line:
                self._wait(had, owner)
            else:
                self._leave(owner, had)
        return taken

    def drain(self) -> Iterator[T]:
        """Takes out all."""
        while self._lines:
            yield from self.take(0)

    def _leave(self, owner: str, had: int) -> None:
        """Remembers what an owner had that waits for nothing now: coming again it is not served before those that wait.
        Beyond KNOWN_MAX those with most begin anew, too."""
        del self._lines[owner]
        if not self._lines:
            self._had, self._served = {}, 0
            return
        self._had[owner] = had
        if len(self._had) > KNOWN_MAX:
            self._had = {one: n for one, n in self._had.items() if n > self._served}
            if len(self._had) > KNOWN_MAX // 2:
                self._had.clear()


class _Place(Generic[T]):
    """A place of an organisation in the line. Which of its items takes it is known when its turn has come."""

    __slots__ = ("item", "org")

    def __init__(self, org: str) -> None:
        self.org = org
        self.item: T | None = None


class NestedTurns(Generic[T]):
    """Turns of organisations, and within each of them of its projects. `weigh`: as in Turns."""

    def __init__(self, weigh: Callable[[T], int]) -> None:
        self._weigh = weigh
        self._orgs: Turns[_Place[T]] = Turns(self._weigh_place)
        self._projects: dict[str, Turns[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._orgs)

    def append(self, org: str, project: str, item: T) -> None:
        within = self._projects.get(org)
        if within is None:
            within = self._projects[org] = Turns(self._weigh_one)
        within.append(project, item)
        self._orgs.append(org, _Place(org))

    def take(self, weight_max: int) -> list[T]:
        return [self._item(place) for place in self._orgs.take(weight_max)]

    def drain(self) -> Iterator[T]:
        """Takes out all."""
        for place in self._orgs.drain():
            yield self._item(place)

    def _weigh_place(self, place: _Place[T]) -> int:
        return self._weigh(self._item(place))

    def _weigh_one(self, item: T) -> int:
        return max(1, self._weigh(item))

    def _item(self, place: _Place[T]) -> T:
        if place.item is None:
            within = self._projects[place.org]
            (place.item,) = within.take(0)
            if not within:
                del self._projects[place.org]
        return place.item


class Shares:
    """What owners hold of something bounded: each at most as much as is left free of twice `most`. So one alone may
    hold `most`, of k that hold all they may each 2/(k+1) of it; all together hold less than twice `most`, and whoever
    comes finds room, whatever others hold. Whatever it weighs, something is taken when nothing is held."""

    def __init__(self, most: int) -> None:
        self._room = 2 * most
        self._held: dict[str, int] = {}
        self.total = 0

    def take(self, owner: str, weight: int) -> bool:
        """Whether there is room; then it is held."""
        if self.total and not self.has_room(owner, weight):
            return False
        self.add(owner, weight)
        return True

    def has_room(self, owner: str, weight: int) -> bool:
        """Whether an owner may have so much more."""
        return self._held.get(owner, 0) + weight <= self._room - self.total - weight

    def add(self, owner: str, weight: int) -> None:
        """It is held, whether there is room or not."""
        self._held[owner] = self._held.get(owner, 0) + weight
        self.total += weight

    def take_all(self, owner: str, weight: int) -> bool:
        """Whether there is room for many at once, so that each of them would find it whatever the others; then it is
        held."""
        if not self.has_room(owner, weight):
            return False
        self.add(owner, weight)
        return True

    def give_back(self, owner: str, weight: int) -> None:
        self.total -= weight
        left = self._held.pop(owner, 0) - weight
        if left:
            self._held[owner] = left

    def clear(self) -> None:
        """Nothing is held any more."""
        self._held.clear()
        self.total = 0


class NestedShares:
    """What projects hold of something bounded: each of an organisation as in Shares, and organisations likewise with
    twice as much, so that many projects get it no more than two. All together hold less than four times `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._orgs = Shares(2 * most)
        self._projects: dict[str, Shares] = {}

    @property
    def total(self) -> int:
        return self._orgs.total

    def take(self, org: str, project: str, weight: int) -> bool:
        """Whether there is room; then it is held."""
        return self._both(Shares.take, org, project, weight)

    def take_all(self, org: str, project: str, weight: int) -> bool:
        """See Shares."""
        return self._both(Shares.take_all, org, project, weight)

    def give_back(self, org: str, project: str, weight: int) -> None:
        self._orgs.give_back(org, weight)
        within = self._projects[org]
        within.give_back(project, weight)
        if not within.total:
            del self._projects[org]

    def clear(self) -> None:
        """Nothing is held any more."""
        self._orgs.clear()
        self._projects.clear()

    def _both(self, take: Callable[[Shares, str, int], bool], org: str, project: str, weight: int) -> bool:
        within = self._projects.get(org) or Shares(self._most)
        if not take(self._orgs, org, weight):
            return False
        if not take(within, project, weight):
            self._orgs.give_back(org, weight)
            return False
        self._projects[org] = within
        return True
