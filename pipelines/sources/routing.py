"""Who takes which samples of recorded batches: routers share them out as they do live, and as they stand now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from breaker_actors.core.log_entries import RouterView, SampleColumns, Splitter, shares_of
from breaker_actors.core.model import Batch, Rule
from breaker_actors.store.config.routing_tables import Linked, view_of
from breaker_actors.store.rows import BreakerRow, RouterRow

Rows = npt.NDArray[np.intp]


class RouterPlan(msgspec.Struct, frozen=True):
    """A router as it splits samples now, and the longest window of its breakers. `name`: "" in runs of earlier
    versions."""

    id: str
    view: RouterView
    window_ms: int
    name: str = ""


class BreakerPlan(msgspec.Struct, frozen=True):
    """A breaker as it is now."""

    id: str
    name: str
    rule: Rule
    router_ids: tuple[str, ...]


def plans(
    routers: Sequence[RouterRow], breakers: Sequence[BreakerRow]
) -> tuple[tuple[RouterPlan, ...], tuple[BreakerPlan, ...]]:
    """The configuration of a project as a run keeps it."""
    by_id = {row.id: row for row in breakers}
    found = []
    for router in routers:
        linked = [by_id[id_] for id_ in router.breaker_ids if id_ in by_id]
        names = [Linked(row.id, row.name, row.rule.metric) for row in linked]
        view = view_of(router.version, router.mode, router.enabled, router.metadata, names)
        found.append(RouterPlan(router.id, view, max((row.rule.window_ms for row in linked), default=0), router.name))
    return tuple(found), tuple(BreakerPlan(row.id, row.name, row.rule, row.router_ids) for row in breakers)


def shares(batch: pl.DataFrame, routers: Mapping[str, Splitter], number: int) -> Iterator[tuple[str, str, Rows]]:
    """Router, breaker, and the rows of the batch that it takes. The batch's number stands for the log's offset, by
    which samples without a trace are shared out."""
    for (router_id,), piece in batch.with_row_index("at").group_by("router_id", maintain_order=True):
        splitter = routers[str(router_id)]
        columns, at = _columns(piece, splitter.view.mode != "static")
        for breaker_id, start, stop, chosen in splitter.split(columns, str(router_id), number):
            yield str(router_id), breaker_id, at[start:stop] if chosen is None else at[chosen]


def _columns(piece: pl.DataFrame, shared: bool) -> tuple[SampleColumns, Rows]:
    """A router's rows grouped by metric as in its log, and their numbers in the batch. `shared`: traces matter."""
    ordered = piece.sort("metric", maintain_order=True)
    counts = ordered.group_by("metric", maintain_order=True).len()
    starts = [0, *np.cumsum(counts["len"].to_numpy()).tolist()]
    share = shares_of(ordered["trace_id"].to_list()) if shared else None
    batch = Batch(ordered["ts_ms"].to_numpy(), ordered["value"].to_numpy(), ordered["ok"].to_numpy())
    return SampleColumns(counts["metric"].to_list(), starts, batch, share), ordered["at"].to_numpy().astype(np.intp)
