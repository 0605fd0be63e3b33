"""A run's history through the core: which routers are evaluated together, who takes which samples, and the events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import polars as pl

from breaker_actors.core.log_entries import SampleColumns, Splitter, counted, shares_of
from breaker_actors.core.model import Batch, Effect, Transition
from breaker_actors.errors import Invalid
from breaker_actors.messages import EventDraft
from pipelines.backfill.manifest import Manifest
from pipelines.columns import Samples
from pipelines.replay.vectorized.engine import CHUNK_ROWS, FastReplay, Walk
from pipelines.sources.routing import BreakerPlan

ROWS_WALKED_MIN = 1 << 14
EVENTS_MAX, EVENTS_HELD = 1_000_000, 1 << 14
"""Events of one group of routers, and how many of them lie in memory."""
BreakerEvent = tuple[str, EventDraft]
"""A breaker's id, and what happened to it."""
Keep = Callable[[list[BreakerEvent]], None]


def groups(manifest: Manifest, routers: Mapping[str, int]) -> list[tuple[str, ...]]:
    """The routers that have samples and breakers; those that share a breaker are together, sorted."""
    leader: dict[str, str] = {}

    def led_by(id_: str) -> str:
        while leader.setdefault(id_, id_) != id_:
            id_ = leader[id_]
        return id_

    for breaker in manifest.breakers:
        for id_ in breaker.router_ids:
            first, other = sorted((led_by(breaker.router_ids[0]), led_by(id_)))
            leader[other] = first
    found: dict[str, list[str]] = {}
    for id_ in sorted(routers):
        if id_ in leader:
            found.setdefault(led_by(id_), []).append(id_)
    return [tuple(ids) for ids in found.values()]


def evaluated(manifest: Manifest, group: Sequence[str], batches: Iterator[pl.DataFrame], keep: Keep) -> int:
    """How many events the breakers of some routers have, over samples of these in order of arrival; `keep` gets them,
    EVENTS_HELD at a time. Each breaker is created with its first sample; timers run up to its last one."""
    wanted, events = frozenset(group), Events(keep)
    routers = {router.id: Splitter(router.view) for router in manifest.routers if router.id in wanted}
    lanes = _lanes(manifest, routers, events)
    for number, batch in enumerate(batches, 1):
        for lane, rows in _taken(batch, routers, number, lanes).items():
            lane.engine.feed(_samples(batch, rows))
    for lane in dict.fromkeys(lanes.values()):
        lane.engine.finish()
    events.flush()
    return events.count


class Events:
    """What happens to breakers, handed on so much at a time: each lot by time, a breaker's events in their order."""

    def __init__(self, keep: Keep) -> None:
        self.count = 0
        self._keep, self._held = keep, list[BreakerEvent]()

    def add(self, breaker: BreakerPlan, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, Transition):
                continue
            if self.count == EVENTS_MAX:
                told = f"{breaker.name} and its like move more than {EVENTS_MAX} times"
                raise Invalid(f"{told}; give them minimum durations")
            self.count += 1
            self._held.append((breaker.id, EventDraft.of(breaker.name, breaker.rule, effect)))
            if len(self._held) == EVENTS_HELD:
                self.flush()

    def flush(self) -> None:
        """Hands on what is held."""
        if self._held:
            self._keep(sorted(self._held, key=lambda told: (told[1].ts_ms, told[0], told[1].transition_seq)))
            self._held = []


class Lane:
    """Breakers that take the same samples. What happens to them is added to `events`."""

    def __init__(
        self, breakers: Sequence[BreakerPlan], chunk_rows: int, window_samples_max: int, events: Events
    ) -> None:
        walks = [Walk(breaker.rule, partial(events.add, breaker)) for breaker in breakers]
        self.engine = FastReplay(walks, chunk_rows=chunk_rows, window_samples_max=window_samples_max)


def _lanes(manifest: Manifest, routers: Mapping[str, Splitter], events: Events) -> dict[str, Lane]:
    """A lane per breaker id. Where routers don't share samples out, breakers of one metric and the same routers have
    one in common."""
    alike: dict[tuple[str, ...], list[BreakerPlan]] = {}
    for breaker in manifest.breakers:
        mine = [id_ for id_ in breaker.router_ids if id_ in routers]
        if mine:
            shared = all(routers[id_].view.mode == "static" for id_ in mine)
            key = (breaker.rule.metric, *sorted(mine)) if shared else (breaker.id,)
            alike.setdefault(key, []).append(breaker)
    rows = max(ROWS_WALKED_MIN, CHUNK_ROWS // max(1, len(alike)))
    lanes = {}
    for breakers in alike.values():
        lane = Lane(breakers, rows, manifest.window_samples_max, events)
        lanes.update({breaker.id: lane for breaker in breakers})
    return lanes


def _taken(
    batch: pl.DataFrame, routers: Mapping[str, Splitter], number: int, lanes: Mapping[str, Lane]
) -> dict[Lane, npt.NDArray[np.intp]]:
    """The rows that each lane takes of a batch, ascending. The batch's number stands for the log's offset, by which
    routers share out samples without a trace."""
    found: dict[Lane, dict[str, npt.NDArray[np.intp]]] = {}
    for (router_id,), piece in batch.with_row_index("at").group_by("router_id", maintain_order=True):
        splitter = routers[str(router_id)]
        columns, at = _columns(piece, splitter.view.mode != "static")
        for breaker_id, start, stop, chosen in splitter.split(columns, str(router_id), number):
            rows = at[start:stop] if chosen is None else at[chosen]
            found.setdefault(lanes[breaker_id], {})[str(router_id)] = rows
    return {lane: np.sort(np.concatenate(list(rows.values()))) for lane, rows in found.items()}


def _columns(piece: pl.DataFrame, shared: bool) -> tuple[SampleColumns, npt.NDArray[np.intp]]:
    """A router's rows grouped by metric as in its log, and their numbers in the batch. `shared`: traces matter."""
    ordered = piece.sort("metric", maintain_order=True)
    counts = ordered.group_by("metric", maintain_order=True).len()
    starts = [0, *np.cumsum(counts["len"].to_numpy()).tolist()]
    share = shares_of(ordered["trace_id"].to_list()) if shared else None
    batch = Batch(ordered["ts_ms"].to_numpy(), ordered["value"].to_numpy(), ordered["ok"].to_numpy())
    return SampleColumns(counts["metric"].to_list(), starts, batch, share), ordered["at"].to_numpy().astype(np.intp)


def _samples(batch: pl.DataFrame, rows: npt.NDArray[np.intp]) -> Samples:
    ts_ms, at = batch["ts_ms"].to_numpy(), batch["received_ms"].to_numpy()
    at = ts_ms if np.array_equal(ts_ms, at) else at
    count = counted(batch["count"].to_numpy())
    return Samples(at, ts_ms, batch["value"].to_numpy(), batch["ok"].to_numpy(), count=count).pick(rows)
