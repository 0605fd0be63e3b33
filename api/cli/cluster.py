"""`breakers deploy`, `status`, `rebalance`, `node-env`: the service on a cluster, and how a running one is doing.

`status` and `rebalance` ask over HTTP, with an admin key, that of BREAKERS_KEY or of credentials.json: that works for
`serve` and `deploy` alike, from any machine, without becoming a part of the Ray cluster.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.errors import one_line_errors
from api.cli.output import note, put, put_json, put_script
from api.cli.store_access import AsJson, settings_of
from breaker_actors.errors import Unavailable

if TYPE_CHECKING:
    from api.cli.admin_client import Operator

STEP = 20
ALL = 1_000_000
GROWTH = "docs/operations/clusters.md, Growth"

DataDir = Annotated[
    Path | None, typer.Option(help="Where credentials.json is (BREAKERS_DATA_DIR; default ./.breakers).")
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        "--url",
        envvar="BREAKERS_URL",
        help="Base URL of the service; default: what credentials.json says. BREAKERS_KEY: an admin key, likewise.",
    ),
]
TakeOver = Annotated[
    bool,
    typer.Option("--take-over", help="Start although another service is alive on the PostgreSQL database; stop that."),
]
InsecureHttp = Annotated[
    bool,
    typer.Option("--insecure-http", help="The admin key may go to another machine in the clear: on a trusted network."),
]


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
    host: Annotated[str, typer.Option(help="Address to listen on, on every node with replicas.")] = "0.0.0.0",  # nosec B104 # nodes are there to be reached
    port: Annotated[int | None, typer.Option(help="Port to listen on (BREAKERS_PORT; default 7117).")] = None,
    replicas_min: Annotated[int | None, typer.Option(help="API replicas at least (BREAKERS_REPLICAS).")] = None,
    replicas_max: Annotated[int | None, typer.Option(help="At most; more than the minimum: as the load asks.")] = None,
    data_dir: DataDir = None,
    replace_database: Annotated[
        str | None, typer.Option(help="Id of the database of the running service, to leave it for another one.")
    ] = None,
    take_over: TakeOver = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take it down instead. Data stays.")] = False,
) -> None:
    """Run the service on a Ray cluster that is up, and leave it running.

    On each node, before `ray start`: eval "$(breakers node-env)", with --head on the head. Deployed again with another
    version or other settings it is upgraded in place: journal, directory, notifier, then routers, then breakers are
    replaced, each kind when the one before is up again, then the API's replicas, one after the other. What was accepted
    stays, requests meanwhile wait some seconds, states are told from the store. What has not changed goes on untouched.
    Old and new parts work side by side for a moment: go from one version to the next. Another database than that of the
    running service is refused unless --replace-database names the one that is left, and a PostgreSQL database where a
    service elsewhere is alive unless --take-over is given. A new schema of the database needs
    `breakers deploy --remove` and `breakers db upgrade` first."""
    with one_line_errors():
        from api.launch.cluster import Deployment, Scale
        from api.launch.cluster import remove as take_down

        settings = settings_of(data_dir, host=host, port=port)
        if remove:
            take_down(address, settings.data_dir, put)
            return
        least = replicas_min or settings.replicas
        scale = Scale(least, replicas_max or least)
        deployment = Deployment(settings, scale, tell=put, warn=note, replaces=replace_database, take_over=take_over)
        deployment.run(address)
        put(deployment.credentials)
        put(deployment.survives)
        put(f"ready {deployment.base_url}")


def status(
    address: Address = None, insecure_http: InsecureHttp = False, data_dir: DataDir = None, json: AsJson = False
) -> None:
    """Show nodes, actors, what they hold, and what is behind."""
    with one_line_errors(), _operator(address, data_dir, insecure_http) as operator:
        try:
            found = operator.status()
        except Unavailable as error:
            raise _why(error, address, data_dir) from None
        if json:
            put_json(found)
            return
        from api.cli.status_table import show

        try:
            show(found)
        except (LookupError, TypeError, ValueError, AttributeError):
            raise operator.odd() from None


def _why(error: Unavailable, address: str | None, data_dir: Path | None) -> Unavailable:
    """What to say where nobody listens: a service of the data directory may be on its way up."""
    from api.launch.doctor import running

    folder = settings_of(data_dir).data_dir
    pid = running(folder) if address is None and str(error).startswith("nobody listens") else None
    words = f"the service on {folder} (pid {pid}) does not listen yet: it starts, or it stops; ask again in a moment"
    return error if pid is None else Unavailable(words)


def rebalance(
    most: Annotated[int, typer.Option("--max", min=1, help="Move at most so many routers and breakers.")] = ALL,
    address: Address = None,
    insecure_http: InsecureHttp = False,
    data_dir: DataDir = None,
    json: AsJson = False,
) -> None:
    """Spread routers and breakers evenly over the actors, now."""
    with one_line_errors(), _operator(address, data_dir, insecure_http) as operator:
        moved, left = _move(operator, most, quiet=json)
        empty = _empty_nodes(operator)
    if json:
        put_json({"moved": moved, "left": left})
    else:
        put(f"moved {moved}, left {left}" if left else f"moved {moved}, all is even")
    if empty:
        note(f"no actors run on {', '.join(empty)}: breakers move between actors, not actors between nodes ({GROWTH})")


def node_env(
    head: Annotated[bool, typer.Option("--head", help="On the head: make Ray's token if there is none yet.")] = False,
    data_dir: DataDir = None,
    address: Annotated[
        list[str] | None,
        typer.Option(help="Another address or name of this node, for its certificate, say behind NAT. Repeatable."),
    ] = None,
) -> None:
    """Print what a node's environment needs before `ray start`: eval "$(breakers node-env)".

    On the head with --head: that makes ray.token in the data directory, the cluster's token; copy it into the data
    directory of every other node, and of the machine you deploy from. RAY_AUTH_MODE, RAY_AUTH_TOKEN_PATH and
    RAY_AUTH_TOKEN, where you set them, go first. Ray's ports ask for certificates, which each node makes of the token,
    unless you set RAY_USE_TLS. Elsewhere: ray start --address=HEAD:6379 --temp-dir="$RAY_TMPDIR/ray".
    """
    try:
        with one_line_errors():
            from api.launch import ray_authority
            from api.launch.ray_environment import folder_of_shell, make_folder, node_environment
            from api.launch.ray_token import of_node
            from api.launch.tls import check_settings
            from breaker_actors.clock import SystemClock

            settings = settings_of(data_dir)
            check_settings(settings, SystemClock().now_ms(), note)
            token = of_node(settings.data_dir, head)
            proofs = token | ray_authority.of_node(settings.data_dir, token, address or ())
            exports = node_environment(folder_of_shell() or make_folder(), settings) | proofs
    except typer.Exit:
        put_script("false")  # so that `eval "$(breakers node-env)" && ray start` goes no further
        raise
    # A connection of a client is two sockets in HAProxy, and a shell's limit is often 1,024 files.
    lines = ["umask 077", 'ulimit -n "$(ulimit -Hn)"']
    put_script("\n".join([*lines, *(f"export {name}={shlex.quote(value)}" for name, value in exports.items())]))


def _move(operator: Operator, most: int, quiet: bool) -> tuple[int, int]:
    """Moves in steps until all is even or `most` have moved, with a progress bar; how many have moved and are left."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True, quiet=quiet)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("moving", total=None)
        moved, left = 0, 1
        while left and moved < most:
            step = operator.rebalance(min(STEP, most - moved))
            moved, left = moved + step["moved"], step["left"]
            bar.update(task, completed=moved, total=min(most, moved + left))
        return moved, left


def _empty_nodes(operator: Operator) -> list[str]:
    """Addresses of nodes without an actor."""
    found = operator.status()
    try:
        used = {actor["node_id"] for actor in found["actors"]}
        return [str(node["address"]) for node in found["nodes"] if used - {None} and node["id"] not in used]
    except (LookupError, TypeError):
        raise operator.odd() from None


def _operator(address: str | None, data_dir: Path | None, insecure: bool) -> Operator:
    from api.cli.admin_client import Operator

    return Operator.of(data_dir, address, insecure)
