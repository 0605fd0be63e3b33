"""One pass over a source: each sample goes to the breakers that take it, and every breaker's outcome is filled in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
import polars as pl

from breaker_actors.core.log_entries import Gap, counted
from breaker_actors.errors import Invalid
from pipelines.candidates import Candidate, Value
from pipelines.columns import Samples
from pipelines.replay.downsample import Sketch
from pipelines.replay.scoring import Tally
from pipelines.replay.vectorized.engine import CHUNK_ROWS, FastReplay, Walk
from pipelines.sources import passed_over as passing
from pipelines.sources.choice import Choice
from pipelines.sources.files import Born, GapOf, Happening, InForce, Log, Source, batches_of

Progress = Callable[[int], None]
ROUTERS_TOLD, ROWS_LOOKED_AT = 10, 1_000
"""Routers that are told apart in what a rule takes, and rows of a batch that are looked at for more than two."""


@dataclass(slots=True)
class Run:
    """One breaker's way over the samples. `setting`: what a sweep changed of the rule named `swept`; None: the rule as
    given. `sketch`: to be drawn on the way; `watch`: see the engine's Walk."""

    candidate: Candidate
    tally: Tally
    setting: dict[str, Value] | None = None
    swept: str = ""
    sketch: Sketch | None = None
    watch: Callable[[], None] | None = None
    samples: int = 0
    first_ms: int = 0
    last_ms: int = 0
    late: int = 0
    truncated: int = 0
    columns: tuple[str, ...] = ()
    """What the samples have."""
    routers: tuple[str, ...] = ()
    """Of which routers it took samples without naming any, up to ROUTERS_TOLD."""

    def judged(self) -> list[int]:
        """Numbers of the labelled windows that samples reach; the others are neither caught nor missed."""
        return self.tally.reached(self.first_ms, self.last_ms)


NO_SAMPLE = "there is no sample in it"


class NoSample(Invalid):
    """`unread`: what was passed over, in words; None for nothing."""

    def __init__(self, names: Iterable[str], unread: str | None) -> None:
        super().__init__("; ".join(filter(None, (f"{', '.join(names)}: {NO_SAMPLE}", unread))))
        self.unread = unread


def replayed(
    runs: Sequence[Run], source: Source, rows_max: int, window_samples_max: int, progress: Progress | None
) -> None:
    """One pass over the source: every run ends with its tally filled in."""
    streams: list[Stream] = []
    read, seen = 0, Seen()
    asked = Asked(name for run in runs if run.candidate.all_routers for name in run.candidate.router_ids)
    for batch in source.items() if isinstance(source, Log) else batches_of(source, _choice(runs)):
        if not isinstance(batch, pl.DataFrame):
            for stream in streams:
                stream.note(batch)
            continue
        streams = streams or _streams(runs, batch.columns, rows_max, window_samples_max)
        for stream in streams:
            stream.feed(batch)
        read += len(batch)
        asked.note(batch)
        if not all(stream.taken for stream in streams):
            seen.note(batch)
        if progress is not None:
            progress(read)
    if not read:
        unread = passing.told(getattr(source, "passed_over", None) or passing.passed_over())
        raise NoSample(source.names, unread)
    for stream in streams:
        stream.finish(seen)
    asked.check("")


def _choice(runs: Sequence[Run]) -> Choice:
    """What any of the runs takes."""
    routers = [run.candidate.router_ids for run in runs]
    named = frozenset(name for some in routers for name in some) if all(routers) else None
    return Choice(frozenset(run.candidate.rule.metric for run in runs), named)


Selection = tuple[str | None, tuple[str, ...]]
"""A metric and routers, sorted; None and no routers: any."""


def _streams(runs: Sequence[Run], columns: Sequence[str], rows_max: int, window_samples_max: int) -> list[Stream]:
    """Runs by the samples they take, those of their metric and routers, where samples name theirs; and by the breaker
    whose settings they hear of."""
    by_selection: dict[tuple[Selection, str], list[Run]] = {}
    for run in runs:
        run.columns = tuple(columns)
        metric = run.candidate.rule.metric if "metric" in columns else None
        router_ids = sorted(run.candidate.router_ids) if "router_id" in columns else ()
        apart = run.candidate.hears if run.candidate.apart else ""
        by_selection.setdefault(((metric, tuple(router_ids)), apart), []).append(run)
    share = rows_max // len(by_selection)
    return [Stream(selection, those, share, window_samples_max) for (selection, _), those in by_selection.items()]


class Stream:
    """The samples of one metric and some routers, and the breakers that take them."""

    def __init__(self, selection: Selection, runs: Sequence[Run], rows_max: int, window_samples_max: int) -> None:
        self._selection, self._runs = selection, runs
        self._heard = {"", *(run.candidate.hears for run in runs)}
        self._sketches = [run.sketch for run in runs if run.sketch is not None]
        self._walks = [_walk(run) for run in runs]
        instants = np.unique(np.concatenate([one.ends for one in self._sketches])) if self._sketches else None
        self._engine = FastReplay(
            self._walks,
            chunk_rows=CHUNK_ROWS,
            rows_max=rows_max,
            window_samples_max=window_samples_max,
            instants=instants,
        )
        self.taken = 0
        self._first_ms: int | None = None
        self._routers: list[str] = []
        """Those whose samples it takes, where it names none; no more than ROUTERS_TOLD."""

    def feed(self, batch: pl.DataFrame) -> None:
        """The next samples of the source."""
        metric, router_ids = self._selection
        if metric is not None:
            batch = batch.filter(pl.col("metric") == metric)
        if router_ids:
            batch = batch.filter(pl.col("router_id").str.to_lowercase().is_in(router_ids))
        if not len(batch):
            return
        samples = samples_of(batch)
        if self._first_ms is None:
            self._begin(int(samples.at[0]))
        self.taken += len(batch)
        if not router_ids and "router_id" in batch.columns and len(self._routers) < ROUTERS_TOLD:
            self._note_routers(batch["router_id"])
        for sketch in self._sketches:
            sketch.add(samples)
        self._engine.feed(samples)

    def _note_routers(self, column: pl.Series) -> None:
        """That there is more than one is seen for sure. How many more is told by some rows of each batch, which costs
        next to nothing and can miss a rare one. Its first rows are among them: where routers take turns, steps can
        meet the same one again and again."""
        known = self._routers
        if not known:
            known.append(column[0])
        if len(known) == 1:
            differs = column != known[0]
            if not differs.any():
                return
            known.append(column[differs.arg_max() or 0])
        some = column.gather_every(len(column) // ROWS_LOOKED_AT + 1)
        found = pl.concat([column.head(ROWS_LOOKED_AT), some]).unique(maintain_order=True)
        known += [router for router in found if router not in known][: ROUTERS_TOLD - len(known)]

    def note(self, item: Happening) -> None:
        """What a log says between samples: of all breakers, or of one."""
        of = "" if isinstance(item, Gap) else item.of
        if of not in self._heard:
            return
        if isinstance(item, InForce):
            self._engine.configure(item.rule, item.at_ms, item.longest_ms, of)
            return
        if isinstance(item, Gap | GapOf):
            gap = item.gap if isinstance(item, GapOf) else item
            self._engine.gap(gap.from_ms, gap.to_ms, of)
            return
        for run in self._runs:
            run.tally.controlled |= item.control is not None and of in ("", run.candidate.hears)
        if isinstance(item, Born) and self._first_ms is None:
            self._begin(item.at_ms)
            self._engine.create(item.at_ms, item.after_seq, item.control)
        elif item.control is not None:
            self._engine.control(item.control, item.at_ms, of)

    def _begin(self, first_ms: int) -> None:
        self._first_ms = first_ms
        for run in self._runs:
            run.tally.begin(first_ms)

    def finish(self, seen: Seen) -> None:
        """Timers up to the last sample; then every run knows its outcome."""
        last_ms = self._engine.finish()
        if not self.taken or last_ms is None or self._first_ms is None:
            raise Invalid(seen.complaint(*self._selection))
        for run, walk in zip(self._runs, self._walks, strict=True):
            assert walk.walker is not None
            run.tally.finish(walk.last_ms)
            run.samples, run.first_ms, run.last_ms = self.taken, self._first_ms, walk.last_ms
            run.routers = tuple(self._routers)
            run.late, run.truncated = walk.walker.breaker.lost


def _walk(run: Run) -> Walk:
    sketch = run.sketch
    figures, look = (run.tally.kept, None) if sketch is None else (True, sketch.look)
    one = run.candidate
    return Walk(one.rule, run.tally.tell, figures, look, run.tally.steer, one.follows_log, run.watch, one.hears)


class Seen:
    """Which metrics and routers the samples name, for the message that none of them is meant."""

    MOST = 10

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {"metric": [], "router_id": []}

    def note(self, batch: pl.DataFrame) -> None:
        for name, known in self._names.items():
            if name in batch.columns and len(known) < self.MOST:
                known += [value for value in batch[name].unique(maintain_order=True) if value not in known]

    @property
    def routers(self) -> bool:
        """Whether samples name any."""
        return bool(self._names["router_id"])

    def complaint(self, metric: str | None, router_ids: Sequence[str]) -> str:
        given = {"metric": () if metric is None else (metric,), "router_id": router_ids}
        wanted = {name: values for name, values in given.items() if values}
        asked = " and ".join(f"{name} {' or '.join(map(repr, values))}" for name, values in wanted.items())
        there = "; ".join(f"{name}: {', '.join(map(repr, self._names[name][: self.MOST]))}" for name in wanted)
        differ = "; samples name their routers, the rule has ids: {}" if self._names_for_ids(router_ids) else ""
        return f"no sample has {asked}; there are {there}{differ.format(NAMES_OR_IDS)}"

    def _names_for_ids(self, router_ids: Sequence[str]) -> bool:
        """Whether the rule has ids of routers where samples have something else."""
        there = self._names["router_id"]
        return bool(there) and any(map(is_id, router_ids)) and not any(map(is_id, there))


class Asked:
    """Routers each of which has to be in the samples, and those that there are."""

    def __init__(self, router_ids: Iterable[str]) -> None:
        self._absent = dict.fromkeys(router_ids)
        self._there: dict[str, None] = {}

    def note(self, batch: pl.DataFrame) -> None:
        """Looks at no batch any more once all were seen."""
        if not self._absent or "router_id" not in batch.columns:
            return
        for name in batch["router_id"].unique(maintain_order=True):
            self._absent.pop(name.lower(), None)
            if len(self._there) < Seen.MOST:
                self._there[name] = None

    def check(self, place: str) -> None:
        """Raises Invalid, in the words of samples of which none is meant, where one is not there; of samples that name
        no routers others say so."""
        if self._absent and self._there:
            wanted, there = (" or ".join(map(repr, self._absent)), ", ".join(map(repr, self._there)))
            raise Invalid(f"{place}no sample has router_id {wanted}; there are router_id: {there}")


NAMES_OR_IDS = "say the names in its router_ids, or leave router_id and router_ids out of it to take all samples"


def is_id(text: str) -> bool:
    """Whether a text is an id as the service makes them."""
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


def samples_of(batch: pl.DataFrame) -> Samples:
    """The columns of a source's batch."""
    ts_ms, value = batch["ts_ms"].to_numpy(), batch["value"].to_numpy()
    at = batch["received_ms"].to_numpy() if "received_ms" in batch.columns else ts_ms
    ok = batch["ok"].to_numpy() if "ok" in batch.columns else np.ones(len(batch), np.bool_)
    trace = batch["trace_id"] if "trace_id" in batch.columns else None
    record = batch["record"].to_numpy() if "record" in batch.columns else None
    count = counted(batch["count"].to_numpy()) if "count" in batch.columns else None
    return Samples(at, ts_ms, value, ok, trace, record, count)
