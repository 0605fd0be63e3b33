"""Stop 4 of a sample's life: bytes of one ingest request to columns per router, or one error per bad sample.

Two ways to the same answer. The fast one decodes into typed structs and gives up at the first thing that isn't right;
the slow one reads each sample alone and names what is wrong with it (semantics.md section 6). A property test keeps
them equal. How bytes are decoded within bounds is api/wire/decoding.py's business.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set

import msgspec
import numpy as np
from msgspec import Raw

from api.auth import uuid_or_none
from api.wire.decoding import (
    METRIC_LENGTH_MAX,
    TAGS_MAX,
    TRACE_LENGTH_MAX,
    Loose,
    MetricSample,
    Texts,
    are_tags,
    decode_typed,
    text_of,
)
from api.wire.responses import SampleError
from breaker_actors.core.log_entries import counted, encode_samples, shares_of
from breaker_actors.core.model import COUNT_MAX, Counts, Int64
from breaker_actors.messages import Part

ERRORS_MAX = 100
UNKNOWN_FIELD = "unknown_field"
NAME_SHOWN_MAX = 64
SLICE = 50
"""Samples judged one by one at a time: about half a millisecond."""
SENTENCES = {
    "invalid_router_id": "router_id is missing, or not the id of a router here; the id of a breaker is none.",
    "invalid_metric": f"metric must be text of 1 to {METRIC_LENGTH_MAX} characters.",
    "invalid_ts_ms": "ts_ms must be an integer, Unix milliseconds; left out, X-EB-Timestamp must say the time.",
    "ts_ms_too_old": "ts_ms is more than {0.age_ms} ms old (BREAKERS_MAX_SAMPLE_AGE_MS): is it in milliseconds?"
    " Old samples are loaded by `breakers backfill`.",
    "ts_ms_in_future": "ts_ms is further ahead than BREAKERS_MAX_SAMPLE_AHEAD_MS allows; is it in milliseconds?",
    "invalid_value": "value must be a finite number.",
    "invalid_ok": "ok must be true or false.",
    "invalid_tags": f"tags must be an object of at most {TAGS_MAX} strings.",
    "invalid_trace_id": f"trace_id must be text of at most {TRACE_LENGTH_MAX} characters.",
    "invalid_count": f"count must be a whole number from 1 to {COUNT_MAX}: how often the value was observed.",
    UNKNOWN_FIELD: "A sample has no such field, and the caller is strict.",
}
"""What is wrong with a sample, by its code."""
NO_ID = "router_id must be a router's id, a uuid: names count in OTLP, Prometheus and StatsD alone."
"""The sentence of invalid_router_id where the text is no id at all."""
_INT64_SAFE = 1 << 62
_INTEGER = re.compile(rb"(?=.{1,400}\Z)-?[0-9]+\Z")
"""Integers of more characters are beyond every float; Python would refuse to read the longest of them."""


class ValidationContext(msgspec.Struct, frozen=True):
    """What decides about a sample besides itself: the project's routers, the span of good times, a missing ts_ms, and
    whether unknown fields are refused."""

    routers: Mapping[str, bool]
    oldest_ms: int
    newest_ms: int
    default_ms: int | None = None
    strict: bool = False
    age_ms: int = 0
    """How old a sample may be."""

    @classmethod
    def at(
        cls,
        now_ms: int,
        age_ms: int,
        ahead_ms: int,
        routers: Mapping[str, bool],
        default_ms: int | None,
        strict: bool = False,
    ) -> ValidationContext:
        """What holds at an instant, kept within what a column can hold."""
        oldest_ms, newest_ms = max(now_ms - age_ms, -_INT64_SAFE), min(now_ms + ahead_ms, _INT64_SAFE)
        return cls(routers, oldest_ms, newest_ms, default_ms, strict, age_ms)


class Columns:
    """Good samples, one list per field, in request order."""

    __slots__ = ("count", "metric", "ok", "router_id", "trace_id", "ts_ms", "value")

    def __init__(self) -> None:
        self.router_id: list[str] = []
        self.metric: list[str] = []
        self.ts_ms: list[int] = []
        self.value: list[float] = []
        self.ok: list[bool] = []
        self.trace_id: list[str | None] = []
        self.count: list[int | None] = []

    def __len__(self) -> int:
        return len(self.ts_ms)

    def add(
        self,
        router_id: str,
        metric: str,
        ts_ms: int,
        value: float,
        ok: bool,
        trace_id: str | None,
        count: int | None = None,
    ) -> None:
        self.router_id.append(router_id)
        self.metric.append(metric)
        self.ts_ms.append(ts_ms)
        self.value.append(value)
        self.ok.append(ok)
        self.trace_id.append(trace_id)
        self.count.append(count)


class Validated(msgspec.Struct, frozen=True):
    """The good samples, how many were not and why (by code), and what was wrong with the first hundred of those."""

    good: Columns
    reasons: Mapping[str, int]
    errors: list[SampleError]

    @property
    def accepted(self) -> int:
        return len(self.good)

    @property
    def rejected(self) -> int:
        return sum(self.reasons.values())


class Request:
    """The samples of one request, decoded but not yet judged."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._typed = decode_typed(body)
        self._texts = None if self._typed is not None else Texts(body)

    def __len__(self) -> int:
        return len(self._typed if self._typed is not None else self._texts.samples if self._texts else ())

    def router_ids(self) -> set[str]:
        """Every router id the samples name, in canonical spelling, known or not."""
        if self._typed is not None:
            return {name.lower() for name in {sample.router_id for sample in self._typed}}
        return router_ids(self._texts) if self._texts else set()

    def validate(self, bounds: ValidationContext) -> Validated:
        """The good samples as columns, and the errors of the others."""
        return _last(self.validating(bounds))

    def validating(self, bounds: ValidationContext) -> Iterator[Validated | None]:
        """The same in steps of at most SLICE samples that have to be judged one by one; None before each of several
        steps, and the result in the end."""
        if self._typed is not None and not bounds.strict:
            if (good := _all_good(self._typed, bounds)) is not None:
                yield Validated(good, {}, [])
                return
        self._texts = self._texts or Texts(self._body)
        yield from _judging(self._texts, bounds)

    def told(self, index: int) -> tuple[str, str, str]:
        """Router, metric and value of a sample that was judged by itself, as it says them, each cut to NAME_SHOWN_MAX
        characters; "" for what it does not say."""
        fields = self._texts.loose(index) if self._texts is not None else None
        return ("", "", "") if fields is None else (_told(fields.router_id), _told(fields.metric), _told(fields.value))


def _told(text: Raw) -> str:
    """JSON text for people, of which little is looked at."""
    begin = bytes(memoryview(text)[: 6 * NAME_SHOWN_MAX])
    plain = text_of(Raw(begin))
    return (begin.decode(errors="replace") if plain is None else plain)[:NAME_SHOWN_MAX]


def router_ids(texts: Texts) -> set[str]:
    """The router ids of the samples that have one."""
    found = (texts.loose(index) for index in range(len(texts.samples)))
    ids = {bytes(fields.router_id) for fields in found if fields is not None}
    return {name.lower() for name in (text_of(Raw(text)) for text in ids) if name is not None}


def _all_good(samples: Sequence[MetricSample], bounds: ValidationContext) -> Columns | None:
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
    good.count = [sample.count for sample in samples]
    return good if len(good.ts_ms) == len(samples) else None


def judge(texts: Texts, bounds: ValidationContext) -> Validated:
    """Each sample by itself."""
    return _last(_judging(texts, bounds))


def _last(steps: Iterator[Validated | None]) -> Validated:
    return next(result for result in steps if result is not None)


def _judging(texts: Texts, bounds: ValidationContext) -> Iterator[Validated | None]:
    good, reasons = Columns(), Counter[str]()
    errors: list[SampleError] = []
    for index in range(len(texts.samples)):
        if index % SLICE == 0 and len(texts.samples) > SLICE:
            yield None
        sample = texts.typed(index)
        if bounds.strict and (name := texts.unknown(index)) is not None:
            wrong: tuple[str, str] | None = (name[:NAME_SHOWN_MAX], UNKNOWN_FIELD)
        else:
            wrong = _judge_typed(sample, bounds, good) if sample else _judge_loose(texts.loose(index), bounds, good)
        if wrong is None:
            continue
        field, code = wrong
        reasons[code] += 1
        if len(errors) < ERRORS_MAX:
            is_named = names_router(_router_told(sample or texts.loose(index)))
            errors.append(sample_error(index, field, code, is_named, bounds))
    yield Validated(good, reasons, errors)


def _router_told(sample: MetricSample | Loose | None) -> str:
    """The router id as a sample says it; "" for none and for what is no text."""
    if sample is None or isinstance(sample, MetricSample):
        return sample.router_id if sample else ""
    return text_of(sample.router_id) or ""


def names_router(router_id: str) -> bool:
    """Whether a sample says of its router what can't be an id; "" is nothing."""
    return bool(router_id) and uuid_or_none(router_id) is None


def sample_error(index: int, field: str, code: str, is_named: bool, bounds: ValidationContext) -> SampleError:
    """What is wrong with a sample, in a sentence. `is_named`: see `names_router`."""
    words = NO_ID if is_named and code == "invalid_router_id" else SENTENCES[code].format(bounds)
    return SampleError(index, field, code, words)


def _judge_typed(sample: MetricSample, bounds: ValidationContext, good: Columns) -> tuple[str, str] | None:
    """Adds a good sample to the columns; of a bad one the first wrong field and its code."""
    router_id = sample.router_id.lower()
    if router_id not in bounds.routers:
        return "router_id", "invalid_router_id"
    ts_ms = bounds.default_ms if sample.ts_ms is None else sample.ts_ms
    if ts_ms is None:
        return "ts_ms", "invalid_ts_ms"
    if wrong := _wrong_time(ts_ms, bounds):
        return "ts_ms", wrong
    good.add(router_id, sample.metric, ts_ms, sample.value, sample.ok, sample.trace_id, sample.count)
    return None


def _judge_loose(sample: Loose | None, bounds: ValidationContext, good: Columns) -> tuple[str, str] | None:
    """The same for a sample that is not of the right shape, or might be."""
    router_id = (text_of(sample.router_id) or "").lower() if sample else ""
    if sample is None or router_id not in bounds.routers:
        return "router_id", "invalid_router_id"
    metric = text_of(sample.metric)
    if metric is None or not 0 < len(metric) <= METRIC_LENGTH_MAX:
        return "metric", "invalid_metric"
    ts_ms = _read_time(bytes(sample.ts_ms), bounds)
    if isinstance(ts_ms, str):
        return "ts_ms", ts_ms
    value = _read_number(bytes(sample.value))
    if value is None:
        return "value", "invalid_value"
    ok = bytes(sample.ok) or b"true"
    if ok not in (b"true", b"false"):
        return "ok", "invalid_ok"
    if not are_tags(bytes(sample.tags)):
        return "tags", "invalid_tags"
    is_traced = bytes(sample.trace_id) not in (b"", b"null")
    trace_id = text_of(sample.trace_id) if is_traced else None
    if is_traced and (trace_id is None or len(trace_id) > TRACE_LENGTH_MAX):
        return "trace_id", "invalid_trace_id"
    count = _read_count(bytes(sample.count))
    if count == 0:
        return "count", "invalid_count"
    good.add(router_id, metric, ts_ms, value, ok == b"true", trace_id, count)
    return None


def _read_count(text: bytes) -> int | None:
    """How many observations; None where nothing is said, 0 where it is no such number."""
    if text in (b"", b"null"):
        return None
    count = int(text) if _INTEGER.match(text) else 0
    return count if 1 <= count <= COUNT_MAX else 0


def _read_time(text: bytes, bounds: ValidationContext) -> int | str:
    """A time within the bounds, or what is wrong with it."""
    if text in (b"", b"null"):
        ts_ms = bounds.default_ms
    else:
        ts_ms = int(text) if _INTEGER.match(text) else None
    if ts_ms is None:
        return "invalid_ts_ms"
    return _wrong_time(ts_ms, bounds) or ts_ms


def _wrong_time(ts_ms: int, bounds: ValidationContext) -> str | None:
    if ts_ms < bounds.oldest_ms:
        return "ts_ms_too_old"
    return "ts_ms_in_future" if ts_ms > bounds.newest_ms else None


def _read_number(text: bytes) -> float | None:
    """A number as a float, or None when it is none or beyond what a float holds."""
    if text[:1] not in _NUMERIC:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


_NUMERIC = frozenset(bytes([code]) for code in b"-0123456789")


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
        count = _counts(good, order[rows]) if any(good.count) else None
        payload = encode_samples(list(metrics), sizes, ts_ms[rows], value[rows], ok[rows], share, traces, count)
        parts.append(Part(router_id, keys, payload, n))
        start += n
    return parts


def _shares(good: Columns, rows: Int64) -> Int64 | None:
    """Hashes of the rows' traces, 0 for none; None when no row has one."""
    return shares_of([good.trace_id[row] for row in rows.tolist()])


def _counts(good: Columns, rows: Int64) -> Counts:
    """How many observations the rows stand for; None where each stands for one."""
    return counted(np.array([good.count[row] or 1 for row in rows.tolist()], np.int64))


def _traces(good: Columns, rows: Int64) -> list[str]:
    """The rows' traces, "" for none; empty when no row has one."""
    traces = [good.trace_id[row] or "" for row in rows.tolist()]
    return traces if any(traces) else []


def duplicate_keys(
    signature: str | None,
    idempotency_key: str | None,
    timestamp: str | None,
    raw: bytes,
    body: bytes | bytearray,
) -> tuple[bytes, ...]:
    """What makes a repeated request recognisable; nothing when nothing does.

    The signature of a signed project, and the caller's Idempotency-Key with the body after gzip, then the key alone,
    by which another body under it is found out; without both the timestamp header with the body as sent, which a
    client sends alike on every retry. A retry that is signed anew is known by its key, one that was caught on its way
    and comes without the key by its signature.
    """
    named = (_blake(b"signature", signature.encode()),) if signature else ()
    if idempotency_key:
        key = idempotency_key.encode()
        return *named, _blake(b"idempotency", key + b"\0" + body), _blake(b"key", key)
    if named:
        return named
    return (_blake(b"timestamp", timestamp.encode() + b"\0" + raw),) if timestamp else ()


def _blake(kind: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16, person=kind).digest()
