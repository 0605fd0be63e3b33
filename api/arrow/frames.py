"""Plain bytes of an Arrow stream to columns of samples, not yet judged. A column has the rows of all batches; a value
that is null counts as not given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from api.arrow.bounds import ENTRIES_MAX, ROWS_MAX
from api.arrow.buffers import Batch, Budget
from api.arrow.flatbuffer import Table, broken
from api.arrow.messages import DICTIONARY, SCHEMA, Message, messages
from api.arrow.schema import TIMESTAMP, Field, Schema, read_schema
from api.arrow.texts import ABSENT, Coded, Codes, Pool, Strings, Traced, coded
from breaker_actors.core.model import Flags, Float64, Int64
from breaker_actors.errors import PayloadTooLarge

_INT64_MAX = (1 << 63) - 1
_TO_MS = {"": 1, "s": -1000, "ms": 1, "us": 1000, "ns": 1_000_000}
"""What a unit of time is divided by for milliseconds; negative: multiplied."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows of a request. What is null is NaN as a value, true as an `ok`, 1 as a count, and not in `has_ts` as a
    time (None: all are there). A missing column is None, but `ok`, which is true then. `unknown`: other columns."""

    rows: int
    router_id: Coded
    metric: Coded
    ts_ms: Int64 | None
    has_ts: Flags | None
    value: Float64
    ok: Flags
    says_ok: bool
    trace_id: Traced | None
    count: Int64 | None
    unknown: list[str]


def read_frame(plain: bytes | bytearray, bytes_max: int) -> Frame:
    """Raises BadRequest for what is no Arrow stream, Invalid for a schema that is not one of samples, PayloadTooLarge
    beyond a bound; `bytes_max`: of all buffers that are compressed, and of all texts that share bytes."""
    reader: _Reader | None = None
    for message in messages(memoryview(plain)):
        if message.kind == SCHEMA:
            reader = _Reader(read_schema(message.header), Budget(bytes_max))
        else:
            assert reader is not None, "the schema comes first"
            reader.take(message)
    assert reader is not None, "there is a schema"
    return reader.frame()


class _Texts:
    """A column of texts on its way: rows of a pool. Those of a dictionary come with it, others a batch at a time."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._rows: list[Codes] = []

    def add(self, rows: Codes) -> None:
        self._rows.append(rows)

    def rows(self) -> Codes:
        return np.concatenate([np.empty(0, np.intp), *self._rows])

    def coded(self) -> Coded:
        found = coded(self.pool.strings())
        codes = np.append(found.codes, ABSENT)
        return Coded(codes[self.rows()], found.texts)


class _Dictionary:
    """A dictionary as it is now: a stretch of a pool that has all it ever was."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.pool = Pool()
        self.start: int | None = None

    def set(self, strings: Strings, is_delta: bool) -> None:
        at = self.pool.add(strings)
        if not is_delta or self.start is None:
            self.start = at


class _Reader:
    """Takes the batches of a stream one after the other."""

    def __init__(self, schema: Schema, budget: Budget) -> None:
        self._schema, self._budget = schema, budget
        self._dictionaries: dict[int, _Dictionary] = {}
        self._texts: dict[str, _Texts] = {}
        self._columns: dict[str, list[tuple[npt.NDArray[Any], Flags | None]]] = {}
        self._rows = self._entries = 0
        for field in schema.wanted.values():
            self._prepare(field)

    def _prepare(self, field: Field) -> None:
        if field.dictionary is not None:
            known = self._dictionaries.setdefault(field.dictionary[0], _Dictionary(field.kind))
            if known.kind != field.kind:
                raise broken("two columns have one dictionary, of different types.", "schema")
            self._texts[field.name] = _Texts(known.pool)
        elif field.name in ("router_id", "metric", "trace_id"):
            self._texts[field.name] = _Texts(Pool())
        else:
            self._columns[field.name] = []

    def take(self, message: Message) -> None:
        if message.kind == DICTIONARY:
            self._take_dictionary(message)
            return
        batch = Batch(message.header, message.body, self._budget)
        self._rows += batch.rows
        if self._rows > ROWS_MAX:
            words = f"A request may hold at most {ROWS_MAX} samples as an Arrow stream."
            raise PayloadTooLarge(words, {"where": batch.where})
        for field in self._schema.fields:
            if self._schema.wanted.get(field.name) is not field:
                batch.skip(field.stored)
            elif field.name in self._texts:
                self._take_texts(field, batch)
            else:
                self._columns[field.name].append(self._taken(field, batch))
        batch.end()

    def _take_dictionary(self, message: Message) -> None:
        table: Table = message.header
        dictionary = self._dictionaries.get(table.int64(0))
        if dictionary is None:
            return  # of a column that is passed over
        batch = Batch(table.needed(1), message.body, self._budget)
        self._entries += batch.rows
        if self._entries > ENTRIES_MAX:
            words = f"Dictionaries of an Arrow stream have at most {ENTRIES_MAX} entries together."
            raise PayloadTooLarge(words, {"where": batch.where})
        dictionary.set(batch.texts(dictionary.kind), bool(table.int8(2)))
        batch.end()

    def _take_texts(self, field: Field, batch: Batch) -> None:
        column = self._texts[field.name]
        if field.dictionary is None:
            if batch.nothing(field.kind):
                column.add(np.full(batch.rows, ABSENT, np.intp))
                return
            strings = batch.texts(field.kind)
            column.add(_rows_of(column.pool.add(strings), strings))
            return
        number, index = field.dictionary
        indices, valid = batch.numbers(index)
        dictionary = self._dictionaries[number]
        size = 0 if dictionary.start is None else len(dictionary.pool) - dictionary.start
        wrong = (indices < 0) | (indices >= size)
        if (wrong if valid is None else wrong & valid).any():
            raise broken(f"column {field.name} points outside of its dictionary.", batch.where)
        rows = indices.astype(np.intp) + (dictionary.start or 0)
        column.add(rows if valid is None else np.where(valid, rows, ABSENT))

    def _taken(self, field: Field, batch: Batch) -> tuple[npt.NDArray[Any], Flags | None]:
        if batch.nothing(field.kind):
            absent = np.zeros(batch.rows, np.bool_)
            return absent, absent
        return batch.flags() if field.name == "ok" else batch.numbers(field.kind)

    # -- all of it

    def frame(self) -> Frame:
        ts_ms, has_ts = self._joined("ts_ms")
        ok, has_ok = self._joined("ok")
        return Frame(
            rows=self._rows,
            router_id=self._texts["router_id"].coded(),
            metric=self._texts["metric"].coded(),
            ts_ms=None if ts_ms is None else _milliseconds(ts_ms, self._schema.wanted["ts_ms"]),
            has_ts=has_ts,
            value=self._values(),
            ok=np.ones(self._rows, np.bool_) if ok is None else ok if has_ok is None else ok | ~has_ok,
            says_ok=ok is not None,
            trace_id=self._traces(),
            count=self._counts(),
            unknown=self._schema.unknown,
        )

    def _joined(self, name: str) -> tuple[npt.NDArray[Any] | None, Flags | None]:
        """A column of all batches, and which of its values are there."""
        parts = self._columns.get(name)
        if parts is None:
            return None, None
        if not parts:
            return np.empty(0, np.bool_ if name == "ok" else np.int64), None
        values = np.concatenate([values for values, _ in parts])
        if all(valid is None for _, valid in parts):
            return values, None
        return values, np.concatenate([np.ones(len(v), np.bool_) if valid is None else valid for v, valid in parts])

    def _values(self) -> Float64:
        values, valid = self._joined("value")
        assert values is not None, "a schema without it is refused"
        found = values.astype(np.float64)
        return found if valid is None else np.where(valid, found, np.nan)

    def _counts(self) -> Int64 | None:
        counts, valid = self._joined("count")
        if counts is None:
            return None
        return _int64(counts) if valid is None else np.where(valid, _int64(counts), 1)

    def _traces(self) -> Traced | None:
        column = self._texts.get("trace_id")
        if column is None or not len(column.pool):
            return None
        strings, rows = column.pool.strings(), column.rows()
        if strings.valid is not None:
            rows = np.where(np.append(strings.valid, False)[rows], rows, ABSENT)
        return Traced(rows, strings)


def _rows_of(start: int, strings: Strings) -> Codes:
    return np.arange(start, start + len(strings.starts), dtype=np.intp)


def _int64(values: npt.NDArray[Any]) -> Int64:
    """Integers that are too large for 64 bits with a sign are as large as can be."""
    if values.dtype == np.uint64:
        values = np.minimum(values, np.uint64(_INT64_MAX))
    return values.astype(np.int64)


def _milliseconds(values: npt.NDArray[Any], field: Field) -> Int64:
    """Times before or after every time that is taken stay so."""
    factor = _TO_MS[field.kind.unit] if field.kind.type == TIMESTAMP else 1
    times = _int64(values)
    if factor < 0:
        most = _INT64_MAX // -factor
        return np.clip(times, -most, most) * -factor
    return times if factor == 1 else times // factor
