"""The samples that a suggestion is made from, all at once in memory."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from breaker_actors.errors import Invalid
from pipelines.columns import Samples
from pipelines.replay.run import Asked, Seen, samples_of
from pipelines.sources.choice import Choice
from pipelines.sources.files import Source, batches_of

SAMPLES_MOST = 1 << 22
"""Samples that are held at once; more are refused."""


def history_of(
    source: Source, wanted: str | None, router_ids: Sequence[str], complaint: str | None = None
) -> tuple[str, Samples]:
    """The metric, and its samples of these routers; of all where none is named. Raises Invalid. With a `complaint` each
    of the routers has to be there; it is what is said where samples don't name any."""
    parts, rows, seen, there_are = list[pl.DataFrame](), 0, list[str](), Seen()
    asked = Asked(() if complaint is None else router_ids)
    choice = Choice(None if wanted is None else frozenset([wanted]), frozenset(router_ids) or None)
    for batch in batches_of(source, choice):
        there_are.note(batch.drop("metric", strict=False))
        asked.note(batch)
        if complaint is not None and "router_id" not in batch.columns:
            raise Invalid(complaint)
        if router_ids and "router_id" in batch.columns:
            batch = batch.filter(pl.col("router_id").str.to_lowercase().is_in(router_ids))
        there_are.note(batch)
        if "metric" in batch.columns:
            seen += [name for name in batch["metric"].unique(maintain_order=True) if name not in seen]
            if wanted is not None:
                batch = batch.filter(pl.col("metric") == wanted)
            elif len(seen) > 1:
                raise Invalid(f"samples are of several metrics, say which: {', '.join(seen[:10])}")
        parts.append(batch.drop("trace_id", strict=False))
        rows += len(batch)
        if rows > SAMPLES_MOST:
            raise Invalid(f"more than {SAMPLES_MOST:,} samples; suggest from a shorter history")
    if not rows:
        if router_ids and there_are.routers:
            raise Invalid(f"{', '.join(source.names)}: {there_are.complaint(wanted if seen else None, router_ids)}")
        there = f"; there are metrics {', '.join(map(repr, seen[:10]))}" if seen else ""
        raise Invalid(f"{', '.join(source.names)}: there is no sample in it to suggest from{there}")
    asked.check(f"{', '.join(source.names)}: ")
    name = wanted or (seen[0] if seen else "value")
    return name, samples_of(pl.concat(parts, rechunk=True))
