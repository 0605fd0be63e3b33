"""A backfill against the running service: its steps as Ray tasks, events into its store, live samples into its actors.

What a step does is in `pipelines.backfill.steps`; here is who carries it out.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar
from uuid import uuid4

import polars as pl

from api.wire.decoding import SAMPLES_MAX
from api.wire.samples import Columns, to_parts
from breaker_actors.clock import Clock
from breaker_actors.errors import BreakersError, Unavailable
from breaker_actors.gateway.gateway import Gateway
from breaker_actors.messages import Part
from pipelines.backfill.evaluate import BreakerEvent
from pipelines.backfill.manifest import Manifest

Item = TypeVar("Item")
Result = TypeVar("Result")
NICENESS = 10
FULL_S, PATIENCE_S = 0.2, 60.0


class Tasks:
    """Ray tasks, so many at a time; they ask for no core of the cluster, but give way to whoever wants one.

    `here`: on this node only. A task whose process dies is done again: every step may be."""

    def __init__(self, parallel: int, *, here: bool) -> None:
        self._parallel, self._here = parallel, here

    def map(self, work: Callable[[Item], Result], items: Sequence[Item], *, here: bool = False) -> Iterator[Result]:
        import ray
        from ray.exceptions import RayError, RayTaskError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = ray.get_runtime_context().get_node_id()
        strategy: Any = NodeAffinitySchedulingStrategy(node, soft=False) if here or self._here else "SPREAD"
        task = ray.remote(_carry).options(num_cpus=0, max_retries=3, scheduling_strategy=strategy)
        shared, waiting = ray.put(work), iter(items)
        running = [task.remote(shared, item) for _, item in zip(range(self._parallel), waiting, strict=False)]
        try:
            while running:
                (done, *_), running = ray.wait(running)
                running += [task.remote(shared, item) for _, item in zip(range(1), waiting, strict=False)]
                yield ray.get(done)
        except RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, BreakersError) else Unavailable(f"a task failed: {cause!r}") from None
        except RayError as error:
            raise Unavailable(f"the cluster does not carry out tasks: {type(error).__name__}") from None
        finally:
            for left in running:
                ray.cancel(left, force=True)


def _carry(work: Callable[[Any], Any], item: Any) -> Any:
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    return work(item)


class RunningService:
    """The store and the actors, for a run. A context manager."""

    def __init__(self, gateway: Gateway, manifest: Manifest, clock: Clock) -> None:
        self._gateway, self._manifest, self._clock = gateway, manifest, clock
        self._runner = asyncio.Runner()
        self._splitting = {router.id for router in manifest.routers if router.view.mode != "static"}

    def __enter__(self) -> RunningService:
        self._run(self._gateway.open())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._run(self._gateway.close())
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, object]) -> None:
        self._runner.run(work)

    def store(self, run_id: str, events: Sequence[BreakerEvent]) -> None:
        project_id = self._manifest.request.project_id
        self._run(self._gateway.store.add_backfill_events(project_id, run_id, events, self._clock.now_ms()))

    def forget(self, run_id: str) -> None:
        project_id = self._manifest.request.project_id
        self._run(self._gateway.store.remove_backfill_events(project_id, run_id))

    def ingest(self, key: str, samples: pl.DataFrame) -> None:
        """As requests of SAMPLES_MAX samples, one after the other."""
        for number, piece in enumerate(samples.iter_slices(SAMPLES_MAX)):
            duplicate = hashlib.blake2b(f"{key}.{number}".encode(), digest_size=16, person=b"backfill").digest()
            keys = (uuid4().bytes, duplicate)
            parts = to_parts(_columns(piece), keys, self._splitting, self._manifest.with_traces)
            self._run(self._ingest(parts))

    async def _ingest(self, parts: list[Part]) -> None:
        """Until all are in the log; what is full is asked again."""
        deadline = self._clock.monotonic() + PATIENCE_S
        while parts:
            outcomes = await self._gateway.ingest(parts)
            parts = [part for part, outcome in zip(parts, outcomes, strict=True) if outcome.status not in _TAKEN]
            if parts and self._clock.monotonic() > deadline:
                raise Unavailable("live samples are not taken now; run the same command again")
            if parts:
                await asyncio.sleep(FULL_S)


_TAKEN = ("ok", "duplicate")


def _columns(piece: pl.DataFrame) -> Columns:
    columns = Columns()
    for name in ("router_id", "metric", "ts_ms", "value", "ok", "trace_id"):
        setattr(columns, name, piece[name].to_list())
    return columns
