"""`breakers backfills`: the runs of `breakers backfill`, and how one is taken back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.errors import one_line_errors
from api.cli.history import HistoryUrl, bars
from api.cli.named import project_id_of
from api.cli.output import put, put_json, put_table
from api.cli.store_access import AsJson, DataDir, Project, on_store, settings_of
from breaker_actors.clock import rfc3339
from breaker_actors.errors import Invalid
from breaker_actors.text.counting import counted
from breaker_actors.text.escaping import for_terminal

if TYPE_CHECKING:
    from breaker_actors.store.base import Store
    from pipelines.backfill.removal import Run

backfills = typer.Typer(name="backfills", help="Runs of backfill: show them, take one back.", no_args_is_help=True)

TITLES = ("run", "began", "samples of history", "events")
RunId = Annotated[str, typer.Argument(help="Id of the run, as `breakers backfill` and `backfills list` show it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")]


@backfills.command("list")
def list_runs(
    project: Project = None, json: AsJson = False, history: HistoryUrl = None, data_dir: DataDir = None
) -> None:
    """List a project's runs, those that began last first: id, when it began, samples of history, events."""
    with one_line_errors():
        from pipelines.backfill.removal import runs
        from pipelines.sources.object_store import open_place

        settings = settings_of(data_dir, whole=True, history_url=history)
        found = runs(open_place(settings.history), project_id_of(project, data_dir))
    if json:
        put_json({"runs": [_shown(run) for run in found]})
        return
    put_table(
        TITLES,
        [
            (run.run_id, rfc3339(run.began_ms), *(("not ended", None) if done is None else (done.history, done.events)))
            for run in found
            for done in [run.summary]
        ],
    )


@backfills.command("remove")
def remove_run(
    run: RunId,
    project: Project = None,
    yes: Yes = False,
    json: AsJson = False,
    history: HistoryUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Take a run back: its samples leave the history store, its events the list. Nothing else is touched; samples that
    the run had ingested as live ones stay."""
    with one_line_errors():
        from pipelines.backfill.removal import announce, remove, run_of
        from pipelines.sources.object_store import open_place

        settings = settings_of(data_dir, whole=True, history_url=history)
        project_id, place = project_id_of(project, data_dir), open_place(settings.history)
        known = run_of(place, project_id, run)
        if not yes and not sys.stdin.isatty():
            raise Invalid("nobody can be asked here: say --yes to remove")
    if not yes:
        typer.confirm(for_terminal(f"Remove run {run}, begun {rfc3339(known.began_ms)}?"), abort=True, err=True)

    async def forget(store: Store, _: int) -> int:
        return await store.remove_backfill_events(project_id, run)

    with one_line_errors(), bars(quiet=json) as tell:
        announce(place, project_id, run)
        events = on_store(data_dir, forget)
        files = remove(place, project_id, run, lambda done, total: tell("removing files", done, total))
    live = known.summary.live if known.summary else 0
    if json:
        put_json({"run_id": run, "project_id": project_id, "events": events, "files": files, "live_samples_left": live})
        return
    put(f"removed run {run}: {counted(events, 'event')}, {counted(files, 'file')} of samples")
    if live:
        put(f"{counted(live, 'sample')} ingested as live: left as {'it is' if live == 1 else 'they are'}")


def _shown(run: Run) -> dict[str, Any]:
    from msgspec.structs import asdict

    told = {} if run.summary is None else asdict(run.summary)
    return told | {"run_id": run.run_id, "began_ms": run.began_ms, "ended": run.summary is not None}
