"""kill -9 of a service's processes at random moments, by a plan drawn from a seed, and how long users then had to wait.

The service's own timing is not drawn from the seed: it repeats the plan, not the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import random
import signal
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from api.launch import processes
from tests.support.live import LiveService, tree_of

BACK_S = 180.0
ACTORS = {
    "BreakerActor": "ray::BreakerActor",
    "RouterActor": "ray::RouterActor",
    "Journal": "ray::JournalActor",
    "Directory": "ray::DirectoryActor",
    "Notifier": "ray::NotifierActor",
    "API replica": "ray::ServeReplica",
    "HAProxy": "haproxy",
    "HAProxy's manager": "ray::HAProxyManager",
    "Serve controller": "ray::ServeController",
}
"""What can be killed, by the beginning of its command line (HAProxy: by its program)."""


@dataclass(frozen=True)
class Kill:
    at: float
    victims: tuple[str, ...]

    @property
    def kind(self) -> str:
        return self.victims[0] if len(self.victims) == 1 else "two at once"


def plan(rng: random.Random, kinds: Sequence[str], count: int, seconds: float) -> list[tuple[float, tuple[str, ...]]]:
    """When (seconds from the start) and what to kill: each kind about equally often, every fifth time two at once."""
    times = sorted(rng.uniform(0.02 * seconds, 0.95 * seconds) for _ in range(count))
    bag: Iterator[str] = itertools.chain.from_iterable(rng.sample(kinds, len(kinds)) for _ in itertools.count())
    victims = []
    for i in range(count):
        first = next(bag)
        second = rng.choice([kind for kind in kinds if kind != first])
        victims.append((first, second) if i % 5 == 4 else (first,))
    return list(zip(times, victims, strict=True))


class Killer:
    """Ends processes of one service by SIGKILL."""

    def __init__(self, live: LiveService, rng: random.Random) -> None:
        self._live = live
        self._rng = rng
        self.kills: list[Kill] = []

    def alive(self, kind: str) -> list[int]:
        tree = tree_of(self._live.process.pid)
        if kind == "HAProxy":
            return [pid for pid in processes.named(list(tree), "haproxy") if processes.alive(pid)]
        return [pid for pid, line in tree.items() if line.startswith(ACTORS[kind])]

    async def run(self, planned: Sequence[tuple[float, tuple[str, ...]]]) -> None:
        start = time.monotonic()
        for at, kinds in planned:
            await asyncio.sleep(max(0.0, start + at - time.monotonic()))
            pids = [self._rng.choice(await self._wait_alive(kind)) for kind in kinds]
            for kind, pid in zip(kinds, pids, strict=True):
                await self._kill(kind, pid)
            self.kills.append(Kill(time.monotonic(), kinds))

    async def _kill(self, kind: str, pid: int) -> None:
        """This process, or if it has ended by itself meanwhile another one of the kind."""
        while True:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return
            pid = self._rng.choice(await self._wait_alive(kind))

    async def _wait_alive(self, kind: str) -> list[int]:
        """It may have been killed a moment ago and not be back yet."""
        deadline = time.monotonic() + BACK_S
        while not (found := await asyncio.to_thread(self.alive, kind)):
            assert time.monotonic() < deadline, f"no {kind} came back"
            await asyncio.sleep(0.1)
        return found


def waits(kills: Sequence[Kill], answered: Sequence[tuple[float, float]]) -> dict[str, list[float]]:
    """Per kind of kill: seconds until something that was asked after it had its answer. Kills in the wake of another
    one, or with another one before their own answer, tell nothing of their kind and are left out."""
    found: dict[str, list[float]] = defaultdict(list)
    free_at = 0.0
    for kill, following in itertools.zip_longest(kills, kills[1:]):
        done = min((done for sent, done in answered if sent > kill.at), default=math.inf)
        if free_at < kill.at and done < (following.at if following else math.inf):
            found[kill.kind].append(done - kill.at)
        free_at = max(free_at, done)
    return found


def table(kills: Sequence[Kill], columns: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Seconds to the first answer after each kind of kill, median and longest."""
    measured = {name: waits(kills, answered) for name, answered in columns.items()}
    lines = [f"{'killed':20} {'times':>5}" + "".join(f" {name:>20}" for name in columns)]
    for kind, times in Counter(kill.kind for kill in kills).most_common():
        cells = [_cell(measured[name].get(kind, [])) for name in columns]
        lines.append(f"{kind:20} {times:5}" + "".join(f" {cell:>20}" for cell in cells))
    return "\n".join(lines)


def _cell(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} / {max(seconds):.2f} s" if seconds else "-"
