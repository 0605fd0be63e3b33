"""Samples out of files and frames: checked batches in one shape, and what is wrong with the input said in one line.

A source hands out the same batches each time it is asked. `pipelines.sources.service_log` reads a service's log instead
of files. A batch is a polars frame with `ts_ms` (Int64), `value` (Float64) and, where the input has them, `received_ms`
(Int64), `ok` (Boolean), `metric`, `router_id`, `trace_id` (String), `count` (Int64): how many observations each stands
for, `record` (Int64): a change of it is an arrival of its own.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit

import msgspec
import numpy as np
import polars as pl

from breaker_actors.clock import moment
from breaker_actors.core.log_entries import Gap
from breaker_actors.core.model import COUNT_MAX, Control, Int64, Rule
from breaker_actors.errors import Invalid
from pipelines.sources.choice import ALL, Choice

UNIT_WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
REQUIRED, OPTIONAL = ("ts_ms", "value"), ("ok", "received_ms", "metric", "router_id", "trace_id", "count")
WITH_RECORD = (*OPTIONAL, "record")
NAMES = REQUIRED + WITH_RECORD
TIMES, TEXTS = ("ts_ms", "received_ms"), ("metric", "router_id", "trace_id")
LATEST_MS = 253_402_300_799_999
"""The end of the year 9999."""
TIME_FORMS = (
    "%Y-%m-%dT%H:%M:%S%.f%:z", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M%:z", "%Y-%m-%dT%H:%M", "%Y-%m-%d",
)  # fmt: skip
"""Of ISO 8601, with T for a space between date and time, and all of an offset."""


def time_forms(unit: str = "ms") -> str:
    """What a time may look like, as words."""
    return f"times are Unix {UNIT_WORDS[unit]} or ISO 8601, as 2026-01-31T12:00:00.5Z or 2026-01-31 12:00 (UTC)"


class Source(Protocol):
    """Where samples come from."""

    names: list[str]
    """For messages, and to find labelled windows by."""

    def rows(self) -> int | None:
        """How many there are, if that is quick to tell."""

    def batches(self) -> Iterator[pl.DataFrame]:
        """All samples from the start, in arrival order: by received_ms where there is one, else by ts_ms."""


class Born(NamedTuple):
    """The breaker whose samples these are was created then; it need not have got any yet. Its transitions are numbered
    from `after_seq` + 1, where another breaker had its id before. `control`: its mode and override then. `of`: its id
    where the samples are those of several, else "", as of the items below."""

    at_ms: int
    after_seq: int = 0
    control: Control | None = None
    of: str = ""


class ControlSet(NamedTuple):
    """Mode and override of the breaker from then on."""

    at_ms: int
    control: Control
    of: str = ""


class InForce(NamedTuple):
    """The rule of the breaker whose samples these are, from this time on. `longest_ms`: the longest window that any of
    its rules has."""

    at_ms: int
    rule: Rule
    longest_ms: int = 0
    of: str = ""


class GapOf(NamedTuple):
    """A gap of one of several breakers."""

    gap: Gap
    of: str


Happening = Born | ControlSet | InForce | Gap | GapOf


@runtime_checkable
class Log(Source, Protocol):
    """A source that knows more than samples. The first of its batches, which may be empty, has all columns."""

    def items(self) -> Iterator[pl.DataFrame | Happening]:
        """The batches, with what happened between them."""


class Words(NamedTuple):
    """How the caller says what an error asks for: options of a command, or arguments of a function."""

    rename: str
    sort: str
    unit: str
    unit_option: str
    one_router: str = "name router_ids in the rule, or give routers=[...]"
    routers_option: str = "routers"

    @property
    def without_routers(self) -> str:
        """What is wrong with samples that name no routers, where some are asked for."""
        theirs = self.rename.format("router_id")
        return f"{self.routers_option}: the samples have no column router_id; name theirs by {theirs}"


COMMAND = Words(
    "--column {}=THEIRS",
    "say --sort",
    "say --time-unit s, us or ns",
    "--time-unit",
    "name router_ids in the rule, or say --router",
    "--router",
)
PYTHON = Words('columns={{"{}": THEIRS}}', "give sort=True", "give time_unit='s', 'us' or 'ns'", "time_unit")
EARLIEST_MS = 631_152_000_000
"""1990: times before it are probably in another unit."""
TIME_UNITS = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
"""How many of each make a second."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the input names our columns, and which optional ones are read where they exist."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    wanted: tuple[str, ...] = OPTIONAL
    words: Words = COMMAND
    time_unit: str = "ms"
    """Of times that are numbers."""

    def __post_init__(self) -> None:
        if self.time_unit not in TIME_UNITS:
            raise Invalid(f"{self.time_unit!r} is no unit of time here; there are {', '.join(TIME_UNITS)}")
        known = REQUIRED + self.wanted
        for name, theirs in self.renamed.items():
            if name not in known:
                turned = self.words.rename.format(theirs).replace("THEIRS", name)
                hint = f"did you mean {turned}?" if theirs in known else f"there are {', '.join(known)}"
                raise Invalid(f"{name!r} is none of our columns; {hint}")

    @property
    def named(self) -> tuple[str, ...]:
        """The optional columns that were named, and so have to be there."""
        return tuple(name for name in self.wanted if name in self.renamed)

    def theirs(self, name: str) -> str:
        """What the input calls it."""
        return self.renamed.get(name, name)

    def found(self, schema: Collection[str]) -> dict[str, str]:
        """Our names of the columns that the input has -> its own. What was named as another of ours is not read under
        its own name, too."""
        taken = set(self.renamed.values())
        known = (*REQUIRED, *(name for name in self.wanted if name in self.renamed or name not in taken))
        return {name: self.theirs(name) for name in NAMES if name in known and self.theirs(name) in schema}


def early(first_ms: int, words: Words) -> str | None:
    """What to say of samples that begin before 1990; None of others."""
    if first_ms >= EARLIEST_MS:
        return None
    at = moment(first_ms).isoformat(" ", "milliseconds")
    return f"the samples begin in {at[:4]}, at {at}; if their times are in another unit, {words.unit}"


NAMES_OF_THINGS = ("service", "service_name", "router", "router_name", "upstream", "dependency", "endpoint", "host")
"""Columns that probably say what a sample is of."""


class Unread:
    """Columns of the input that nothing reads, by their names."""

    MOST, SHOWN = 100, 8

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.read: set[str] = set()
        """Ours of the columns that are read."""

    def note(self, there: Iterable[str], columns: Layout, read: Collection[str]) -> None:
        """What one part has; what a column that is read says as well is no news, nor is one of ours for which another
        was named (of NDJSON it need not even be there). No more than MOST are kept."""
        self.read.update(read)
        taken = {columns.theirs(name) for name in read} | set(columns.renamed)
        for name in there:
            if name not in taken and SAID_BY.get(name) not in read and len(self.names) < self.MOST:
                self.names[name] = None

    def remark(self, words: Words | None, one_series: bool) -> str | None:
        """Names the columns, SHOWN of them at most, and how to map the one that may tell series apart. `one_series`:
        nothing that is read does. None where all is read."""
        names = list(self.names)
        more = f" and {len(names) - self.SHOWN} more" if len(names) > self.SHOWN else ""
        thing = next((name for name in NAMES_OF_THINGS if name in names), None)
        apart = ""
        if words is not None and thing is not None and one_series:
            renamed = words.rename.format("router_id").replace("THEIRS", thing if words == COMMAND else f'"{thing}"')
            apart = f"; all is one series: if {thing} says what a sample is of, {renamed} tells them apart"
        return f"not read: {', '.join(names[: self.SHOWN])}{more}{apart}" if names else None


SAID_BY = {
    **dict.fromkeys(("received", "record"), "received_ms"),
    **dict.fromkeys(("project", "router"), "router_id"),
    **dict.fromkeys(("ts", "day", "date", "dt", "year", "month", "hour"), "ts_ms"),
}
"""Columns that `breakers export` and folders of days have beside others that say the same."""


class Frames:
    """A source over frames that lie in memory, or are read lazily, one after the other."""

    def __init__(self, frames: Frame | Sequence[Frame], columns: Layout, *, ordered: bool = True) -> None:
        many = [frames] if isinstance(frames, pl.DataFrame | pl.LazyFrame) else frames
        self.names = ["frame"] if len(many) == 1 else [f"frame {number}" for number in range(1, len(many) + 1)]
        self.words, self.unread = columns.words, Unread()
        self._parts = [Part(name, one.lazy) for name, one in zip(self.names, many, strict=True)]
        self._layout, self._ordered = columns, ordered

    def rows(self) -> int | None:
        return sum(int(part.open().select(pl.len()).collect().item()) for part in self._parts)

    def batches(self, choice: Choice = ALL) -> Iterator[pl.DataFrame]:
        """All samples; only those that are chosen have to be in order."""
        return checked(self._parts, self._layout, self._ordered, self.unread, choice)


Frame = pl.DataFrame | pl.LazyFrame


class Files:
    """A source over Parquet, CSV and NDJSON, one after the other: files, patterns (files in order of names), folders
    (all that is in them) and URLs. Folders named `name=value` on the way to a file are columns."""

    def __init__(self, patterns: Sequence[str | Path], columns: Layout, *, ordered: bool = True) -> None:
        self.places = [place for pattern in patterns for place in located(pattern)]
        if not self.places:
            raise Invalid("no file of samples is given")
        self.names = [place.name for place in self.places]
        self.titles = [place.title for place in self.places]
        """The names, with the way to a file from the folder that was given."""
        self.words, self.unread = columns.words, Unread()
        self._layout, self._ordered = columns, ordered

    def rows(self) -> int | None:
        if any(place.is_url or format_of(place.path) != "parquet" for place in self.places):
            return None
        counts = (Part(place.label, place.scan).batches([pl.len()]) for place in self.places)
        return sum(int(batch.item()) for batches in counts for batch in batches)

    def batches(self, choice: Choice = ALL) -> Iterator[pl.DataFrame]:
        """All samples; only those that are chosen have to be in order."""
        return checked([place.part() for place in self.places], self._layout, self._ordered, self.unread, choice)


def batches_of(source: Source, choice: Choice) -> Iterator[pl.DataFrame]:
    """All samples of a source; where it looks at their order, only those that are chosen have to be in it."""
    return source.batches(choice) if isinstance(source, Files | Frames) else source.batches()


PACKED = (".gz", ".zst")
FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson"}
SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl", "http", "https")
RETRIES = 2
"""Of a request to an object store or web server."""


def format_of(path: str | Path) -> str | None:
    """parquet, csv or ndjson, by the suffix; None for others. Text may be packed."""
    name = str(path).lower()
    plain = next((name.removesuffix(suffix) for suffix in PACKED if name.endswith(suffix)), name)
    found = FORMATS.get(PurePosixPath(plain).suffix)
    return None if plain != name and found == "parquet" else found


@dataclass(frozen=True, slots=True)
class Place:
    """Where samples lie: a local file, or a URL. `hive`: folders named `name=value` on the way to it are columns;
    `folder`: what was given where it is in a folder."""

    where: str
    is_url: bool = False
    hive: bool = False
    folder: str = ""

    @property
    def title(self) -> str:
        """Its name, with the way from the folder that was given."""
        return str(Path(self.where).relative_to(self.folder)) if self.folder else self.name

    @property
    def path(self) -> str:
        """What its suffix is taken from."""
        return urlsplit(self.where).path if self.is_url else self.where

    @property
    def label(self) -> str:
        """For messages: a URL without its query and user, which may be secrets."""
        return shown_url(self.where) if self.is_url else self.where

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name or self.label

    def part(self) -> Part:
        """As a part of a source."""
        is_text = format_of(self.path) in ("csv", "ndjson")
        return Part(self.label, self.scan, is_text, (lambda: "") if self.is_url else partial(bad_row, Path(self.where)))

    def scan(self) -> pl.LazyFrame:
        """Raises Invalid when it is no format that is read."""
        return _scan_url(self.where, self.path) if self.is_url else scan(Path(self.where), hive=self.hive)


def located(pattern: str | Path) -> list[Place]:
    """What a path, a pattern, a folder or a URL stands for. Raises Invalid when there is nothing."""
    scheme = urlsplit(str(pattern)).scheme if "://" in str(pattern) else ""
    if scheme:
        if scheme.lower() not in SCHEMES:
            raise Invalid(f"{shown_url(str(pattern))}: samples are read from {', '.join(SCHEMES)} and local files")
        return [Place(str(pattern), is_url=True)]
    path = Path(pattern)
    if path.is_dir():
        if (path / "samples").is_dir() and (path / "events").is_dir():
            raise Invalid(
                f"{path} has events beside samples, as `breakers export` writes them; give {path / 'samples'}"
            )
        found = sorted(one for one in path.rglob("*") if one.is_file() and format_of(one) and not _is_hidden(one, path))
        if not found:
            raise Invalid(f"{path}: no .parquet, .csv, .ndjson or .jsonl file is in this folder")
        return [Place(str(one), hive=True, folder=str(path)) for one in found]
    return [Place(str(one), hive=True) for one in expanded(pattern)]


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)


def shown_url(text: str) -> str:
    """Text with URLs in it without what may be secret in them."""
    return re.sub(r"(://)[^/@\s]*@", r"\1", re.sub(r"[?#][^\s)\"']*", "", text))


def _scan_url(url: str, path: str) -> pl.LazyFrame:
    """By polars' own readers of object stores; credentials are what the environment has."""
    options = {"max_retries": RETRIES}
    match "parquet" if path.endswith("/") else format_of(path):
        case "parquet":
            return pl.scan_parquet(url, hive_partitioning=True, storage_options=options)
        case "csv":
            return pl.scan_csv(url, infer_schema=False, storage_options=options)
        case "ndjson":
            known = pl.scan_ndjson(url, infer_schema_length=1, storage_options=options).collect_schema().names()
            schema = dict.fromkeys([*known, *NAMES], pl.String)
            return pl.scan_ndjson(url, schema=schema, storage_options=options)
    raise Invalid(f"{shown_url(url)}: {READABLE}")


READABLE = "samples are read from .parquet, .csv, .ndjson and .jsonl files, text also as .gz or .zst"


def expanded(pattern: str | Path) -> list[Path]:
    """The files that a path or a pattern stands for."""
    path = Path(pattern)
    if path.is_dir():
        raise Invalid(f"{path} is a directory; give files or a pattern such as {path}/*.parquet")
    if path.exists() or not glob.has_magic(str(pattern)):
        return [path]
    found = sorted(Path(match) for match in glob.glob(str(pattern), recursive=True))
    if not found:
        raise Invalid(f"{pattern}: there is no such file")
    return found


def local_files(pattern: str | Path) -> list[Path]:
    """The files that a path, a pattern or a folder stands for."""
    return [Path(one.where) for one in located(pattern)] if Path(pattern).is_dir() else expanded(pattern)


def check_regular(path: Path) -> None:
    """Raises Invalid for a pipe or a device, which may never end. What is not there is not this check's to say."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise Invalid(f"{path} is no regular file")


def scan(path: Path, *, hive: bool = False) -> pl.LazyFrame:
    """The file by its suffix. What is written as text stays text: it is parsed where a row can be named. `hive`:
    folders on the way to it, named `name=value`, are columns."""
    found = _scan_file(path)
    return found if not hive else _with_folders(found, path)


def _with_folders(found: pl.LazyFrame, path: Path) -> pl.LazyFrame:
    pairs = [part.partition("=")[::2] for part in path.parts[:-1] if "=" in part]
    known = found.collect_schema().names() if pairs else []
    columns = {name: unquote(value) for name, value in pairs if name not in known}
    return found.with_columns(pl.lit(value).alias(name) for name, value in columns.items())


def _scan_file(path: Path) -> pl.LazyFrame:
    check_regular(path)
    match format_of(path):
        case "parquet":
            return pl.scan_parquet(path, glob=False)
        case "csv":
            return pl.scan_csv(path, infer_schema=False, glob=False)
        case "ndjson":
            if path.suffix.lower() not in PACKED and is_blank(path):
                raise Invalid(f"{path} is empty")
            alone = glob.escape(str(path))  # unlike the others this one has no word for it
            known = pl.scan_ndjson(alone, infer_schema_length=1).collect_schema().names()
            return pl.scan_ndjson(alone, schema=dict.fromkeys([*known, *NAMES], pl.String))
        case _:
            raise Invalid(f"{path}: {READABLE}")


def is_blank(path: Path) -> bool:
    """Whether nothing is in a text file but blanks."""
    with path.open("rb") as lines:
        return not any(line.strip() for line in lines)


def bad_row(path: Path) -> str:
    """Which row of a damaged text file can't be read, as words; empty when that can't be told."""
    if path.suffix.lower() in PACKED:
        return ""
    match format_of(path):
        case "csv":
            with path.open(newline="", encoding="utf-8", errors="replace") as lines:
                rows = csv.reader(lines)
                with contextlib.suppress(csv.Error):  # a text that is longer than it takes
                    width = len(next(rows, []))
                    return next((f", row {i}" for i, row in enumerate(rows, 1) if len(row) > width), "")
        case "ndjson":
            with path.open("rb") as lines:
                return next((f", row {i}" for i, line in enumerate(lines, 1) if not _is_json(line)), "")
    return ""


def _is_json(line: bytes) -> bool:
    try:
        return not line.strip() or isinstance(msgspec.json.decode(line), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


# -- checking ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """One file or frame: `label` for messages, how to open it, whether all in it is text, and how to find the row that
    can't be read."""

    label: str
    open: Callable[[], pl.LazyFrame]
    is_text: bool = False
    bad_row: Callable[[], str] = lambda: ""

    def schema(self) -> pl.Schema:
        with self._told():
            return self.open().collect_schema()

    def batches(self, wanted: Sequence[pl.Expr] = ()) -> Iterator[pl.DataFrame]:
        """Raises Invalid for whatever polars has to say."""
        with self._told():
            lazy = self.open()
            yield from (lazy.select(wanted) if wanted else lazy).collect_batches(maintain_order=True, lazy=True)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except pl.exceptions.NoDataError:
            raise Invalid(f"{self.label} is empty") from None
        except pl.exceptions.PolarsError as error:
            first = (str(error).strip().splitlines() or ["it is damaged"])[0]
            raise Invalid(f"{self.label}{self.bad_row()} can't be read: {shown_url(first)}") from None
        except OSError as error:
            words = error.strerror or shown_url(str(error).splitlines()[0])
            raise Invalid(f"{self.label} can't be read: {words}") from None


def checked(
    parts: Sequence[Part], columns: Layout, ordered: bool, unread: Unread | None = None, choice: Choice = ALL
) -> Iterator[pl.DataFrame]:
    """The batches of all parts in one shape; raises Invalid with file, row (counted from 1) and column. `unread` is
    told of their other columns; if `ordered`, what is chosen has to be in order of time."""
    first: Shape | None = None
    last_ms = 0
    schemas = [part.schema() for part in parts]
    named = {name for schema in schemas for name in columns.found(schema)}
    for part, schema in zip(parts, schemas, strict=True):
        row, begins = 0, True
        shape = Shape.of(part, columns, schema)
        if unread is not None:
            unread.note(schema, columns, shape.names)
        for batch in part.batches([pl.col(columns.theirs(name)).alias(name) for name in shape.names]):
            if not len(batch):
                continue
            rows = Rows(part.label, row, columns)
            if not row:
                shape = shape.without(name for name in SORTING if rows.is_blank(batch, name))
                first = first or shape
                first.check(shape, columns)
            batch = rows.checked(batch, shape)
            kept = choice.rows(batch) if ordered else None
            if ordered and (kept is None or len(kept)):
                last_ms = rows.check_order(batch, kept, last_ms, begins)
                begins = False
            row += len(batch)
            yield _completed(batch, named)


def _completed(batch: pl.DataFrame, named: Collection[str]) -> pl.DataFrame:
    """The batch with what only other parts say: counts and records."""
    if "count" in named and "count" not in batch.columns:
        batch = batch.with_columns(count=pl.lit(1, pl.Int64))
    if "record" in named:
        batch = batch.with_columns(record=_arrival(batch))
    names = [name for name in NAMES if name in batch.columns]
    return batch if names == batch.columns else batch.select(names)


def _arrival(batch: pl.DataFrame) -> pl.Expr:
    """A number that changes where another record begins; those of two routers, or of two times, are never one. A row
    that names none arrives with its time."""
    at = "received_ms" if "received_ms" in batch.columns else "ts_ms"
    if "record" not in batch.columns or batch["record"].is_null().all():
        return pl.col(at)
    of = [name for name in (at, "router_id", "record") if name in batch.columns]
    number = pl.struct(of).hash().reinterpret(signed=True)
    return pl.when(pl.col("record").is_null()).then(pl.col(at)).otherwise(number)


SORTING = ("received_ms", "metric", "router_id")
"""Optional columns in which no row may be blank unless all are."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a part, and what is in them."""

    label: str
    kinds: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.kinds)

    @classmethod
    def of(cls, part: Part, columns: Layout, schema: pl.Schema | None = None) -> Shape:
        """What the part has of the columns that are wanted. `schema`: the part's, where it is known."""
        schema = part.schema() if schema is None else schema
        asked = dict.fromkeys((*REQUIRED, *columns.named))
        if missing := [name for name in asked if columns.theirs(name) not in schema]:
            raise _without(missing, part, columns, schema)
        kinds = {name: schema[theirs] for name, theirs in columns.found(schema).items()}
        return cls(part.label, {name: ANY if part.is_text else _kind(kind) for name, kind in kinds.items()})

    def without(self, names: Iterable[str]) -> Shape:
        dropped = set(names)
        return Shape(self.label, {name: kind for name, kind in self.kinds.items() if name not in dropped})

    def check(self, other: Shape, columns: Layout) -> None:
        """Samples of one run have one shape, but for counts and records, which not all of them need to name."""
        for name in NAMES:
            here, there = self.kinds.get(name), other.kinds.get(name)
            if name in ("count", "record") and None in (here, there):
                continue
            if here != there and (here is None or there is None or ANY not in (here, there)):
                raise Invalid(
                    f"{other.label}: its column {columns.theirs(name)!r} is {there or 'missing'}, "
                    f"in {self.label} it is {here or 'missing'}"
                )


def _without(missing: Sequence[str], part: Part, columns: Layout, schema: pl.Schema) -> Invalid:
    """The error that names all columns that a part lacks, and which it has."""
    there = ", ".join([name[:NAME_MAX] for name in schema.names()[:NAMES_MAX]]) or "none"
    ours = [name for name in missing if columns.theirs(name) == name]
    ways = " ".join(columns.words.rename.format(name) for name in ours)
    if columns.words is PYTHON and ours:
        ways = "columns={" + ", ".join(f'"{name}": THEIRS' for name in ours) + "}"
    hint = f"; rename {'one' if len(ours) == 1 else 'some'} with {ways}" if ours else ""
    if len(schema) == 1 and ";" in there:
        hint = "; it is separated by semicolons, columns are separated by commas"
    named = ", ".join(repr(columns.theirs(name)) for name in missing)
    what = f"is no column {named}" if len(missing) == 1 else f"are no columns {named}"
    return Invalid(f"{part.label}: there {what}, there are {there}{hint}")


NAMES_MAX, NAME_MAX = 20, 40
"""An error names so many columns of a file at most, so many signs of each."""
ANY = "text to be parsed, or blank"
FLAGS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


def _has_fractions(column: pl.Series) -> bool:
    numbers = column.cast(pl.Float64, strict=False)
    return bool((numbers != numbers.floor()).any())


def _kind(kind: pl.DataType) -> str:
    """The type in the words of messages."""
    if kind.is_integer() or kind.is_float() or kind.is_decimal():
        return "numbers"
    if kind == pl.String or kind == pl.Categorical or kind == pl.Enum:
        return "text"
    if isinstance(kind, pl.Datetime | pl.Date):
        return "times"
    if kind == pl.Null:
        return ANY
    return "flags" if kind == pl.Boolean else str(kind)


JOINED = "all that is given is one series; files of different things belong into runs of their own; those of one are"
"""Of a part that begins before the one above it ends."""


class Rows:
    """A batch on its way in. `row`: how many rows of its part came before it."""

    __slots__ = ("_columns", "_label", "_row")

    def __init__(self, label: str, row: int, columns: Layout) -> None:
        self._label, self._row, self._columns = label, row, columns

    def is_blank(self, batch: pl.DataFrame, name: str) -> bool:
        return name in batch.columns and batch[name].null_count() == len(batch)

    def checked(self, batch: pl.DataFrame, shape: Shape) -> pl.DataFrame:
        """The batch in the shape of this module."""
        columns = []
        for column in batch:
            name = column.name
            if name not in shape.names:
                self._refuse(column, column.is_not_null(), "is given here but not in the rows before")
                continue
            if column.dtype == pl.Null:
                column = column.cast(pl.String)
            read = self._time if name in TIMES else self._text if name in TEXTS else getattr(self, f"_{name}")
            columns.append(read(column))
        return pl.DataFrame(columns)

    def check_order(self, batch: pl.DataFrame, kept: Int64 | None, last_ms: int, begins: bool) -> int:
        """Of the rows that are kept (None: all) none comes before the one above it, the last one before the batch
        included. Answers the time of the last one. `begins`: they are the first of their part."""
        key = batch["received_ms" if "received_ms" in batch.columns else "ts_ms"]
        times = key.to_numpy() if kept is None else key.to_numpy()[kept]
        back = times[1:] < times[:-1]
        row = 0 if times[0] < last_ms else int(back.argmax()) + 1 if back.any() else None
        if row is not None:
            name, before = self._columns.theirs(key.name), last_ms if row == 0 else int(times[row - 1])
            told, at = JOINED if begins and row == 0 else "samples are", row if kept is None else int(kept[row])
            raise Invalid(
                f"{self._label}, row {self._row + at + 1}: {name} {int(times[row])} comes after {before}; "
                f"{told} read in order of time (sort them first, or {self._columns.words.sort})"
            )
        return int(times[-1])

    # one column each

    def _time(self, column: pl.Series) -> pl.Series:
        kind = column.dtype
        if kind.is_integer() or kind.is_float():
            times = self._in_ms(column)
        elif kind == pl.String:
            times = self._in_ms(column.str.strip_chars())
            if times.null_count():
                times = times.fill_null(self._parsed_times(column))
        elif isinstance(kind, pl.Datetime | pl.Date):
            times = column.cast(pl.Datetime("ms")).dt.epoch("ms")
        else:
            raise self._wrong_type(column, "Unix milliseconds or a time")
        if times.null_count():
            self._refuse_untold_times(column, times)
        first, last = times.min(), times.max()
        if isinstance(first, int) and isinstance(last, int) and (first < 0 or last > LATEST_MS):
            outside = (times < 0) | (times > LATEST_MS)
            hint = f"; if it is in another unit, {self._columns.words.unit}"
            unit = UNIT_WORDS[self._columns.time_unit]
            self._refuse(column, outside, f"is not Unix {unit} between 1970 and 9999{hint}")
        return times

    def _refuse_untold_times(self, column: pl.Series, times: pl.Series) -> None:
        unit = self._columns.time_unit
        seconds = (
            "" if unit == "s" or not _has_fractions(column) else f"; if it is in seconds, {self._columns.words.unit}"
        )
        self._refuse(column, times.is_null(), f"is not a time; {time_forms(unit)}{seconds}")

    def _in_ms(self, column: pl.Series) -> pl.Series:
        """Numbers in the unit of the input; seconds may have a fraction. What is beyond the bounds stays beyond."""
        unit = self._columns.time_unit
        if unit == "s":
            seconds = column.cast(pl.Float64, strict=False)
            finite = pl.select(pl.when(seconds.is_finite()).then(seconds)).to_series()
            return (finite * 1000).round().clip(-1, LATEST_MS + 1).cast(pl.Int64)
        if column.dtype.is_integer():
            numbers = column.cast(pl.Int64, strict=False)
            return numbers if unit == "ms" else numbers // (TIME_UNITS[unit] // 1000)
        floats = column.cast(pl.Float64, strict=False)
        whole = pl.select(pl.when((floats == floats.floor()) & (floats.abs() < 1 << 53)).then(floats)).to_series()
        numbers = whole.cast(pl.Int64) if column.dtype.is_float() else column.cast(pl.Int64, strict=False)
        if column.dtype == pl.String and numbers.null_count():  # whole numbers as a float is written
            numbers = numbers.fill_null(whole.cast(pl.Int64))
        return numbers if unit == "ms" else numbers // (TIME_UNITS[unit] // 1000)

    def _parsed_times(self, column: pl.Series) -> pl.Series:
        """ISO 8601, or `YYYY-MM-DD hh:mm:ss`; UTC unless it says otherwise. Each row alone: in which of the forms its
        neighbours are written must not matter."""
        text = column.str.strip_chars().str.replace(" ", "T", literal=True)
        text = text.str.replace("Z$", "+00:00").str.replace(r"(T.*[+-]\d\d)$", "${1}:00")
        times = pl.Series(column.name, [None] * len(column), pl.Int64)
        for form in TIME_FORMS:
            if times.null_count():
                parsed = text.str.to_datetime(form, time_unit="ms", time_zone="UTC", strict=False)
                times = times.fill_null(parsed.dt.epoch("ms"))
        return times

    def _value(self, column: pl.Series) -> pl.Series:
        if column.dtype == pl.String:
            numbers = column.str.strip_chars().cast(pl.Float64, strict=False)
        elif _kind(column.dtype) == "numbers":
            numbers = column.cast(pl.Float64)
        else:
            raise self._wrong_type(column, "numbers")
        if numbers.null_count() or not np.isfinite(numbers.to_numpy()).all():
            self._refuse(column, ~numbers.is_finite().fill_null(False), "is not a finite number; leave such rows out")
        return numbers

    def _ok(self, column: pl.Series) -> pl.Series:
        """true and false, or 1 and 0, also as 1.0 and 0.0; blank is true."""
        if column.dtype == pl.Boolean:
            return column.fill_null(True)
        if column.dtype != pl.String and _kind(column.dtype) != "numbers":
            raise self._wrong_type(column, "true and false")
        text = column.cast(pl.String).str.strip_chars().str.to_lowercase().replace("", None)
        flags = text.replace_strict(FLAGS, default=None)
        self._refuse(column, flags.is_null() & text.is_not_null(), "is neither true nor false")
        return flags.cast(pl.Boolean).fill_null(True)

    def _count(self, column: pl.Series) -> pl.Series:
        """Whole numbers from 1 to COUNT_MAX, also as 2.0; blank is 1."""
        if column.dtype != pl.String and _kind(column.dtype) != "numbers":
            raise self._wrong_type(column, "whole numbers")
        given = column.str.strip_chars().replace("", None) if column.dtype == pl.String else column
        numbers = given.cast(pl.Float64, strict=False)
        if column.dtype.is_float():
            given = numbers = numbers.fill_nan(None)  # so pandas says that there is none
        good = ((numbers >= 1) & (numbers <= COUNT_MAX) & (numbers == numbers.floor())).fill_null(False)
        self._refuse(column, given.is_not_null() & ~good, f"is no whole number from 1 to {COUNT_MAX:,}")
        return numbers.zip_with(good, pl.Series([1.0])).cast(pl.Int64)

    def _record(self, column: pl.Series) -> pl.Series:
        """Whole numbers; blank is none."""
        if column.dtype != pl.String and not column.dtype.is_integer():
            raise self._wrong_type(column, "whole numbers")
        given = column.str.strip_chars().replace("", None) if column.dtype == pl.String else column
        numbers = given.cast(pl.Int64, strict=False)
        self._refuse(column, numbers.is_null() & given.is_not_null(), "is not a whole number")
        return numbers

    def _text(self, column: pl.Series) -> pl.Series:
        if _kind(column.dtype) != "text":
            raise self._wrong_type(column, "text")
        if column.name in SORTING:
            self._refuse(column, column.is_null(), "is blank, in other rows it is not")
        return column.cast(pl.String)

    # what is wrong

    def _refuse(self, column: pl.Series, bad: pl.Series, complaint: str) -> None:
        rows = bad.arg_true()
        if len(rows):
            row = int(rows[0])
            shown = "blank" if column[row] is None else repr(column[row])[:80]
            name = self._columns.theirs(column.name)
            raise Invalid(f"{self._label}, row {self._row + row + 1}: {name} {shown} {complaint}")

    def _wrong_type(self, column: pl.Series, expected: str) -> Invalid:
        name = self._columns.theirs(column.name)
        return Invalid(f"{self._label}: its column {name!r} is {column.dtype}, not {expected}")
