"""Lines summed up between two flushes, in bounded memory. Pure.

- A counter's rises, each value / rate, add up. What is sent is whole; the fraction that remains goes into the next
  flush of its series, so sums over time are exact, and less than one is ever on its way.
- A gauge is sent where it was set since the last flush. A value with a sign is added to the last one, 0 at first.
- A timing keeps each distinct value and how often it was observed: 1 / rate each, whole, the fraction goes into the
  next observation of its series.
- A set is the number of distinct members since the last flush. Members are told apart by 64-bit hashes.
- A counter or gauge that names its time is a point of its own, per second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from api.statsd.encoding import Encoder, Point, Request, Wire, wire_of
from api.statsd.lines import COUNT_MAX, Form, Kind, Malformed, Reason, cut, form_of, number_of, numbers_of

SERIES_MAX = 20_000
"""Distinct series that are known at a time. Beyond it those are forgotten that had no line for IDLE_FLUSHES."""
IDLE_FLUSHES = 600
FORMS_MAX = 2 * SERIES_MAX
"""Spellings of series that are remembered, with rates and fields that are passed over; beyond it all are read anew."""
FORM_BYTES_MAX = 1024
"""Longer spellings are read anew each time."""
VALUES_MAX = 1_000
"""Distinct values of one timing and flush that are exact, if half of its room has so many. Further ones are rounded to
three digits; where three quarters of it are taken new ones to two, from seven eighths on to one. What finds no room
then is dropped, counted."""
ROOM_BYTES_MAX = 1 << 19
"""Room of one timing in a flush: its distinct values with all tags, as they are sent, and VALUE_BYTES each."""
VALUE_BYTES = 100
"""What a value takes beside its attributes, here and on its way."""
ROOM_TOTAL_BYTES = 1 << 25
"""Room of all timings in a flush. When half of it is used, each has its part of what is left, so that no sender's
values can take that of all others."""
EXPECTED_KEPT = 0.9
"""A flush is expected to have as many timings as the one before had, or this much of what that was expected to have."""
MEMBERS_TOTAL_MAX = 100_000
"""Distinct members of all sets in one flush. Beyond it new ones are dropped, counted."""
TIMED_MAX = 10_000
"""Points that name their time in one flush. Beyond it new ones are dropped, counted."""
SHOWN_BYTES = 120
"""Bytes of a malformed line that are shown."""
_ALMOST = 1e-9
"""Ten times 0.1 is a whole."""

Dropped = Literal["too_many_series", "too_many_values", "too_many_members", "too_many_times"]


class Room:
    """What all series share: room for values, members and times of one flush, and counters of what found none."""

    __slots__ = ("absolute", "dropped", "expected", "members", "rounded", "times", "timings", "values_bytes")

    def __init__(self, absolute: bool) -> None:
        self.absolute = absolute
        self.dropped: Counter[Dropped] = Counter()
        self.members = self.rounded = self.times = 0
        self.values_bytes = self.timings = 0
        """What the values of all timings take, and how many timings have some."""
        self.expected = 0.0
        """How many timings this flush is expected to have."""

    def values_of(self, each: int) -> int:
        """How many distinct values a timing may have now, of so many bytes each."""
        if self.values_bytes <= ROOM_TOTAL_BYTES // 2:
            return ROOM_BYTES_MAX // each
        part = (ROOM_TOTAL_BYTES - self.values_bytes) / max(self.timings, self.expected, 1)
        return int(min(part, ROOM_BYTES_MAX)) // each

    def begin(self) -> None:
        """A flush begins."""
        self.expected = max(self.timings, self.expected * EXPECTED_KEPT)


class Series:
    """What one series came to since the last flush."""

    __slots__ = ("flush", "touched", "wire")

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.touched = False
        self.flush = 0
        """Number of the last flush that it had a line for."""

    def add(self, text: bytes, form: Form, room: Room) -> None:
        """Takes the value of a line. Raises Malformed, and then nothing of it counts."""
        raise NotImplementedError

    def take(self, room: Room) -> list[Point]:
        """Its points; then it begins anew."""
        raise NotImplementedError


class Timed(Series):
    """A series whose lines may name their time."""

    __slots__ = ("fresh", "times", "value")

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self.value = 0.0
        self.fresh = False
        """Whether a line without a time came."""
        self.times: dict[int, float] = {}

    def has_room(self, time_s: int, room: Room) -> bool:
        """Whether a point of that time is there, or may be."""
        if time_s in self.times:
            return True
        if room.times >= TIMED_MAX:
            room.dropped["too_many_times"] += 1
            return False
        room.times += 1
        return True

    def take_times(self, room: Room) -> dict[int, float]:
        """The points that named their time."""
        times, self.times = self.times, {}
        room.times -= len(times)
        return times


class CounterSeries(Timed):
    """Rises. `value`: what is not sent yet."""

    __slots__ = ()

    def add(self, text: bytes, form: Form, room: Room) -> None:
        rise = 0.0
        for number in numbers_of(text):
            if number < 0:
                raise Malformed("negative_count")
            rise += number * form.weight
        if rise > COUNT_MAX:
            raise Malformed("invalid_value")
        if form.time_s is None:
            self.value += rise
            self.fresh = True
        elif self.has_room(form.time_s, room):
            self.times[form.time_s] = self.times.get(form.time_s, 0.0) + rise

    def take(self, room: Room) -> list[Point]:
        points = []
        for time_s, rise in self.take_times(room).items():
            points.append(Point(float(whole := int(rise + _ALMOST)), time_s=time_s))
            self.value += rise - whole
        if self.fresh:
            points.append(Point(float(whole := int(self.value + _ALMOST))))
            self.value -= whole
            self.fresh = False
        return points


class GaugeSeries(Timed):
    """The last value."""

    __slots__ = ()

    def add(self, text: bytes, form: Form, room: Room) -> None:
        value = self.value
        for part in text.split(b":"):
            number = number_of(part)
            if part[:1] not in b"+-" or room.absolute:
                value = number
            elif form.time_s is not None:
                raise Malformed("invalid_time")
            else:
                value += number
        if value - value != 0:
            raise Malformed("invalid_value")
        if form.time_s is None:
            self.value = value
            self.fresh = True
        elif self.has_room(form.time_s, room):
            self.times[form.time_s] = value

    def take(self, room: Room) -> list[Point]:
        points = [Point(value, time_s=time_s) for time_s, value in self.take_times(room).items()]
        if self.fresh:
            points.append(Point(self.value))
            self.fresh = False
        return points


class TimingSeries(Series):
    """How often each value was observed. `each`: bytes that a value takes."""

    __slots__ = ("counts", "each", "fraction")

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self.counts: dict[float, int] = {}
        self.each = VALUE_BYTES + len(wire.attributes)
        self.fraction = 0.0

    def add(self, text: bytes, form: Form, room: Room) -> None:
        for value in numbers_of(text):
            count = 1
            if form.weight != 1:
                weight = self.fraction + form.weight
                count = int(weight + _ALMOST)
                self.fraction = weight - count
            if value in self.counts:
                self.counts[value] += count
            else:
                self._add_new(value, count, room)

    def _add_new(self, value: float, count: int, room: Room) -> None:
        """Takes a value that was not observed yet: rounded, or not at all, where there is little room."""
        counts, most = self.counts, room.values_of(self.each)
        if len(counts) >= min(VALUES_MAX, most // 2):
            value = self._rounded(value, most)
            if value in counts:
                room.rounded += count
                counts[value] += count
                return
            if len(counts) >= most or value - value != 0:
                room.dropped["too_many_values"] += count
                return
            room.rounded += count
        room.timings += not counts
        room.values_bytes += self.each
        counts[value] = count

    def _rounded(self, value: float, most: int) -> float:
        """What a value counts as where there is room for `most` distinct ones."""
        near, n = float(f"{value:.2e}"), len(self.counts)
        if near in self.counts or 4 * n < 3 * most:
            return near
        return float(f"{value:.1e}" if 8 * n < 7 * most else f"{value:.0e}")

    def take(self, room: Room) -> list[Point]:
        counts, self.counts = self.counts, {}
        room.timings -= bool(counts)
        room.values_bytes -= len(counts) * self.each
        return [Point(value, count) for value, count in counts.items()]


class SetSeries(Series):
    """Distinct members."""

    __slots__ = ("members",)

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self.members: set[int] = set()

    def add(self, text: bytes, form: Form, room: Room) -> None:
        if not text:
            raise Malformed("invalid_value")
        member = hash(text)
        if member not in self.members:
            if room.members >= MEMBERS_TOTAL_MAX:
                room.dropped["too_many_members"] += 1
                return
            room.members += 1
            self.members.add(member)

    def take(self, room: Room) -> list[Point]:
        members, self.members = self.members, set()
        room.members -= len(members)
        return [Point(float(len(members)))]


KINDS: dict[Kind, type[Series]] = {
    "counter": CounterSeries,
    "gauge": GaugeSeries,
    "timing": TimingSeries,
    "set": SetSeries,
}


class Aggregate:
    """All series. `lines`: how many came; `malformed`: how many of them could not be read, by reason."""

    def __init__(self, absolute_gauges: bool = False) -> None:
        """`absolute_gauges`: a gauge's sign belongs to its value, as DogStatsD has it."""
        self.lines = 0
        self.malformed: Counter[Reason] = Counter()
        self.newest_malformed = ""
        self.room = Room(absolute_gauges)
        self._series: dict[tuple[Kind, str, tuple[tuple[str, str], ...]], Series] = {}
        self._forms: dict[tuple[bytes, bytes], tuple[Series, Form]] = {}
        self._touched: list[Series] = []
        self._flushes = 0
        self._swept = -1

    @property
    def series(self) -> int:
        """How many series are known."""
        return len(self._series)

    def take(self, datagram: bytes) -> None:
        """Takes the lines of a datagram."""
        for line in datagram.split(b"\n"):
            if line:
                self.lines += 1
                try:
                    self._take_line(line)
                except Malformed as error:
                    self.malformed[error.reason] += 1
                    self.newest_malformed = f"{error.reason}: {line[:SHOWN_BYTES].decode(errors='replace')}"

    def _take_line(self, line: bytes) -> None:
        name, text, rest = cut(line)
        known = self._forms.get((name, rest)) or self._find(name, rest)
        if known is None:
            return
        series, form = known
        series.add(text, form, self.room)
        if not series.touched:
            series.touched = True
            self._touched.append(series)

    def _find(self, name: bytes, rest: bytes) -> tuple[Series, Form] | None:
        """The series of a spelling; None where there is no room for another one."""
        form = form_of(name, rest)
        key = form.kind, form.name, form.tags
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= SERIES_MAX and not self._sweep():
                self.room.dropped["too_many_series"] += 1
                return None
            series = self._series[key] = KINDS[form.kind](wire_of(form))
            series.flush = self._flushes
        if form.time_s is None and len(name) + len(rest) <= FORM_BYTES_MAX:
            if len(self._forms) >= FORMS_MAX:
                self._forms.clear()
            self._forms[name, rest] = series, form
        return series, form

    def _sweep(self) -> bool:
        """Forgets series that were idle for long, once in a flush; whether there is room."""
        if self._swept != self._flushes:
            self._swept = self._flushes
            oldest = self._flushes - IDLE_FLUSHES
            self._series = {key: one for key, one in self._series.items() if one.touched or one.flush > oldest}
            self._forms.clear()
        return len(self._series) < SERIES_MAX

    def flush(self, encoder: Encoder) -> Iterator[Request | None]:
        """The requests of a flush, and None after each series and point: lines may be taken meanwhile."""
        touched, self._touched = self._touched, []
        self._flushes += 1
        self.room.begin()
        for series in touched:
            series.touched = False
            series.flush = self._flushes
            yield from encoder.add(series.wire, series.take(self.room))
            yield None
        yield from encoder.rest()
