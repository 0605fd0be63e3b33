"""What decoders remember from request to request: series by the bytes that spelled them.

A memory changes no outcome, only what it costs: a key is made of all bytes that decide about its value. Each project of
a process has its own (api/lookup/project_memories.py), so nobody pushes out, or learns of, what others' are known by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from operator import attrgetter
from sys import getsizeof
from typing import Generic, TypeVar

from api.protocols.bounds import REMEMBERED_BYTES_MAX, REMEMBERED_KEY_MAX, REMEMBERED_MAX
from api.protocols.points import Series, SeriesType, Temporality

Value = TypeVar("Value")
_numbers = count(1)


told_apart = attrgetter("identity", "temporality", "monotonic", "unit")
"""What tells the series of a request apart."""


def next_number() -> int:
    """A number that this process gives once: keys may hold it in place of what it stands for."""
    return next(_numbers)


class Generation(dict[bytes, Value]):
    """Values by key. Those that are series are `distinct`: no two of them are equal in what tells series apart, so
    neither are two of a request that are not the same object."""

    __slots__ = ("distinct",)

    def __init__(self) -> None:
        self.distinct: dict[object, Value] = {}

    def add(self, key: bytes, value: Value) -> Value:
        """Puts a value under a key, of equal series the one that is there. Gives what it put."""
        if isinstance(value, Series):
            known = self.distinct.setdefault(value.identity, value)
            if told_apart(known) != told_apart(value):
                known = self.distinct.setdefault(told_apart(value), value)
            value = known
        self[key] = value
        return value


class Generations(Generic[Value]):
    """A mapping of bounded size in two generations.

    `put` fills the young one. Full (`most` entries, or `bytes_max` bytes), it becomes the old one, and the old one is
    forgotten; `get` brings back what it finds in the old one. So at least the `most` entries used last stay, as far as
    there is room, and at most twice as much is held. `weigh`: the bytes of a value beside its key, and labels that it
    shares with others of its kind: these count once in a generation.
    """

    __slots__ = ("_bytes", "_bytes_max", "_most", "_old", "_old_bytes", "_shared", "_weigh", "young")

    def __init__(
        self, weigh: Callable[[Value], tuple[int, Labels]], most: int, bytes_max: int = REMEMBERED_BYTES_MAX
    ) -> None:
        self.young, self._old = Generation[Value](), Generation[Value]()
        self._shared: set[int] = set()
        self._bytes = self._old_bytes = 0
        self._weigh, self._most, self._bytes_max = weigh, most, bytes_max

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    @property
    def weight(self) -> int:
        """Bytes that both generations take, about."""
        return self._bytes + self._old_bytes + ENTRY_BYTES * len(self)

    def get(self, key: bytes) -> Value | None:
        """What stands under a key, from both generations. `young.get` alone is right too, and faster."""
        value = self.young.get(key)
        if value is None:
            value = self._old.get(key)
            if value is not None:
                return self.put(key, value)
        return value

    def put(self, key: bytes, value: Value) -> Value | None:
        """Remembers, and gives what is remembered, see `Generation.add`; None where the key is longer than
        REMEMBERED_KEY_MAX."""
        if len(key) > REMEMBERED_KEY_MAX:
            return None
        own, shared = self._weigh(value)
        own += len(key)
        common = 0 if not shared or id(shared) in self._shared else size_of(shared)
        if len(self.young) >= self._most or self._bytes + own + common > self._bytes_max:
            self._old, self._old_bytes = self.young, self._bytes
            self.young, self._bytes, self._shared = Generation(), 0, set()
            common = size_of(shared)
        kept = self.young.add(key, value)
        self._bytes += own + common
        if shared:
            self._shared.add(id(shared))  # it lives as long as what is remembered of it
        return kept


Labels = Mapping[str, str]
NONE: Labels = {}


def size_of(labels: Labels) -> int:
    """Bytes of names and values."""
    return sum(map(getsizeof, labels)) + sum(map(getsizeof, labels.values()))


class Origin:
    """Who sent OTLP metrics: resource and scope as labels, `encoded` for identities; `number` stands for it in keys."""

    __slots__ = ("encoded", "number", "resource")

    def __init__(self, resource: dict[str, str], encoded: bytes) -> None:
        self.resource, self.encoded, self.number = resource, encoded, next_number()


class Metric:
    """One metric of an origin: what all its series have in common. `stream` ends their identities; `prefix` stands for
    it in keys, in 8 bytes."""

    __slots__ = ("kind", "monotonic", "name", "origin", "prefix", "stream", "temporality", "unit")

    def __init__(
        self,
        origin: Origin,
        name: str,
        unit: str,
        kind: SeriesType,
        temporality: Temporality | None,
        monotonic: bool,
        stream: bytes,
    ) -> None:
        self.origin, self.name, self.unit, self.kind = origin, name, unit, kind
        self.temporality, self.monotonic, self.stream = temporality, monotonic, stream
        self.prefix = next_number().to_bytes(8, "little")


def _of_series(series: Series) -> tuple[int, Labels]:
    return size_of(series.labels) + getsizeof(series.name), series.resource


def _of_origin(origin: Origin) -> tuple[int, Labels]:
    return size_of(origin.resource) + len(origin.encoded), NONE


def _of_metric(metric: Metric) -> tuple[int, Labels]:
    return getsizeof(metric.name), metric.origin.resource


ENTRY_BYTES, MEMORY_BYTES = 400, 4_000
"""What an entry takes beside its key and texts, and a memory without any."""
NUMBERS_MAX = (1 << 31) - (1 << 24)
"""Numbers of strings given before they begin anew: they fit in 32 bits, with room for requests that are being read."""


class Strings:
    """What remote-write 2.0 remembers: numbers of strings, and series by the numbers of theirs."""

    __slots__ = ("_numbers", "last", "numbers", "series")

    def __init__(self, most: int, first: int = 1) -> None:
        self.numbers: Generations[int] = Generations(lambda _: (0, NONE), 5 * most)
        self.series = Generations(_of_series, most)
        self._numbers, self.last = count(first), 0

    def number(self, text: bytes) -> int:
        """What stands for a string in keys; not 0."""
        number = self.numbers.get(text)
        if number is None:
            number = self.last = next(self._numbers)
            self.numbers.put(text, number)
        return number


class Memory:
    """What the decoders of one process remember, each in its own part."""

    __slots__ = ("_most", "_strings", "metrics", "origins", "otlp", "v1")

    def __init__(self, most: int = REMEMBERED_MAX) -> None:
        self._most, self._strings = most, Strings(most)
        self.v1 = Generations(_of_series, most)
        self.otlp = Generations(_of_series, most)
        self.origins = Generations(_of_origin, most // 10 + 1)
        self.metrics = Generations(_of_metric, most)

    @property
    def weight(self) -> int:
        """Bytes that all parts take, about."""
        strings = self._strings
        parts = (self.v1, self.otlp, self.origins, self.metrics, strings.series, strings.numbers)
        return MEMORY_BYTES + sum(part.weight for part in parts)

    def strings(self) -> Strings:
        """Those of remote-write 2.0, for one request; new ones where numbers run out."""
        if self._strings.last >= NUMBERS_MAX:
            self._strings = Strings(self._most)
        return self._strings
