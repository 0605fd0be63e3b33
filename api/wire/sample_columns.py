"""Stop 4 of a sample's life where samples come as columns: which rows are good, and those as parts for their routers.

The same decisions as of samples one by one (api/wire/samples.py), in the same order; a property test keeps them equal.
Nothing is done for each row in Python: texts are judged once however often they come, and the rest in numpy. Only a
router that splits by trace, or a project that links to traces, has the traces of its good rows read.

What a router gets is cut into pieces, each with duplicate keys of its own: neither the log nor a breaker is held up by
one request for long. In which piece a row is depends on the body alone, never on which rows are good: a request that is
repeated after some of its rows became too old has to say the same under the same keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from api.arrow.frames import Frame
from api.arrow.texts import TOO_LONG, Coded
from api.wire.decoding import METRIC_LENGTH_MAX, TRACE_LENGTH_MAX
from api.wire.responses import SampleError
from api.wire.samples import ERRORS_MAX, NAME_SHOWN_MAX, UNKNOWN_FIELD, ValidationContext, names_router, sample_error
from breaker_actors.core.log_entries import encode_samples, share_of_trace
from breaker_actors.core.model import COUNT_MAX, Flags, Int64
from breaker_actors.errors import PayloadTooLarge
from breaker_actors.messages import Part

PIECE_ROWS = 10_000
"""Rows of one router in one part: as many as a record of its log has where small requests come together."""
ROUND_ROWS = 20_000
"""Samples of one request that are on their way to logs at a time, or one part: what others send rides between."""
ROUND_PARTS = 1_000
"""Parts of one request that are on their way at a time: as many as one of JSON can have."""
NAMES_BYTES_MAX, NAMES_BYTES_ALWAYS, NAMES_EACH = 1 << 24, 1 << 20, 64
"""Bytes of the traces and metric names that go to the logs, each as often as it is told there: a dictionary has one
entry for many rows."""
ROUTERS_MAX = 10_000
"""Routers that one request may name."""
ID_LENGTH = 36
Codes = npt.NDArray[np.intp]
Check = tuple[str, str, Flags]
"""A field, the code of what may be wrong with it, and the rows in which it is."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The rows of a frame, judged: which are `good`, how many were not and why (by code), and what is wrong with the
    first hundred of those. `routers`: by number, in canonical spelling; `router`, `metric`: of each row, the number of
    its router, -1 where it is none of the project's, and of its metric."""

    frame: Frame
    good: Flags
    reasons: Mapping[str, int]
    errors: list[SampleError]
    routers: Sequence[str]
    router: Codes
    metrics: Sequence[str | None]
    metric: Codes

    @property
    def accepted(self) -> int:
        return self.frame.rows - self.rejected

    @property
    def rejected(self) -> int:
        return sum(self.reasons.values())

    def told(self, row: int) -> tuple[str, str, str]:
        """Router, metric and value of a row, each cut to NAME_SHOWN_MAX characters; "" for what it does not say."""
        frame, value = self.frame, float(self.frame.value[row])
        texts = (_told(frame.router_id, row), _told(frame.metric, row))
        return (*texts, "" if np.isnan(value) else f"{value:.17g}")


def _told(column: Coded, row: int) -> str:
    code = int(column.codes[row])
    return column.texts[code].decode(errors="replace")[:NAME_SHOWN_MAX] if code >= 0 else ""


def frame_routers(frame: Frame) -> set[str]:
    """Every router id that rows name, in canonical spelling, known or not; what is too short or long for one is left
    out. Raises PayloadTooLarge beyond ROUTERS_MAX."""
    found = {text.lower() for text in map(_text, frame.router_id.texts) if text is not None and len(text) == ID_LENGTH}
    if len(found) > ROUTERS_MAX:
        raise PayloadTooLarge(f"A request may name at most {ROUTERS_MAX} routers.")
    return found


def _text(plain: bytes) -> str | None:
    try:
        return plain.decode()
    except UnicodeDecodeError:
        return None


def judge_frame(frame: Frame, bounds: ValidationContext) -> Judged:
    """Each row by itself: the first thing that is wrong with it, in the order of the fields."""
    routers, router = _routers(frame, bounds)
    metrics = [text if text and len(text) <= METRIC_LENGTH_MAX else None for text in map(_text, frame.metric.texts)]
    is_metric = np.array([*(text is not None for text in metrics), False, False])
    checks: list[Check] = [("router_id", "invalid_router_id", router < 0)]
    checks.append(("metric", "invalid_metric", ~is_metric[frame.metric.codes]))
    checks += _times(frame, bounds)
    checks.append(("value", "invalid_value", ~np.isfinite(frame.value)))
    if frame.trace_id is not None:
        checks.append(("trace_id", "invalid_trace_id", frame.trace_id.wrong(TRACE_LENGTH_MAX)))
    if frame.count is not None:
        checks.append(("count", "invalid_count", (frame.count < 1) | (frame.count > COUNT_MAX)))
    if bounds.strict and frame.unknown:
        checks.insert(0, (frame.unknown[0][:NAME_SHOWN_MAX], UNKNOWN_FIELD, np.ones(frame.rows, np.bool_)))
    verdict = np.zeros(frame.rows, np.uint8)
    for number, (_, _, wrong) in reversed(list(enumerate(checks, 1))):
        verdict[wrong] = number
    counts = np.bincount(verdict, minlength=len(checks) + 1).tolist()
    bad = np.flatnonzero(verdict)[:ERRORS_MAX].tolist() if counts[0] < frame.rows else []
    return Judged(
        frame=frame,
        good=verdict == 0,
        reasons={code: n for (_, code, _), n in zip(checks, counts[1:], strict=True) if n},
        errors=[_error(row, checks[verdict[row] - 1], frame, bounds) for row in bad],
        routers=routers,
        router=router,
        metrics=metrics,
        metric=frame.metric.codes,
    )


def _error(row: int, check: Check, frame: Frame, bounds: ValidationContext) -> SampleError:
    field, code, _ = check
    column = frame.router_id
    is_named = bool(column.codes[row] == TOO_LONG) or names_router(_told(column, row))
    return sample_error(row, field, code, is_named, bounds)


def _routers(frame: Frame, bounds: ValidationContext) -> tuple[list[str], Codes]:
    """The project's routers that rows name, and the number of each row's; -1 for what is none."""
    numbers: dict[str, int] = {}
    found = []
    for text in map(_text, frame.router_id.texts):
        name = (text or "").lower()
        found.append(numbers.setdefault(name, len(numbers)) if name in bounds.routers else -1)
    return list(numbers), np.array([*found, -1, -1], np.intp)[frame.router_id.codes]


def _times(frame: Frame, bounds: ValidationContext) -> list[Check]:
    times, has_ts = _filled(frame, bounds)
    early, late = times < bounds.oldest_ms, times > bounds.newest_ms
    checks = [("ts_ms", "ts_ms_too_old", early), ("ts_ms", "ts_ms_in_future", late)]
    if bounds.default_ms is None and has_ts is not None:
        return [("ts_ms", "invalid_ts_ms", ~has_ts), *checks]
    return checks


def _filled(frame: Frame, bounds: ValidationContext) -> tuple[Int64, Flags | None]:
    """Times with what stands for those that are missing, and which are not."""
    default_ms = 0 if bounds.default_ms is None else max(min(bounds.default_ms, (1 << 63) - 1), -(1 << 63))
    if frame.ts_ms is None:
        return np.full(frame.rows, default_ms, np.int64), np.zeros(frame.rows, np.bool_)
    return frame.ts_ms if frame.has_ts is None else np.where(frame.has_ts, frame.ts_ms, default_ms), frame.has_ts


# -- parts


def names_bytes(sent: int) -> int:
    """Bytes that traces and names of metrics may come to in the log, of a body of so many: each row has its own there,
    of which a dictionary sends one."""
    return min(NAMES_BYTES_MAX, max(NAMES_BYTES_ALWAYS, NAMES_EACH * sent))


class Pieces:
    """The good rows of a frame on their way into parts. `pairs`: routers and metrics that have some."""

    def __init__(
        self,
        judged: Judged,
        bounds: ValidationContext,
        splitting: Set[str] = frozenset(),
        with_traces: bool = False,
        names_max: int = NAMES_BYTES_MAX,
    ) -> None:
        """`splitting`, `with_traces`: see `samples.to_parts`. `names_max`: see `names_bytes`."""
        self._judged, self._splitting, self._with_traces = judged, splitting, with_traces
        self.pairs: set[tuple[str, str]] = set()
        self._names_max = self._names_left = names_max
        known = np.flatnonzero(judged.router >= 0)
        metric = np.where(judged.metric < 0, len(judged.metrics), judged.metric)[known]
        router = judged.router[known]
        order = known[_order(router, metric, len(judged.routers), len(judged.metrics) + 1)]
        frame = judged.frame
        self._order, self._good, self._metric = order, judged.good[order], judged.metric[order]
        self._ts_ms, self._value = _filled(frame, bounds)[0][order], frame.value[order]
        self._ok = frame.ok[order]
        self._count = None if frame.count is None else frame.count[order]
        self._ends = np.cumsum(np.bincount(router, minlength=len(judged.routers))).tolist()

    def parts(self, keys: tuple[bytes, ...]) -> list[list[Part]]:
        """The parts: of all routers their first ones, then their second ones, and so on. Raises PayloadTooLarge beyond
        `names_max`."""
        found: list[list[Part]] = []
        start = 0
        for router_id, end in zip(self._judged.routers, self._ends, strict=True):
            for number, first in enumerate(range(start, end, PIECE_ROWS)):
                if number == len(found):
                    found.append([])
                part = self._part(router_id, first, min(first + PIECE_ROWS, end), piece_keys(keys, number))
                if part is not None:
                    found[number].append(part)
            start = end
        return found

    def _part(self, router_id: str, start: int, end: int, keys: tuple[bytes, ...]) -> Part | None:
        rows: Any = slice(start, end)
        good = self._good[rows]
        if not good.all():
            rows = start + np.flatnonzero(good)
        metric = self._metric[rows]
        n = len(metric)
        if not n:
            return None
        begins = np.append(0, np.flatnonzero(metric[1:] != metric[:-1]) + 1)
        names = [self._judged.metrics[code] for code in metric[begins].tolist()]
        metrics = [name for name in names if name is not None]  # of good rows all
        self.pairs.update((router_id, name) for name in metrics)
        self._spend(sum(map(len, metrics)))
        count = None if self._count is None else self._count[rows]
        share, traces = self._traces(router_id, rows)
        payload = encode_samples(
            metrics,
            np.diff(np.append(begins, n)).tolist(),
            self._ts_ms[rows],
            self._value[rows],
            self._ok[rows],
            share,
            traces,
            None if count is None or (count == 1).all() else count,
        )
        return Part(router_id, keys, payload, n)

    def _spend(self, n: int) -> None:
        self._names_left -= n
        if self._names_left < 0:
            raise PayloadTooLarge(f"Traces and metric names come to more than {self._names_max} bytes of the log.")

    def _traces(self, router_id: str, rows: Any) -> tuple[Int64 | None, list[str]]:
        """Hashes of the rows' traces where the router splits, and the traces where the project links to them."""
        column, is_split = self._judged.frame.trace_id, router_id in self._splitting
        if column is None or not (is_split or self._with_traces):
            return None, []
        self._spend(column.size(self._order[rows]))
        traces = column.texts(self._order[rows])
        if not any(traces):
            return None, []
        share = [share_of_trace(trace) if trace else 0 for trace in traces] if is_split else None
        return None if share is None else np.array(share, np.int64), traces if self._with_traces else []


def _order(router: Codes, metric: Codes, routers: int, metrics: int) -> Codes:
    """Rows by router, of each by metric, and of that as they came. Numbers of 16 bits are sorted by counting."""
    if routers * metrics <= 1 << 16:
        return np.argsort((router * metrics + metric).astype(np.uint16), kind="stable")
    return np.lexsort((metric.astype(np.uint32), router.astype(np.uint32)))


def piece_keys(keys: tuple[bytes, ...], number: int) -> tuple[bytes, ...]:
    """The keys of a router's piece of a request; of its first one the request's own."""
    if not number:
        return keys
    mark = number.to_bytes(4, "little")
    return tuple(hashlib.blake2b(key + mark, digest_size=16, person=b"piece").digest() for key in keys)


def rounds(pieces: Sequence[Sequence[Part]]) -> Iterator[list[Part]]:
    """Parts that go together: no two of one router, ROUND_PARTS at most, and ROUND_ROWS samples unless one part has
    more."""
    for parts in pieces:
        found: list[Part] = []
        weight = 0
        for part in parts:
            if found and (weight + part.weight() > ROUND_ROWS or len(found) == ROUND_PARTS):
                yield found
                found, weight = [], 0
            found.append(part)
            weight += part.weight()
        if found:
            yield found
