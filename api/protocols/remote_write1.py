"""Remote-write 1.0: `prometheus.WriteRequest` to points.

https://prometheus.io/docs/specs/prw/remote_write_spec/ . A time series is mostly its labels and one sample; the sample
has 18 bytes, or 9 where its value is 0. So the bytes before it are looked up as a whole among the label blocks that
were walked before: one that is there ends where a field ends, so what follows is what it looks like. Everything else is
walked field by field. Both ways give the same points.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

import numpy as np

from api.protocols.bounds import ENTRIES_MAX, TRACE_LENGTH_MAX
from api.protocols.columns import STALE_BITS, Columns, retyped, too_many_entries
from api.protocols.memory import Memory
from api.protocols.native import read_native
from api.protocols.points import Points, Series
from api.protocols.protobuf import Reader, cut_off, read_varint, signed64
from api.protocols.series import Flaw, families_of, labels_of, make_series, prometheus_series
from breaker_actors.core.model import Flags, Float64, Int64

SAMPLE = b"\x12\x10\x09"
"""How a sample of 18 bytes begins; a byte 0x10 and six of its time end it."""
SAMPLE_OF_ZERO = b"\x12\x07\x10"
ZERO = SAMPLE + bytes(8)
"""What a sample of 9 bytes leaves out, or has in another place, before its time."""
PLACEHOLDER = ZERO + b"\x10" + b"\x80" * 5 + b"\x00"
"""Stands where a row is in the patches."""
TRACE_LABELS = (b"trace_id", b"traceID", b"traceId")
SeriesOf = Callable[[str], Series | Flaw]
"""The series of an entry, by the kind of its points (see `prometheus_series`)."""
_double = Struct("<d").unpack_from
_bits = Struct("<q").unpack_from


def decode(body: bytes, memory: Memory, shortcut: bool = True) -> Points:
    """The points of an inflated body. `shortcut`: False has everything walked field by field.

    Raises BadRequest where the message can't be read, PayloadTooLarge beyond POINTS_MAX, ENTRIES_MAX or FIELDS_MAX.
    """
    walk = Walk(body, memory)
    try:
        _read_entries(walk, 18 if shortcut else len(body) + 1)
    except IndexError:
        raise cut_off(len(body)) from None
    ts_ms, value, right = read_samples(walk.samples)
    if not right.all():
        return decode(body, memory, shortcut=False)
    points = walk.columns.points(ts_ms, np.zeros(len(ts_ms), np.int64), value)
    if walk.families:
        retyped(points, walk.retype)
    return points


def read_samples(samples: list[bytes]) -> tuple[Int64, Float64, Flags]:
    """Times and values of samples of 18 bytes, and which of them are what they look like."""
    rows = np.frombuffer(b"".join(samples), np.uint8).reshape(-1, 18)
    value = np.ascontiguousarray(rows[:, 3:11]).view("<f8").reshape(-1)
    ts_ms, right = read_times(rows[:, 11:])
    return ts_ms, value, right & (rows[:, 11] == 0x10)


def read_times(rows: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> tuple[Int64, Flags]:
    """Numbers of six bytes behind a tag, and which of them have six bytes."""
    bits = rows[:, 1:].astype(np.int64)
    ts_ms = ((bits & 127) << np.arange(0, 42, 7)).sum(axis=1)
    return ts_ms, np.logical_and((rows[:, 1:6] > 127).all(axis=1), rows[:, 6] < 128)


def _read_entries(walk: Walk, longer_than: int) -> None:
    """Reads a request entry by entry; the shortcut takes those longer than so many bytes.

    Nothing is read behind the body: that raises IndexError.
    """
    data, at, size = walk.data, 0, len(walk.data)
    add_series, add_sample = walk.columns.found.append, walk.samples.append
    known = walk.memory.young
    for _ in range(ENTRIES_MAX):
        if at >= size:
            return
        if data[at] != 0x0A:
            at = walk.read_other(at)
            continue
        length, begin = data[at + 1], at + 2
        if length > 127:
            more = data[begin]
            if more < 128:
                length, begin = length - 128 + (more << 7), begin + 1
            else:
                length, begin = read_varint(data, at + 1, size, 5)
        at = begin + length
        if at > size:
            raise cut_off(begin)
        if length > longer_than:
            if data.startswith(SAMPLE, at - 18):
                series = known.get(data[begin : at - 18])
                if series is not None:
                    add_series(series)
                    add_sample(data[at - 18 : at])
                    continue
            elif data.startswith(SAMPLE_OF_ZERO, at - 9):
                series = known.get(data[begin : at - 9])
                if series is not None:
                    add_series(series)
                    add_sample(ZERO + data[at - 7 : at])
                    continue
        walk.read_series(begin, at)
        known = walk.memory.young
    if at < size:
        raise too_many_entries()


class Walk(Reader):
    """One request read field by field."""

    __slots__ = ("columns", "families", "memory", "odd", "rows_of_odd", "samples")

    def __init__(self, body: bytes, memory: Memory) -> None:
        super().__init__(body)
        self.memory = memory.v1
        self.columns = Columns(memory.v1)
        self.samples: list[bytes] = []
        self.odd = self.rows_of_odd = 0  # entries that no shortcut took, and their rows
        self.families: dict[str, tuple[int, str]] = {}

    def read_other(self, at: int) -> int:
        """Reads what is not spelled as a time series mostly is, and says where it ends."""
        tag, begin = self.tag(at, len(self.data))
        if tag & 7 != 2 or tag < 8:
            end = self._end_of_field(at)
            self.fields(at, end)
            return end
        size, begin = self.size(begin, len(self.data))
        if tag == 0x0A:
            self.read_series(begin, begin + size)
        elif tag == 0x1A:
            self._read_metadata(begin, begin + size)
        return begin + size

    def _end_of_field(self, at: int) -> int:
        tag, after = self.tag(at, len(self.data))
        sizes = {1: 8, 5: 4}
        if tag & 7 == 0:
            return read_varint(self.data, after, len(self.data), 10)[1]
        return min(after + sizes.get(tag & 7, 0), len(self.data))

    def read_series(self, begin: int, end: int) -> None:
        """Reads the time series in data[begin:end]."""
        where = f"timeseries[{len(self.columns.found) - self.rows_of_odd + self.odd}]"
        before = len(self.columns.found)
        labels: list[tuple[int, int]] = []
        samples: list[tuple[int, int]] = []
        exemplars: list[tuple[int, int]] = []
        histograms: list[tuple[int, int]] = []
        spans = {0x0A: labels, 0x12: samples, 0x1A: exemplars, 0x22: histograms}
        for tag, a, b in self.fields(begin, end):
            if tag in spans:
                spans[tag].append((a, b))
        series_of = once(lambda histogram: self.series(begin, labels, histogram))
        self._read_samples(where, series_of, samples)
        self._read_histograms(where, series_of, histograms)
        self._read_exemplars(series_of, exemplars)
        rows = len(self.columns.found) - before
        self.odd, self.rows_of_odd = self.odd + 1, self.rows_of_odd + rows
        self.samples += [PLACEHOLDER] * rows

    def _read_samples(self, where: str, series_of: SeriesOf, samples: list[tuple[int, int]]) -> None:
        for number, (a, b) in enumerate(samples):
            ts_ms, value, stale = 0, 0.0, False
            for tag, place, _ in self.fields(a, b):
                if tag == 0x09:
                    value, stale = _double(self.data, place)[0], _bits(self.data, place)[0] == STALE_BITS
                elif tag == 0x10:
                    ts_ms = signed64(place)
            series = series_of("")
            if isinstance(series, Flaw):
                self.columns.refuse(f"{where}.samples[{number}]", series)
            else:
                self.columns.add(series, ts_ms, 0, value, stale)

    def _read_histograms(self, where: str, series_of: SeriesOf, histograms: list[tuple[int, int]]) -> None:
        for number, (a, b) in enumerate(histograms):
            native = read_native(self, a, b)
            series = series_of("gauge" if native.gauge else "cumulative")
            flaw = series if isinstance(series, Flaw) else native.outcome
            if isinstance(flaw, Flaw):
                self.columns.refuse(f"{where}.histograms[{number}]", flaw)
            elif isinstance(series, Series):
                self.columns.add_histogram(series, native.ts_ms, 0, flaw)

    def _read_exemplars(self, series_of: SeriesOf, exemplars: list[tuple[int, int]]) -> None:
        for a, b in exemplars:
            ts_ms, pairs = 0, []
            for tag, place, end in self.fields(a, b):
                if tag == 0x0A:
                    pairs.append(self.pair(place, end))
                elif tag == 0x18:
                    ts_ms = signed64(place)
            self.columns.exemplars += 1
            trace = trace_of(pairs)
            for histogram in ("", "cumulative", "gauge") if trace else ():
                series = series_of(histogram)
                if isinstance(series, Series):
                    self.columns.note_trace(series, ts_ms, trace)

    def series(self, begin: int, labels: list[tuple[int, int]], histogram: str) -> Series | Flaw:
        """The series of labels, by their bytes where these are all at the beginning of the time series."""
        end = labels[-1][1] if labels else begin
        key = histogram[:1].encode() + self.data[begin:end]
        series = self.memory.get(key)
        if series is None:
            found = labels_of([self.pair(a, b) for a, b in labels], self.columns.text)
            made = found if isinstance(found, Flaw) else prometheus_series(found, 0, histogram)
            if not isinstance(made, Series):
                return made
            if len(self.fields(begin, end)) == len(labels):
                return self.columns.remember(key, made)
            self.columns.strangers = True
            return made
        return series

    def pair(self, begin: int, end: int) -> tuple[bytes, bytes]:
        """Name and value of a label, mostly one after the other and both short."""
        data = self.data
        if end - begin > 3 and data[begin] == 0x0A and data[begin + 1] < 128:
            name_end = begin + 2 + data[begin + 1]
            if name_end + 1 < end and data[name_end] == 0x12 and name_end + 2 + data[name_end + 1] == end:
                return data[begin + 2 : name_end], data[name_end + 2 : end]
        self.spend(1)  # a call costs as much as a field, also where there is none
        name = value = b""
        for tag, a, b in self.fields(begin, end):
            if tag == 0x0A:
                name = data[a:b]
            elif tag == 0x12:
                value = data[a:b]
        return name, value

    def _read_metadata(self, begin: int, end: int) -> None:
        kind, family, unit = 0, b"", b""
        for tag, a, b in self.fields(begin, end):
            if tag == 0x08:
                kind = a & 0xFFFF_FFFF
            elif tag == 0x12:
                family = self.data[a:b]
            elif tag == 0x2A:
                unit = self.data[a:b]
        self.families[family.decode(errors="replace")] = (kind, unit.decode(errors="replace"))

    def retype(self, series: Series) -> Series:
        """The series by the metadata of its family that came along."""
        for family in families_of(series.name):
            if family in self.families:
                kind, unit = self.families[family]
                break
        else:
            return series
        if series.type == "histogram":
            return make_series(series.name, series.labels, "histogram", series.temporality, unit=unit)
        made = prometheus_series({"__name__": series.name, **series.labels}, kind, "", unit)
        return made if isinstance(made, Series) else series


def once(find: SeriesOf) -> SeriesOf:
    """Finds each series of an entry only once, however many points it has."""
    found: dict[str, Series | Flaw] = {}

    def series_of(histogram: str) -> Series | Flaw:
        series = found.get(histogram)
        if series is None:
            series = found[histogram] = find(histogram)
        return series

    return series_of


def trace_of(labels: list[tuple[bytes, bytes]]) -> str:
    """The trace id that an exemplar's labels name; "" where none does, or none that can be one."""
    for name, value in labels:
        if name in TRACE_LABELS and 0 < len(value) <= TRACE_LENGTH_MAX:
            return value.decode(errors="replace")
    return ""
