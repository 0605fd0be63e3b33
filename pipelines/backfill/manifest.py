"""A backfill run as values, and the files that tell how far it is (see `pipelines.backfill.steps`).

`runs/project=<id>/<run>/`: `manifest.json`; per chunk `staged/`, `live/`, `rejects/`; per group of routers `events/`;
`marks/` for what was handed to the service; `done.json` at the end.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import msgspec
import polars as pl

from breaker_actors.errors import Invalid
from pipelines.backfill.validation import REJECTS, Judged, Norms
from pipelines.sources.files import Layout, check_regular
from pipelines.sources.history_store import with_count
from pipelines.sources.object_store import Place
from pipelines.sources.routing import BreakerPlan, RouterPlan

_RUN = re.compile(r"[a-z0-9-]{1,64}")


class Input(msgspec.Struct, frozen=True):
    """A file of samples. `digest`: of its content."""

    path: str
    digest: str
    rows: int = 0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for: which files go into which project, how they name our columns, and what fills blanks."""

    project_id: str
    inputs: tuple[Input, ...]
    columns: dict[str, str] = {}
    router_id: str | None = None
    metric: str | None = None
    time_unit: str = "ms"

    def layout(self) -> Layout:
        """How the files name our columns, and in which unit their times are."""
        return Layout(self.columns, time_unit=self.time_unit)

    def run_id(self) -> str:
        """The same for the same files, asked for alike."""
        told: list[Any] = [self.project_id, [one.digest for one in self.inputs], self.columns]
        told += [self.router_id, self.metric] + [self.time_unit] * (self.time_unit != "ms")
        return hashlib.blake2b(msgspec.json.encode(told, order="sorted"), digest_size=8).hexdigest()


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run depends on, as it was when it began."""

    run_id: str
    request: Request
    chunk_rows: int
    now_ms: int
    newest_ms: int
    window_samples_max: int
    with_traces: bool
    routers: tuple[RouterPlan, ...]
    breakers: tuple[BreakerPlan, ...]
    hints: tuple[str, ...] = ()
    """What is probably not meant of the rows, as it was told when they were looked at: a run that goes on doesn't."""

    @property
    def folder(self) -> str:
        return f"runs/project={self.request.project_id}/{self.run_id}"

    def norms(self) -> Norms:
        named = Counter(router.name for router in self.routers)
        return Norms(
            live_from_ms={router.id: self.now_ms - router.window_ms for router in self.routers},
            router_names={router.name: router.id for router in self.routers if router.name and named[router.name] == 1},
            newest_ms=self.newest_ms,
            router_id=self.request.router_id,
            metric=self.request.metric,
        )

    def chunks(self) -> list[Chunk]:
        """Stretches of the inputs' rows, numbered through."""
        places = (
            (file, start)
            for file, given in enumerate(self.request.inputs)
            for start in range(0, given.rows, self.chunk_rows)
        )
        return [Chunk(number, file, start) for number, (file, start) in enumerate(places)]

    def chunk_of(self, number: int) -> str:
        """What files of a chunk are called."""
        return f"{self.run_id}.{number:06}"


class Chunk(NamedTuple):
    """Rows of a file from `start` on."""

    number: int
    file: int
    start: int


STRANGE_MAX = 20


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A row that was rejected for a reason. `value`: what is in its column, None where that is blank."""

    file: str
    row: int
    column: str
    value: str | None


class Counts(msgspec.Struct):
    """What became of rows: `history` and `live` samples and their span of time, rejected ones by reason, history by
    router, both by metric."""

    rows: int = 0
    history: int = 0
    live: int = 0
    reasons: dict[str, int] = {}
    routers: dict[str, int] = {}
    first_ms: int | None = None
    last_ms: int | None = None
    metrics: dict[str, int] = {}
    strange: dict[str, int] = {}
    """Rows by the routers they name that there are none of: the first STRANGE_MAX."""
    examples: dict[str, Example] = {}
    """The first row of each reason, where it was asked for."""

    def note_examples(self, rejects: pl.DataFrame) -> None:
        """Keeps the first row of each reason that has none yet; rejects in the shape of REJECTS."""
        firsts = rejects.unique("reason", keep="first", maintain_order=True)
        for row in firsts.iter_rows(named=True):
            column = row["column"]
            told = Example(file=row["file"], row=row["row"], column=column, value=row[column])
            self.examples.setdefault(row["reason"], told)

    @property
    def rejected(self) -> int:
        return sum(self.reasons.values())

    def add(self, other: Counts) -> None:
        self.rows += other.rows
        self.history += other.history
        self.live += other.live
        self.reasons = dict(Counter(self.reasons) + Counter(other.reasons))
        self.routers = dict(Counter(self.routers) + Counter(other.routers))
        self.metrics = dict(Counter(self.metrics) + Counter(other.metrics))
        strange = Counter(self.strange) + Counter(other.strange)
        self.strange = dict(list(strange.items())[:STRANGE_MAX])
        self.first_ms = min((ms for ms in (self.first_ms, other.first_ms) if ms is not None), default=None)
        self.last_ms = max((ms for ms in (self.last_ms, other.last_ms) if ms is not None), default=None)

    @classmethod
    def of(cls, found: Judged) -> Counts:
        times = pl.concat([found.history["ts_ms"], found.live["ts_ms"]])
        return cls(
            rows=len(found.history) + len(found.live) + len(found.rejects),
            history=len(found.history),
            live=len(found.live),
            reasons=_tally(found.rejects["reason"]),
            routers=_tally(found.history["router_id"]),
            strange=_strange(found.rejects),
            metrics=_tally(pl.concat([found.history["metric"], found.live["metric"]])),
            first_ms=cast(int | None, times.min()),
            last_ms=cast(int | None, times.max()),
        )


def _strange(rejects: pl.DataFrame) -> dict[str, int]:
    """Rows by the names that no router has, of which there may be many."""
    names = rejects.filter(pl.col("reason") == "invalid_router_id")["router_id"].drop_nulls()
    return dict(list(_tally(names).items())[:STRANGE_MAX])


def _tally(column: pl.Series) -> dict[str, int]:
    counts = column.value_counts(name="n").sort(column.name)
    return dict(zip(counts[column.name].to_list(), counts["n"].to_list(), strict=True))


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to. rows = history + live + rejected. `first_ms`, `last_ms`: of the samples taken; None in runs
    of earlier versions."""

    run_id: str
    project_id: str
    rows: int
    history: int
    live: int
    rejected: int
    reasons: dict[str, int]
    routers: int
    events: int
    first_ms: int | None = None
    last_ms: int | None = None


# -- how a run begins --------------------------------------------------------------------------------------------------


def fingerprint(path: Path) -> Input:
    """The file by its content. Raises Invalid when it can't be read."""
    check_regular(path)
    try:
        with path.open("rb") as file:
            return Input(str(path.absolute()), hashlib.file_digest(file, "sha256").hexdigest())
    except OSError as error:
        raise Invalid(f"{path} can't be read: {error.strerror}") from None


def check_run_id(run_id: str) -> str:
    """The id itself. Raises Invalid for one that could be more than a name where files are kept."""
    if _RUN.fullmatch(run_id) is None:
        raise Invalid(f"--run {run_id!r}: a run's id has small letters, digits and dashes, 64 at most")
    return run_id


def begun(place: Place, request: Request, run_id: str) -> Manifest | None:
    """The manifest of a run that was begun, with the inputs where they lie now. Raises Invalid when the run is one of
    other inputs."""
    content = place.read(f"runs/project={request.project_id}/{run_id}/manifest.json")
    if content is None:
        return None
    known = msgspec.json.decode(content, type=Manifest)
    if known.request.run_id() != request.run_id():
        raise Invalid(f"run {run_id} was begun with other inputs or options; give it another id, or give none")
    inputs = (
        msgspec.structs.replace(was, path=now.path)
        for was, now in zip(known.request.inputs, request.inputs, strict=True)
    )
    return msgspec.structs.replace(known, request=msgspec.structs.replace(request, inputs=tuple(inputs)))


def begin(place: Place, manifest: Manifest) -> None:
    """From here on the run is resumed. Raises Invalid where its removal has not ended."""
    if place.read(removal_of(manifest.folder)) is not None:
        raise Invalid(
            f"run {manifest.run_id} is being removed; `breakers backfills remove {manifest.run_id}` goes on with it"
        )
    place.write(f"{manifest.folder}/manifest.json", msgspec.json.encode(manifest))


def removal_of(folder: str) -> str:
    """The file that says that a run is being removed."""
    return f"{folder}/removal"


def fate_of(place: Place, manifest: Manifest) -> Literal["here", "removed", "begun anew"]:
    """What became of a run that was begun."""
    content = place.read(f"{manifest.folder}/manifest.json")
    if content is None or place.read(removal_of(manifest.folder)) is not None:
        return "removed"
    return "here" if msgspec.json.decode(content, type=Manifest).now_ms == manifest.now_ms else "begun anew"


# -- what is done ------------------------------------------------------------------------------------------------------


def live_of(place: Place, manifest: Manifest, chunk: Chunk) -> pl.DataFrame | None:
    """The samples of a chunk that go through ordinary ingest, in order of arrival; None when there are none."""
    content = place.read(f"{manifest.folder}/live/{manifest.chunk_of(chunk.number)}.parquet")
    if content is None:
        return None
    return with_count(pl.read_parquet(io.BytesIO(content))).sort("received_ms", maintain_order=True)


def is_marked(place: Place, manifest: Manifest, mark: str) -> bool:
    """Whether a step beyond files of ours was noted as done."""
    return place.read(f"{manifest.folder}/marks/{mark}") is not None


def mark(place: Place, manifest: Manifest, mark: str) -> None:
    """Notes such a step."""
    place.write(f"{manifest.folder}/marks/{mark}", b"done\n")


def ended(place: Place, manifest: Manifest) -> Summary | None:
    """What the run came to; None when it has not ended."""
    content = place.read(f"{manifest.folder}/done.json")
    return None if content is None else msgspec.json.decode(content, type=Summary)


def rejects(place: Place, manifest: Manifest) -> Iterator[bytes]:
    """The rejected rows of a run as CSV, in order of the inputs, with a header; nothing when there are none."""
    names = place.names(f"{manifest.folder}/rejects")
    if names:
        yield (",".join(REJECTS) + "\n").encode()
    for name in names:
        yield place.read(name) or b""
