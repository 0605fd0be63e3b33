"""From the registry of a process to Prometheus: once a second what changed goes to ray.util.metrics.

Ray's agent of the node serves it, with `ray_` before each name. Histograms go as counters (see Meters.totals): Ray's
own lose the sum, and cost its agent work for every single value.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ray.util.metrics import Counter, Gauge

from breaker_actors.settings import Settings
from breaker_actors.telemetry.catalog import Key, exported
from breaker_actors.telemetry.guard import run_supervised
from breaker_actors.telemetry.meters import Meters

EXPORT_S = 1.0


class _Series:
    """One series in Ray's hands. `said`: what Ray knows of it."""

    __slots__ = ("metric", "said", "tags")

    def __init__(self, metric: Any, tags: dict[str, str]) -> None:
        self.metric = metric
        self.tags = tags
        self.said = 0.0


class Exporter:
    """Hands one registry to Ray, in this process."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._metrics: dict[str, Any] = {}
        self._series: dict[Key, _Series] = {}

    def export(self) -> None:
        """Totals by what was added since last time, gauges as they are."""
        self._meters.refresh()
        for key, total in self._meters.totals():
            series = self._series.get(key)
            if series is None:
                series = self._series[key] = self._begin(Counter, key)
                # `inc` refuses a 0; without one Prometheus would not see the first rise as a rise
                series.metric._record(0.0, series.tags)
            if total > series.said:
                series.metric.inc(total - series.said, series.tags)
                series.said = total
        for key, value in self._meters.gauges.items():
            series = self._series.get(key) or self._series.setdefault(key, self._begin(Gauge, key))
            series.metric.set(value, series.tags)

    async def run(self) -> None:
        """Exports for ever; how late the loop comes to it is a measure of how busy it is."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + EXPORT_S
            await asyncio.sleep(EXPORT_S)
            self._meters.observe("breakers_loop_delay_seconds", max(0.0, loop.time() - due))
            await run_supervised("metrics", self._round())

    async def _round(self) -> None:
        self.export()

    def _begin(self, kind: type[Counter] | type[Gauge], key: Key) -> _Series:
        name, *values = key
        meter, labels = exported(name)
        metric = self._metrics.get(name)
        if metric is None:
            metric = self._metrics[name] = kind(name, meter.help, tag_keys=(*labels, "actor"))
        return _Series(metric, dict(zip(labels, values, strict=True)) | {"actor": self._meters.actor})


def start(meters: Meters, settings: Settings) -> asyncio.Task[None] | None:
    """The task that exports this process's registry, where metrics are wanted."""
    return asyncio.create_task(Exporter(meters).run()) if settings.metrics else None
