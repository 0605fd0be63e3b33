"""Many seeds, over several processes if wanted; what they came to, and whether every kind of fault really struck."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tests.sim.faults import KINDS, share_of
from tests.sim.reached import REACHED, SEEDS_MIN
from tests.sim.run import Result, run_safely
from tests.support.fresh import statements_compiled_once

HIT_SHARE = 0.36
"""Each kind of fault has an effect in at least this share of the seeds it is there for."""


@dataclass
class Campaign:
    """The sum of many runs."""

    seeds: int = 0
    failed: list[int] = field(default_factory=list)
    """Seeds that failed, of earlier parts, too."""
    failures: list[Result] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)
    """Kind of fault -> seeds in which it had an effect."""
    reached: Counter[str] = field(default_factory=Counter)
    """What was met -> seeds that met it (see tests/sim/reached.py)."""
    events: int = 0
    samples: int = 0
    cpu_s: float = 0.0
    virtual_s: float = 0.0

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.struck.update(kind for kind, hits in result.hits.items() if hits)
        self.reached.update(result.reached)
        self.events += result.events
        self.samples += result.samples
        self.cpu_s += result.cpu_s
        self.virtual_s += result.virtual_s
        if result.failure is not None:
            self.failed.append(result.seed)
            self.failures.append(result)

    def share(self, kind: str) -> float:
        return self.struck[kind] / max(1, self.seeds)

    def rare(self) -> list[str]:
        """Kinds of faults that struck too seldom for this to have been a test of them."""
        return [kind for kind in KINDS if self.share(kind) < HIT_SHARE * share_of(kind)]

    def never(self) -> list[str]:
        """What should have been met by so many seeds, and was not."""
        return sorted(REACHED - self.reached.keys()) if self.seeds >= SEEDS_MIN else []


def read(path: Path) -> Campaign:
    """What the parts so far came to; an empty campaign where there is no such file."""
    if not path.exists():
        return Campaign()
    kept = msgspec.json.decode(path.read_bytes())
    return Campaign(**kept | {name: Counter(kept[name]) for name in ("struck", "reached")})


def write(path: Path, campaign: Campaign) -> None:
    """The file is the old one or the new one, whatever happens meanwhile."""
    kept = {f.name: getattr(campaign, f.name) for f in fields(campaign) if f.name != "failures"}
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(kept)))
    new.replace(path)


def results(seeds: Sequence[int], jobs: int, **options: Any) -> Iterator[Result]:
    """Runs all seeds; in order when there is one job."""
    work: Callable[[int], Result] = partial(_told_if_failed, options)
    if jobs == 1:
        yield from map(work, seeds)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _share_statements) as pool:
        yield from pool.map(work, seeds, chunksize=4)


_for_good = ExitStack()


def _share_statements() -> None:
    """Runs of a process take each other's compiled statements."""
    _for_good.enter_context(statements_compiled_once())


def _told_if_failed(options: dict[str, Any], seed: int) -> Result:
    """The trace of a run that went well is of no use to anybody."""
    result = run_safely(seed, **options)
    return result if result.failure is not None else msgspec.structs.replace(result, lines=())
