"""The breakers of a project that matchers match, looked for in slices: others are served between two of them, and
callers take turns.

What a matcher looks at is gathered once for each field: a value that many breakers have, or many routers of one, is
compared once, and only while it may say something new. Work is counted in units of about a microsecond at most, known
before it is done: it counts in the project's budget of reads, and what one request may do is bounded by WORK_MAX.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import msgspec

from api.admission.intake import Turn
from api.context.current import callers, count_reads, spend_reads
from api.context.replica import replica
from breaker_actors.errors import Invalid
from breaker_actors.store.mutes.matching import PLAIN, BreakerFacts, Matcher, matches_breaker

COMPARING, CHARS_IN_UNIT = 2, 1_000
"""Units of one comparison; and of a glob one more for so many characters of its own times those of the value."""
SLICE_WORK = 5_000
"""Units of work before others have their turn: 5 ms at most."""
FIRST_WORK = 1_000
"""Units of the first slice, which costs no turn: many may begin at once."""
WORK_MAX = 4_000_000
"""Units of work of one request: 4 s of a core at most, in slices."""
READ_WORK = 100
"""Units that count as one thing in the project's budget of reads."""
FIELDS_KEPT = 32
"""Fields of which the values are kept while a request lasts."""


class TooMuchToMatch(Invalid):
    """To look for what these matchers match would take too long."""


class _Values(NamedTuple):
    """What there is of a field: the numbers of the breakers that have each value."""

    breakers: dict[str, list[int]]
    chars: int

    def weight(self, matcher: Matcher) -> int:
        """Units that one matcher takes at most."""
        if matcher.op != "glob":
            return COMPARING
        return COMPARING * len(self.breakers) + self.chars * len(matcher.value) // CHARS_IN_UNIT


class Search:
    """Looks for what matchers match among breakers, in the turns of one request. `count` hears of work before it is
    done, in units of READ_WORK; `work`: units so far."""

    def __init__(self, breakers: Sequence[BreakerFacts], turn: Turn, count: Callable[[int], None]) -> None:
        self.breakers = breakers
        self.work = 0
        self._turn = turn
        self._count = count
        self._pairs = {"router": sum(1 + len(breaker.routers) for breaker in breakers)}
        self._values: dict[str, _Values] = {}
        self._sliced = SLICE_WORK - FIRST_WORK

    async def find(self, matchers: Sequence[Matcher]) -> list[BreakerFacts]:
        """Those that matchers match, in their order; what matchers say of channels is left out. Raises TooMuchToMatch
        before it does more than WORK_MAX."""
        asked = dict.fromkeys(one for one in matchers if one.field != "channel")
        values = {field: await self._values_of(field) for field in dict.fromkeys(one.field for one in asked)}
        self._plan(sum(values[one.field].weight(one) for one in asked))
        found = set(range(len(self.breakers)))
        for matcher in asked:
            if not found:
                break
            hits = await self._hits(matcher, values[matcher.field], found)
            found = found - hits if matcher.op == "!=" else found & hits
            await self._worked(len(self.breakers) // READ_WORK)
        return [self.breakers[number] for number in sorted(found)]

    def _plan(self, work: int) -> None:
        """Counts work that is to be done."""
        if self.work + work > WORK_MAX:
            words = f"more than {WORK_MAX} units of work to look for: say fewer or shorter globs, or name breakers"
            raise TooMuchToMatch(f"matchers: {words}", {"matchers": words})
        before, self.work = self.work, self.work + work
        self._count(self.work // READ_WORK - before // READ_WORK)

    async def _values_of(self, field: str) -> _Values:
        if (known := self._values.get(field)) is not None:
            return known
        self._plan(self._pairs.get(field.partition(".")[0], len(self.breakers)))
        found = dict[str, list[int]]()
        for number, value in _pairs(field, self.breakers):
            if value is not None:
                numbers = found.setdefault(value, [])
                if not numbers or numbers[-1] != number:
                    numbers.append(number)
            await self._worked(1)
        if len(self._values) >= FIELDS_KEPT:
            self._values.clear()
        self._values[field] = values = _Values(found, sum(map(len, found)))
        return values

    async def _hits(self, matcher: Matcher, values: _Values, among: set[int]) -> set[int]:
        """The breakers among these that have a value which the matcher names: those that `!=` is not true of."""
        left, named = set(among), (matcher if matcher.op == "glob" else msgspec.structs.replace(matcher, op="="),)
        for value in values.breakers if matcher.op == "glob" else [matcher.value]:
            numbers = values.breakers.get(value, ())
            if left.isdisjoint(numbers):
                await self._worked(1)
                continue
            if matches_breaker(named, _with(matcher.field, value)):
                left.difference_update(numbers)
            await self._worked(COMPARING + len(value) * len(matcher.value) // CHARS_IN_UNIT)
        return among - left

    async def _worked(self, units: int) -> None:
        """So much is done; a slice ends where it was enough."""
        self._sliced += units
        if self._sliced >= SLICE_WORK:
            self._sliced = 0
            await self._turn.go_on()


def _pairs(field: str, breakers: Sequence[BreakerFacts]) -> Iterator[tuple[int, str | None]]:
    """The number of each breaker with each value that it has of a field; None where it has none."""
    kind, _, key = field.partition(".")
    for number, breaker in enumerate(breakers):
        if field in PLAIN:
            yield number, str(getattr(breaker, field))
        elif kind == "metadata":
            yield number, breaker.metadata.get(key)
        else:
            yield number, None
            for metadata in breaker.routers:
                yield number, metadata.get(key)


def _with(field: str, value: str) -> BreakerFacts:
    """A breaker that has a value in a field, and nothing else."""
    kind, _, key = field.partition(".")
    plain = {name: value if name == field else "" for name in PLAIN}
    metadata = {key: value}
    return BreakerFacts(
        id=plain["id"],
        name=plain["name"],
        metric=plain["metric"],
        kind=plain["kind"],
        metadata=metadata if kind == "metadata" else {},
        routers=(metadata,) if kind == "router" else (),
    )


@asynccontextmanager
async def searching(project_id: str) -> AsyncIterator[Search]:
    """A search among a project's breakers, for the current request: nothing else is to be waited for in it. Breakers,
    and the work, count in the project's budget of reads. Raises Overloaded where nothing of that is left, or too many
    wait for their turn."""
    spend_reads(project_id, 0)
    breakers = await replica().mutes.muted_breakers(project_id)
    spend_reads(project_id, len(breakers))
    async with Turn(replica().intake.turns, callers()) as turn:
        yield Search(breakers, turn, partial(count_reads, project_id))


async def matching(project_id: str, matchers: Sequence[Matcher]) -> tuple[list[BreakerFacts], int]:
    """The breakers of a project that matchers match, and how many it has; see `searching` and `Search.find`."""
    async with searching(project_id) as search:
        return await search.find(matchers), len(search.breakers)


def open_ones(breakers: Sequence[BreakerFacts]) -> int:
    """How many of them are open."""
    return sum(breaker.open for breaker in breakers)
