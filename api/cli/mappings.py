"""`breakers mappings`: what becomes of series of OTLP, Prometheus and StatsD, for a running service."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any

import typer

from api.cli.breaker_client import BreakerClient, DataDir, Insecure, Project, Url, open_client
from api.cli.errors import one_line_errors
from api.cli.json_file import read_bytes, read_object
from api.cli.output import note, put, put_json, put_rows, put_table
from api.cli.spans import OPS, matchers_of
from api.cli.store_access import AsJson
from breaker_actors.errors import Invalid
from breaker_actors.store.mappings.model import LABEL, RESOURCE
from breaker_actors.text.counting import counted

mappings = typer.Typer(
    name="mappings", no_args_is_help=True, help="Say what becomes of series of OTLP, Prometheus and StatsD."
)


class As(StrEnum):
    """What a rise of a counter becomes."""

    observations = "observations"
    value = "value"


class Temporality(StrEnum):
    """What the points of a counter are."""

    delta = "delta"
    cumulative = "cumulative"


class Protocol(StrEnum):
    """Whose request a file is."""

    otlp = "otlp"
    remote_write_1 = "remote-write-1"
    remote_write_2 = "remote-write-2"


PAYLOAD_BYTES_MAX = 8 << 20
GZIP = b"\x1f\x8b"
POINTS = ("taken", "unmatched", "absent", "rejected")
Payload = Annotated[
    Protocol | None,
    typer.Option(help="FILE is the body of such a request, as it goes over the wire."),
]
Which = Annotated[str, typer.Argument(help="Name or id of the mapping.", metavar="NAME")]
NewName = Annotated[str | None, typer.Argument(help="Name of the new mapping; default: one is made.", metavar="[NAME]")]
Match = Annotated[
    list[str] | None,
    typer.Option(
        help="Which series it takes, all of them: FIELD=VALUE, FIELD!=VALUE, or FIELD~GLOB with * and ?. FIELD is name"
        " (of the series), label.KEY or resource.KEY.",
        metavar="FIELD=VALUE",
    ),
]
Router = Annotated[
    str | None,
    typer.Option(
        help="Whose samples they become: label.KEY or resource.KEY, whose text names a router, or name or id of one."
    ),
]
Metric = Annotated[str | None, typer.Option(help="Metric of the samples; default: the name of the series.")]
OwnMetric = Annotated[bool, typer.Option("--own-metric", help="The metric is the name of the series again.")]
Scale = Annotated[float | None, typer.Option(help="Multiply each value by it: 1000 makes ms of s. Default: 1.")]
TakeAs = Annotated[
    As | None,
    typer.Option(
        "--as", help="What a rise of a counter becomes: so many observations of 1, or one value. Default: observations."
    ),
]
Ok = Annotated[
    list[str] | None,
    typer.Option(
        help="When samples are good, all of them: !KEY (there is none), KEY<LIMIT, KEY=A|B (one of these), or KEY (it"
        " is true, 1, yes or ok). Default: by the conventions of OpenTelemetry and Prometheus.",
        metavar="RULE",
    ),
]
ByConvention = Annotated[bool, typer.Option("--ok-by-convention", help="Good is what the conventions say again.")]
Said = Annotated[
    Temporality | None, typer.Option("--temporality", help="What points are of counters that don't say it.")
]
SeriesMax = Annotated[int | None, typer.Option(help="Take at most so many series; default: 2000.")]
Position = Annotated[int | None, typer.Option(min=1, help="Place in the order, 1 is looked at first. Default: last.")]
Enabled = Annotated[bool | None, typer.Option("--enable/--disable", help="Whether it counts; default: it does.")]
ListFile = Annotated[
    str, typer.Argument(help="JSON file as `breakers mappings list --json` prints it, - for stdin.", metavar="FILE")
]
SeriesFile = Annotated[
    str,
    typer.Argument(
        help='JSON file as {"series": [{"name": "x", "labels": {"a": "b"}, "type": "gauge"}]}, - for stdin.',
        metavar="FILE",
    ),
]


@mappings.command("list")
def list_mappings(
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List mappings in their order: position, name, state, what they match, router, metric, id."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        rows = client.mappings()
        if not rows:
            client.note_none("mappings")
    if json:
        put_json({"mappings": rows})
        return
    titles = ("position", "name", "state", "what", "router", "metric", "id")
    put_table(titles, map(_line, rows), short=("id",), least=("id", "state"))


@mappings.command("show")
def show(
    name: Which,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Show all fields of a mapping."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        row = client.find_mapping(name)
    if json:
        put_json(row)
        return
    flat = {key: value for key, value in row.items() if key not in ("matchers", "to")}
    put_rows([*flat.items(), ("matchers", _what(row)), *((f"to.{key}", value) for key, value in row["to"].items())])


@mappings.command("create")
def create(
    name: NewName = None,
    match: Match = None,
    router: Router = None,
    metric: Metric = None,
    scale: Scale = None,
    take_as: TakeAs = None,
    ok: Ok = None,
    temporality: Said = None,
    series_max: SeriesMax = None,
    position: Position = None,
    enabled: Enabled = None,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Make a mapping, last unless --position says where; show its id."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        if not match or router is None:
            raise Invalid("say --match and --router: which series become samples of which router")
        to = _to(client, router, metric, scale, take_as, ok, temporality, series_max)
        fields = matchers_of(match, False) | {"to": to, "name": name, "position": position, "enabled": enabled}
        fields.pop("all")
        row = client.create_mapping(fields)
    put_json(row) if json else put(str(row["id"]))


@mappings.command("edit")
def edit(
    name: Which,
    rename: Annotated[str | None, typer.Option(help="New name of the mapping.")] = None,
    match: Match = None,
    router: Router = None,
    metric: Metric = None,
    own_metric: OwnMetric = False,
    scale: Scale = None,
    take_as: TakeAs = None,
    ok: Ok = None,
    by_convention: ByConvention = False,
    temporality: Said = None,
    series_max: SeriesMax = None,
    position: Position = None,
    enabled: Enabled = None,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Change a mapping: what is not given stays. --match and --ok are given as a whole; --position moves it."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        to = _to(client, router, metric, scale, take_as, ok, temporality, series_max)
        to |= ({"metric": None} if own_metric else {}) | ({"ok": None} if by_convention else {})
        said = {"name": rename, "position": position, "enabled": enabled, "to": to or None}
        fields = matchers_of(match, False) | {key: value for key, value in said.items() if value is not None}
        fields.pop("all", None)
        if not fields:
            raise Invalid("say what to change")
        row = client.change_mapping(str(client.find_mapping(name)["id"]), fields)
    put_json(row) if json else put(f"changed {row['id']}")


@mappings.command("remove")
def remove(
    names: Annotated[list[str], typer.Argument(help="Names or ids of mappings.", metavar="NAME...")],
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    data_dir: DataDir = None,
) -> None:
    """Delete mappings; those behind them move up."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        for id_ in [str(client.find_mapping(name)["id"]) for name in names]:
            client.delete_mapping(id_)
            put(f"removed {id_}")


@mappings.command("replace")
def replace(
    file: ListFile,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Make the list in a file the whole list, in its order, all or nothing: what is not in it is deleted."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        found = client.replace_mappings(read_object(file))
    if json:
        put_json(found)
    else:
        put(f"{'replaced' if found['changed'] else 'unchanged'}: {counted(found['count'], 'mapping')}")


@mappings.command("preview")
def preview(
    file: SeriesFile,
    protocol: Payload = None,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Show what series would become, at most 1000: name, outcome, router, metric, good or bad, mapping or why not.
    With --protocol FILE is a request as its sender sends it; then its points are looked at, too."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        if protocol is None:
            found = client.preview_mappings(read_object(file))
        else:
            body = read_bytes(file, PAYLOAD_BYTES_MAX)
            found = client.preview_payload(body, _headers(protocol, body))
    if json:
        put_json(found)
        return
    titles = ("series", "outcome", "router", "metric", "ok", "mapping", "why not")
    put_table(titles, map(_outcome, found["series"]), least=("ok", "mapping"))
    note(f"breakers: {found['mapped']} mapped, {found['unmatched']} unmatched, {found['refused']} refused")
    if points := found.get("points"):
        note("breakers: points: " + ", ".join(f"{points[word]} {word}" for word in POINTS))
        for one in points["errors"]:
            note(f"breakers: rejected: {one['where']}: {one['message']} ({one['code']})")


def _line(row: dict[str, Any]) -> tuple[Any, ...]:
    state, to = "enabled" if row["enabled"] else "disabled", row["to"]
    return row["position"], row["name"], state, _what(row), to["router"], to["metric"], row["id"]


def _what(row: dict[str, Any]) -> str:
    signs = {op: sign for sign, op in OPS.items()}
    return " ".join(f"{one['field']}{signs[one['op']]}{one['value']}" for one in row["matchers"])


def _headers(protocol: Protocol, body: bytes) -> dict[str, str]:
    """Those that a sender of this protocol sends with such a body."""
    if protocol is not Protocol.otlp:
        proto = "prometheus.WriteRequest" if protocol is Protocol.remote_write_1 else "io.prometheus.write.v2.Request"
        return {"Content-Type": f"application/x-protobuf;proto={proto}", "Content-Encoding": "snappy"}
    coat = {"Content-Encoding": "gzip"} if body.startswith(GZIP) else {}
    kind = "application/json" if body.lstrip().startswith(b"{") else "application/x-protobuf"
    return {"Content-Type": kind} | coat


def _outcome(one: dict[str, Any]) -> tuple[Any, ...]:
    return one["name"], one["outcome"], one["router"], one["metric"], one["ok"], one["mapping"], one["message"]


def _to(
    client: BreakerClient,
    router: str | None,
    metric: str | None,
    scale: float | None,
    take_as: As | None,
    ok: list[str] | None,
    temporality: Temporality | None,
    series_max: int | None,
) -> dict[str, Any]:
    """What is given of what series become."""
    if router is not None and not router.startswith((LABEL, RESOURCE)):
        router = client.router_id(router)
    if scale is not None and not math.isfinite(scale):
        raise Invalid("--scale: not a finite number")
    said: dict[str, Any] = {
        "router": router,
        "metric": metric,
        "scale": scale,
        "temporality": temporality,
        "series_max": series_max,
    }
    said |= {"as": take_as, "ok": [_rule(text) for text in ok] if ok else None}
    return {key: value for key, value in said.items() if value is not None}


def _rule(text: str) -> dict[str, Any]:
    """A rule of --ok. Raises Invalid."""
    if text.startswith("!"):
        return {"absent": text[1:]}
    key, less, limit = text.partition("<")
    if less:
        try:
            return {"below": {"key": key, "limit": float(limit)}}
        except ValueError:
            raise Invalid(f"--ok {text}: {limit} is no number") from None
    key, equals, values = text.partition("=")
    return {"in": {"key": key, "values": values.split("|")}} if equals else {"label": key}
