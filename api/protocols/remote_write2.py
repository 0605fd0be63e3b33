"""Remote-write 2.0: `io.prometheus.write.v2.Request` to points.

https://prometheus.io/docs/specs/prw/remote_write_spec_2_0/ . Strings stand in a table of the request, and a time series
names places in it, which differ from request to request. So each string gets a number that lasts (`Memory.symbols`),
and a series is looked up by the numbers of its strings. A time series that is mostly labels, one sample and metadata is
taken by a shortcut, with the places of all series read at once; everything else is walked field by field. The request
itself is split by the protobuf library where it is spelled as encoders do. All ways give the same points.
"""

from __future__ import annotations

from array import array
from struct import Struct
from typing import cast

import msgspec
import numpy as np
import numpy.typing as npt

from api.protocols.bounds import ENTRIES_MAX, NAME_BYTES_MAX, SYMBOLS_MAX
from api.protocols.columns import STALE_BITS, Columns, too_many_entries
from api.protocols.memory import Memory
from api.protocols.native import read_native
from api.protocols.points import Points, Series
from api.protocols.protobuf import Reader, cut_off, read_varint, signed64
from api.protocols.remote_write1 import SeriesOf, once, trace_of
from api.protocols.series import Flaw, labels_of, prometheus_series
from api.protocols.splitting import split
from breaker_actors.core.model import Flags, Float64, Int64
from breaker_actors.errors import BadRequest, PayloadTooLarge

NO_SYMBOL = Flaw("unknown_symbol", "A label refers to a string that the request's table does not have.")
ODD_LABELS = Flaw("invalid_labels", "labels_refs must be pairs of name and value.")
_double = Struct("<d").unpack_from
_bits = Struct("<q").unpack_from
_AHEAD = 512
"""Further than what looks like a plain time series is looked at behind where it begins: up to 255 bytes of labels, then
a sample."""
_BEFORE = bytes(1)
_SLICE = 4_000
"""Series looked up at a time: so arrays of their numbers stay small."""
_TYPE, _HELP, _UNIT = 0x08, 0x18, 0x20
"""Tags of metadata."""
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Int32 = npt.NDArray[np.int32]


class Metadata(msgspec.Struct, frozen=True):
    """Type and unit of a series; `key` stands for both in keys: tags, which are negative there, and values."""

    kind: int
    unit: str
    key: bytes


class Sample(msgspec.Struct):
    """One sample as it was sent."""

    ts_ms: int = 0
    start_ms: int = 0
    value: float = 0.0
    stale: bool = False


def decode(body: bytes, memory: Memory, shortcut: bool = True) -> Points:
    """The points of an inflated body. `shortcut`: False has everything walked field by field.

    Raises BadRequest where the message can't be read, PayloadTooLarge beyond POINTS_MAX, ENTRIES_MAX, SYMBOLS_MAX or
    FIELDS_MAX.
    """
    parts = split(body) if shortcut else None
    if parts is not None:
        try:
            return _read(*parts, memory)
        except BadRequest:
            pass  # places in the body are told from the body
    walk = Walk(body, memory)
    try:
        walk.read_table()
    except IndexError:
        raise cut_off(len(body)) from None
    return _points(walk, *walk.entries(), shortcut)


def _read(symbols: list[bytes], series: list[bytes], memory: Memory) -> Points:
    """The points of a request that is split already: its time series are read one after the other, behind a byte, as
    each is in a body."""
    walk = Walk(b"".join((_BEFORE, *series)), memory)
    walk.take_symbols(symbols)
    edges = np.cumsum(np.fromiter(map(len, (_BEFORE, *series)), np.int64, 1 + len(series)))
    return _points(walk, edges[:-1], edges[1:], shortcut=True)


def _points(walk: Walk, begin: Int64, end: Int64, shortcut: bool) -> Points:
    """The points of time series that begin and end there."""
    plain = find_plain(walk, begin, end) if shortcut and len(begin) else Plain()
    found = walk.columns.found
    rows: list[int] | slice = slice(None)
    if len(plain.series) == len(begin):
        found += plain.series
    else:
        rows, series = [], iter(plain.series)
        entries = set(plain.entries)
        for number, (a, b) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
            if number in entries:
                rows.append(len(found))
                found.append(next(series))
            else:
                walk.read_series(number, a, b)
    ts_ms, start_ms, value = np.zeros(len(found), np.int64), np.zeros(len(found), np.int64), np.zeros(len(found))
    ts_ms[rows], start_ms[rows], value[rows] = plain.ts_ms, plain.start_ms, plain.value
    return walk.columns.points(ts_ms, start_ms, value)


class Walk(Reader):
    """One request read field by field."""

    __slots__ = ("columns", "known", "odd", "padded", "starts", "strings", "symbols", "table")

    def __init__(self, body: bytes, memory: Memory) -> None:
        """`symbols`: the strings, `table` their numbers. `starts`: where the fields of the time series begin; `odd`:
        begin and end of the content of those among them that are spelled unusually."""
        super().__init__(body)
        self.padded = body + bytes(_AHEAD)
        self.strings = memory.strings()
        self.known = self.strings.series
        self.columns = Columns(self.known)
        self.symbols: list[bytes] = []
        self.table: list[int] = []
        self.starts: list[int] = []
        self.odd: dict[int, tuple[int, int]] = {}

    def read_table(self) -> None:
        """Finds the strings and where the time series are. Nothing is read behind the body: IndexError."""
        at, size = 0, len(self.data)
        for _ in range(SYMBOLS_MAX + ENTRIES_MAX):
            if at >= size:
                break
            begun, at = at, self._read_entries(self._read_symbols(at))
            if at == begun:
                at = self._read_other(at)
            if len(self.symbols) > SYMBOLS_MAX or len(self.starts) > ENTRIES_MAX:
                break
        if len(self.starts) > ENTRIES_MAX:
            raise too_many_entries()
        if at < size or len(self.symbols) > SYMBOLS_MAX:
            raise PayloadTooLarge(f"A request has at most {SYMBOLS_MAX} symbols.", {"where": "symbols"})
        if at > size:
            raise cut_off(size)

    def take_symbols(self, symbols: list[bytes]) -> None:
        """The table of a request that is split already."""
        self.symbols = symbols
        number, young = self.strings.number, self.strings.numbers.young.get
        found = [*map(young, symbols)]
        if all(found):
            self.table = cast("list[int]", found)
        else:
            self.table = [known or number(symbol) for known, symbol in zip(found, symbols, strict=True)]

    def _read_symbols(self, at: int) -> int:
        """Reads strings of less than 128 bytes up to what is something else; says where that begins."""
        data, add_symbol, add_number = self.padded, self.symbols.append, self.table.append
        young, number = self.strings.numbers.young.get, self.strings.number
        for _ in range(SYMBOLS_MAX + 1):
            length = data[at + 1]
            if data[at] != 0x22 or length > 127:
                break
            begin = at + 2
            at = begin + length
            symbol = data[begin:at]
            add_symbol(symbol)
            add_number(young(symbol) or number(symbol))
        return at

    def _read_entries(self, at: int) -> int:
        """The same for time series of less than 16,384 bytes."""
        data, add_start = self.padded, self.starts.append
        for _ in range(ENTRIES_MAX + 1):
            if data[at] != 0x2A:
                break
            start, length = at, data[at + 1]
            at += 2 + length
            if length > 127:
                if data[start + 2] > 127:
                    return start
                at = start + 3 + (length & 127 | data[start + 2] << 7)
            add_start(start)
        return at

    def entries(self) -> tuple[Int64, Int64]:
        """Where the time series begin and end, without tags and sizes."""
        data, start = np.frombuffer(self.padded, np.uint8), np.array(self.starts, np.int64)
        size = data[start + 1].astype(np.int64)
        longer = size > 127
        begin = start + 2 + longer
        end = begin + np.where(longer, size & 127 | data[start + 2].astype(np.int64) << 7, size)
        for number, span in self.odd.items():
            begin[number], end[number] = span
        return begin, end

    def _read_other(self, at: int) -> int:
        """Reads a field that is spelled unusually, or is unknown; says where it ends."""
        size = len(self.data)
        tag, begin = self.tag(at, size)
        if tag & 7 == 2 and tag >= 8:
            length, begin = self.size(begin, size)
            if tag == 0x22:
                self.symbols.append(self.data[begin : begin + length])
                self.table.append(self.strings.number(self.symbols[-1]))
            elif tag == 0x2A:
                self.odd[len(self.starts)] = begin, begin + length
                self.starts.append(at)
            return begin + length
        end = read_varint(self.data, begin, size, 10)[1] if tag & 7 == 0 else begin + {1: 8, 5: 4}.get(tag & 7, 0)
        self.fields(at, min(end, size))
        return end

    def read_series(self, number: int, begin: int, end: int) -> None:
        """Reads the time series in data[begin:end], the request's `number`-th."""
        where, data, refs, created_ms, spelled = f"timeseries[{number}]", self.data, list[int](), 0, list[bytes]()
        samples: list[tuple[int, int]] = []
        histograms: list[tuple[int, int]] = []
        exemplars: list[tuple[int, int]] = []
        spans = {0x12: samples, 0x1A: histograms, 0x22: exemplars}
        for tag, a, b in self.fields(begin, end):
            if tag in spans:
                spans[tag].append((a, b))
            elif tag == 0x0A:
                refs += self.varints(a, b)
            elif tag == 0x08:
                refs.append(a)
            elif tag == 0x2A:
                spelled.append(data[a:b])
            elif tag == 0x30:
                created_ms = signed64(a)
        metadata = self.read_metadata(b"".join(spelled))
        series_of = once(lambda histogram: self.series(refs, metadata, histogram))
        self._read_samples(where, series_of, samples, created_ms)
        for index, (a, b) in enumerate(histograms):
            native = read_native(self, a, b)
            series = series_of("gauge" if native.gauge else "cumulative")
            flaw = series if isinstance(series, Flaw) else native.outcome
            if isinstance(flaw, Flaw):
                self.columns.refuse(f"{where}.histograms[{index}]", flaw)
            elif isinstance(series, Series):
                self.columns.add_histogram(series, native.ts_ms, native.start_ms or created_ms, flaw)
        for a, b in exemplars:
            self._read_exemplar(series_of, a, b)

    def _read_samples(self, where: str, series_of: SeriesOf, samples: list[tuple[int, int]], created_ms: int) -> None:
        for index, (a, b) in enumerate(samples):
            sample = Sample(start_ms=0)
            for tag, place, _ in self.fields(a, b):
                if tag == 0x09:
                    sample.value = _double(self.data, place)[0]
                    sample.stale = _bits(self.data, place)[0] == STALE_BITS
                elif tag == 0x10:
                    sample.ts_ms = signed64(place)
                elif tag == 0x18:
                    sample.start_ms = signed64(place)
            series = series_of("")
            if isinstance(series, Flaw):
                self.columns.refuse(f"{where}.samples[{index}]", series)
            else:
                start_ms = sample.start_ms or created_ms
                self.columns.add(series, sample.ts_ms, start_ms, sample.value, sample.stale)

    def _read_exemplar(self, series_of: SeriesOf, begin: int, end: int) -> None:
        own: list[int] = []
        ts_ms = 0
        for tag, a, b in self.fields(begin, end):
            if tag == 0x0A:
                own += self.varints(a, b)
            elif tag == 0x08:
                own.append(a)
            elif tag == 0x18:
                ts_ms = signed64(a)
        self.columns.exemplars += 1
        pairs = self.pairs(own)
        trace = "" if isinstance(pairs, Flaw) else trace_of(pairs)
        for histogram in ("", "cumulative", "gauge") if trace else ():
            series = series_of(histogram)
            if isinstance(series, Series):
                self.columns.note_trace(series, ts_ms, trace)

    def read_metadata(self, spelled: bytes) -> Metadata:
        """Type and unit of a message `Metadata`."""
        fields = Reader(spelled, self).fields(0, len(spelled))
        return self.metadata([part for tag, value, _ in fields for part in (tag, value)])

    def metadata(self, fields: list[int]) -> Metadata:
        """The same from tags and values."""
        meant = dict(zip(fields[::2], fields[1::2], strict=True))
        kind, place = meant.get(_TYPE, 0) & 0xFFFF_FFFF, meant.get(_UNIT, 0) & 0xFFFF_FFFF
        unit = self.unit(place).decode(errors="replace")
        signed = kind - (kind >> 31 << 32)
        return Metadata(kind, unit, array("i", (-_TYPE, signed, -_UNIT, self.number_of_unit(place))).tobytes())

    def unit(self, place: int) -> bytes:
        """A unit by its place in the table; one that is none is left out."""
        text = self.symbols[place] if 0 <= place < len(self.symbols) else b""
        return text if len(text) <= NAME_BYTES_MAX else b""

    def number_of_unit(self, place: int) -> int:
        """What stands for a unit in keys; 0 for none."""
        return self.table[place] if self.unit(place) else 0

    def pairs(self, refs: list[int]) -> list[tuple[bytes, bytes]] | Flaw:
        """Names and values of labels by their places in the table."""
        if len(refs) % 2:
            return ODD_LABELS
        refs = [ref & 0xFFFF_FFFF for ref in refs]
        if max(refs, default=0) >= len(self.symbols) and refs:
            return NO_SYMBOL
        texts = [self.symbols[ref] for ref in refs]
        return list(zip(texts[::2], texts[1::2], strict=True))

    def series(self, refs: list[int], metadata: Metadata, histogram: str, key: bytes = b"") -> Series | Flaw:
        """The series of labels by their places in the table. `key`: by what a shortcut looks for it."""
        pairs = self.pairs(refs)
        if isinstance(pairs, Flaw):
            return pairs
        if not key:
            numbers = array("i", [self.table[ref & 0xFFFF_FFFF] for ref in refs]).tobytes()
            key = histogram[:1].encode() + numbers + metadata.key
        series = self.known.get(key)
        if series is None:
            labels = labels_of(pairs, self.columns.text)
            made = labels if isinstance(labels, Flaw) else prometheus_series(
                labels, metadata.kind, histogram, metadata.unit
            )  # fmt: skip
            return self.columns.remember(key, made) if isinstance(made, Series) else made
        return series


class Plain(msgspec.Struct):
    """Time series of labels, one sample and metadata: which entries of the request they are, and what they say."""

    entries: list[int] = []
    series: list[Series] = []
    ts_ms: Int64 = np.zeros(0, np.int64)
    start_ms: Int64 = np.zeros(0, np.int64)
    value: Float64 = np.zeros(0)


def find_plain(walk: Walk, begin: Int64, end: Int64) -> Plain:
    """All plain time series of a request, each found to be exactly what it looks like.

    Such a one is less than 128 bytes of labels; a sample of 18 bytes, or 9 without its value, or 7 more with a start of
    its counter; and metadata of less than 128 bytes, or none. All are looked at together; what can't be gathered behind
    the body reads as 0.
    """
    data = np.frombuffer(walk.padded, np.uint8)
    words = np.ndarray(len(data) - 7, "<u8", walk.padded, strides=(1,))
    size = data[begin + 1].astype(np.int64)
    sample = begin + 2 + size
    length, first = data[sample + 1], data[sample + 2]
    valued = ((length == 0x10) | (length == 0x17)) & (first == 0x09)
    valueless = ((length == 0x07) | (length == 0x0E)) & (first == 0x10)
    started = (length == 0x17) | (length == 0x0E)
    time = np.where(valued, sample + 11, sample + 2)
    after = sample + 2 + length
    described = end - after
    ts_ms, plain = _times(words[time], 0x10)
    start_ms = np.zeros(len(begin), np.int64)
    if started.any():
        start_ms[started], right = _times(words[time[started] + 7], 0x18)
        plain[started] &= right
    plain &= (data[begin] == 0x0A) & (size > 0) & (size < 128) & (data[sample] == 0x12) & (valued | valueless)
    plain &= (described >= 0) & (described < 130)
    after[~plain] = 0
    plain &= (described == 0) | ((data[after] == 0x2A) & (data[after + 1] == described - 2))
    kept = np.flatnonzero(plain)
    table, series, odd = np.array(walk.table or [0], np.int32), list[Series](), list[int]()
    for first in range(0, len(kept), _SLICE):
        rows = kept[first : first + _SLICE]
        found, wrong = _find_series(walk, table, begin[rows] + 2, size[rows], after[rows] + 2, described[rows] - 2)
        series += [one for number, one in enumerate(found) if number not in wrong] if wrong else found
        odd += [first + number for number in wrong]
    kept = np.delete(kept, odd) if odd else kept
    value = np.where(valued[kept], words[sample[kept] + 3].view("<f8"), 0.0)
    return Plain(entries=kept.tolist(), series=series, ts_ms=ts_ms[kept], start_ms=start_ms[kept], value=value)


def _times(words: Words, tag: int) -> tuple[Int64, Flags]:
    """Numbers of six bytes behind a tag, and which of them are such; each is in the lower seven bytes of a word."""
    right = words & 0x0080_8080_8080_80FF == 0x0000_8080_8080_8000 | tag
    number = words >> 8 & 0x7F
    for byte in range(1, 6):
        number |= words >> 8 + byte & 0x7F << 7 * byte
    return number.astype(np.int64), right


def _find_series(
    walk: Walk, table: Int32, at: Int64, sizes: Int64, behind: Int64, described: Int64
) -> tuple[list[Series], set[int]]:
    """The series of so many bytes of labels at places in the body, and of metadata behind; and which of them are none
    and have to be walked: other fields, places that are none, labels that are no series.

    The key of a series is all its numbers in a row: those of its strings, tags and values of its metadata.
    """
    blocks = np.stack((sizes, np.maximum(described, 0)), axis=1).reshape(-1)
    places, counts = read_places(walk.padded, np.stack((at, behind), axis=1).reshape(-1), blocks)
    of_metadata = np.repeat(np.arange(len(counts)) & 1 == 1, counts)
    fields = np.flatnonzero(of_metadata)
    if (counts[1::2] & 1).any():
        return [], set(range(len(at)))
    right = (places >= 0) & (of_metadata | (places < len(walk.table)))
    numbers = table.take(places, mode="clip")
    tags, values = places[fields[::2]], places[fields[1::2]]
    right[fields[::2]] &= (tags == _TYPE) | (tags == _HELP) | (tags == _UNIT)
    numbers[fields[::2]] = -tags
    numbers[fields[1::2]] = np.where(tags == _TYPE, values, 0)
    units = tags == _UNIT
    if units.any():
        numbers[fields[1::2][units]] = [walk.number_of_unit(place) for place in values[units].tolist()]
    close = np.cumsum(counts)
    until = close[1::2]
    wrong = set(np.searchsorted(until, np.flatnonzero(~right), "right").tolist())
    keys, known, ends = numbers.tobytes(), walk.known.young.get, (4 * until).tolist()
    found = [known(keys[a:b]) for a, b in zip([0, *ends], ends)]  # noqa: B905
    unknown = [] if all(found) else [number for number, series in enumerate(found) if series is None]
    for number in unknown:
        if number in wrong:
            continue
        first, middle, last = int(until[number - 1]) if number else 0, int(close[2 * number]), int(until[number])
        meant = walk.metadata(places[middle:last].tolist())
        made = walk.series(places[first:middle].tolist(), meant, "", keys[4 * first : 4 * last])
        if isinstance(made, Series):
            found[number] = made
        else:
            wrong.add(number)
    return cast("list[Series]", found), wrong


def read_places(body: bytes, at: Int64, sizes: Int64) -> tuple[Int32, Int64]:
    """The numbers in blocks of packed varints, all at once, and how many each block has. -1 stands for one that is cut
    off or has more than three bytes. Blocks ascend, and a byte below 128 is before each."""
    if not len(at):
        return np.zeros(0, np.int32), np.zeros(0, np.int64)
    first = int(at[0]) - 3
    at = at - first
    ends = at + sizes
    data = np.frombuffer(body, np.uint8, int(ends[-1]), first)
    edges = np.stack((at, ends), axis=1).reshape(-1)
    last = np.repeat(np.arange(len(edges)) & 1 == 1, np.diff(edges, prepend=0))
    last &= data < 128
    closes = ends[sizes > 0] - 1
    cut = closes[~last[closes]]
    last[cut] = True
    places = np.flatnonzero(last)
    counts = np.diff(np.searchsorted(places, ends), prepend=0)
    numbers = data[places].astype(np.int32)
    numbers[np.searchsorted(places, cut)] = -1
    more = np.flatnonzero(data[places - 1] > 127)
    for byte in (1, 2):
        if not len(more):
            break
        nearest = places[more] - byte
        numbers[more] = numbers[more] << 7 | data[nearest] & 127
        more = more[data[nearest - 1] > 127]
    numbers[more] = -1
    return numbers, counts
