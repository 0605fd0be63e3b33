"""`breakers deploy`, `status`, `rebalance`, `node-env`: the service on a cluster, and how a running one is doing.

`status` and `rebalance` ask over HTTP, with the admin key of credentials.json: that works for `serve` and `deploy`
alike, from any machine, without becoming a part of the Ray cluster.
"""

from __future__ import annotations

import json as json_
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli_errors import one_line_errors

if TYPE_CHECKING:
    from api.operator import Operator

STEP = 20
ALL = 1_000_000

DataDir = Annotated[
    Path | None, typer.Option(help="Where credentials.json is (BREAKERS_DATA_DIR; default ./.breakers).")
]
Address = Annotated[str | None, typer.Option(help="Base URL of the service; default: what credentials.json says.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def install(app: typer.Typer) -> None:
    """Adds these commands to the `breakers` command."""
    app.command()(deploy)
    app.command()(status)
    app.command()(rebalance)
    app.command("node-env")(node_env)


def deploy(
    address: Annotated[str, typer.Option(help="The Ray cluster: auto (this machine's) or HOST:PORT of its head.")] = (
        "auto"
    ),
    host: Annotated[str, typer.Option(help="Address to listen on, on every node with replicas.")] = "0.0.0.0",
    port: Annotated[int | None, typer.Option(help="Port to listen on (BREAKERS_PORT; default 7117).")] = None,
    replicas_min: Annotated[int | None, typer.Option(help="API replicas at least (BREAKERS_REPLICAS).")] = None,
    replicas_max: Annotated[int | None, typer.Option(help="At most; more than the minimum: as the load asks.")] = None,
    data_dir: DataDir = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take it down instead. Data stays.")] = False,
) -> None:
    """Run the service on a Ray cluster that is up, and leave it running.

    On each node, before `ray start`: eval "$(breakers node-env)". Deployed again with another version or other
    settings it is upgraded in place: journal, directory, notifier, then routers, then breakers are replaced, each kind
    when the one before is up again, then the API's replicas, one after the other. What was accepted stays, requests
    meanwhile wait some seconds, states are told from the store. What has not changed goes on untouched. Old and new
    parts work side by side for a moment: go from one version to the next. A new schema of the database needs
    `breakers deploy --remove` and `breakers db upgrade` first."""
    with one_line_errors():
        from api.cluster import Deployment, Scale
        from api.cluster import remove as take_down
        from breaker_actors.settings import load_settings

        settings = load_settings(host=host, port=port, data_dir=data_dir)
        if remove:
            take_down(address, typer.echo)
            return
        least = replicas_min or settings.replicas
        scale = Scale(least, replicas_max or least)
        deployment = Deployment(settings, scale, tell=typer.echo, warn=_say)
        deployment.run(address)
        typer.echo(f"credentials {deployment.credentials}")
        typer.echo(f"ready {deployment.base_url}")


def status(address: Address = None, data_dir: DataDir = None, json: AsJson = False) -> None:
    """Show nodes, actors, what they hold, and what is behind."""
    with one_line_errors(), _operator(address, data_dir) as operator:
        found = operator.status()
    if json:
        typer.echo(json_.dumps(found))
        return
    from api.screen_status import show

    show(found)


def rebalance(
    most: Annotated[int, typer.Option("--max", min=1, help="Move at most so many routers and breakers.")] = ALL,
    address: Address = None,
    data_dir: DataDir = None,
    json: AsJson = False,
) -> None:
    """Spread routers and breakers evenly over the actors, now."""
    with one_line_errors(), _operator(address, data_dir) as operator:
        moved, left = _move(operator, most, quiet=json)
    if json:
        typer.echo(json_.dumps({"moved": moved, "left": left}))
    else:
        typer.echo(f"moved {moved}, left {left}" if left else f"moved {moved}, all is even")


def node_env() -> None:
    """Print what a node's environment needs before `ray start`: eval "$(breakers node-env)"."""
    with one_line_errors():
        from api.environment import make_folder, node_environment

        lines = [f"export {name}={shlex.quote(value)}" for name, value in node_environment(make_folder()).items()]
        # A connection of a client is two sockets in HAProxy, and a shell's limit is often 1,024 files.
        typer.echo("\n".join(['ulimit -n "$(ulimit -Hn)"', *lines]))


def _move(operator: Operator, most: int, quiet: bool) -> tuple[int, int]:
    """Moves in steps until all is even or `most` have moved, with a progress bar; how many have moved and are left."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True, quiet=quiet), transient=True) as bar:
        task = bar.add_task("moving", total=None)
        moved, left = 0, 1
        while left and moved < most:
            step = operator.rebalance(min(STEP, most - moved))
            moved, left = moved + step["moved"], step["left"]
            bar.update(task, completed=moved, total=min(most, moved + left))
        return moved, left


def _operator(address: str | None, data_dir: Path | None) -> Operator:
    from api.operator import Operator
    from breaker_actors.settings import load_settings

    return Operator.of(load_settings(data_dir=data_dir), address)


def _say(line: str) -> None:
    typer.echo(line, err=True)
