"""The `breakers` command. What is slow to import (Ray, polars, Quart) is imported where it is used: --help is quick."""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from api.cli import admin as cli_admin
from api.cli import aside as cli_aside
from api.cli import audit as cli_audit
from api.cli import backfills as cli_backfills
from api.cli import backtest as cli_backtest
from api.cli import backup as cli_backup
from api.cli import breakers as cli_breakers
from api.cli import channels as cli_channels
from api.cli import cluster as cli_cluster
from api.cli import console as cli_console
from api.cli import db as cli_db
from api.cli import deliveries as cli_deliveries
from api.cli import doctor as cli_doctor
from api.cli import history as cli_history
from api.cli import logs as cli_logs
from api.cli import mappings as cli_mappings
from api.cli import mutes as cli_mutes
from api.cli import overrides as cli_overrides
from api.cli import recover as cli_recover
from api.cli import rules as cli_rules
from api.cli import ruletests as cli_ruletests
from api.cli import statsd as cli_statsd
from api.cli import suggest as cli_suggest
from api.cli import verify as cli_verify
from api.cli.errors import FAILED, one_line_errors
from api.cli.output import leave_titles_out, note, put, put_script
from api.cli.store_access import DataDir, settings_of
from breaker_actors.errors import BreakersError

if TYPE_CHECKING:
    from api.launch.supervisor import Service, Stopped

NO_HEADERS = "--no-headers"


class Breakers(TyperGroup):
    """All commands. Takes NO_HEADERS behind a command, too, whichever it is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts it where it belongs; behind `--` it is a name."""
        end = args.index("--") if "--" in args else len(args)
        others = [word for word in args[:end] if word != NO_HEADERS]
        given = [NO_HEADERS] * (len(others) < end)
        return super().parse_args(ctx, [*given, *others, *args[end:]])


app = typer.Typer(
    name="breakers",
    cls=Breakers,
    invoke_without_command=True,
    rich_markup_mode=None,  # plain help: paragraphs are wrapped anew, flags take no value
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for group in (
    cli_admin.keys,
    cli_admin.orgs,
    cli_admin.projects,
    cli_db.db,
    cli_channels.channels,
    cli_deliveries.deliveries,
    cli_mappings.mappings,
    cli_aside.aside,
    cli_backfills.backfills,
):
    app.add_typer(group)
cli_breakers.install(app)
cli_mutes.install(app)
cli_overrides.install(app)
cli_rules.install(app)
cli_cluster.install(app)
app.command("audit")(cli_audit.audit)
app.command("backup")(cli_backup.backup)
app.command("backtest")(cli_backtest.backtest)
app.command("console")(cli_console.console)
app.command("backfill")(cli_history.backfill)
app.command("export")(cli_history.export)
app.command("logs")(cli_logs.logs)
app.command("doctor")(cli_doctor.doctor)
app.command("record")(cli_ruletests.record)
app.command("recover")(cli_recover.recover)
app.command("statsd")(cli_statsd.statsd)
app.command("test")(cli_ruletests.run_tests)
app.command("suggest")(cli_suggest.suggest)
app.command("verify")(cli_verify.verify)


def main() -> None:
    """The entry point of the `breakers` command."""
    try:
        app(prog_name="breakers")
    except SystemExit as end:
        if "ray" in sys.modules:
            _leave(end.code if isinstance(end.code, int) else 0)
        raise
    except Exception:
        if "ray" in sys.modules:  # its hook would ask a control service that is gone, for a minute, and say nothing
            traceback.print_exc()
            _leave(FAILED)
        raise


def _leave(code: int) -> NoReturn:
    """Ends the process at once. All is stopped and written; Ray's threads may still be busy with a stop that took too
    long, and would abort the process if Python took their ground away."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        put(version("breaker-actors"))
        raise typer.Exit


@app.callback()
def breakers(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
    no_headers: Annotated[
        bool,
        typer.Option(
            NO_HEADERS, help="Leave out the first line of lists, their titles: for scripts. Also behind a command."
        ),
    ] = False,
) -> None:
    """Circuit breakers over metric samples, with alerts on their changes of state."""
    if no_headers:
        context.call_on_close(leave_titles_out())
    if context.invoked_subcommand is None:
        put_script(context.get_help())


Host = Annotated[str | None, typer.Option(help="Address to listen on (BREAKERS_HOST; default 127.0.0.1).")]
Port = Annotated[int | None, typer.Option(help="Port to listen on, 0 for a free one (BREAKERS_PORT; default 7117).")]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Log at level info on stderr, beside the phases of a start and a stop."),
]


@app.command()
def serve(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    verbose: Verbose = False,
    take_over: cli_cluster.TakeOver = False,
) -> None:
    """Run the whole service on this machine until Ctrl-C. On a PostgreSQL database where another service is alive it
    does not start, unless --take-over says so."""
    with one_line_errors():
        settings = settings_of(data_dir, host=host, port=port)
        from api.launch.supervisor import Service, run
        from breaker_actors.telemetry import logs

        logs.configure("serve", level=logging.INFO if verbose else logging.WARNING)

        run(Service(settings, tell=note, warn=note, take_over=take_over), _serve)


def _serve(service: Service, stopped: Stopped) -> None:
    from api.launch.bootstrap import whereabouts
    from api.launch.ray_environment import LOGS_LINK

    put(whereabouts(service.data_dir))
    put(service.survives)
    put(f"docs {service.base_url}/docs")
    put(f"console {_console(service)}")
    put(f"ready {service.base_url}")
    sys.stdout.flush()
    over = threading.Event()
    teller = threading.Thread(target=cli_logs.tell_on_stdout, args=(service.data_dir / LOGS_LINK, over), daemon=True)
    teller.start()
    try:
        while not stopped(1.0):
            service.watch()
    finally:
        over.set()


def _console(service: Service) -> str:
    """Where the console is; on a terminal a link that signs in, which a log is not told."""
    if not sys.stdout.isatty():
        return f"{service.base_url}/console"
    try:
        return cli_console.link_to(service.base_url, service.data_dir)
    except BreakersError as error:
        note(f"no link to the console: {error}")
        return f"{service.base_url}/console"


@app.command()
def demo(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end and nothing else.")] = False,
) -> None:
    """Serve on a free port, replay a real latency series through it and show a breaker trip and recover."""
    with one_line_errors():
        from api.demo.play import play
        from breaker_actors.telemetry import logs

        logs.configure("demo", level=logging.WARNING)
        play(as_json=json)


@app.command()
def openapi() -> None:
    """Print the OpenAPI document of the HTTP interface."""
    from api.openapi.printing import print_document

    print_document()


if __name__ == "__main__":
    main()
