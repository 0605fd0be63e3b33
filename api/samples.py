"""Stop 4 of a sample's life: bytes of one ingest request to columns per router, or one error per bad sample.

Two ways to the same answer. The fast one decodes into typed structs and gives up at the first thing that isn't right;
the slow one reads each sample alone and names what is wrong with it (semantics.md section 6). A property test keeps
them equal.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Set
from typing import Annotated, Any

import msgspec
import numpy as np

from breaker_actors.core.model import Int64
from breaker_actors.core.records import encode_samples, share_of_trace
from breaker_actors.errors import BadRequest, PayloadTooLarge
from breaker_actors.messages import Part

SAMPLES_MAX = 1000
ERRORS_MAX = 100
GZIP_MEMBERS_MAX = 16
METRIC_LENGTH_MAX = 128
TAGS_MAX = 32
TRACE_LENGTH_MAX = 1024
_INT64_SAFE = 1 << 62
_DIGITS_MAX = 400
"""Integers of more digits are beyond every float; Python would refuse to read the longest of them."""


class Sample(msgspec.Struct, gc=False):
    """One well-formed sample; tags are checked and not kept, a trace_id only where a router splits by it."""

    router_id: str
    metric: Annotated[str, msgspec.Meta(min_length=1, max_length=METRIC_LENGTH_MAX)]
    value: float
    ts_ms: int | None = None
    ok: bool = True
    tags: Annotated[dict[str, str], msgspec.Meta(max_length=TAGS_MAX)] | None = None
    trace_id: Annotated[str, msgspec.Meta(max_length=TRACE_LENGTH_MAX)] | None = None


class Envelope(msgspec.Struct, gc=False):
    samples: list[Sample]


class SampleError(msgspec.Struct, frozen=True):
    """What is wrong with the sample at `index` of the request: the first of its fields that isn't right."""

    index: int
    field: str
    code: str


class Bounds(msgspec.Struct, frozen=True):
    """What decides about a sample besides itself: the project's routers, the span of good times, a missing ts_ms."""

    routers: Mapping[str, bool]
    oldest_ms: int
    newest_ms: int
    default_ms: int | None = None

    @classmethod
    def at(cls, now_ms: int, age_ms: int, ahead_ms: int, routers: Mapping[str, bool], default_ms: int | None) -> Bounds:
        """Bounds at an instant, kept within what a column can hold."""
        return cls(routers, max(now_ms - age_ms, -_INT64_SAFE), min(now_ms + ahead_ms, _INT64_SAFE), default_ms)


class Columns:
    """Good samples, one list per field, in request order."""

    __slots__ = ("metric", "ok", "router_id", "trace_id", "ts_ms", "value")

    def __init__(self) -> None:
        self.router_id: list[str] = []
        self.metric: list[str] = []
        self.ts_ms: list[int] = []
        self.value: list[float] = []
        self.ok: list[bool] = []
        self.trace_id: list[str | None] = []

    def __len__(self) -> int:
        return len(self.ts_ms)

    def add(self, router_id: str, metric: str, ts_ms: int, value: float, ok: bool, trace_id: str | None) -> None:
        self.router_id.append(router_id)
        self.metric.append(metric)
        self.ts_ms.append(ts_ms)
        self.value.append(value)
        self.ok.append(ok)
        self.trace_id.append(trace_id)


class Sorted(msgspec.Struct, frozen=True):
    """The good samples, how many were not and why (by code), and what was wrong with the first hundred of those."""

    good: Columns
    reasons: Mapping[str, int]
    errors: list[SampleError]

    @property
    def rejected(self) -> int:
        return sum(self.reasons.values())


def inflate(body: bytes, encoding: str | None, bytes_max: int) -> bytes:
    """The body without its gzip coat, never more than `bytes_max` of it."""
    word = (encoding or "").strip().lower()
    if word in ("", "identity"):
        return body
    if word not in ("gzip", "x-gzip"):
        raise BadRequest(f"Content-Encoding {word[:40]!r} is not supported.")
    plain = bytearray()
    members = 0
    while body:
        # Each member costs a copy of the rest, so a body of nothing but empty members must not get far.
        if (members := members + 1) > GZIP_MEMBERS_MAX:
            raise BadRequest("The gzip body has too many members.")
        member = zlib.decompressobj(wbits=31)
        try:
            plain += member.decompress(body, bytes_max + 1 - len(plain))
        except zlib.error:
            raise BadRequest("The body is not valid gzip.") from None
        if len(plain) > bytes_max:
            raise PayloadTooLarge("The body is too large after gzip.")
        if not member.eof:
            raise BadRequest("The gzip body ends early.")
        body = member.unused_data
    return bytes(plain)


class Request:
    """The samples of one request, decoded but not yet judged."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._typed = _decode_typed(body)
        self._loose = None if self._typed is not None else _decode_loose(body)
        if len(self) > SAMPLES_MAX:
            raise PayloadTooLarge(f"A request may hold at most {SAMPLES_MAX} samples.")

    def __len__(self) -> int:
        return len(self._typed if self._typed is not None else self._loose or ())

    def router_ids(self) -> set[str]:
        """Every router id the samples name, in canonical spelling, known or not."""
        if self._typed is not None:
            return {name.lower() for name in {sample.router_id for sample in self._typed}}
        ids = (sample.get("router_id") for sample in self._loose or () if isinstance(sample, dict))
        return {name.lower() for name in ids if isinstance(name, str)}

    def sort(self, bounds: Bounds) -> Sorted:
        """The good samples as columns, and the errors of the others."""
        if self._typed is not None:
            if (good := _all_good(self._typed, bounds)) is not None:
                return Sorted(good, {}, [])
            self._loose = _decode_loose(self._body)
        return _judge(self._loose or [], bounds)


_typed_decoder = msgspec.json.Decoder(Envelope | list[Sample])


def _decode_typed(body: bytes) -> list[Sample] | None:
    """The fast way: all samples, or None as soon as one isn't of the right shape."""
    try:
        body.decode()
        decoded = _typed_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return decoded.samples if isinstance(decoded, Envelope) else decoded


def _decode_loose(body: bytes) -> list[Any]:
    """The slow way: the standard parser also reads NaN and Infinity, which spoil one sample, not the request."""
    try:
        decoded = json.loads(body.decode(), parse_int=_read_int)
    except (ValueError, RecursionError):
        raise BadRequest("The body is not valid JSON.") from None
    samples = decoded.get("samples") if isinstance(decoded, dict) else decoded
    if not isinstance(samples, list):
        raise BadRequest("The body must be a list of samples or an object with a list `samples`.")
    return samples


def _read_int(digits: str) -> int | float:
    return int(digits) if len(digits) <= _DIGITS_MAX else float(digits)


def _all_good(samples: list[Sample], bounds: Bounds) -> Columns | None:
    """Columns of samples of the right shape, or None when one of them isn't acceptable."""
    names = {name: name.lower() for name in {sample.router_id for sample in samples}}
    if not bounds.routers.keys() >= set(names.values()):
        return None
    good = Columns()
    good.router_id = [names[sample.router_id] for sample in samples]
    good.metric = [sample.metric for sample in samples]
    times = [bounds.default_ms if sample.ts_ms is None else sample.ts_ms for sample in samples]
    good.ts_ms = [time for time in times if time is not None and bounds.oldest_ms <= time <= bounds.newest_ms]
    good.value = [sample.value for sample in samples]
    good.ok = [sample.ok for sample in samples]
    good.trace_id = [sample.trace_id for sample in samples]
    return good if len(good.ts_ms) == len(samples) else None


def _judge(samples: list[Any], bounds: Bounds) -> Sorted:
    good, reasons = Columns(), Counter[str]()
    errors: list[SampleError] = []
    for index, sample in enumerate(samples):
        wrong = _judge_one(sample, bounds, good)
        if wrong is None:
            continue
        field, code = wrong
        reasons[code] += 1
        if len(errors) < ERRORS_MAX:
            errors.append(SampleError(index, field, code))
    return Sorted(good, reasons, errors)


def _judge_one(sample: Any, bounds: Bounds, good: Columns) -> tuple[str, str] | None:
    """Adds a good sample to the columns; of a bad one the first wrong field and its code."""
    if not isinstance(sample, dict):
        return "router_id", "invalid_router_id"
    router_id, metric = sample.get("router_id"), sample.get("metric")
    if not isinstance(router_id, str) or router_id.lower() not in bounds.routers:
        return "router_id", "invalid_router_id"
    if not isinstance(metric, str) or not _is_text(metric) or not 0 < len(metric) <= METRIC_LENGTH_MAX:
        return "metric", "invalid_metric"
    ts_ms: Any = bounds.default_ms if sample.get("ts_ms") is None else sample["ts_ms"]
    if wrong := _wrong_time(ts_ms, bounds):
        return "ts_ms", wrong
    value = _finite(sample.get("value"))
    if value is None:
        return "value", "invalid_value"
    ok = sample.get("ok", True)
    if not isinstance(ok, bool):
        return "ok", "invalid_ok"
    if not _are_tags(sample.get("tags")):
        return "tags", "invalid_tags"
    trace_id = sample.get("trace_id")
    if trace_id is not None and (not _is_text(trace_id) or len(trace_id) > TRACE_LENGTH_MAX):
        return "trace_id", "invalid_trace_id"
    good.add(router_id.lower(), metric, ts_ms, value, ok, trace_id)
    return None


def _wrong_time(ts_ms: Any, bounds: Bounds) -> str | None:
    if not isinstance(ts_ms, int) or isinstance(ts_ms, bool):
        return "invalid_ts_ms"
    if ts_ms < bounds.oldest_ms:
        return "ts_ms_too_old"
    return "ts_ms_in_future" if ts_ms > bounds.newest_ms else None


def _finite(value: Any) -> float | None:
    """A number as a float, or None when it is none or beyond what a float holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _is_text(value: Any) -> bool:
    """A string that can be written as UTF-8: JSON escapes can spell half a character."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _are_tags(tags: Any) -> bool:
    if tags is None:
        return True
    if not isinstance(tags, dict) or len(tags) > TAGS_MAX:
        return False
    return all(_is_text(key) and _is_text(value) for key, value in tags.items())


def to_parts(
    good: Columns, keys: tuple[bytes, ...], splitting: Set[str] = frozenset(), with_traces: bool = False
) -> list[Part]:
    """One Part per router, its rows grouped by metric, in request order within a metric.

    `splitting`: routers that give a breaker only a share of the samples; theirs carry a hash of the trace_id.
    `with_traces`: the project links to traces, so the ids themselves go along. At most SAMPLES_MAX samples.
    """
    codes: dict[tuple[str, str], int] = {}
    coded = [codes.setdefault(pair, len(codes)) for pair in zip(good.router_id, good.metric, strict=True)]
    routers: dict[str, dict[str, int]] = {}
    for (router_id, metric), code in codes.items():
        routers.setdefault(router_id, {})[metric] = code
    # Groups get places in the order of their routers, so that the rows of each router are one stretch.
    place = np.argsort([code for metrics in routers.values() for code in metrics.values()])
    placed = place.astype(np.uint16)[coded]  # 16 bits are sorted by counting
    order = np.argsort(placed, kind="stable")
    counts = np.bincount(placed).tolist()
    ts_ms, value = np.array(good.ts_ms, np.int64)[order], np.array(good.value, np.float64)[order]
    ok = np.array(good.ok, np.bool_)[order]
    parts, start = [], 0
    for router_id, metrics in routers.items():
        sizes, counts = counts[: len(metrics)], counts[len(metrics) :]
        n = sum(sizes)
        rows = slice(start, start + n)
        share = _shares(good, order[rows]) if router_id in splitting else None
        traces = _traces(good, order[rows]) if with_traces else []
        payload = encode_samples(list(metrics), sizes, ts_ms[rows], value[rows], ok[rows], share, traces)
        parts.append(Part(router_id, keys, payload, n))
        start += n
    return parts


def _shares(good: Columns, rows: Int64) -> Int64 | None:
    """Hashes of the rows' traces, 0 for none; None when no row has one."""
    traces = [good.trace_id[row] for row in rows.tolist()]
    return np.array([share_of_trace(t) if t else 0 for t in traces], np.int64) if any(traces) else None


def _traces(good: Columns, rows: Int64) -> list[str]:
    """The rows' traces, "" for none; empty when no row has one."""
    traces = [good.trace_id[row] or "" for row in rows.tolist()]
    return traces if any(traces) else []


def duplicate_key(
    signature: str | None, idempotency_key: str | None, timestamp: str | None, body: bytes
) -> bytes | None:
    """What makes a repeated request recognisable, or None when nothing does.

    The signature of a signed project; else the caller's Idempotency-Key; else the timestamp header with the body, which
    a client sends alike on every retry.
    """
    if signature:
        return _blake(b"signature", signature.encode())
    if idempotency_key:
        return _blake(b"idempotency", idempotency_key.encode())
    return _blake(b"timestamp", timestamp.encode() + b"\0" + body) if timestamp else None


def _blake(kind: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16, person=kind).digest()
