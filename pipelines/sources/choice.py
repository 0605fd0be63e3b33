"""Which samples of a source are wanted: of which metrics and routers. What is left out is read past, in any order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from breaker_actors.core.model import Int64


@dataclass(frozen=True, slots=True)
class Choice:
    """Metrics, and routers in lower case; None: any. Samples that name no metric, or no router, are of any."""

    metrics: frozenset[str] | None = None
    routers: frozenset[str] | None = None

    def rows(self, batch: pl.DataFrame) -> Int64 | None:
        """Numbers of the batch's rows that are wanted; None: all of them."""
        wanted = []
        if self.metrics is not None and "metric" in batch.columns:
            wanted.append(pl.col("metric").is_in(list(self.metrics)))
        if self.routers is not None and "router_id" in batch.columns:
            wanted.append(pl.col("router_id").str.to_lowercase().is_in(list(self.routers)))
        if not wanted:
            return None
        return np.flatnonzero(batch.select(pl.all_horizontal(wanted).fill_null(False)).to_series().to_numpy())


ALL = Choice()
