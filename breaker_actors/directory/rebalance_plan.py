"""Which breakers or routers move where when actors were added: pure planning, carried out by the Directory."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class Move(NamedTuple):
    """One thing that changes its owner."""

    thing: str
    source: str
    target: str


class Plan(NamedTuple):
    """The next moves, and how many there are in all until everything is even."""

    moves: list[Move]
    needed: int


def plan(holdings: Mapping[str, Collection[str]], names: Sequence[str], able: Collection[str], most: int) -> Plan:
    """The first `most` of the fewest moves after which no two of `names` differ by more than one.

    `holdings`: what every owner has now; an owner outside `names` gives all of it. `able`: those of `names` that can
    take something now; the others give at most. The same input gives the same moves.
    """
    targets = _targets(holdings, names, able)
    surplus = {owner: len(things) - targets.get(owner, 0) for owner, things in holdings.items()}
    lack = {name: targets[name] - len(holdings.get(name, ())) for name in names}
    needed = sum(count for count in lack.values() if count > 0)
    return Plan(_pair(holdings, surplus, lack, min(most, needed)), needed)


def step_size(moves_per_minute: int) -> tuple[float, int]:
    """Seconds between two steps and moves in one step, for at most so many moves a minute (above 0)."""
    return (1.0, moves_per_minute // 60) if moves_per_minute >= 60 else (60 / moves_per_minute, 1)


def _targets(holdings: Mapping[str, Collection[str]], names: Sequence[str], able: Collection[str]) -> dict[str, int]:
    """How many each name is to have. Who can't take anything and has too little keeps what it has; the rest is spread
    over the others, the larger shares to those that have most already: so the fewest things move."""
    held = {name: len(holdings.get(name, ())) for name in names}
    sharing = list(names)
    targets: dict[str, int] = {}
    left = sum(map(len, holdings.values()))
    while sharing:
        share, extra = divmod(left, len(sharing))
        short = [name for name in sharing if name not in able and held[name] < share + (extra > 0)]
        if not short:
            break
        # one at a time, the emptiest first: what it does not take raises the share of the others
        least = min(short, key=lambda name: held[name])
        targets[least] = held[least]
        left -= held[least]
        sharing.remove(least)
    if not sharing:
        return held
    for place, name in enumerate(sorted(sharing, key=lambda name: -held[name])):
        targets[name] = share + (place < extra)
    return targets


def _pair(
    holdings: Mapping[str, Collection[str]], surplus: Mapping[str, int], lack: Mapping[str, int], count: int
) -> list[Move]:
    """From whoever has most too many to whoever lacks most, again and again: a plan cut short is as even as can be."""
    order = {name: place for place, name in enumerate((*lack, *sorted(surplus.keys() - lack.keys())))}
    givers = [(-many, order[owner], owner) for owner, many in surplus.items() if many > 0]
    takers = [(-many, order[name], name) for name, many in lack.items() if many > 0]
    heapq.heapify(givers)
    heapq.heapify(takers)
    stock = {owner: heapq.nsmallest(count, holdings[owner])[::-1] for _, _, owner in givers}
    moves: list[Move] = []
    while len(moves) < count:
        (many, place, source), (few, other, target) = givers[0], takers[0]
        moves.append(Move(stock[source].pop(), source, target))
        _step(givers, many, place, source)
        _step(takers, few, other, target)
    return moves


def _step(heap: list[tuple[int, int, str]], many: int, place: int, name: str) -> None:
    if many == -1:
        heapq.heappop(heap)
    else:
        heapq.heapreplace(heap, (many + 1, place, name))
