"""What the service's processes have counted, as Prometheus reads it: every metric of the catalog, with the label
`actor`, the name of an actor or of a replica of the API. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from breaker_actors.messages import Counted
from breaker_actors.telemetry.catalog import TABLE, Meter

ACTOR = "actor"


class MeterCollector(Collector):
    """The families of one scrape, for prometheus-client. `silent`: processes that did not answer."""

    def __init__(self, processes: Sequence[Counted], silent: int) -> None:
        self._processes = processes
        self._silent = silent

    def collect(self) -> Iterable[Metric]:
        shown = "Processes of the service, actors and replicas, that these series are of."
        yield GaugeMetricFamily("breakers_processes", shown, value=len(self._processes))
        silent = "Actors that did not answer in time, and have no series here."
        yield GaugeMetricFamily("breakers_processes_not_shown", silent, value=self._silent)
        yield from (family for family in (*self._values(), *self._histograms()) if family.samples)

    def _values(self) -> Iterable[Metric]:
        """A process of another release may count what is not known here."""
        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        meters = [meter for meter in TABLE.values() if meter.type in kinds]
        families = {m.name: kinds[m.type](m.name, _about(m), labels=[*m.labels, ACTOR]) for m in meters}
        for process in self._processes:
            for (name, *labels), value in process.values.items():
                if name in families:
                    families[name].add_metric([*labels, process.actor], value)
        return families.values()

    def _histograms(self) -> Iterable[Metric]:
        meters = [meter for meter in TABLE.values() if meter.type == "histogram"]
        families = {m.name: HistogramMetricFamily(m.name, _about(m), labels=[*m.labels, ACTOR]) for m in meters}
        for process in self._processes:
            for (name, *labels), (counts, total) in process.histograms.items():
                if name in families and len(counts) == len(TABLE[name].buckets) + 1:
                    bounds = (*map(str, TABLE[name].buckets), "+Inf")
                    buckets = list(zip(bounds, map(float, accumulate(counts)), strict=True))
                    families[name].add_metric([*labels, process.actor], buckets, total)
        return families.values()


def _about(meter: Meter) -> str:
    return f"{meter.help[0].upper()}{meter.help[1:]}."
