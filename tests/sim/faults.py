"""What may go wrong in a run, how often, and what did: all drawn from the seed, each kind with a stream of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random

CHANCE: dict[str, tuple[float, float]] = {
    "slow_call": (0.005, 0.05),
    "lost_request": (0.002, 0.02),
    "lost_reply": (0.002, 0.02),
    "duplicate": (0.002, 0.02),
    "store_fails": (0.005, 0.05),
    "store_unknown": (0.01, 0.06),
    "store_slow": (0.005, 0.04),
    "store_late": (0.01, 0.04),
    "log_fails": (0.003, 0.03),
    "log_unknown": (0.003, 0.03),
    "log_slow": (0.003, 0.03),
    "log_late": (0.003, 0.02),
    "crash_mid": (0.002, 0.01),
}
"""Kinds that strike single calls and operations, with the range of their probability."""

TIMED: dict[str, tuple[int, int]] = {
    "crash_router": (1, 3),
    "crash_breaker": (1, 3),
    "crash_journal": (1, 3),
    "crash_directory": (1, 3),
    "crash_replica": (1, 2),
    "crash_all": (1, 1),
    "zombie_router": (1, 2),
    "zombie_breaker": (1, 2),
    "zombie_journal": (1, 2),
    "zombie_directory": (1, 2),
    "store_outage": (1, 2),
    "log_outage": (1, 2),
    "clock_forward": (1, 3),
    "clock_back": (1, 3),
    "clock_stopped": (1, 2),
    "store_readonly": (1, 2),
    "log_readonly": (1, 2),
    "stop_router": (1, 2),
    "stop_breaker": (1, 2),
    "stop_journal": (1, 2),
    "stop_directory": (1, 2),
    "stop_replica": (1, 2),
    "damage_bit": (1, 2),
    "damage_gone": (1, 2),
    "damage_copy": (1, 1),
    "damage_missing": (1, 1),
}
"""Kinds that come at drawn instants, with the range of how many."""

STANDING = ("skew", "reorder")
"""Kinds that are there all the time: clocks apart, and calls that overtake each other."""

LATER: dict[str, tuple[int, int]] = {
    "clock_hours": (1, 2),
    "clock_wrong": (1, 1),
    "crash_notifier": (1, 3),
    "zombie_notifier": (1, 2),
    "stop_notifier": (1, 2),
    "clock_notifier": (1, 2),
    "clock_ahead": (1, 1),
}
"""Timed kinds that came later: drawn behind all others, so that seeds that were there stay what they were."""
TIMED |= LATER

KINDS = (*CHANCE, *(kind for kind in TIMED if kind not in LATER), *STANDING, *LATER)
SHARE, DAMAGE_SHARE = 0.55, 0.15
"""Each kind is there in this share of the seeds, so that they meet in ever new combinations. Damage is there in fewer:
what breakers do behind it no log tells whole."""


def share_of(kind: str) -> float:
    """In which share of the seeds a kind is there."""
    return DAMAGE_SHARE if kind.startswith("damage") else SHARE


def excluded(words: Iterable[str]) -> frozenset[str]:
    """The kinds meant by words like `crash` (all crashes) or `store_late`. Raises ValueError for what is none."""
    chosen: set[str] = set()
    for word in words:
        found = {kind for kind in KINDS if kind == word or kind.startswith(f"{word}_")}
        if not found:
            raise ValueError(f"no kind of fault is called {word}; there are {', '.join(KINDS)}")
        chosen |= found
    return frozenset(chosen)


class Faults:
    """The plan of one run. Leaving kinds out changes no draw of the others. `hits`: what had an effect."""

    def __init__(self, seed: int, without: frozenset[str] = frozenset()) -> None:
        self._seed = seed
        plan = self.stream("plan")
        self.chance: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self.standing: set[str] = set()
        for kind in KINDS:
            there, at = plan.random() < share_of(kind) and kind not in without, plan.random()
            if kind in CHANCE:
                low, high = CHANCE[kind]
                self.chance[kind] = (low + at * (high - low)) if there else 0.0
            elif kind in TIMED:
                fewest, most = TIMED[kind]
                self._counts[kind] = fewest + int(at * (most - fewest + 1)) if there else 0
            elif there:
                self.standing.add(kind)
        self._draws = {kind: self.stream(kind) for kind in KINDS}
        self.active = False
        self.hits: Counter[str] = Counter()

    def stream(self, name: str) -> Random:
        """Randomness for one purpose, the same for the same seed whatever else is drawn."""
        return Random(f"{self._seed} {name}")

    @property
    def stops(self) -> bool:
        """Whether processes are stopped and go on in this run."""
        return any(n and kind.startswith("stop_") for kind, n in self._counts.items())

    def strikes(self, kind: str) -> bool:
        """Whether a fault of this kind strikes the call or operation at hand."""
        drawn = self._draws[kind].random()
        return self.active and drawn < self.chance[kind]

    def span(self, kind: str, low: float, high: float) -> float:
        """Seconds that belong to a fault of this kind."""
        return self._draws[kind].uniform(low, high)

    def pick(self, kind: str, what: list[str]) -> str:
        return self._draws[kind].choice(what)

    def schedule(self, from_s: float, to_s: float) -> Iterator[tuple[float, str]]:
        """When which timed fault comes, in order of time."""
        found = []
        for kind in TIMED:
            draws = self.stream(f"when {kind}")
            found += [(draws.uniform(from_s, to_s), kind) for _ in range(self._counts[kind])]
        yield from sorted(found)

    def hit(self, kind: str) -> None:
        self.hits[kind] += 1
