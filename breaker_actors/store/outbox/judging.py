"""Which mute holds a delivery back, for many deliveries of one project: what a schedule says is found out once for each
mute, whether matchers match once for each mute and breaker, or channel, and all of it within a budget.

Sync and without I/O, but for the routers of a breaker, which are asked for when a matcher needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from breaker_actors.store.mutes.matching import (
    OF_ROUTER,
    BreakerFacts,
    ChannelFacts,
    Effort,
    Matcher,
    Spent,
    asks_routers,
    matches_breaker,
    matches_channel,
)
from breaker_actors.store.mutes.schedule import FOREVER, Stretch, stretch
from breaker_actors.store.rows import MuteRow

EFFORT_MAX = 50_000_000
"""What one transaction may spend on matching, in units of Effort: some 50 ms at most, whoever is in it."""
LOADED, STRETCH, MUTE, ROUTERS, ROUTER = 100_000, 100_000, 1_000, 300_000, 2_000
"""What it takes to load a mute and sort out its matchers, to find out when one with windows is active, to ask one for
that again, to look for a breaker's routers, and to read one of them, beside 10 for each character of its metadata."""

RoutersOf = Callable[[str], Sequence[dict[str, str]]]


class _Asked(NamedTuple):
    """A mute's matchers by what they look at, those of a breaker with the cheapest first."""

    channel: tuple[Matcher, ...]
    breaker: tuple[Matcher, ...]
    routers: tuple[Matcher, ...]


class _Order:
    """The mutes that are active at each instant from `from_ms` until before `to_ms`, the last to end first. Sets of
    them are bits by their place. `every`: what takes any channel; `some`: the places of the others; `takes`: what
    matches a channel; `yes` and `no`: what matches a breaker, as far as that was asked."""

    __slots__ = ("every", "from_ms", "mutes", "no", "some", "takes", "to_ms", "yes")

    def __init__(self, from_ms: int, to_ms: int, mutes: Sequence[tuple[int, int]], some: Sequence[int]) -> None:
        self.from_ms = from_ms
        self.to_ms = to_ms
        self.mutes = mutes
        self.some = some
        self.every = ((1 << len(mutes)) - 1) & ~sum(1 << place for place in some)
        self.takes: dict[str, int] = {}
        self.yes: dict[str, int] = {}
        self.no: dict[str, int] = {}


class Judge:
    """The mutes of one project, as one transaction asks them. Raises Spent from where the effort is spent on."""

    def __init__(self, mutes: Sequence[MuteRow], routers_of: RoutersOf, effort: Effort) -> None:
        self._mutes = mutes
        self._routers_of = routers_of
        self._effort = effort
        self._asked: dict[int, _Asked] = {}
        self._stretches: dict[int, Stretch] = {}
        self._order = _Order(FOREVER, FOREVER, (), ())
        self._with_routers: dict[str, BreakerFacts] = {}
        self._breakers: dict[tuple[int, str], bool] = {}
        self._channels: dict[tuple[int, str], bool] = {}

    def last_to_end(self, breaker: BreakerFacts, channel: ChannelFacts, at_ms: int) -> tuple[MuteRow, int] | None:
        """Of the mutes that match and are active at an instant the one that stays so for longest, and until when."""
        if not self._mutes:
            return None
        if self._effort.left < 0:
            raise Spent
        if not self._order.from_ms <= at_ms < self._order.to_ms:
            self._order = self._order_at(at_ms)
        order = self._order
        if (takes := order.takes.get(channel.id)) is None:
            takes = order.takes[channel.id] = self._taking(channel)
        yes, no = order.yes.get(breaker.id, 0), order.no.get(breaker.id, 0)
        while left := takes & ~no:
            bit = left & -left
            number, until_ms = order.mutes[bit.bit_length() - 1]
            if yes & bit or self._matches(number, breaker):
                order.yes[breaker.id] = yes | bit
                return self._mutes[number], until_ms
            no = order.no[breaker.id] = no | bit
        return None

    def _order_at(self, at_ms: int) -> _Order:
        from_ms, to_ms, active = -FOREVER, FOREVER, list[tuple[int, int]]()
        for number, mute in enumerate(self._mutes):
            found = self._stretches.get(number)
            if found is None or not found.from_ms <= at_ms < found.to_ms:
                self._effort.spend(STRETCH if mute.windows else MUTE)
                found = self._stretches[number] = stretch(mute.schedule, at_ms)
            self._effort.spend(MUTE)
            from_ms, to_ms = max(from_ms, found.from_ms), min(to_ms, found.to_ms)
            if found.until_ms is not None:
                active.append((number, found.until_ms))
        active.sort(key=lambda one: -one[1])
        some = [place for place, (number, _) in enumerate(active) if self._of(number).channel]
        return _Order(from_ms, max(to_ms, at_ms + 1), active, some)

    def _taking(self, channel: ChannelFacts) -> int:
        takes = self._order.every
        for place in self._order.some:
            number, _ = self._order.mutes[place]
            found = self._channels.get((number, channel.id))
            if found is None:
                found = matches_channel(self._of(number).channel, channel, self._effort)
                self._channels[number, channel.id] = found
            takes |= found << place
        return takes

    def _matches(self, number: int, breaker: BreakerFacts) -> bool:
        found = self._breakers.get((number, breaker.id))
        if found is None:
            asked = self._of(number)
            found = matches_breaker(asked.breaker, breaker, self._effort)
            if found and asked.routers:
                found = matches_breaker(asked.routers, self._and_routers(breaker), self._effort)
            self._breakers[number, breaker.id] = found
        return found

    def _and_routers(self, breaker: BreakerFacts) -> BreakerFacts:
        known = self._with_routers.get(breaker.id)
        if known is None:
            self._effort.spend(ROUTERS)
            routers = tuple(self._routers_of(breaker.id))
            known = self._with_routers[breaker.id] = msgspec.structs.replace(breaker, routers=routers)
            for metadata in routers:
                self._effort.spend(ROUTER + 10 * sum(map(len, metadata.values())))
        return known

    def _of(self, number: int) -> _Asked:
        asked = self._asked.get(number)
        if asked is None:
            asked = self._asked[number] = _sorted_out(self._mutes[number].matchers)
        return asked


def _sorted_out(matchers: Sequence[Matcher]) -> _Asked:
    channel = tuple(one for one in matchers if one.field == "channel")
    routers = tuple(one for one in matchers if asks_routers((one,)))
    others = (one for one in matchers if one.field != "channel" and not one.field.startswith(OF_ROUTER))
    return _Asked(channel, tuple(sorted(others, key=lambda one: one.op == "glob")), routers)
