"""What a replica has seen of samples lately, for people who wonder where theirs are: how many come to which router,
which were refused and why, with the newest example, and which metrics no breaker hears.

Each replica knows what came to it, since it began to look. Its work is by request and router, never by sample. All of
it is bounded: of too many routers and unheard metrics the one noted longest ago is forgotten, of too many projects that
of the organisation which has most.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from api.lookup.project_memories import ProjectMemories
from breaker_actors.messages import AppendResult, Part

T = TypeVar("T")

PROJECTS_MAX, ROUTERS_MAX, UNHEARD_MAX, REASONS_MAX = 200, 500, 50, 32
"""Projects of a replica, and of each its routers, its unheard metrics and its reasons."""
BUCKET_MS, BUCKETS = 5_000, 13
"""A rate counts the last minute in steps; one more is being filled."""
LATELY_MS = 86_400_000
"""What was not seen again for a day is not told."""


class Example(msgspec.Struct, frozen=True):
    """What a refused sample said, cut short; "" for what it did not say."""

    router_id: str = ""
    metric: str = ""
    value: str = ""


class Noted(msgspec.Struct):
    """Something that was seen `count` times. `words`: what the newest refused request was told."""

    first_ms: int
    last_ms: int
    count: int = 0
    example: Example = Example()
    words: str = ""


class Flow:
    """The samples that one router was sent."""

    __slots__ = ("_buckets", "_first_ms", "_slot", "disabled", "last_ms")

    def __init__(self, now_ms: int) -> None:
        self.last_ms = self._first_ms = now_ms
        self.disabled = False
        self._slot = now_ms // BUCKET_MS
        self._buckets = [0] * BUCKETS

    def add(self, n: int, now_ms: int) -> None:
        self._turn(now_ms)
        self._buckets[self._slot % BUCKETS] += n
        self.last_ms = max(self.last_ms, now_ms)

    def rate(self, now_ms: int) -> float:
        """Samples a second over the last minute, or since the first one where that is less."""
        self._turn(now_ms)
        seen_ms = min(now_ms - self._first_ms, (BUCKETS - 1) * BUCKET_MS + now_ms % BUCKET_MS)
        return sum(self._buckets) * 1_000 / max(seen_ms, 1_000)

    def _turn(self, now_ms: int) -> None:
        """Forgets what is older than a minute. A clock that went back goes on filling the same step."""
        slot = now_ms // BUCKET_MS
        for old in range(max(self._slot + 1, slot - BUCKETS + 1), slot + 1):
            self._buckets[old % BUCKETS] = 0
        self._slot = max(self._slot, slot)


class Seen:
    """What one project's senders sent. `since_ms`: nothing before is known here."""

    def __init__(self, now_ms: int) -> None:
        self.since_ms = now_ms
        self.routers: OrderedDict[str, Flow] = OrderedDict()
        self.samples: OrderedDict[str, Noted] = OrderedDict()
        """Refused samples by code."""
        self.requests: OrderedDict[str, Noted] = OrderedDict()
        """Requests refused as a whole, by code."""
        self.unheard: OrderedDict[tuple[str, str], Noted] = OrderedDict()
        """Requests by router and metric."""

    def lately(self, found: Mapping[T, Noted], now_ms: int) -> dict[T, Noted]:
        """Of those the ones of the last day, newest first."""
        fresh = {name: noted for name, noted in found.items() if noted.last_ms > now_ms - LATELY_MS}
        return dict(sorted(fresh.items(), key=lambda pair: -pair[1].last_ms))

    def took(self, part: Part, outcome: AppendResult, now_ms: int) -> None:
        """A router's samples of one request, as its log took them."""
        if outcome.status == "ok":
            flow = _kept(self.routers, part.router_id, ROUTERS_MAX, Flow, now_ms)
            flow.add(part.count, now_ms)
            flow.disabled = outcome.disabled
            for metric in outcome.unheard:
                _count(self.unheard, (part.router_id, metric), UNHEARD_MAX, now_ms)

    def refused(self, reasons: Mapping[str, int], examples: Mapping[str, Example], now_ms: int) -> None:
        """Samples of one request that were not taken."""
        for code, n in reasons.items():
            noted = _count(self.samples, code, REASONS_MAX, now_ms, n)
            noted.example = examples.get(code, noted.example)

    def turned_away(self, code: str, words: str, now_ms: int) -> None:
        """A request of which nothing was taken."""
        _count(self.requests, code, REASONS_MAX, now_ms).words = words[:300]


class IngestMemory:
    """The projects of one replica. `now_ms`: the wall clock; `monotonic`: by what projects are idle."""

    def __init__(self, now_ms: Callable[[], int], monotonic: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self._of: ProjectMemories[Seen] = ProjectMemories(PROJECTS_MAX, monotonic, LATELY_MS / 1_000)

    def of(self, project_id: str) -> Seen | None:
        """None: nothing came of this project, or it was forgotten."""
        return self._of.get(project_id)

    def took(self, org_id: str, project_id: str, parts: Sequence[Part], outcomes: Sequence[AppendResult]) -> None:
        seen, now_ms = self._seen(org_id, project_id)
        for part, outcome in zip(parts, outcomes, strict=True):
            seen.took(part, outcome, now_ms)

    def refused(
        self, org_id: str, project_id: str, reasons: Mapping[str, int], examples: Mapping[str, Example]
    ) -> None:
        seen, now_ms = self._seen(org_id, project_id)
        seen.refused(reasons, examples, now_ms)

    def turned_away(self, org_id: str, project_id: str, code: str, words: str) -> None:
        seen, now_ms = self._seen(org_id, project_id)
        seen.turned_away(code, words, now_ms)

    def _seen(self, org_id: str, project_id: str) -> tuple[Seen, int]:
        now_ms = self._now_ms()
        seen = self._of.get(project_id)
        if seen is None:
            self._of.put(org_id, project_id, seen := Seen(now_ms), 1)
        return seen, now_ms


K = TypeVar("K")


def _kept(of: OrderedDict[K, T], name: K, most: int, make: Callable[[int], T], now_ms: int) -> T:
    """The one of that name, which is the newest now; where it is one too many, the oldest goes."""
    found = of.get(name)
    if found is None:
        found = of[name] = make(now_ms)
        if len(of) > most:
            of.popitem(last=False)
    else:
        of.move_to_end(name)
    return found


def _count(of: OrderedDict[K, Noted], name: K, most: int, now_ms: int, n: int = 1) -> Noted:
    noted = _kept(of, name, most, lambda first_ms: Noted(first_ms, first_ms), now_ms)
    noted.count += n
    noted.last_ms = max(noted.last_ms, now_ms)
    return noted
