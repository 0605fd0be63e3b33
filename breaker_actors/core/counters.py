"""Cumulative series: from totals that only rise to what was observed since the last one (semantics.md section 6).

A point says how much there has been since a start; what counts is the difference to the point before. The owner of a
router keeps the last point of each series and stores it with the record that its samples came into, so a restart, a
move or a repeated request neither loses a rise nor counts it twice. Pure: time comes with the points.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Literal, TypeVar

import msgspec
import numpy as np

from breaker_actors.core.definitions import clamp
from breaker_actors.core.exact_sums import FLOAT_MAX
from breaker_actors.core.log_entries import counted, encode_samples, shares_of
from breaker_actors.core.model import COUNT_MAX, Int64

K = TypeVar("K")

FIRST_MS = 300_000
"""The first point of a series counts whole where it began no longer ago: what is older is no news."""
KEPT_MS = 3_600_000
"""A series that no point came of for so long may be forgotten for another one."""
RISE_MAX = 100_000_000
"""Observations of one point; more at once is no rise but a mistake."""
EXTRA_MAX = 1_000
"""Samples of COUNT_MAX observations that the points of one request may come to, of cumulative series those of each of
its routers: so few bytes ask for no more work."""
BUCKETS_EACH = 16
"""Buckets for which a series has the room of another one."""
FORMER = 16
"""Of identities that are longer, so many bytes are the one that their series had once, when streams that differ by unit
or by the kind of histogram shared it."""
STATE_BYTES = 256
"""What the last point of one without buckets takes, in memory and in the log, about; 16 buckets take as much."""
PROJECT_SHARE = 4
"""A project may have one such part of the room that an organisation alone may have of an owner, and so much more there
is for what its projects always have."""
ALWAYS = 2_000
"""Series that a project has room for, however many the others have."""
SINCE = b""
"""In the place of a series: the time up to which forgotten series had points."""

Outcome = Literal["first", "rise", "reset", "old", "rebased", "huge", "full"]
OUTCOMES: tuple[Outcome, ...] = ("first", "rise", "reset", "old", "rebased", "huge", "full")


class CounterPoint(msgspec.Struct, frozen=True, array_like=True):
    """One point of a cumulative series, as a replica gives it to the owner of its router.

    `series`: 16 or 24 bytes that tell it from all others of the router (see FORMER). `start_ms`: since when it counts,
    0 where nobody said so. A counter has a `value`; a rise of n is n observations of 1 x `scale` where it `counts`,
    else one of n x `scale`. A histogram has `totals` per bucket that is not empty: `values` (x `scale`) stand for the
    observations in `buckets`, which ascend and are numbered alike in all points of one `layout`. All three are packed,
    8 bytes each: whole numbers, floats, whole numbers."""

    series: bytes
    metric: str
    ts_ms: int
    start_ms: int
    ok: bool = True
    scale: float = 1.0
    counts: bool = True
    value: float | None = None
    layout: bytes = b""
    buckets: bytes = b""
    values: bytes = b""
    totals: bytes = b""
    trace: str = ""


class _Named(msgspec.Struct, array_like=True):
    """As much of a point as says its metric."""

    series: bytes
    metric: str


class Held(msgspec.Struct, frozen=True, array_like=True):
    """The last point of a series, and when it came; `totals` by `buckets` as in the point."""

    ts_ms: int
    start_ms: int
    seen_ms: int
    value: float | None = None
    layout: bytes = b""
    totals: bytes = b""
    buckets: bytes = b""

    @property
    def weight(self) -> int:
        """The room it takes, in series."""
        return 1 + len(self.buckets) // _EACH // BUCKETS_EACH


class _HeldByNumber(msgspec.Struct, frozen=True, array_like=True):
    """The same as it was stored once."""

    ts_ms: int
    start_ms: int
    seen_ms: int
    value: float | None
    layout: bytes
    totals: dict[int, int]


_EACH = 8


def packed(numbers: Sequence[int]) -> bytes:
    """Whole numbers as points and states have them."""
    return np.array(numbers, "<i8").tobytes()


def packed_floats(values: Sequence[float]) -> bytes:
    return np.array(values, "<f8").tobytes()


Rise = tuple[Sequence[float], Sequence[int]]
"""Values, and how many observations of each."""
NOTHING: Rise = ((), ())

_encoder = msgspec.msgpack.Encoder()
encode_points = _encoder.encode
decode_points = msgspec.msgpack.Decoder(list[CounterPoint]).decode
_metrics = msgspec.msgpack.Decoder(list[_Named])
_held = msgspec.msgpack.Decoder(Held)
_held_by_number = msgspec.msgpack.Decoder(_HeldByNumber)


def metrics_of_points(points: bytes) -> set[str]:
    """The metrics of encoded points; none where they can't be read."""
    try:
        return {point.metric for point in _metrics.decode(points)} if points else set()
    except (msgspec.MsgspecError, ValueError):
        return set()


def risen(held: Held | None, point: CounterPoint, since_ms: int) -> tuple[Rise, Outcome]:
    """What was observed between the last point of a series and this one. `since_ms`: series that were forgotten had
    points up to then, so one that began later is new."""
    (values, counts), outcome = _risen(held, point, since_ms)
    if sum(counts) > RISE_MAX:
        return NOTHING, "huge"
    if not counts or 0 < min(counts) <= max(counts) <= COUNT_MAX:
        return (values, counts), outcome
    pairs = [pair for value, n in zip(values, counts, strict=True) for pair in in_samples(value, n)]
    return ([value for value, _ in pairs], [n for _, n in pairs]), outcome


def _risen(held: Held | None, point: CounterPoint, since_ms: int) -> tuple[Rise, Outcome]:
    if held is None:
        is_new = point.start_ms > since_ms and 0 <= point.ts_ms - point.start_ms <= FIRST_MS
        return (_whole(point) if is_new else NOTHING), "first"
    if point.ts_ms <= held.ts_ms:
        return NOTHING, "old"
    if (held.value is None) is not (point.value is None):
        return NOTHING, "rebased"
    if point.start_ms and held.start_ms and point.start_ms > held.start_ms:  # it says that it began anew
        return _whole(point), "reset"
    if point.value is not None:
        before = held.value or 0.0
        return (_whole(point), "reset") if point.value < before else (_rise(point, point.value - before), "rise")
    if held.layout != point.layout:
        return NOTHING, "rebased"
    totals, before_each = _totals(point), _aligned(held, point)
    if before_each is None or (before_each > totals).any():  # no counter that goes on falls
        return _whole(point), "reset"
    return _rises(point, totals - before_each), "rise"


def _whole(point: CounterPoint) -> Rise:
    return _rises(point, _totals(point)) if point.value is None else _rise(point, point.value)


def _rise(point: CounterPoint, more: float) -> Rise:
    return ((clamp(point.scale),), (int(more),)) if point.counts else ((clamp(clamp(more) * point.scale),), (1,))


def _rises(point: CounterPoint, more: Int64) -> Rise:
    """Of a histogram: its buckets that rose."""
    rose = more > 0
    with np.errstate(over="ignore"):
        values = np.frombuffer(point.values, "<f8")[rose] * point.scale
    return np.clip(values, -FLOAT_MAX, FLOAT_MAX).tolist(), more[rose].tolist()


def _totals(point: CounterPoint) -> Int64:
    return np.frombuffer(point.totals, "<i8")


def _aligned(held: Held, point: CounterPoint) -> Int64 | None:
    """What each bucket of a point had before; None when one that had something is gone."""
    before = np.frombuffer(held.totals, "<i8")
    if held.buckets == point.buckets:
        return before
    full = before > 0
    old, before, new = np.frombuffer(held.buckets, "<i8")[full], before[full], np.frombuffer(point.buckets, "<i8")
    at = np.searchsorted(new, old)
    there = at < len(new)
    if not there.all() or not np.array_equal(new[at], old):
        return None
    aligned: Int64 = np.zeros(len(new), np.int64)
    aligned[at] = before
    return aligned


def in_samples(value: float, n: int) -> list[tuple[float, int]]:
    """n observations of one value, in samples of at most COUNT_MAX."""
    if 0 < n <= COUNT_MAX:
        return [(value, n)]
    whole, rest = divmod(n, COUNT_MAX)
    return [(value, COUNT_MAX)] * whole + ([(value, rest)] if rest else [])


def _read(state: bytes) -> Held | None:
    try:
        held = _held.decode(state)
    except msgspec.DecodeError:
        return _read_by_number(state)
    return held if len(held.totals) == len(held.buckets) and len(held.buckets) % _EACH == 0 else None


def _read_by_number(state: bytes) -> Held | None:
    try:
        held = _held_by_number.decode(state)
        numbers = sorted(number for number, total in held.totals.items() if total > 0)
        totals = packed([held.totals[number] for number in numbers])
        return Held(held.ts_ms, held.start_ms, held.seen_ms, held.value, held.layout, totals, packed(numbers))
    except (msgspec.DecodeError, OverflowError):
        return None


class Room:
    """What all routers of an owner may keep, and how much of it each project and organisation has; in series.

    An organisation alone has `most`, of several each as much as it leaves free of twice that: nothing that is kept goes
    for another's, so whoever comes has to find room. A project has a PROJECT_SHARE of `most`. ALWAYS it has, also where
    the others have the rest, while its organisation has not a PROJECT_SHARE more than one alone may have. Routers of
    one group are each asked without the others, so the points of one group may come to lie beyond it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: dict[tuple[str, str], int] = {}
        self._orgs: dict[str, int] = {}
        self._all = 0

    @property
    def taken(self) -> int:
        return self._all

    def has(self, org_id: str, project_id: str, more: int) -> bool:
        mine = self._taken.get((org_id, project_id), 0) + more
        ours, share = self._orgs.get(org_id, 0) + more, self._most // PROJECT_SHARE
        if mine <= ALWAYS and ours <= self._most + share:
            return True
        return mine <= share and ours + self._all + more <= 2 * self._most

    def grow(self, org_id: str, project_id: str, more: int) -> None:
        self._all += more
        _grow(self._taken, (org_id, project_id), more)
        _grow(self._orgs, org_id, more)


def _grow(held: dict[K, int], key: K, more: int) -> None:
    if left := held.get(key, 0) + more:
        held[key] = left
    else:
        held.pop(key, None)


class Counters:
    """The series of one router: what its log says of them, and what a group is about to say. `most`: so many are kept,
    fewer where they have many buckets; a new one beyond that takes the place of one not heard of for KEPT_MS, else its
    points are not taken. The same goes for the `room` of all routers, once it has entered one.

    `unread`: how many stored states can't be read; as if their series had been forgotten at `upto_ms`."""

    __slots__ = ("_held", "_most", "_room", "_weight", "_whose", "since_ms", "unread")

    def __init__(self, stored: Iterable[tuple[bytes, bytes]] = (), upto_ms: int = 0, most: int = 10_000) -> None:
        states = dict(stored)
        self.since_ms = int.from_bytes(states.pop(SINCE, b""), "big")
        found = [(series, held) for series, state in states.items() if (held := _read(state)) is not None]
        found.sort(key=lambda pair: pair[1].seen_ms)
        self._held = dict(found)  # the one seen longest ago is first
        self._weight = sum(held.weight for held in self._held.values())
        self._most = most
        self._room: Room | None = None
        self._whose = ("", "")
        self.unread = len(states) - len(found)
        if self.unread:
            self.since_ms = max(self.since_ms, upto_ms)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def weight(self) -> int:
        """The room that all of it takes, in series."""
        return self._weight

    def enter(self, room: Room, org_id: str, project_id: str) -> None:
        """From now on it takes of this room, as a router of an organisation's project."""
        self._room, self._whose = room, (org_id, project_id)
        room.grow(*self._whose, self._weight)

    def leave(self) -> None:
        """It takes of no room any more."""
        if self._room is not None:
            self._room.grow(*self._whose, -self._weight)
            self._room = None

    def begin(self, before: Taken | None = None) -> Taken:
        """To note a record's points in. Nothing is remembered before `keep`: the log may not take it. `before`: of the
        records before it in the same group."""
        taken = Taken(self.since_ms, iter(self._held.items()))
        if before is not None:
            taken.since_ms, taken.weight = before.since_ms, before.weight
            taken.changed, taken.gone = dict(before.changed), dict(before.gone)
        return taken

    def take(self, taken: Taken, points: Sequence[CounterPoint], now_ms: int) -> tuple[bytes, int]:
        """What these points come to, as the samples of a record, and how many there was no room for."""
        rows: list[tuple[CounterPoint, Rise]] = []
        full = extra = 0
        for point in points:
            held = self._last(taken, point.series)
            if held is None and len(point.series) > FORMER:
                self._forget_former(taken, point.series[:FORMER])
            now = Held(point.ts_ms, point.start_ms, now_ms, point.value, point.layout, point.totals, point.buckets)
            more = now.weight - (held.weight if held is not None else 0)
            if more > 0 and not self._has_room(taken, more, now_ms, point.series):
                taken.note("full")
                full += 1
                continue
            rise, outcome = risen(held, point, taken.since_ms)
            more_extra = rise[1].count(COUNT_MAX)
            if extra + more_extra > EXTRA_MAX:
                rise, outcome, more_extra = NOTHING, "huge", 0
            extra += more_extra
            taken.note(outcome)
            if rise[0]:
                rows.append((point, rise))
            if outcome != "old":
                taken.changed[point.series] = now
                taken.weight += more
        return _payload(rows), full

    def _last(self, taken: Taken, series: bytes) -> Held | None:
        return taken.changed.get(series) or (None if series in taken.gone else self._held.get(series))

    def _forget_former(self, taken: Taken, series: bytes) -> None:
        """What was held of a series under its former identity may be several streams' and is no point of one: as if it
        had been forgotten. Where the group has a point of it, it is a series of its own, too, and stays."""
        held = self._last(taken, series)
        if held is None:
            return
        if series in taken.changed:
            taken.since_ms = max(taken.since_ms, held.ts_ms)
        else:
            taken.forget(series, held)

    def _has_room(self, taken: Taken, more: int, now_ms: int, mine: bytes) -> bool:
        """Whether so much more fits, once those make room that were not heard of; `mine` does not."""
        while not self._fits(taken.weight + more):
            oldest = taken.oldest = taken.oldest or next(taken.by_age, None)
            if oldest is None or oldest[1].seen_ms > now_ms - KEPT_MS:
                return False
            series, held = oldest
            taken.oldest = None
            if series not in taken.gone and series not in taken.changed and series != mine:
                taken.forget(series, held)
        return True

    def _fits(self, more: int) -> bool:
        if self._weight + more > self._most:
            return False
        return more <= 0 or self._room is None or self._room.has(*self._whose, more)

    def keep(self, taken: Taken) -> None:
        """The log has it. What it adds is told by what is held now: the records of a group say what those before them
        said once more, and their `weight` is of all of them."""
        self.since_ms = taken.since_ms
        replaced = [self._held.pop(series, None) for series in chain(taken.gone, taken.changed)]
        self._held |= taken.changed
        more = sum(held.weight for held in taken.changed.values())
        more -= sum(held.weight for held in replaced if held is not None)
        self._weight += more
        if self._room is not None:
            self._room.grow(*self._whose, more)


class Taken:
    """What points came to: series to be stored (`changed`) and to be forgotten (`gone`), how many points had which
    outcome."""

    __slots__ = ("by_age", "changed", "gone", "oldest", "outcomes", "since_ms", "weight")

    def __init__(self, since_ms: int, by_age: Iterator[tuple[bytes, Held]]) -> None:
        """`by_age`: what is held, the one seen longest ago first."""
        self.since_ms = since_ms
        self.by_age = by_age
        self.oldest: tuple[bytes, Held] | None = None
        self.changed: dict[bytes, Held] = {}
        self.gone: dict[bytes, None] = {}
        self.weight = 0
        """What all of it adds, with the records before it in its group, to what was held when the group began."""
        self.outcomes: dict[Outcome, int] = {}

    def note(self, outcome: Outcome) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def forget(self, series: bytes, held: Held) -> None:
        self.gone[series] = None
        self.weight -= held.weight
        self.since_ms = max(self.since_ms, held.ts_ms)

    def stored(self) -> Iterator[tuple[bytes, bytes]]:
        """Series and states as the log keeps them; a state of no bytes is dropped."""
        if self.gone:
            yield SINCE, self.since_ms.to_bytes(8, "big")
            yield from ((series, b"") for series in self.gone)
        yield from ((series, _encoder.encode(held)) for series, held in self.changed.items())


def _payload(rows: Sequence[tuple[CounterPoint, Rise]]) -> bytes:
    """Samples of a record, grouped by metric. The trace of a point goes along with its first sample."""
    groups: dict[str, list[tuple[CounterPoint, Rise]]] = {}
    for row in rows:
        groups.setdefault(row[0].metric, []).append(row)
    ordered = [row for group in groups.values() for row in group]
    each = [len(values) for _, (values, _) in ordered]
    traces = [point.trace for point, _ in ordered]
    shares = shares_of(traces)
    told = list(chain.from_iterable((trace, *repeat("", n - 1)) for trace, n in zip(traces, each, strict=True)))
    return encode_samples(
        list(groups),
        [sum(len(values) for _, (values, _) in group) for group in groups.values()],
        np.repeat(np.array([point.ts_ms for point, _ in ordered], np.int64), each),
        np.fromiter(chain.from_iterable(values for _, (values, _) in ordered), np.float64, sum(each)),
        np.repeat(np.array([point.ok for point, _ in ordered], np.bool_), each),
        None if shares is None else np.repeat(shares, each),
        told if any(traces) else (),
        counted(np.fromiter(chain.from_iterable(counts for _, (_, counts) in ordered), np.int64, sum(each))),
    )
