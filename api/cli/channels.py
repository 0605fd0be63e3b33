"""`breakers channels`: who is told of trips and recoveries, for a running service; a stopped one's are disabled."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from api.cli.breaker_client import DataDir, Insecure, Project, Url, open_client
from api.cli.errors import one_line_errors
from api.cli.json_file import read_object
from api.cli.output import note, put, put_json, put_rows, put_table
from api.cli.store_access import BY, AsJson, on_store, refuse_running, settings_of
from breaker_actors.errors import Invalid
from breaker_actors.store.rows import PENDING_COUNTED, ChannelKind

if TYPE_CHECKING:
    from breaker_actors.store.base import Store

channels = typer.Typer(
    name="channels", no_args_is_help=True, help="Say who is told of trips and recoveries; send them a test."
)


class Event(StrEnum):
    """What a channel hears of."""

    trip = "trip"
    recover = "recover"
    observed = "observed"


Kind = Annotated[str, typer.Argument(help=f"Kind of the channel: {', '.join(get_args(ChannelKind))}.", metavar="KIND")]
Which = Annotated[str, typer.Argument(help="Name or id of the channel.", metavar="NAME")]
NewName = Annotated[str | None, typer.Argument(help="Name of the new channel; default: one is made.", metavar="[NAME]")]
Config = Annotated[
    str | None,
    typer.Option(
        help="JSON file of the kind's config, - for stdin: addresses and keys stay out of the command line. What each"
        " kind takes: docs/guides/notifications.md.",
        metavar="FILE",
    ),
]
Events = Annotated[
    list[Event] | None, typer.Option("--event", help="What it hears of, once for each. Default: trip and recover.")
]
Enabled = Annotated[bool | None, typer.Option("--enable/--disable", help="Whether it is told; default: it is.")]


@channels.command("list")
def list_channels(
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List channels: name, kind, state, what they hear of, id."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        rows = client.listed_channels()
        if not rows:
            client.note_none("channels")
    if json:
        put_json({"channels": rows})
        return
    put_table(("name", "kind", "state", "events", "id"), map(_line, rows), short=("id",), least=("id", "state"))


@channels.command("show")
def show(
    name: Which,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Show all fields of a channel, secrets masked."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        row = client.find_channel(name)
    if json:
        put_json(row)
        return
    flat = {key: value for key, value in row.items() if key not in ("config", "events")}
    config = ((f"config.{key}", value) for key, value in row["config"].items())
    put_rows([*flat.items(), ("events", " ".join(row["events"])), *config])


@channels.command("create")
def create(
    kind: Kind,
    name: NewName = None,
    config: Config = None,
    event: Events = None,
    enabled: Enabled = None,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Make a channel; show its id."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        if config is None:
            raise Invalid("say --config: a JSON file with where the channel leads, - for stdin")
        row = client.create_channel({"channel": kind} | _fields(name, config, event, enabled))
    put_json(row) if json else put(str(row["id"]))
    note(f"breakers: try it: breakers channels test {row['id']}")


@channels.command("edit")
def edit(
    name: Which,
    rename: Annotated[str | None, typer.Option(help="New name of the channel.")] = None,
    config: Config = None,
    event: Events = None,
    enabled: Enabled = None,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Change a channel: what is not given stays. Keys of --config are put over those it has, null removes one; --event
    is given as a whole."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        fields = _fields(rename, config, event, enabled)
        if not fields:
            raise Invalid("say what to change")
        row = client.change_channel(str(client.find_channel(name)["id"]), fields)
    put_json(row) if json else put(f"changed {row['id']}")


@channels.command("test")
def send_test(
    name: Which,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    data_dir: DataDir = None,
) -> None:
    """Send a test notification at once, also where the channel is disabled. Exit code 2 where it could not be sent."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        put(client.test_channel(str(client.find_channel(name)["id"])))


@channels.command("remove")
def remove(
    names: Annotated[list[str], typer.Argument(help="Names or ids of channels.", metavar="NAME...")],
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    data_dir: DataDir = None,
) -> None:
    """Delete channels; what waits to be sent on them is cancelled."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        for id_ in [str(client.find_channel(name)["id"]) for name in names]:
            client.delete_channel(id_)
            put(f"removed {id_}")


@channels.command("disable-all")
def disable_all(
    yes: Annotated[
        bool, typer.Option("--yes", help="Also on a database server, and while a service runs on the data directory.")
    ] = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Disable every channel of every project in a data directory whose service is stopped, so that a restored copy
    tells nobody. What waits to be sent on them is cancelled at the next start; `channels edit NAME --enable` takes one
    back."""
    with one_line_errors():
        settings = settings_of(data_dir)
        if settings.database_url is None and not yes:
            refuse_running(settings.data_dir)
        if settings.database_url is not None and not yes:
            raise Invalid("the database of BREAKERS_DATABASE_URL may be a live service's: say --yes if it is a copy")
    disabled, left = on_store(data_dir, _disabled)
    for name in left:
        note(f"breakers: {name} is left as it is: its config can't be read, so nothing is sent on it")
    if json:
        put_json({"disabled": disabled, "left": left})
        return
    for name in disabled:
        put(f"disabled {name}")
    put(
        f"{len(disabled)} disabled: a service that starts here tells nobody by a channel"
        if disabled
        else "none to disable"
    )


async def _disabled(store: Store, now_ms: int) -> tuple[list[str], list[str]]:
    """Disables every channel; those that were enabled, and those of them whose config can't be read, by project and
    name."""
    from msgspec.structs import replace

    disabled, left = list[str](), list[str]()
    projects = [project for org in await store.list_orgs() for project in await store.list_projects(org.id)]
    for project in projects:
        for row in [one for one in await store.list_channels(project.id) if one.enabled]:
            try:
                await store.update_channel(project.id, row.id, lambda was: replace(was, enabled=False), now_ms, BY)
                disabled.append(f"{project.name}/{row.name}")
            except Invalid:
                left.append(f"{project.name}/{row.name}")
    return disabled, left


def _line(row: dict[str, Any]) -> tuple[Any, ...]:
    state = "enabled" if row["enabled"] else "disabled"
    if (silence := row.get("silence")) and row["enabled"]:
        state = f"receiver fails{_waiting(silence)}"
    return row["name"], row["channel"], state, " ".join(row["events"]), row["id"]


def _waiting(silence: dict[str, Any]) -> str:
    """What waits for a receiver that fails."""
    pending = silence["pending"]
    many = "" if pending < PENDING_COUNTED else " or more"
    return f": {pending}{many} waiting since {silence['oldest_at']}" if pending else ""


def _fields(name: str | None, config: str | None, event: list[Event] | None, enabled: bool | None) -> dict[str, Any]:
    """What is given."""
    said = {
        "name": name,
        "config": None if config is None else read_object(config),
        "events": event or None,
        "enabled": enabled,
    }
    return {key: value for key, value in said.items() if value is not None}
