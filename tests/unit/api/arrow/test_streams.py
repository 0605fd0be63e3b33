"""What writers of Arrow streams write, and which columns are taken."""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from api.arrow.bounds import ROWS_MAX
from api.arrow.frames import Frame, read_frame
from api.arrow.texts import Coded
from breaker_actors.errors import BadRequest, BreakersError, Invalid, PayloadTooLarge
from tests.support.arrow_streams import coded, in_batches, of_polars, of_pyarrow

BYTES_MAX = 1 << 24
AT = dt.datetime(2026, 11, 21, 6, 30, 0, 123_999, tzinfo=dt.UTC)
AT_MS = 1_795_242_600_123
ROW: dict[str, Any] = {
    "router_id": ["r", "q", "r"],
    "metric": ["m", "n", "a longer name of it"],
    "value": [1.5, 2.0, 3.0],
}


def read(body: bytes) -> Frame:
    return read_frame(body, BYTES_MAX)


def texts(column: Coded) -> list[str | None]:
    return [column.texts[code].decode() if code >= 0 else None for code in column.codes.tolist()]


def frame_of(**columns: Any) -> Frame:
    return read(of_pyarrow(pa.table(ROW | columns)))


@pytest.mark.parametrize("level", [pl.CompatLevel.oldest(), pl.CompatLevel.newest()], ids=["oldest", "newest"])
@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
@pytest.mark.parametrize("kind", [pl.String, pl.Categorical, pl.Enum(["r", "q"])], ids=["text", "categorical", "enum"])
def test_polars(level: Any, compression: str, kind: Any) -> None:
    columns = ROW | {"ts_ms": [AT, AT, None], "ok": [True, None, False], "count": [None, 2, 3], "trace_id": [None] * 3}
    frame = pl.DataFrame(columns).with_columns(pl.col("router_id").cast(kind))
    frame = pl.concat([frame, frame.slice(1, 2)], rechunk=False)
    found = read(of_polars(frame, compression=compression, compat_level=level))
    assert texts(found.router_id) == ["r", "q", "r", "q", "r"]
    assert texts(found.metric) == frame["metric"].to_list()
    assert found.value.tolist() == frame["value"].to_list()
    assert found.ok.tolist() == [True, True, False, True, False]
    assert found.ts_ms is not None
    assert found.has_ts is not None
    assert found.ts_ms[found.has_ts].tolist() == [AT_MS] * 3
    assert found.has_ts.tolist() == [True, True, False, True, False]
    assert found.count is not None
    assert found.count.tolist() == [1, 2, 3, 2, 3]
    assert found.trace_id is None


def test_pandas() -> None:
    """Categoricals, times, and an index, which is a column that no sample has."""
    frame = pd.DataFrame(ROW | {"ts_ms": pd.to_datetime([AT] * 3), "note": ["x", "y", "z"]}, index=[7, 8, 9])
    frame["metric"] = frame["metric"].astype("category")
    found = read(of_pyarrow(pa.Table.from_pandas(frame)))
    assert texts(found.router_id) == ROW["router_id"]
    assert texts(found.metric) == ROW["metric"]
    assert found.ts_ms is not None
    assert found.ts_ms.tolist() == [AT_MS] * 3
    assert found.unknown == ["note", "__index_level_0__"]
    assert not found.says_ok


@pytest.mark.parametrize("deltas", [True, False], ids=["deltas", "replacements"])
def test_dictionaries_that_grow(deltas: bool) -> None:
    later = ["r", "q", "s"] if deltas else ["s", "r", None]
    tables = [coded(pa.table(ROW)), coded(pa.table(ROW | {"router_id": later}))]
    found = read(of_pyarrow(*[each.combine_chunks() for each in tables], emit_dictionary_deltas=deltas))
    assert texts(found.router_id) == [*ROW["router_id"], *later]
    assert texts(found.metric) == 2 * ROW["metric"]


def test_slices_and_empty_batches() -> None:
    table = pa.table({name: column * 5 for name, column in ROW.items()})
    found = read(in_batches(table.slice(1, 13), (0, 3, 0, 5)))
    assert texts(found.metric) == table["metric"].to_pylist()[1:14]
    assert found.value.tolist() == table["value"].to_pylist()[1:14]
    assert read(in_batches(table.slice(0, 0), ())).rows == 0
    assert read(of_pyarrow(schema=table.schema)).rows == 0
    assert read(of_polars(pl.DataFrame(ROW).clear())).rows == 0


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (pa.timestamp("s"), AT.replace(microsecond=0), AT_MS - 123),
        (pa.timestamp("ms", "UTC"), AT, AT_MS),
        (pa.timestamp("us", "Europe/Berlin"), AT, AT_MS),
        (pa.timestamp("ns"), AT, AT_MS),
        (pa.int32(), 5, 5),
        (pa.uint64(), (1 << 64) - 1, (1 << 63) - 1),
        (pa.int8(), -3, -3),
    ],
    ids=str,
)
def test_times(kind: Any, given: Any, expected: int) -> None:
    """To the millisecond before; what no column can hold is as late as one can say."""
    found = frame_of(ts_ms=pa.array([given] * 3, kind))
    assert found.ts_ms is not None
    assert found.ts_ms.tolist() == [expected] * 3


def test_times_before_every_other_are_no_later_ones() -> None:
    for unit in ("s", "ms", "us", "ns"):
        low, high = -(1 << 63), (1 << 63) - 1
        times = frame_of(ts_ms=pa.array([low, high, -1]).cast(pa.timestamp(unit))).ts_ms
        assert times is not None
        assert times[0] < times[2] < 0 < times[1]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.int8(), pa.uint16(), pa.int64()], ids=str)
def test_values(kind: Any) -> None:
    assert frame_of(value=pa.array(np.array([1, 2, 3])).cast(pa.float32()).cast(kind)).value.tolist() == [1, 2, 3]


NESTED = pa.array([[1], [], None])
FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a list": ({"tags": NESTED}, "tags", "nested"),
    "a struct": ({"x" * 100: pa.array([{"a": 1}] * 3)}, "x" * 64, "leave it out"),
    "a map": ({"tags": pa.array([[("a", "b")]] * 3, pa.map_(pa.string(), pa.string()))}, "tags", "nested"),
    "numbers as text": ({"value": ["1", "2", "3"]}, "value", "floats or integers"),
    "a bool as a value": ({"value": [True, False, True]}, "value", "floats or integers"),
    "decimals": ({"value": [decimal.Decimal("1.5")] * 3}, "value", "decimal"),
    "numbers that are coded": ({"value": pa.array([1.5, 2, 3]).dictionary_encode()}, "value", "dictionary of float64"),
    "a number as text": ({"router_id": [1, 2, 3]}, "router_id", "holds int64"),
    "bytes as text": ({"metric": [b"m"] * 3}, "metric", "holds binary"),
    "uuids": ({"router_id": pa.array([b"x" * 16] * 3, pa.binary(16))}, "router_id", "fixed size binary"),
    "floats as times": ({"ts_ms": [1.0, 2.0, 3.0]}, "ts_ms", "holds float64"),
    "dates": ({"ts_ms": [dt.date(2026, 1, 1)] * 3}, "ts_ms", "timestamps"),
    "ok as numbers": ({"ok": [1, 0, 1]}, "ok", "booleans"),
    "counts as floats": ({"count": [1.0, None, 2.0]}, "count", "integers"),
    "traces as numbers": ({"trace_id": [1, 2, 3]}, "trace_id", "text"),
    "a nested value": ({"value": NESTED}, "value", "floats or integers"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_column_of_another_type_is_named(name: str) -> None:
    columns, field, words = FAULTS[name]
    with pytest.raises(Invalid, match=words) as raised:
        frame_of(**columns)
    assert raised.value.details == {"where": "schema", "field": field}


def test_columns_that_are_missing_or_there_twice() -> None:
    for name in ROW:
        with pytest.raises(Invalid, match=f"Column {name} is missing"):
            read(of_pyarrow(pa.table({other: column for other, column in ROW.items() if other != name})))
    twice = pa.Table.from_arrays([pa.array(["x"])] * 3, names=["router_id", "metric", "metric"])
    with pytest.raises(Invalid, match="Column metric is there twice"):
        read(of_pyarrow(twice))


def test_flat_columns_of_others_are_passed_over() -> None:
    """Whatever they hold, and wherever they stand."""
    strange = {
        "a": pa.array(["x", None, "a text that is longer than twelve"], pa.string_view()),
        "b": pa.array([decimal.Decimal("1.5")] * 3),
        "c": pa.array([b"x" * 16] * 3, pa.binary(16)),
        "d": pa.nulls(3),
        "e": pa.array(["x", "y", "x"]).dictionary_encode(),
        "f": pa.array([True, None, False]),
        "g": pa.array([dt.timedelta(1)] * 3),
        "h": pa.array([b"x"] * 3, pa.large_binary()),
        "i": pa.array([dt.time(1)] * 3),
        "j": pa.array([1.5, 2, 3]).dictionary_encode(),
        "k": pa.array([b"a binary that is longer than twelve"] * 3, pa.binary_view()),
    }
    for compression in (None, "lz4"):
        found = read(of_pyarrow(pa.table(strange | ROW | {"z": pa.array([1, 2, 3])}), compression=compression))
        assert found.unknown == [*strange, "z"]
        assert (texts(found.metric), found.value.tolist()) == (ROW["metric"], ROW["value"])


def test_columns_of_nothing() -> None:
    """Of a frame in which every value is missing."""
    found = frame_of(**{name: pa.nulls(3) for name in ("metric", "ts_ms", "value", "ok", "trace_id", "count")})
    assert texts(found.metric) == [None] * 3
    assert np.isnan(found.value).all()
    assert found.ok.all()
    assert found.has_ts is not None
    assert not found.has_ts.any()
    assert found.count is not None
    assert found.count.tolist() == [1] * 3


# -- what is no stream, or too much of one

STREAM = of_pyarrow(pa.table(ROW))
BROKEN: dict[str, tuple[bytes, type[BreakersError], str]] = {
    "nothing": (b"", BadRequest, "does not end"),
    "no schema": (STREAM[-8:], BadRequest, "no schema"),
    "JSON": (b'[{"router_id": "r"}]', BadRequest, "does not begin"),
    "an old form": (STREAM[4:], BadRequest, "does not begin"),
    "no end": (STREAM[:-8], BadRequest, "Was its writer closed"),
    "cut off": (STREAM[:-30], BadRequest, "cut off"),
    "more behind it": (STREAM + b"x", BadRequest, "follows its end"),
    "two streams": (STREAM + STREAM, BadRequest, "follows its end"),
    "a file": (b"ARROW1\0\0" + STREAM, BadRequest, "Write a stream"),
    "metadata without end": (b"\xff" * 4 + struct.pack("<I", 1 << 31) + STREAM[8:], PayloadTooLarge, "Metadata"),
    "a long name": (of_pyarrow(pa.table(ROW | {"x" * 1025: [1, 2, 3]})), PayloadTooLarge, "name"),
    "too many columns": (of_pyarrow(pa.table({str(n): [1] for n in range(65)})), PayloadTooLarge, "64 columns"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_stream(name: str) -> None:
    body, kind, words = BROKEN[name]
    with pytest.raises(kind, match=words):
        read(body)


def many(rows: int) -> pa.Table:
    ids = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), ["r"])
    return pa.table({"router_id": ids, "metric": ids, "value": np.zeros(rows)})


def test_rows_without_end() -> None:
    assert read(of_pyarrow(many(ROWS_MAX))).rows == ROWS_MAX
    with pytest.raises(PayloadTooLarge, match="at most 100000 samples"):
        read(of_pyarrow(many(ROWS_MAX + 1)))


def test_batches_without_end() -> None:
    with pytest.raises(PayloadTooLarge, match="1000 batches"):
        read(of_pyarrow(*[pa.table(ROW)] * 1001))
    assert read(of_pyarrow(*[pa.table(ROW)] * 1000)).rows == 3000


def test_big_endian() -> None:
    with pytest.raises(Invalid, match="little-endian"):
        read(_with_endianness(bytearray(STREAM)))


def _with_endianness(body: bytearray) -> bytes:
    """The endianness is left out where it is little; now the vtable says it lies where there is no zero."""
    root = struct.unpack_from("<I", body, 8)[0] + 8
    vtable = root - struct.unpack_from("<i", body, root)[0]
    header = root + struct.unpack_from("<H", body, vtable + 8)[0]
    schema = header + struct.unpack_from("<I", body, header)[0]
    table = schema - struct.unpack_from("<i", body, schema)[0]
    struct.pack_into("<H", body, table + 4, struct.unpack_from("<H", body, table + 6)[0])
    return bytes(body)


def dictionary_of(entries: int) -> bytes:
    ids = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int32()), pa.array([str(n) for n in range(entries)]))
    return of_pyarrow(pa.table({"router_id": ids, "metric": ids, "value": [1.0, 2.0]}))


def test_dictionaries_without_end() -> None:
    assert read(dictionary_of(100_000)).rows == 2
    with pytest.raises(PayloadTooLarge, match="200000 entries"):
        read(dictionary_of(100_001))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_columns_that_are_larger_than_they_may_be(codec: str) -> None:
    body = of_pyarrow(many(ROWS_MAX), compression=codec)
    assert len(body) < 10_000
    assert read_frame(body, 1_000_100).rows == ROWS_MAX
    with pytest.raises(PayloadTooLarge, match="more than 900000 bytes"):
        read_frame(body, 900_000)


def places_of(body: bytes, length: int) -> list[int]:
    """Where the metadata says that a buffer has so many bytes."""
    found = (body.find(struct.pack("<qq", start, length)) for start in range(0, len(body), 8))
    return [at for at in found if at >= 0]


def test_buffers_that_are_the_same_bytes() -> None:
    """A few bytes would stand for many: a gigabyte of 835 bytes of gzip."""
    body = bytearray(of_pyarrow(pa.table(ROW | {"value": np.zeros(3), "ok": [True] * 3})))
    flags = places_of(bytes(body), 1)[-1]
    assert read(bytes(body)).rows == 3
    body[flags : flags + 16] = struct.pack("<qq", 0, len(body) // 2)
    with pytest.raises(BadRequest, match="buffers of a batch overlap"):
        read(bytes(body))


def test_offsets_that_wrap() -> None:
    most = (1 << 63) - 1
    offsets = [0, 1 << 62, most, -most - 1, -(1 << 62), 0, 4]
    texts = pa.array(["abcd"] * 6, pa.large_string())
    body = of_pyarrow(pa.table({"router_id": texts, "metric": ["m"] * 6, "value": np.zeros(6)}))
    before = struct.pack("<7q", *range(0, 28, 4))
    assert body.count(before) == 1
    with pytest.raises(BadRequest, match="outside of their buffer"):
        read(body.replace(before, struct.pack("<7q", *offsets)))


def test_views_that_share_bytes() -> None:
    text = pa.array(["x" * 400] * 1000, pa.string_view())
    body = of_pyarrow(pa.table({"router_id": text, "metric": text, "value": np.zeros(1000)}))
    with pytest.raises(PayloadTooLarge):
        read_frame(body, 399_000)
