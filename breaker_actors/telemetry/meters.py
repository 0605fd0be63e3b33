"""The registry in which a part of the service (one actor, one replica) counts: plain dictionaries, O(1), no locks, for
one event loop. What may be counted is declared in breaker_actors/telemetry/catalog.py;
breaker_actors/telemetry/ray_export.py hands what changed to Ray once a second. No Ray here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from breaker_actors.clock import SystemClock
from breaker_actors.messages import Counted
from breaker_actors.telemetry.catalog import BUCKET, SUM, TABLE, Key, Part
from breaker_actors.telemetry.set_aside import Asides

_monotonic = SystemClock().monotonic  # an event loop's own time may come in milliseconds


class Buckets:
    """One series of a histogram: how many values fell below each bound (and above all), and their sum."""

    __slots__ = ("bounds", "counts", "sum", "words")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.words = (*map(str, bounds), "+Inf")
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, n: int = 1) -> None:
        """A value that isn't negative, met `n` times."""
        self.counts[bisect_left(self.bounds, value)] += n
        self.sum += value * n


class Timed:
    """A block that is being timed."""

    __slots__ = ("_begun", "_buckets")

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets

    def __enter__(self) -> None:
        self._begun = _monotonic()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._buckets.add(_monotonic() - self._begun)


class Meters:
    """What one part counts. `actor`: its name, a label on all its series. Names, labels and their order are TABLE's."""

    def __init__(self, part: Part, actor: str) -> None:
        self.part = part
        self.actor = actor
        mine = [meter for meter in TABLE.values() if part in meter.parts]
        # counters begin at 0, so that Prometheus sees the first one of what hardly ever happens as a rise
        self.counters: dict[Key, float] = {key: 0 for m in mine if m.type == "counter" for key in m.series()}
        self.gauges: dict[Key, float] = {}
        self.histograms: dict[Key, Buckets] = {}
        self._watches: list[Callable[[], None]] = []

    def count(self, name: str, n: float = 1, /, **labels: str) -> None:
        """Adds to a counter."""
        key = (name, *labels.values())
        try:
            self.counters[key] += n
        except KeyError:
            key = self._bounded(name, labels)
            self.counters[key] = self.counters.get(key, 0) + n

    def total(self, name: str, value: float, /, **labels: str) -> None:
        """Sets a counter to what was counted elsewhere, from a `watch`."""
        key = (name, *labels.values())
        if key not in self.counters:
            key = self._bounded(name, labels)
        self.counters[key] = value

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        """Sets a gauge. For what costs something to find out see `watch`."""
        key = (name, *labels.values())
        if key not in self.gauges:
            key = self._bounded(name, labels)
        self.gauges[key] = value

    def observe(self, name: str, value: float, n: int = 1, /, **labels: str) -> None:
        """Puts a value that isn't negative, met `n` times, into a histogram."""
        buckets = self.histograms.get((name, *labels.values())) or self.histogram(name, **labels)
        buckets.add(value, n)

    def histogram(self, name: str, /, **labels: str) -> Buckets:
        """One series to `add` to without looking it up each time: for what is met very often."""
        key = (name, *labels.values())
        if key not in self.histograms:
            key = self._bounded(name, labels)
            self.histograms.setdefault(key, Buckets(TABLE[name].buckets))
        return self.histograms[key]

    def timed(self, name: str, /, **labels: str) -> Timed:
        """Puts the seconds that a block takes into a histogram, unless it raises: `with meters.timed(...):`."""
        return Timed(self.histogram(name, **labels))

    def watch_asides(self, asides: Asides) -> None:
        """Counts what this part has set aside."""

        def look() -> None:
            for kind, n in asides.counts.items():
                self.total("breakers_set_aside_total", n, kind=kind)

        self.watch(look)

    def watch(self, look: Callable[[], None]) -> None:
        """`look` sets gauges and totals; it is called before each export, and never when nothing is exported."""
        self._watches.append(look)

    def refresh(self) -> None:
        """Brings the watched gauges up to date."""
        for look in self._watches:
            look()

    def totals(self) -> Iterator[tuple[Key, float]]:
        """Everything that only goes up, as it is exported: counters, and histograms as counters of what lies at or
        below each bound, and of their sum."""
        yield from self.counters.items()
        for (name, *labels), buckets in self.histograms.items():
            for bound, n in zip(buckets.words, accumulate(buckets.counts), strict=True):
                yield (name + BUCKET, *labels, bound), n
            yield (name + SUM, *labels), buckets.sum

    def counted(self, actor: str | None = None) -> Counted:
        """Everything, up to date, under the name of this part or another one."""
        self.refresh()
        histograms = {key: (tuple(found.counts), found.sum) for key, found in self.histograms.items()}
        return Counted(actor=actor or self.actor, values=self.counters | self.gauges, histograms=histograms)

    def value(self, name: str, /, **labels: str) -> float:
        """What a counter or gauge says; how many values a histogram got."""
        key = (name, *labels.values())
        if key in self.histograms:
            return sum(self.histograms[key].counts)
        return self.counters.get(key, self.gauges.get(key, 0))

    def _bounded(self, name: str, labels: Mapping[str, str]) -> Key:
        meter = TABLE[name]
        if self.part not in meter.parts or tuple(labels) != tuple(meter.labels):
            raise ValueError(f"{name} with labels {tuple(labels)} is not for {self.part}")
        return meter.bounded(tuple(labels.values()))
