"""What a router's log holds, as values and bytes (architecture.md section 3.1): samples, settings, router views, gaps.

Pure codec; nothing here reads or writes a file. Offsets are dense per router and start at 1; offset 0 means "nothing".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt
from xxhash import xxh64_intdigest

from breaker_actors.core.model import Batch, Control, Counts, Flags, Float64, Int64, Rows, Rule

SAMPLES, BREAKER, VIEW, GAP, DAMAGED = 1, 2, 3, 4, 5
GAPS = (GAP, DAMAGED)
"""What readers take for a gap. A DAMAGED record stands for records that were lost, by an operator's word."""
UNREADABLE = 0
"""A record that says nothing: it takes the place of a change that could not be read. Every reader passes it over."""
Mode = Literal["static", "canary", "weighted"]
MODES: tuple[Mode, ...] = get_args(Mode)


class BreakerSet(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one breaker from here on; `rule` None means it was deleted.

    `created` marks the record that brings the breaker to life: its created_ms is the record's received_ms and its
    first transition is numbered `after_seq + 1`. `again`: an operator recovered the log, and the record that did so
    first may be lost; who knows the breaker by that one passes this over. `control`: mode and override from here on;
    None, as in records from before there were any: enforce, and no override.
    """

    breaker_id: str
    version: int
    name: str
    rule: Rule | None
    created: bool = False
    after_seq: int = 0
    again: bool = False
    control: Control | None = None


class Link(msgspec.Struct, frozen=True):
    """One breaker linked to a router: it takes samples of `metric`; `share` is its percent (canary) or weight."""

    breaker_id: str
    metric: str
    share: float | None = None


class RouterView(msgspec.Struct, frozen=True, kw_only=True):
    """How a router splits samples from here on."""

    version: int
    mode: Mode = "static"
    enabled: bool = True
    links: tuple[Link, ...] = ()


class Gap(msgspec.Struct, frozen=True):
    """A span in which the router could take no samples: silence in it is no evidence (semantics.md section 2)."""

    from_ms: int
    to_ms: int


class Lost(Gap, frozen=True):
    """The payload of a DAMAGED record: what was lost are the records from `first` up to it. `sets_back`: the log was
    ahead of the clock, and who reads on does so as of this record."""

    first: int
    sets_back: bool = False


class LogRecord(msgspec.Struct, frozen=True, array_like=True):
    """One record as it lies in the log. `view_offset` is the offset of the RouterView in force (0 before the first)."""

    router_id: str
    offset: int
    received_ms: int
    kind: int
    view_offset: int
    payload: bytes


class _Header(msgspec.Struct, array_like=True):
    metrics: list[str]
    counts: list[int]
    has_share: bool
    traces: list[str] = []
    has_count: bool = False


class SampleColumns:
    """Samples of one record grouped by metric (stable within a metric): metric i owns rows starts[i]..starts[i+1].

    `share`: `share_of_trace` of each row's trace_id, 0 where it has none; None when no row has one that matters.
    `traces`: the trace_id of each row, "" where it has none; empty when nobody asks for them.
    """

    __slots__ = ("_received", "batch", "metrics", "share", "starts", "traces")

    def __init__(
        self,
        metrics: Sequence[str],
        starts: Sequence[int],
        batch: Batch,
        share: Int64 | None,
        traces: Sequence[str] = (),
    ) -> None:
        self.metrics = metrics
        self.starts = starts
        self.batch = batch
        self.share = share
        self.traces = traces
        self._received: Rows | None = None

    def received(self, received_ms: int) -> Rows | None:
        """As the columns that small pieces are cut from; None when there is more to a row than they have."""
        if self.traces or self.batch.count is not None:
            return None
        if self._received is None or self._received.received_ms != received_ms:
            self._received = Rows(self.batch, self.starts, received_ms)
        return self._received

    def rows(self, start: int, stop: int) -> Batch:
        """Some rows of one metric, without a copy, with their newest trace."""
        batch = self.batch.slice(start, stop)
        if self.traces:
            batch.trace = _newest_trace(batch.ts_ms, self.traces[start:stop])
        return batch

    def metric_at(self, start: int) -> str:
        """The metric whose rows begin at row `start`."""
        return self.metrics[bisect_left(self.starts, start)]

    def of(self, metric: str) -> Batch | None:
        """The rows of one metric, or None when the record has none."""
        try:
            i = self.metrics.index(metric)
        except ValueError:
            return None
        return self.rows(self.starts[i], self.starts[i + 1])

    def pick(self, start: int, rows: npt.NDArray[np.intp]) -> SampleColumns:
        """Some rows of the metric that begins at row `start`, as columns of their own."""
        metric = self.metric_at(start)
        batch = self.batch
        count = None if batch.count is None else batch.count[rows]
        chosen = Batch(batch.ts_ms[rows], batch.value[rows], batch.ok[rows], count=count)
        traces = [self.traces[row] for row in rows.tolist()] if self.traces else ()
        return SampleColumns((metric,), (0, len(rows)), chosen, None, traces)


class Picked:
    """Rows that breakers take of a record, as columns of their own: one copy for all that take the same ones."""

    __slots__ = ("_columns", "_known")

    def __init__(self, columns: SampleColumns) -> None:
        self._columns = columns
        self._known: dict[int, tuple[npt.NDArray[np.intp], SampleColumns]] = {}

    def of(self, start: int, rows: npt.NDArray[np.intp]) -> SampleColumns:
        """Those that a split gave: the same array stands for the same rows."""
        known = self._known.get(id(rows))
        if known is None:
            known = self._known[id(rows)] = rows, self._columns.pick(start, rows)  # which keeps its id taken
        return known[1]


class _Names(msgspec.Struct, array_like=True):
    metrics: list[str]


_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(_Header)
_names_decoder = msgspec.msgpack.Decoder(_Names)


def encode_samples(
    metrics: Sequence[str],
    counts: Sequence[int],
    ts_ms: Int64,
    value: Float64,
    ok: Flags,
    share: Int64 | None = None,
    traces: Sequence[str] = (),
    count: Counts = None,
) -> bytes:
    """Bytes of a samples record: length-prefixed header, then ts_ms, value, ok and, where given, share and count as raw
    columns. `counts`: rows of each metric; `count`: observations of each row, None in records from before there were
    any.

    `traces`, where given, has an entry per row."""
    header = _encoder.encode(_Header(list(metrics), list(counts), share is not None, list(traces), count is not None))
    columns = (ts_ms.astype("<i8", copy=False), value.astype("<f8", copy=False), ok.astype("?", copy=False))
    tail = (column.astype("<i8", copy=False) for column in (share, count) if column is not None)
    return b"".join((len(header).to_bytes(4, "little"), header, *(c.tobytes() for c in (*columns, *tail))))


def counted(count: Int64) -> Counts:
    """The column `count` of rows that stand for so many observations; None where each stands for one."""
    return count if (count != 1).any() else None


def shares_of(traces: Sequence[str | None]) -> Int64 | None:
    """The column `share` of rows with these traces, 0 for none; None where no row has one."""
    return np.array([share_of_trace(trace) if trace else 0 for trace in traces], np.int64) if any(traces) else None


def decode_samples(payload: bytes) -> SampleColumns:
    """The columns of a samples record, without copying the payload."""
    head = int.from_bytes(payload[:4], "little")
    header = _header_decoder.decode(payload[4 : 4 + head])
    starts = [0]
    for rows in header.counts:
        starts.append(starts[-1] + rows)
    n, at = starts[-1], 4 + head
    ts_ms = np.frombuffer(payload, "<i8", n, at)
    value = np.frombuffer(payload, "<f8", n, at + 8 * n)
    ok = np.frombuffer(payload, "?", n, at + 16 * n)
    share = np.frombuffer(payload, "<i8", n, at + 17 * n) if header.has_share else None
    behind = at + (25 if header.has_share else 17) * n
    count = np.frombuffer(payload, "<i8", n, behind) if header.has_count else None
    return SampleColumns(header.metrics, starts, Batch(ts_ms, value, ok, count=count), share, header.traces)


def metrics_of(payload: bytes) -> Sequence[str]:
    """The metrics of a samples record; none where they can't be read."""
    try:
        return _names_decoder.decode(payload[4 : 4 + int.from_bytes(payload[:4], "little")]).metrics
    except (msgspec.MsgspecError, ValueError):
        return ()


def merge_samples(payloads: Sequence[bytes]) -> bytes:
    """One payload with the rows of several, grouped by metric, earlier payloads first."""
    full = [payload for payload in map(decode_samples, payloads) if payload.metrics]
    if len(payloads) == 1 or not full:
        return payloads[0]
    groups: dict[str, list[tuple[SampleColumns, int, int]]] = {}
    for columns in full:
        for i, metric in enumerate(columns.metrics):
            groups.setdefault(metric, []).append((columns, columns.starts[i], columns.starts[i + 1]))
    parts = [part for group in groups.values() for part in group]
    return encode_samples(
        list(groups),
        [sum(stop - start for _, start, stop in group) for group in groups.values()],
        np.concatenate([c.batch.ts_ms[start:stop] for c, start, stop in parts]),
        np.concatenate([c.batch.value[start:stop] for c, start, stop in parts]),
        np.concatenate([c.batch.ok[start:stop] for c, start, stop in parts]),
        _merged([c.share for c, _, _ in parts], parts, 0),
        _merged_traces(parts),
        _merged([c.batch.count for c, _, _ in parts], parts, 1),
    )


def _merged(
    columns: Sequence[Int64 | None], parts: Sequence[tuple[SampleColumns, int, int]], other: int
) -> Int64 | None:
    """A column that not every record has; `other` where it is missing, None where nobody has it."""
    if all(column is None for column in columns):
        return None
    return np.concatenate(
        [
            np.full(stop - start, other, np.int64) if column is None else column[start:stop]
            for column, (_, start, stop) in zip(columns, parts, strict=True)
        ]
    )


def _merged_traces(parts: Sequence[tuple[SampleColumns, int, int]]) -> list[str]:
    if not any(columns.traces for columns, _, _ in parts):
        return []
    return [
        trace for c, start, stop in parts for trace in (c.traces[start:stop] if c.traces else [""] * (stop - start))
    ]


def _newest_trace(ts_ms: Int64, traces: Sequence[str]) -> tuple[int, str] | None:
    """(ts_ms, trace_id) of the newest row that has one, the last of several."""
    newest = max(((ts, i) for i, ts in enumerate(ts_ms.tolist()) if traces[i]), default=None)
    return None if newest is None else (newest[0], traces[newest[1]])


def encode_entry(entry: BreakerSet | RouterView | Gap) -> bytes:
    """Bytes of a record that is not samples."""
    return _encoder.encode(entry)


decode_breaker = msgspec.msgpack.Decoder(BreakerSet).decode
decode_view = msgspec.msgpack.Decoder(RouterView).decode
decode_gap = msgspec.msgpack.Decoder(Gap).decode
decode_lost = msgspec.msgpack.Decoder(Lost).decode


def share_of_trace(trace_id: str) -> int:
    """What decides where the samples of one trace go; never 0, which says "no trace"."""
    return _signed(xxh64_intdigest(trace_id.encode())) or 1


METRICS_SHOWN_MAX = 5


class Splitter:
    """Who takes what of a samples record under one view (semantics.md section 7).

    A pure function of the view and the record, so the live router and every replay split alike.
    """

    __slots__ = ("_ends", "_links", "_only", "heard", "view")

    def __init__(self, view: RouterView, only: Container[str] | None = None) -> None:
        """`only`: the breakers that are asked about; the others are left out, and cost nothing with each record."""
        self.view = view
        self._only = only if view.mode == "weighted" else None  # there each one's part depends on all
        self._links: dict[str, list[Link]] = {}
        self._ends: dict[str, Float64] = {}
        for link in view.links if view.enabled else ():
            if only is None or self._only is not None or link.breaker_id in only:
                self._links.setdefault(link.metric, []).append(link)
        self.heard = tuple(self._links)[:METRICS_SHOWN_MAX]  # metrics that breakers have, some of them

    def unheard(self, metrics: Sequence[str]) -> tuple[str, ...]:
        """The metrics that no breaker has, METRICS_SHOWN_MAX at most."""
        return tuple(metric for metric in metrics if metric not in self._links)[:METRICS_SHOWN_MAX]

    def takers(self, metrics: Iterable[str]) -> int:
        """How many breakers may take rows of these metrics, beyond the one of each row in a weighted router."""
        if self.view.mode == "weighted":
            return 0
        return sum(len(self._links.get(metric, ())) for metric in metrics)

    def split(
        self, columns: SampleColumns, router_id: str, offset: int
    ) -> Iterator[tuple[str, int, int, npt.NDArray[np.intp] | None]]:
        """Breaker id, first and last+1 row of its metric, and which of them (row numbers; None: all of them).

        Breakers that take nothing are left out. Those that take the same rows get the same array, so thousands of them
        cost no more copies than there are shares."""
        mode = self.view.mode
        for i, metric in enumerate(columns.metrics):
            links = self._links.get(metric)
            if not links:
                continue
            start, stop = columns.starts[i], columns.starts[i + 1]
            if mode == "static":
                for link in links:
                    yield link.breaker_id, start, stop, None
                continue
            place = _places(columns, start, stop, router_id, offset)
            ends = self._ends_of(metric, links) if mode == "weighted" else None
            taken = _canary(links, place, start) if ends is None else _weighted(links, ends, place, start)
            for link, rows in taken:
                if self._only is None or link.breaker_id in self._only:
                    yield link.breaker_id, start, stop, rows

    def _ends_of(self, metric: str, links: Sequence[Link]) -> Float64:
        """Of a weighted router: where the part of each of these links ends."""
        if (ends := self._ends.get(metric)) is None:
            ends = self._ends[metric] = np.cumsum([1.0 if link.share is None else link.share for link in links])
        return ends


def _places(columns: SampleColumns, start: int, stop: int, router_id: str, offset: int) -> Float64:
    """A number in [0, 1) per row: from its trace where it has one, else from its place in the log."""
    share = np.zeros(stop - start, np.int64) if columns.share is None else columns.share[start:stop].copy()
    for row in np.flatnonzero(share == 0).tolist():
        share[row] = _signed(xxh64_intdigest(f"{router_id}:{offset}:{start + row}".encode()))
    return (share.view(np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53


Taken = Iterator[tuple[Link, npt.NDArray[np.intp] | None]]
ALL_PERCENT = 100.0


def _canary(links: Sequence[Link], place: Float64, start: int) -> Taken:
    """Breakers with a percent get that share, the others everything."""
    chosen: dict[float, npt.NDArray[np.intp]] = {}
    for link in links:
        if link.share is None or link.share >= ALL_PERCENT:
            yield link, None
            continue
        rows = chosen.get(link.share)
        if rows is None:
            rows = chosen[link.share] = np.flatnonzero(place * ALL_PERCENT < link.share) + start
        if len(rows):
            yield link, rows


def _weighted(links: Sequence[Link], ends: Float64, place: Float64, start: int) -> Taken:
    """Each row goes to exactly one breaker in proportion to the weights; all zero: to nobody."""
    if not ends[-1] > 0:
        return
    last = int(np.searchsorted(ends, ends[-1]))
    chosen = np.minimum(np.searchsorted(ends, place * ends[-1], side="right"), last)
    order = np.argsort(chosen, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(chosen[order])) + 1):
        if len(rows):
            yield links[int(chosen[rows[0]])], rows + start


def _signed(digest: int) -> int:
    """64 bits as the log's signed column keeps them."""
    return digest - (1 << 64) if digest >> 63 else digest
