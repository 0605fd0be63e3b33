"""Backfill: recorded samples become history, and the events that breakers would have had on them.

A run goes in steps, each a pure function of the manifest and of files that are there already:

1. `survey`: every row of the inputs is judged once, nothing is written. A file that can't be used ends it here.
2. `begin`: the manifest is written: the inputs' fingerprints, the routers, breakers and the time as they are now.
3. `stage`, per chunk of the inputs: history into the store, live samples and rejected rows beside the manifest.
4. `replay`, per group of routers that share breakers: their samples in order of arrival, through the core.
5. What is left to the service: events are stored, live samples are ingested. Then `finish`.

`carry_out` does 3 to 5, by itself or, through its `Workers`, as tasks of a cluster (`api.cli.backfill_cluster`).

What is done is what there are files of, below `runs/project=<id>/<run>/`; they appear whole or not at all and are named
by chunk or group. So a run that was killed goes on when it is started again, and one that ended does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
import polars as pl

from breaker_actors.errors import Invalid
from pipelines.backfill.evaluate import BreakerEvent, evaluated, groups
from pipelines.backfill.manifest import Chunk, Counts, Manifest, Request, Summary, fate_of, is_marked, live_of, mark
from pipelines.backfill.removal import remove
from pipelines.backfill.validation import Judged, Norms, judged
from pipelines.sources import history_store as history
from pipelines.sources.atomic_files import csv_of
from pipelines.sources.external_sort import Sorted
from pipelines.sources.files import Layout, Part, Shape, Unread, bad_row, format_of, scan
from pipelines.sources.object_store import Place, open_place

EVENTS_AT_ONCE = 500
Tell = Callable[[int], None]
_events_decoder = msgspec.msgpack.Decoder(list[BreakerEvent])


# -- 1: what is asked for ---------------------------------------------------------------------------------------------


def survey(
    request: Request, norms: Norms, tell: Tell | None = None, unread: Unread | None = None
) -> tuple[Request, Counts]:
    """Reads all rows: how many each input has, and what would become of them; `unread` is told of columns that say
    nothing. Raises Invalid, with file, row and column, for an input that can't be used."""
    first: Shape | None = None
    total, inputs = Counts(), []
    layout = request.layout()
    for given in request.inputs:
        part, rows = part_of(given.path), 0
        schema = part.schema()
        shape = _shape_of(part, layout, norms, schema)
        if unread is not None:
            unread.note(schema, layout, shape.names)
        first = first or shape
        first.check(shape, layout)
        for batch in part.batches(_wanted(layout, shape)):
            found = judged(batch, part.label, rows, layout, shape, norms)
            total.add(Counts.of(found))
            total.note_examples(found.rejects)
            rows += len(batch)
            if tell is not None:
                tell(total.rows)
        inputs.append(msgspec.structs.replace(given, rows=rows))
    if not total.rows:
        raise Invalid(f"{', '.join(one.path for one in inputs)}: there is no sample in it")
    return msgspec.structs.replace(request, inputs=tuple(inputs)), total


def part_of(path: str, start: int = 0, count: int | None = None) -> Part:
    """Some rows of a file."""
    file = Path(path)

    def open_it() -> pl.LazyFrame:
        found = scan(file, hive=True)
        return found if count is None else found.slice(start, count)

    return Part(path, open_it, format_of(file) != "parquet", partial(bad_row, file))


def _shape_of(part: Part, layout: Layout, norms: Norms, schema: pl.Schema) -> Shape:
    options = {"router_id": "--router", "metric": "--metric"}
    lacking = [
        f"there is no column {layout.theirs(name)!r}; rename one with --column {name}=THEIRS, or say {option} for all "
        "rows"
        for name, option in options.items()
        if layout.theirs(name) not in schema and name not in layout.renamed and getattr(norms, name) is None
    ]
    try:
        shape = Shape.of(part, layout, schema)
    except Invalid as error:
        raise Invalid("; ".join([str(error), *lacking])) from None
    if lacking:
        raise Invalid(f"{part.label}: {'; '.join(lacking)}")
    return shape


def _wanted(layout: Layout, shape: Shape) -> list[pl.Expr]:
    return [pl.col(layout.theirs(name)).alias(name) for name in shape.names]


# -- 3: chunks into the history store ---------------------------------------------------------------------------------


def stage(url: str, manifest: Manifest, chunk: Chunk) -> Counts:
    """Writes what is in a chunk where it belongs, and last that this is done."""
    place, name = open_place(url), manifest.chunk_of(chunk.number)
    done = place.read(f"{manifest.folder}/staged/{name}.json")
    if done is not None:
        return msgspec.json.decode(done, type=Counts)
    found = _read(manifest, chunk)
    history.add(place, manifest.request.project_id, found.history, name)
    if len(found.live):
        place.write(f"{manifest.folder}/live/{name}.parquet", history.parquet(found.live))
    if len(found.rejects):
        place.write(f"{manifest.folder}/rejects/{name}.csv", csv_of(found.rejects, header=False))
    counts = Counts.of(found)
    place.write(f"{manifest.folder}/staged/{name}.json", msgspec.json.encode(counts))
    return counts


def _read(manifest: Manifest, chunk: Chunk) -> Judged:
    given, layout, norms = manifest.request.inputs[chunk.file], manifest.request.layout(), manifest.norms()
    count = min(manifest.chunk_rows, given.rows - chunk.start)
    part = part_of(given.path, chunk.start, count)
    whole = part_of(given.path)
    shape = _shape_of(whole, layout, norms, whole.schema())
    batches = list(part.batches(_wanted(layout, shape)))
    if sum(map(len, batches)) != count:
        raise Invalid(f"{given.path} has changed since the run began: row {chunk.start + count} is missing")
    return judged(pl.concat(batches), given.path, chunk.start, layout, shape, norms)


# -- 4: history through the core --------------------------------------------------------------------------------------


def replay(url: str, manifest: Manifest, group: Sequence[str]) -> int:
    """Evaluates the run's samples of some routers and keeps the events beside the manifest, in files of so many, and
    last how many each file has; how many there are."""
    place, name = open_place(url), _events_name(manifest, group)
    counts = _counts_of(place, manifest, group)
    if counts is not None:
        return sum(counts)
    counts = []

    def keep(events: list[BreakerEvent]) -> None:
        place.write(f"{name}.{len(counts):06}.msgpack", msgspec.msgpack.encode(events))
        counts.append(len(events))

    source = history.History(place, history.files(place, manifest.request.project_id, group, run=manifest.run_id))
    evaluated(manifest, group, Sorted(source).batches(), keep)
    place.write(f"{name}.json", msgspec.json.encode(counts))
    return sum(counts)


def _events_name(manifest: Manifest, group: Sequence[str]) -> str:
    return f"{manifest.folder}/events/{group[0]}"


def _counts_of(place: Place, manifest: Manifest, group: Sequence[str]) -> list[int] | None:
    """How many events each file of a group has; None when it was not evaluated yet."""
    content = place.read(f"{_events_name(manifest, group)}.json")
    return None if content is None else msgspec.json.decode(content, type=list[int])


def events_of(place: Place, manifest: Manifest, group: Sequence[str]) -> Iterator[list[BreakerEvent]]:
    """What `replay` kept, a file at a time."""
    for number in range(len(_counts_of(place, manifest, group) or ())):
        content = place.read(f"{_events_name(manifest, group)}.{number:06}.msgpack")
        assert content is not None, "how many files there are is written last"
        yield _events_decoder.decode(content)


# -- 5: the service, and the end of a run -----------------------------------------------------------------------------

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers(Protocol):
    """Who carries out steps: in this process, or as tasks of a cluster."""

    def map(self, work: Callable[[Item], Result], items: Sequence[Item], *, here: bool = False) -> Iterator[Result]:
        """The results, in whatever order. `here`: the work reads files of this machine."""


class InProcess:
    """One after the other, here."""

    def map(self, work: Callable[[Item], Result], items: Sequence[Item], *, here: bool = False) -> Iterator[Result]:
        return map(work, items)


class Service(Protocol):
    """What a run needs of the service. Raises BreakersError when it does not answer: the run goes on another time."""

    def store(self, run_id: str, events: Sequence[BreakerEvent]) -> None:
        """Adds events of the run; those it has are left as they are."""

    def forget(self, run_id: str) -> None:
        """Removes the events of the run."""

    def ingest(self, key: str, samples: pl.DataFrame) -> None:
        """Takes samples as if they came in a request; one of the same key is taken once."""


class Steps(Protocol):
    def __call__(self, words: str, done: int, total: int) -> None:
        """How far a step is."""


def carry_out(
    place: Place, manifest: Manifest, workers: Workers, service: Service, tell: Steps | None = None
) -> Summary:
    """All of a run that is not done yet. Raises Invalid when it was removed meanwhile: what was written since is taken
    back."""

    def say(words: str, done: int, total: int) -> None:
        _check(place, manifest)
        if tell is not None:
            tell(words, done, total)

    try:
        summary = _carry_out(place, manifest, workers, service, say)
        _check(place, manifest)
    except _Removed:
        service.forget(manifest.run_id)
        remove(place, manifest.request.project_id, manifest.run_id)
        raise Invalid(
            f"run {manifest.run_id} was removed while it was loaded; nothing of its history is left"
        ) from None
    return summary


class _Removed(Exception):
    """Somebody takes the run back."""


def _check(place: Place, manifest: Manifest) -> None:
    """Raises _Removed, and Invalid where another one has begun under its id."""
    match fate_of(place, manifest):
        case "removed":
            raise _Removed
        case "begun anew":
            raise Invalid(f"run {manifest.run_id} was removed and begun anew while it was loaded")


def _carry_out(place: Place, manifest: Manifest, workers: Workers, service: Service, say: Steps) -> Summary:
    counts, chunks = Counts(), manifest.chunks()
    rows = sum(given.rows for given in manifest.request.inputs)
    for found in workers.map(partial(stage, place.url, manifest), chunks, here=True):
        counts.add(found)
        say("writing history", counts.rows, rows)
    them, events = groups(manifest, counts.routers), 0
    for done, told in enumerate(workers.map(partial(replay, place.url, manifest), them), 1):
        events += told
        say("evaluating routers", done, len(them))
    _store_events(place, manifest, them, service, say)
    _ingest_live(place, manifest, chunks, service, say)
    return finish(place, manifest, counts, events)


def _store_events(
    place: Place, manifest: Manifest, them: Sequence[Sequence[str]], service: Service, say: Steps
) -> None:
    for done, group in enumerate(them, 1):
        if not is_marked(place, manifest, f"events.{group[0]}"):
            for told in events_of(place, manifest, group):
                for start in range(0, len(told), EVENTS_AT_ONCE):
                    service.store(manifest.run_id, told[start : start + EVENTS_AT_ONCE])
            mark(place, manifest, f"events.{group[0]}")
        say("storing events", done, len(them))


def _ingest_live(place: Place, manifest: Manifest, chunks: Sequence[Chunk], service: Service, say: Steps) -> None:
    for done, chunk in enumerate(chunks, 1):
        name = manifest.chunk_of(chunk.number)
        samples = live_of(place, manifest, chunk)
        if samples is not None and not is_marked(place, manifest, f"live.{name}"):
            service.ingest(name, samples)
            mark(place, manifest, f"live.{name}")
        say("ingesting live samples", done, len(chunks))


def finish(place: Place, manifest: Manifest, counts: Counts, events: int) -> Summary:
    """Removes what processes that were killed left, and notes that the run is done."""
    for under in (history.folder_of(manifest.request.project_id), manifest.folder):
        place.sweep(under, "" if under == manifest.folder else f"{manifest.run_id}.")
    summary = Summary(
        run_id=manifest.run_id,
        project_id=manifest.request.project_id,
        rows=counts.rows,
        history=counts.history,
        live=counts.live,
        rejected=counts.rejected,
        reasons=counts.reasons,
        routers=len(counts.routers),
        events=events,
        first_ms=counts.first_ms,
        last_ms=counts.last_ms,
    )
    place.write(f"{manifest.folder}/done.json", msgspec.json.encode(summary))
    return summary
