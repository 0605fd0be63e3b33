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
LINES_MAX = 50_000
"""Lines of all processes together, some 6 MB; a process for which there is no room is counted."""


class MeterCollector(Collector):
    """The families of one scrape, for prometheus-client. `silent`: how many processes did not answer."""

    def __init__(self, processes: Sequence[Counted], silent: int) -> None:
        self._processes = _that_fit(processes)
        self._left_out = silent + len(processes) - len(self._processes)

    def collect(self) -> Iterable[Metric]:
        shown = "Processes of the service, actors and replicas, that these series are of."
        yield GaugeMetricFamily("breakers_processes", shown, value=len(self._processes))
        left_out = "Processes without series here: they did not answer in time, or there is no room for more."
        yield GaugeMetricFamily("breakers_processes_not_shown", left_out, value=self._left_out)
        yield from (family for family in (*self._values(), *self._histograms()) if family.samples)

    def _values(self) -> Iterable[Metric]:
        """A process of another release may count what is not known here."""
        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        meters = [meter for meter in TABLE.values() if meter.type in kinds]
        families = {m.name: kinds[m.type](m.name, _about(m), labels=[*m.labels, ACTOR]) for m in meters}
        for process in self._processes:
            for (name, *labels), value in process.values.items():
                if name in families and len(labels) == len(TABLE[name].labels):
                    families[name].add_metric([*labels, process.actor], value)
        return families.values()

    def _histograms(self) -> Iterable[Metric]:
        meters = [meter for meter in TABLE.values() if meter.type == "histogram"]
        families = {m.name: HistogramMetricFamily(m.name, _about(m), labels=[*m.labels, ACTOR]) for m in meters}
        for process in self._processes:
            for (name, *labels), (counts, total) in process.histograms.items():
                meter = TABLE.get(name)
                if meter is None or (len(labels), len(counts)) != (len(meter.labels), len(meter.buckets) + 1):
                    continue
                bounds = (*map(str, meter.buckets), "+Inf")
                buckets = list(zip(bounds, map(float, accumulate(counts)), strict=True))
                families[name].add_metric([*labels, process.actor], buckets, total)
        return families.values()


def _that_fit(processes: Sequence[Counted]) -> list[Counted]:
    """The first of each name, LINES_MAX lines in all."""
    shown: dict[str, Counted] = {}
    left = LINES_MAX
    for process in processes:
        lines = len(process.values) + sum(len(counts) + 2 for counts, _ in process.histograms.values())
        if process.actor not in shown and lines <= left:
            shown[process.actor] = process
            left -= lines
    return list(shown.values())


def _about(meter: Meter) -> str:
    return f"{meter.help[0].upper()}{meter.help[1:]}."
