"""`breakers mute | unmute | mutes`: what people don't hear of, and when, for a running service."""

from __future__ import annotations

import re
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any

import typer

from api.cli.breaker_client import BreakerClient, DataDir, Insecure, Project, Url, open_client
from api.cli.errors import one_line_errors
from api.cli.named import BEGINNING, begun_id, is_id
from api.cli.output import note, put, put_json, put_table
from api.cli.spans import OPS, Match, ask_at_once, matchers_of, moment, show_preview, span_ms
from api.cli.store_access import AsJson, instant
from breaker_actors.clock import SystemClock
from breaker_actors.errors import BreakersError, Invalid
from breaker_actors.store.mutes.schedule import WEEKDAYS

_WINDOW = re.compile(r"(\S+) (\S+)-(\S+)")


class State(StrEnum):
    """States of a mute."""

    active = "active"
    pending = "pending"
    expired = "expired"


Everything = Annotated[bool, typer.Option("--all", help="Mute the whole project.")]
Mutes = Annotated[
    list[str], typer.Argument(help=f"Mutes, as `breakers mutes` shows them; {BEGINNING}.", metavar="ID...")
]
Comment = Annotated[str | None, typer.Option(help="Why; all who hear of it read it. Needed for a new mute.")]
Span = Annotated[str | None, typer.Option("--for", help="How long, as 90m, 2h or 1d12h.", metavar="SPAN")]
Until = Annotated[str | None, typer.Option(help="Until when, in RFC 3339, in place of --for.", metavar="TIME")]
Start = Annotated[str | None, typer.Option(help="From when on, in RFC 3339; default: now.", metavar="TIME")]
Windows = Annotated[
    list[str] | None,
    typer.Option(
        "--window",
        help='Recur in place of lasting: "mon-fri 22:00-06:00", "sat,sun 00:00-24:00". One that ends before it begins'
        " goes on to the next day.",
        metavar="DAYS FROM-TO",
    ),
]
Zone = Annotated[str | None, typer.Option(help="Zone of the windows, as Europe/Berlin; default: UTC.")]
Changed = Annotated[str | None, typer.Option("--id", help="Change this mute: what is not given stays.")]
Preview = Annotated[bool, typer.Option("--preview", help="Make nothing; say how many breakers it would match.")]


def install(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("mute")(mute)
    app.command("unmute")(unmute)
    app.command("mutes")(list_mutes)


def mute(
    match: Match = None,
    everything: Everything = False,
    comment: Comment = None,
    span: Span = None,
    until: Until = None,
    start: Start = None,
    window: Windows = None,
    zone: Zone = None,
    changed: Changed = None,
    preview: Preview = False,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Mute notifications: what trips meanwhile is held, and told when the mute ends if it still stands. Show the id."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        fields = matchers_of(match, everything)
        if preview:
            show_preview(client.preview_mute(fields), json)
            return
        if changed is None:
            ask_at_once(
                {
                    "say --match FIELD=VALUE or --all": bool(fields),
                    "say --for SPAN, --until TIME or --window": bool(span or until or window),
                    "say --comment: all who hear of what was held read why": comment is not None,
                }
            )
        fields |= _when(span, until, start, SystemClock().now_ms()) | ({} if comment is None else {"comment": comment})
        fields |= {} if window is None else {"windows": [_window(text) for text in window]}
        fields |= {} if zone is None else {"zone": zone}
        row = client.create_mute(fields) if changed is None else client.change_mute(changed, fields)
        _warn_of_none(client, str(row["id"]))
    if json:
        put_json(row)
    else:
        put(str(row["id"]))


def _warn_of_none(client: BreakerClient, mute_id: str) -> None:
    """Says so where a mute that was made matches nothing; it stands, whether that can be found out or not."""
    with suppress(BreakersError):
        if client.mute(mute_id)["matches"] == 0:
            note("breakers: warning: it matches no breaker now")


def unmute(
    ids: Mutes,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    data_dir: DataDir = None,
) -> None:
    """End mutes now. What they held and still stands is told."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        known = None if all(map(is_id, ids)) else [str(row["id"]) for row in client.mutes()]
        meant = ids if known is None else [begun_id("mute", id_, known) for id_ in ids]
        for id_ in meant:
            client.end_mute(id_)
            put(f"ended {id_}")


def list_mutes(
    state: Annotated[State | None, typer.Option(help="Only those in this state; default: active and pending.")] = None,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List mutes: id, state, until when, by whom, breakers that match, open ones, notifications held, what they match,
    comment."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        rows = client.mutes()
        if not rows:
            client.note_none("mutes")
    wanted = ("active", "pending") if state is None else (state.value,)
    shown = [row for row in rows if row["state"] in wanted]
    if json:
        put_json({"mutes": shown})
        return
    titles = ("id", "state", "until", "by", "matches", "open", "holding", "what", "comment")
    put_table(titles, map(_line, shown), short=("id",), least=("by", "matches", "open"))


def _line(row: dict[str, Any]) -> tuple[Any, ...]:
    ends = next((row[name] for name in ("ended_ms", "active_until_ms", "ends_ms") if row[name] is not None), None)
    counts = (row["matches"], row["open"], row["holding"])
    return row["id"], row["state"], instant(ends), row["created_name"], *counts, _words(row), row["comment"]


def _words(row: dict[str, Any]) -> str:
    signs = {op: sign for sign, op in OPS.items()}
    what = [f"{one['field']}{signs[one['op']]}{one['value']}" for one in row["matchers"]] or ["everything"]
    days = [f"{','.join(one['weekdays'])} {one['from']}-{one['to']} {row['zone']}" for one in row["windows"]]
    return "; ".join([" ".join(what), *days])


def _when(span: str | None, until: str | None, start: str | None, now_ms: int) -> dict[str, int]:
    if span is not None and until is not None:
        raise Invalid("give --for or --until, not both")
    found: dict[str, int] = {}
    if start is not None:
        found["starts_ms"] = moment("--start", start)
    if until is not None:
        found["ends_ms"] = moment("--until", until)
    if span is not None:
        found["ends_ms"] = max(now_ms, found.get("starts_ms", now_ms)) + span_ms(span)
    return found


def _window(text: str) -> dict[str, Any]:
    parts = _WINDOW.fullmatch(text)
    if parts is None:
        raise Invalid(f'--window {text}: say it as "mon-fri 22:00-06:00"')
    days, begins, ends = parts.groups()
    return {"weekdays": _days(days), "from": begins, "to": ends}


def _days(text: str) -> list[str]:
    """ "mon-fri,sun" as a list; a span may go across the end of the week."""
    found: list[str] = []
    for part in text.lower().split(","):
        first, _, last = part.partition("-")
        places = [WEEKDAYS.index(day) for day in (first, last or first) if day in WEEKDAYS]
        if len(places) != 2:
            raise Invalid(f"--window: {part} is none of {', '.join(WEEKDAYS)}, nor a span of them")
        found += [WEEKDAYS[(places[0] + n) % 7] for n in range((places[1] - places[0]) % 7 + 1)]
    return list(dict.fromkeys(found))
