"""A backfill against the running service: its steps as Ray tasks, events into its store, live samples into its actors.

What a step does is in `pipelines.backfill.steps`; here is who carries it out.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar
from uuid import uuid4

import polars as pl

from api.arrow.bounds import ROWS_MAX
from api.arrow.frames import read_frame
from api.wire.sample_columns import Pieces, judge_frame, rounds
from api.wire.samples import ValidationContext
from breaker_actors.clock import Clock
from breaker_actors.errors import BreakersError, Invalid, Unavailable
from breaker_actors.gateway.gateway import Gateway
from breaker_actors.messages import Part
from pipelines.backfill.evaluate import BreakerEvent
from pipelines.backfill.manifest import Manifest

Item = TypeVar("Item")
Result = TypeVar("Result")
NICENESS = 10
FULL_S, PATIENCE_S = 0.2, 60.0
_ANY_MS = 1 << 62


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
        known = {router.id: router.view.mode != "static" for router in manifest.routers}
        self._bounds = ValidationContext(known, -_ANY_MS, _ANY_MS)
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
        """As requests of ROWS_MAX samples in columns, one after the other."""
        for number, piece in enumerate(samples.iter_slices(ROWS_MAX)):
            duplicate = hashlib.blake2b(f"{key}.{number}".encode(), digest_size=16, person=b"backfill columns").digest()
            for parts in rounds(self._parts(piece, (uuid4().bytes, duplicate))):
                self._run(self._ingest(parts))

    def _parts(self, samples: pl.DataFrame, keys: tuple[bytes, ...]) -> list[list[Part]]:
        stream = io.BytesIO()
        samples.write_ipc_stream(stream)
        judged = judge_frame(read_frame(stream.getvalue(), sys.maxsize), self._bounds)
        if judged.rejected:
            raise Invalid(f"live samples can't be ingested: {', '.join(judged.reasons)}")
        return Pieces(judged, self._bounds, self._splitting, self._manifest.with_traces).parts(keys)

    async def _ingest(self, parts: list[Part]) -> None:
        """Until all are in the log; what is full is asked again."""
        deadline = self._clock.monotonic() + PATIENCE_S
        while parts:
            outcomes = await self._gateway.ingest(self._manifest.request.project_id, parts)
            parts = [part for part, outcome in zip(parts, outcomes, strict=True) if outcome.status not in _TAKEN]
            if parts and self._clock.monotonic() > deadline:
                raise Unavailable("live samples are not taken now; run the same command again")
            if parts:
                await asyncio.sleep(FULL_S)


_TAKEN = ("ok", "duplicate")
