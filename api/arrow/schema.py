"""The columns a stream says it has, and which of them are columns of samples.

What can't be a column of a sample is refused by name, with what to do: a column is made by one line of its sender's
code, so all of its rows are wrong alike. A flat column of another name is passed over, as a field of another name is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from api.arrow.bounds import FIELDS_MAX, NAME_BYTES_MAX, NAME_SHOWN_MAX
from api.arrow.flatbuffer import Table, broken
from breaker_actors.errors import Invalid, PayloadTooLarge

NULL, INT, FLOAT, BINARY, UTF8, BOOL, DECIMAL, DATE, TIME, TIMESTAMP, INTERVAL = range(1, 12)
FIXED_BINARY, DURATION, LARGE_BINARY, LARGE_UTF8, BINARY_VIEW, UTF8_VIEW = 15, 18, 19, 20, 23, 24
NAMES = {
    NULL: "null", INT: "int", FLOAT: "float", BINARY: "binary", UTF8: "utf8", BOOL: "bool", DECIMAL: "decimal",
    DATE: "date", TIME: "time", TIMESTAMP: "timestamp", INTERVAL: "interval", FIXED_BINARY: "fixed size binary",
    DURATION: "duration", LARGE_BINARY: "large binary", LARGE_UTF8: "large utf8", BINARY_VIEW: "binary view",
    UTF8_VIEW: "utf8 view", 12: "list", 13: "struct", 14: "union", 16: "fixed size list", 17: "map", 21: "large list",
    22: "run-end encoded", 25: "list view", 26: "large list view",
}  # fmt: skip
BUFFERS = dict.fromkeys((INT, FLOAT, BOOL, DECIMAL, DATE, TIME, TIMESTAMP, INTERVAL, FIXED_BINARY, DURATION), 2)
BUFFERS |= dict.fromkeys((BINARY, UTF8, LARGE_BINARY, LARGE_UTF8), 3) | {BINARY_VIEW: 2, UTF8_VIEW: 2, NULL: 0}
"""How many buffers a flat column has in a batch; views have some more, as each batch says."""
VIEWS = (BINARY_VIEW, UTF8_VIEW)
TEXTS = (UTF8, LARGE_UTF8, UTF8_VIEW)
TAKES: dict[str, tuple[tuple[int, ...], str]] = {
    "router_id": (TEXTS, "text (pl.String, pa.string), or a dictionary of it (pl.Categorical)"),
    "metric": (TEXTS, "text (pl.String, pa.string), or a dictionary of it (pl.Categorical)"),
    "ts_ms": ((INT, TIMESTAMP), "integers, Unix milliseconds, or timestamps"),
    "value": ((FLOAT, INT), "floats or integers"),
    "ok": ((BOOL,), "booleans"),
    "trace_id": (TEXTS, "text (pl.String, pa.string), or a dictionary of it"),
    "count": ((INT,), "integers"),
}
"""The types of each column of samples, besides null, and how they are told."""
NEEDED = ("router_id", "metric", "value")
UNIT_LETTERS = ("s", "ms", "us", "ns")
_WIDTHS = {INT: (8, 16, 32, 64), FLOAT: (16, 32, 64), TIMESTAMP: (64,)}

Letter = Literal["i", "u", "f"]


class Kind(NamedTuple):
    """A flat type. `letter` and `width` (bits): of numbers, as numpy names them; `unit`: of timestamps."""

    type: int
    letter: Letter = "i"
    width: int = 64
    unit: str = ""

    @property
    def dtype(self) -> str:
        return f"<{self.letter}{self.width // 8}"

    def __str__(self) -> str:
        if self.type in (INT, FLOAT):
            return f"{'u' if self.letter == 'u' else ''}{NAMES[self.type]}{self.width}"
        return NAMES.get(self.type, f"type {self.type}")


class Field(NamedTuple):
    """One column. `dictionary`: the id of the dictionary its values are in, and the kind of its indices."""

    name: str
    kind: Kind
    dictionary: tuple[int, Kind] | None

    @property
    def shown(self) -> str:
        return self.name[:NAME_SHOWN_MAX]

    @property
    def stored(self) -> Kind:
        """What its batches hold."""
        return self.kind if self.dictionary is None else self.dictionary[1]


class Schema(NamedTuple):
    """All columns, in order; and which of them are of samples, by name."""

    fields: Sequence[Field]
    wanted: dict[str, Field]

    @property
    def unknown(self) -> list[str]:
        """The names of the others."""
        return [field.name for field in self.fields if field.name not in self.wanted]


def read_schema(table: Table) -> Schema:
    """Raises Invalid, which names the column, for what can't be taken; BadRequest for what is no schema."""
    if table.int16(0):
        raise Invalid("An Arrow stream is little-endian here; this one is big-endian.", {"where": "schema"})
    if table.length(1) > FIELDS_MAX:
        raise PayloadTooLarge(f"An Arrow stream has at most {FIELDS_MAX} columns.", {"where": "schema"})
    fields = [_field(one) for one in table.tables(1)]
    wanted: dict[str, Field] = {}
    seen = set[str]()
    for field in fields:
        if field.name in seen:
            raise fault(field.shown, "is there twice.")
        seen.add(field.name)
        if field.name in TAKES:
            wanted[field.name] = field
            _check(field)
    for name in NEEDED:
        if name not in wanted:
            raise fault(name, f"is missing; it holds {TAKES[name][1]}.")
    return Schema(fields, wanted)


def fault(name: str, words: str) -> Invalid:
    """The error of a column that no row can be taken of."""
    return Invalid(f"Column {name} {words}", {"where": "schema", "field": name})


def _check(field: Field) -> None:
    types, told = TAKES[field.name]
    if field.kind.type == NULL and field.dictionary is None:
        return
    if field.kind.type not in types or (field.dictionary is not None and types is not TEXTS):
        coded = "a dictionary of " if field.dictionary else ""
        raise fault(field.name, f"holds {coded}{field.kind}, and must hold {told}: cast it.")


def _field(table: Table) -> Field:
    name, told = table.text(0, NAME_BYTES_MAX), table.int8(2)
    encoding = table.table(4)
    if encoding is None and (told not in BUFFERS or table.length(5)):
        advice = "leave it out" if name not in TAKES else f"it must hold {TAKES[name][1]}"
        words = f"is nested, or of another type than is taken here ({Kind(told)}): {advice}."
        raise fault(name[:NAME_SHOWN_MAX], words)
    kind = _kind(table, told)
    if encoding is None:
        return Field(name, kind, None)
    index = encoding.table(1)
    return Field(name, kind, (encoding.int64(0), Kind(INT, "i", 32) if index is None else _int(index)))


def _kind(table: Table, told: int) -> Kind:
    if told == INT:
        return _int(table.needed(3))
    if told == FLOAT:
        precision = table.needed(3).int16(0)
        if not 0 <= precision <= 2:
            raise broken("a float has an unknown precision.", table.where)
        return Kind(FLOAT, "f", 16 << precision)
    if told == TIMESTAMP:
        unit = table.needed(3).int16(0)
        if not 0 <= unit < len(UNIT_LETTERS):
            raise broken("a timestamp has an unknown unit.", table.where)
        return Kind(TIMESTAMP, "i", 64, UNIT_LETTERS[unit])
    return Kind(told)


def _int(table: Table) -> Kind:
    width = table.int32(0)
    if width not in _WIDTHS[INT]:
        raise broken(f"an integer has {width} bits.", table.where)
    return Kind(INT, "i" if table.int8(1) else "u", width)
