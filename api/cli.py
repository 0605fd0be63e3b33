"""The `breakers` command. What is slow to import (Ray, polars, Quart) is imported where it is used: --help is quick."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api import cli_admin, cli_backtest, cli_cluster, cli_db, cli_deliveries, cli_history
from api.cli_errors import one_line_errors

if TYPE_CHECKING:
    from api.service import Service, Stopped

app = typer.Typer(name="breakers", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for group in (cli_admin.keys, cli_admin.orgs, cli_admin.projects, cli_db.db, cli_deliveries.deliveries):
    app.add_typer(group)
cli_cluster.install(app)
app.command("backtest")(cli_backtest.backtest)
app.command("backfill")(cli_history.backfill)
app.command("export")(cli_history.export)


def main() -> None:
    """The entry point of the `breakers` command."""
    try:
        app(prog_name="breakers")
    except SystemExit as end:
        if "ray" in sys.modules:
            # All is stopped and written. Ray's threads may still be busy with a stop that took too long, and would
            # abort the process if Python took their ground away.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code if isinstance(end.code, int) else 0)
        raise


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(version("breaker-actors"))
        raise typer.Exit


@app.callback()
def breakers(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Circuit breakers over metric samples, with alerts on their changes of state."""


Host = Annotated[str | None, typer.Option(help="Address to listen on (BREAKERS_HOST; default 127.0.0.1).")]
Port = Annotated[int | None, typer.Option(help="Port to listen on, 0 for a free one (BREAKERS_PORT; default 7117).")]
DataDir = Annotated[Path | None, typer.Option(help="Where all data lives (BREAKERS_DATA_DIR; default ./.breakers).")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say on stderr how long each phase took.")]


@app.command()
def serve(host: Host = None, port: Port = None, data_dir: DataDir = None, verbose: Verbose = False) -> None:
    """Run the whole service on this machine until Ctrl-C."""
    with one_line_errors():
        from breaker_actors.settings import load_settings

        settings = load_settings(host=host, port=port, data_dir=data_dir)
        from api.service import Service, run
        from breaker_actors import logs

        logs.configure("serve", level=logging.INFO if verbose else logging.WARNING)

        run(Service(settings, tell=_say if verbose else _keep_quiet, warn=_say), _serve)


def _serve(service: Service, stopped: Stopped) -> None:
    from api.credentials import FILE_NAME

    typer.echo(f"credentials {service.data_dir / FILE_NAME}")
    typer.echo(f"ready {service.base_url}")
    sys.stdout.flush()
    while not stopped(1.0):
        service.watch()


@app.command()
def demo(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end and nothing else.")] = False,
) -> None:
    """Serve on a free port, replay a real latency series through it and show a breaker trip and recover."""
    with one_line_errors():
        from api.demo.play import play

        play(as_json=json)


@app.command()
def openapi() -> None:
    """Print the OpenAPI document of the HTTP interface."""
    from api.spec.printing import print_document

    print_document()


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _keep_quiet(line: str) -> None:
    pass


if __name__ == "__main__":
    main()
