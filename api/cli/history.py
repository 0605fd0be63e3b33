"""`breakers backfill`, `breakers export`: recorded samples into the service's history, and all of it out again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from api.cli.errors import FAILED, one_line_errors
from api.cli.named import project_id_of, router_id_of
from api.cli.output import note, put, put_json
from api.cli.sample_options import AsJson, Columns, check_folder, renamed
from api.cli.store_access import DataDir, Project, on_store, settings_of
from breaker_actors.clock import rfc3339
from breaker_actors.errors import Invalid, Unavailable
from breaker_actors.text.counting import counted

if TYPE_CHECKING:
    from breaker_actors.settings import Settings
    from breaker_actors.store.base import Store
    from pipelines.backfill.manifest import Counts, Example, Manifest, Request, Summary
    from pipelines.backfill.steps import Steps
    from pipelines.export import Span
    from pipelines.sources.object_store import Place

INTERRUPTED = 130
UNWRITTEN, GOES_ON = "nothing was written", "the same command goes on"

Samples = Annotated[
    list[str],
    typer.Argument(help="Parquet, CSV or NDJSON: files, patterns, folders; in any order.", metavar="SAMPLES..."),
]
Router = Annotated[str | None, typer.Option(help="Name or id of the router of the samples that name none.")]
Metric = Annotated[str | None, typer.Option(help="Metric of the samples that name none.")]
Unit = Annotated[
    Literal["s", "ms", "us", "ns"] | None,
    typer.Option("--time-unit", help="Of times in the samples that are numbers; ms unless said."),
]
RunId = Annotated[str | None, typer.Option("--run", help="Id of the run; default: one made from the files' content.")]
HistoryUrl = Annotated[
    str | None, typer.Option("--history", help="Path or fsspec URL of the history store (BREAKERS_HISTORY_URL).")
]
Rejects = Annotated[Path | None, typer.Option(help="File for rejected rows; default rejects-<run>.csv.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Judge all rows, count, and write nothing; fails when no row can be used.")
]
MaxRejected = Annotated[
    int,
    typer.Option(
        min=0,
        max=100,
        help="How many percent of the rows may be rejected; with more the others are loaded and the exit code is 1.",
    ),
]
Parallel = Annotated[int | None, typer.Option(min=1, help="Tasks at a time; default: half of the cluster's cores.")]
ChunkRows = Annotated[int, typer.Option(min=1, help="Rows of one task, which hold its memory in bounds.")]
Address = Annotated[
    str | None,
    typer.Option(help="The Ray cluster: auto or HOST:PORT; default: the one of the data directory."),
]
From = Annotated[str | None, typer.Option("--from", help="From this time on: ISO 8601 (UTC) or Unix milliseconds.")]
To = Annotated[str | None, typer.Option("--to", help="Up to this time, which is not included.")]
Out = Annotated[Path, typer.Option(help="Folder to make; it must be new or empty.")]


def backfill(
    samples: Samples,
    project: Project = None,
    column: Columns = None,
    time_unit: Unit = None,
    router: Router = None,
    metric: Metric = None,
    run: RunId = None,
    rejects: Rejects = None,
    max_rejected: MaxRejected = 50,
    dry_run: DryRun = False,
    json: AsJson = False,
    history: HistoryUrl = None,
    parallel: Parallel = None,
    chunk_rows: ChunkRows = 1 << 19,
    address: Address = None,
    data_dir: DataDir = None,
) -> None:
    """Load recorded samples into a running service: as history, with the events its breakers would have had.

    Nobody is notified of these events, and no state changes; the events list shows them with source=backfill or all.
    Samples that a breaker's window still reaches are ingested as usual. A run that was stopped goes on when the same
    command is given again; one that has ended does nothing."""
    with one_line_errors(), _stoppable():
        from msgspec.structs import asdict

        from pipelines.backfill.manifest import begun, check_run_id, ended
        from pipelines.sources.object_store import open_place

        settings = settings_of(data_dir, whole=True, history_url=history)
        options = {"columns": renamed(column), "metric": metric, "time_unit": time_unit or "ms"}
        asked = _asked(samples, options, project, router, data_dir)
        run_id = check_run_id(run) if run is not None else asked.run_id()
        out = rejects or Path(f"rejects-{run_id}.csv")
        check_folder(out)
        place = open_place(settings.history)
        known = begun(place, asked, run_id)
    with one_line_errors(), bars(quiet=json) as tell:
        with _stoppable():
            plan = known or _planned(settings, data_dir, asked, run_id, chunk_rows)
            if dry_run or known is None:
                plan, counts = _surveyed(plan, tell, is_sure=time_unit is not None)
            for line in plan.hints:
                note(f"breakers: {line}")
        if dry_run:
            shown = _of_counts(plan, counts)
        else:
            before = ended(place, plan) if known else None
            summary = before or _carried_out(settings, place, plan, parallel, address, tell, known is not None)
            shown = asdict(summary) | {"done_before": before is not None, "rejects": _write_rejects(place, plan, out)}
    _show(shown | {"warnings": list(plan.hints)}, json, dry_run)
    if words := _too_few(shown, max_rejected):
        note(f"breakers: {words}")
        raise typer.Exit(FAILED)


def _asked(
    samples: list[str], options: dict[str, Any], project: str | None, router: str | None, data_dir: Path | None
) -> Request:
    """What is asked for, with the files by their content. Raises Invalid for what there is none of."""
    from pipelines.backfill.manifest import Request, fingerprint
    from pipelines.sources.files import local_files

    asked = Request(project_id="", inputs=(), **options)
    asked.layout()
    inputs = tuple(fingerprint(path) for pattern in samples for path in local_files(pattern))
    project_id = project_id_of(project, data_dir)
    router_id = None if router is None else router_id_of(router, project_id, data_dir)
    return Request(project_id=project_id, inputs=inputs, router_id=router_id, **options)


def _planned(settings: Settings, data_dir: Path | None, asked: Request, run_id: str, chunk_rows: int) -> Manifest:
    """A run of what is asked for, on the project as it is now."""
    from pipelines.backfill.manifest import Manifest
    from pipelines.sources.routing import plans

    async def work(store: Store, now_ms: int) -> Manifest:
        project = await store.get_project(asked.project_id)
        if project is None:
            raise Invalid(f"there is no project {asked.project_id}")
        routers = await store.list_routers(asked.project_id)
        breakers, _ = await store.list_breakers(asked.project_id)
        planned_routers, planned_breakers = plans(routers, breakers)
        return Manifest(
            run_id=run_id,
            request=asked,
            chunk_rows=chunk_rows,
            now_ms=now_ms,
            newest_ms=now_ms + settings.max_sample_ahead_ms,
            window_samples_max=settings.window_samples_max,
            with_traces=bool(project.trace_id_url_template),
            routers=planned_routers,
            breakers=planned_breakers,
        )

    return on_store(data_dir, work)


def _surveyed(plan: Manifest, tell: Steps, is_sure: bool) -> tuple[Manifest, Counts]:
    """The plan with its rows and hints, and what would become of them. Raises Invalid, before anything is written, for
    times that are probably in another unit; `is_sure`: of the unit the caller is."""
    import msgspec

    from pipelines.backfill.steps import survey
    from pipelines.sources.files import COMMAND, Unread, early

    unread = Unread()
    total = sum(_rows_of(given.path) or 0 for given in plan.request.inputs)
    norms = plan.norms()
    asked, counts = survey(plan.request, norms, lambda rows: tell("judging rows", rows, max(rows, total)), unread)
    if not is_sure and counts.first_ms is not None and (remark := early(counts.first_ms, COMMAND)):
        raise Invalid(f"{remark}; --time-unit ms says that they are right. Nothing was written")
    one_series = "router_id" not in unread.read or set(counts.routers) == {plan.request.router_id}
    hints = (*_hints(plan, counts), *filter(None, [unread.remark(COMMAND, one_series)]))
    return msgspec.structs.replace(plan, request=asked, hints=hints), counts


NAMED_MAX = 5
"""Metrics or routers that a hint names."""


def _hints(plan: Manifest, counts: Counts) -> Iterator[str]:
    """What is probably not meant of the rows."""
    heard = dict.fromkeys(breaker.rule.metric for breaker in plan.breakers)
    unheard = [metric for metric in counts.metrics if metric not in heard]
    if unheard:
        listen = f"they listen to {_some(list(heard))}" if heard else "there is none"
        yield f"no breaker listens to {_some(unheard)}: such samples have no events; {listen}"
    if counts.strange:
        yield f"no router of the project is called {_some(list(counts.strange))}: such rows are rejected"
    if counts.reasons.get("invalid_ts_ms") == counts.rows:
        from pipelines.sources.files import COMMAND, time_forms

        unit = plan.request.time_unit
        yield f"no row has a time: {time_forms(unit)}; if they are numbers in another unit, {COMMAND.unit}"


def _too_few(shown: dict[str, Any], max_rejected: int) -> str | None:
    """Why a run failed that ended: what its rows say. None where enough of them were used."""
    rows, rejected = shown["rows"], shown["rejected"]
    if not shown["history"] + shown["live"]:
        return "no row could be used"
    if rejected * 100 <= rows * max_rejected:
        return None
    return (
        f"{rejected:,} of {rows:,} rows are rejected, more than {max_rejected} %: --max-rejected says how many may be"
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:NAMED_MAX]) + (f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else "")


def _rows_of(path: str) -> int | None:
    from pipelines.sources.files import Files, Layout

    return Files([path], Layout()).rows()


def _carried_out(
    settings: Settings,
    place: Place,
    plan: Manifest,
    parallel: int | None,
    address: str | None,
    tell: Steps,
    begun: bool,
) -> Summary:
    """On the cluster. What was not `begun` yet is, once the cluster is there."""
    from api.launch.cluster import connected, use_proofs
    from api.launch.join import prepare_join
    from api.launch.ray_environment import prepare_driver
    from breaker_actors.clock import SystemClock
    from pipelines.backfill.manifest import begin
    from pipelines.backfill.steps import carry_out
    from pipelines.sources.object_store import Folder

    prepare_driver()  # to find the cluster imports Ray
    if not address:
        noted = prepare_join(settings.data_dir)
        use_proofs(settings.data_dir)
        address = _cluster_of(settings.data_dir, noted)
    stoppable = _stoppable(GOES_ON if begun else UNWRITTEN)
    # Ray tells drivers about its nodes on stdout, which is for results
    with stoppable, redirect_stdout(sys.stderr), connected(address, settings.data_dir):
        import ray

        from api.cli.backfill_cluster import RunningService, Tasks
        from breaker_actors.ray_runtime.rollout import connect, names

        if not names():
            raise Unavailable(f"the service is not running: {NOT_THERE.format(settings.data_dir)}")
        with _stoppable(GOES_ON):
            begin(place, plan)
            cores = ray.cluster_resources().get("CPU", 1)  # type: ignore[no-untyped-call]
            many = parallel or max(1, int(cores) // 2)
            tasks = Tasks(many, here=isinstance(place, Folder))
            with RunningService(connect(settings), plan, SystemClock()) as service:
                return carry_out(place, plan, tasks, service, tell)


@contextmanager
def _stoppable(words: str = UNWRITTEN) -> Iterator[None]:
    """Ctrl-C is one line, with what has become of the run so far, and its exit code."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"breakers: stopped; {words}")
        raise typer.Exit(INTERRUPTED) from None


NOT_THERE = "the Ray cluster here has none that serves {}; start it with `breakers serve`, or name its --address"


def _cluster_of(data_dir: Path, noted: str) -> str:
    """The cluster that serves the data directory. Where none is noted, it is the only one of this user here; of several
    it is none."""
    from api.launch.join import address_of

    try:
        return address_of(noted)
    except Invalid as error:
        start = f"start it with `breakers serve`, or name its --address ({error})"
        raise Unavailable(f"the service of {data_dir} is not running: {start}") from None
    except OSError:  # who joins says so
        return noted


def _of_counts(plan: Manifest, counts: Counts) -> dict[str, Any]:
    return {
        "run_id": plan.run_id,
        "project_id": plan.request.project_id,
        "rows": counts.rows,
        "history": counts.history,
        "live": counts.live,
        "rejected": counts.rejected,
        "reasons": counts.reasons,
        "routers": len(counts.routers),
        "first_ms": counts.first_ms,
        "last_ms": counts.last_ms,
        "examples": {reason: _example(plan, reason, one) for reason, one in sorted(counts.examples.items())},
        "dry_run": True,
    }


VALUE_CHARS = 60
"""What is shown of a rejected value."""


def _example(plan: Manifest, reason: str, one: Example) -> dict[str, Any]:
    """A row that would be rejected, and what is allowed in its place."""
    from pipelines.backfill.validation import allowed

    value = one.value
    if value is not None and len(value) > VALUE_CHARS:
        value = f"{value[:VALUE_CHARS]}..."
    return {
        "file": one.file,
        "row": one.row,
        "column": plan.request.layout().theirs(one.column),
        "value": value,
        "allowed": allowed(reason, plan.norms(), plan.request.time_unit),
    }


def _shown_example(one: dict[str, Any]) -> str:
    """The same as words, with nothing of the value that is not to be printed."""
    value = "blank" if one["value"] is None else repr(one["value"])
    return f"{one['file']}, row {one['row']}: {one['column']} {value}; {one['allowed']}"


def _write_rejects(place: Place, plan: Manifest, out: Path) -> str | None:
    from pipelines.backfill.manifest import rejects
    from pipelines.sources.atomic_files import replacing

    pieces = rejects(place, plan)
    first = next(pieces, None)
    if first is None:
        return None
    with replacing(out) as beside, beside.open("wb") as file:
        file.write(first)
        for piece in pieces:
            file.write(piece)
    return str(out)


def _show(shown: dict[str, Any], json: bool, dry_run: bool) -> None:
    if json:
        put_json(shown)
        return
    done_before = ": done before, nothing was added" if shown.get("done_before") else ""
    put(f"run {shown['run_id']}" + (": nothing is written" if dry_run else done_before))
    words = {"rows": "rows read", "history": "samples of history", "live": "live samples", "rejected": "rows rejected"}
    for name, word in words.items():
        put(f"{shown[name]:>14,} {word}")
    for reason, count in sorted(shown["reasons"].items()):
        put(f"{count:>14,}   {reason}")
        if one := shown.get("examples", {}).get(reason):
            put(f"{'':>14}     {_shown_example(one)}")
    if shown["first_ms"] is not None:
        first, last = (rfc3339(shown[name]) for name in ("first_ms", "last_ms"))
        put(f"samples from {first} to {last}")
    _put_count(shown["routers"], "router")
    if not dry_run:
        _put_count(shown["events"], "event")
    if shown.get("rejects"):
        put(f"wrote {shown['rejects']}")


def _put_count(count: int, noun: str) -> None:
    number, word = counted(count, noun).split(" ", 1)
    put(f"{number:>14} {word}")


@contextmanager
def bars(quiet: bool) -> Iterator[Steps]:
    """A progress bar per step on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, quiet=quiet)
    columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        tasks: dict[str, Any] = {}

        def tell(words: str, done: int, total: int) -> None:
            if words not in tasks:
                tasks[words] = progress.add_task(words)
            progress.update(tasks[words], completed=done, total=total)

        yield tell


# -- export -----------------------------------------------------------------------------------------------------------


def export(
    out: Out,
    project: Project = None,
    since: From = None,
    until: To = None,
    json: AsJson = False,
    history: HistoryUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Write a project's samples (sample log and history store) and events as partitioned Parquet, with tables of its
    breakers and routers.

    Samples by when they were received, events by their time. `breakers backfill` and `breakers backtest --sort` read
    the samples again."""
    with one_line_errors():
        from pipelines.export import Span, new_folder
        from pipelines.sources.files import LATEST_MS
        from pipelines.sources.passed_over import told

        settings = settings_of(data_dir, whole=True, history_url=history)
        from_ms, to_ms = _instant(since, "--from", 0), _instant(until, "--to", LATEST_MS)
        span = Span(project_id_of(project, data_dir), min(from_ms, LATEST_MS), min(to_ms, LATEST_MS))
        if span.from_ms >= span.to_ms:
            raise Invalid("--from is not before --to")
        with bars(quiet=json) as tell, new_folder(out) as folder:
            counts, passed = on_store(data_dir, lambda store, _: _exported(settings, store, span, folder, tell))
    if json:
        put_json({"project_id": span.project_id, "out": str(out), **counts, "passed_over": passed})
        return
    words = {
        "log": "samples of the log",
        "history": "samples of history",
        "events": "events",
        "breakers": "breakers",
        "routers": "routers",
    }
    for name, word in words.items():
        put(f"{counts[name]:>14,} {word}")
    if line := told(passed):
        note(f"breakers: {line}")
    put(f"wrote {out}")


async def _exported(
    settings: Settings, store: Store, span: Span, folder: Path, tell: Steps
) -> tuple[dict[str, int], dict[str, Any]]:
    """Counts by what was written, and what could not be read of the log and of the store's rows."""
    from breaker_actors.persistence import make_log
    from breaker_actors.telemetry.set_aside import Asides
    from pipelines.export import export_breakers, export_events, export_history, export_log, export_routers
    from pipelines.sources.object_store import Folder, open_place
    from pipelines.sources.passed_over import passed_over

    if await store.get_project(span.project_id) is None:
        raise Invalid(f"there is no project {span.project_id}")
    out, counts = Folder(folder), {"log": 0, "history": 0, "events": 0}
    routers, (breakers, _) = await store.list_routers(span.project_id), await store.list_breakers(span.project_id)
    counts |= {"breakers": export_breakers(breakers, out), "routers": export_routers(routers, out)}
    assigned = await store.router_assignments([row.id for row in routers])
    log, done, asides = make_log(settings), 0, Asides()
    try:
        async for rows in export_log(log, assigned, span, out, asides):
            counts["log"], done = counts["log"] + rows, done + 1
            tell("routers' logs", done, len(assigned))
    finally:
        await log.close()
    for rows in export_history(open_place(settings.history), span, out):
        counts["history"] += rows
        tell("samples of history", counts["history"], counts["history"])
    async for rows in export_events(store, span, out):
        counts["events"] += rows
        tell("events", counts["events"], counts["events"])
    return counts, passed_over(asides, store.asides)


def _instant(text: str | None, option: str, default: int) -> int:
    """Unix milliseconds, or ISO 8601, UTC unless it says otherwise."""
    if text is None:
        return default
    if text.isdecimal() and len(text) > 4:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        from pipelines.sources.files import time_forms

        raise Invalid(f"{option} {text!r} is not a time; {time_forms()}") from None
    return max(0, round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000))
