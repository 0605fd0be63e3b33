"""`breakers list | get | events | delete`: the breakers of a running service, by names or ids."""

from __future__ import annotations

import sys
from collections.abc import Collection
from enum import StrEnum
from typing import Annotated, Any

import typer

from api.cli import breaker_edit, explain, watch
from api.cli.breaker_client import BreakerClient, DataDir, Insecure, Project, Url, WhichBreaker, open_client
from api.cli.breaker_edit import never_moves
from api.cli.errors import one_line_errors
from api.cli.output import note, put, put_json, put_table
from api.cli.spans import SINCE_HELP, since_ms
from api.cli.store_access import AsJson, instant
from breaker_actors.clock import SystemClock, rfc3339
from breaker_actors.errors import Invalid
from breaker_actors.text.escaping import for_terminal

FIRST_LISTED = {"open": 0, "half_open": 1}
TITLES = ("name", "state", "since", "value", "threshold", "samples", "allow rate", "note")
DAY_MS = 86_400_000
TIMES = ("_at_ms", "since_ms", "eval_ms", "deadline_ms")
SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


class State(StrEnum):
    """States of a breaker."""

    closed = "closed"
    open = "open"
    half_open = "half_open"


class Source(StrEnum):
    """Where events come from."""

    live = "live"
    backfill = "backfill"
    all = "all"


def install(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("list")(list_breakers)
    app.command("get")(get)
    app.command("events")(events)
    app.command("watch")(watch.watch)
    app.command("create")(breaker_edit.create)
    app.command("edit")(breaker_edit.edit)
    app.command("delete")(delete)
    app.command("explain")(explain.explain)


def list_breakers(
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List breakers, open ones first, then half_open ones: name, state, since, value against threshold, samples
    in the window, allow rate, and what keeps a breaker from moving. With --json all by name."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        rows = sorted(with_states(client, client.breakers()), key=lambda row: (row["name"], row["id"]))
        off = set() if json else _switched_off(client, rows)
        if not rows:
            client.note_none("breakers")
    shown = [row for row in rows if state is None or row["status"].get("state") == state.value]
    if json:
        put_json({"breakers": shown})
    else:
        shown.sort(key=lambda row: FIRST_LISTED.get(row["status"].get("state"), len(FIRST_LISTED)))
        put_table(TITLES, [_line(row, off) for row in shown], least=("allow rate", "samples"))


def get(
    name: WhichBreaker,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Show a breaker: its rule, and its state under `status`."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        (row,) = with_states(client, [client.find(name)])
    if json:
        put_json(row)
        return
    row["status"].pop("observed", None)  # that it has samples: who reads it here takes it for the mode
    status = {f"status.{field}": value for field, value in row.pop("status").items()}
    put_table(
        ("field", "value"),
        (
            (field, instant(value) if field.endswith(TIMES) and value else value)
            for field, value in (row | status).items()
        ),
    )


def events(
    name: Annotated[str | None, typer.Argument(help="Name or id of the breaker; default: all.", metavar="NAME")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, newest first.")] = 50,
    source: Annotated[Source, typer.Option(help="What happened, what a backfill found, or both.")] = Source.live,
    since: Annotated[str | None, typer.Option(help=SINCE_HELP)] = None,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List events: time, breaker, state before, state after, reason, value, samples in the window, who moved it by hand
    and why, or why callers did not see it."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        which = None if name is None else client.find(name)["id"]
        from_ms = since_ms(since, SystemClock().now_ms())
        rows = client.events(limit, which, source.value, from_ms)
        hidden = not rows and source is Source.live and client.events(1, which, Source.backfill.value, from_ms)
        if not rows and not hidden and name is None and since is None:
            client.note_none("events")
    if hidden:
        note("breakers: there are events of a backfill alone: --source backfill shows them")
    if json:
        put_json({"events": rows})
        return
    put_table(
        ("time", "breaker", "from", "to", "reason", "value", "samples", "note"),
        [
            (
                *(r["timestamp"], r["name"], r["prev"], r["curr"], r["reason"]),
                *(_short(r.get("value")), r["agg"]["count"], _hand(r)),
            )
            for r in rows
        ],
        least=("from", "samples"),
    )


def _hand(event: dict[str, Any]) -> str:
    """Who moved a breaker by hand, and why; or why callers did not see the move."""
    if by := event.get("hidden_by"):
        return f"not seen ({by})"
    return ": ".join(filter(None, (event.get("by"), event.get("comment"))))


def delete(
    name: WhichBreaker,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    data_dir: DataDir = None,
) -> None:
    """Delete a breaker, after asking."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        row = client.find(name)
        if not yes:
            if not sys.stdin.isatty():
                raise Invalid("nobody can be asked here: say --yes to delete")
            typer.confirm(for_terminal(f"Delete breaker {row['name']} ({row['id']})?"), abort=True, err=True)
        client.delete(row["id"])
    put(f"deleted {row['id']}")


def with_states(client: BreakerClient, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The breakers, each with its state under `status`; an empty one where the breaker went meanwhile."""
    states = client.states([row["id"] for row in rows])
    return [row | {"status": states.get(row["id"], {})} for row in rows]


def _short(value: Any) -> str | None:
    return f"{value:g}" if isinstance(value, int | float) else None


def _switched_off(client: BreakerClient, rows: list[dict[str, Any]]) -> set[str]:
    """Routers that are disabled, asked for where a breaker has no samples."""
    if all(row["status"].get("sample_count") for row in rows):
        return set()
    return {router["id"] for router in client.routers() if not router["enabled"]}


def _line(row: dict[str, Any], off: Collection[str]) -> tuple[Any, ...]:
    status, sign = row["status"], SIGNS.get(row["op"], row["op"])
    if not status:
        return row["name"], *[None] * 3, f"{sign} {row['threshold']:g}", *[None] * 3
    value = _short(status["value"])
    now_ms = SystemClock().now_ms()
    since_ms = status["state_since_ms"]
    since = _since(since_ms, now_ms) if sys.stdout.isatty() else instant(since_ms)
    limit, rate = f"{sign} {row['threshold']:g}", f"{status['allow_rate']:g}"
    return (
        row["name"],
        status["state"],
        since,
        value,
        limit,
        status["sample_count"],
        rate,
        _note(row, status, off),
    )


def _since(then_ms: int, now_ms: int) -> str:
    """A time in little room: of the last day its clock, of others the date."""
    day, clock = rfc3339(then_ms).split("T")
    return f"{clock[:8]}Z" if now_ms - then_ms < DAY_MS else day


def _until(then_ms: int, since_ms: int) -> str:
    """A time to come, without the date where it is that of `since_ms`."""
    (day, clock), (first, _) = rfc3339(then_ms).split("T"), rfc3339(since_ms).split("T")
    return f"{clock[:8]}Z" if day == first else f"{day} {clock[:8]}Z"


def _open_note(status: dict[str, Any]) -> str | None:
    """When open ends: at the machine's own deadline, whatever callers saw; without a wait at its next tick."""
    due_ms = status.get("deadline_ms") or status["next_eval_ms"]
    return None if due_ms is None else f"half_open at {_until(due_ms, status['state_since_ms'])}"


def _note(row: dict[str, Any], status: dict[str, Any], off: Collection[str]) -> str | None:
    """Why the breaker stays where it is, when its value doesn't say so."""
    since_ms = status["state_since_ms"]
    if status.get("stale"):
        return "stands still, its owner does not answer for it: breakers status, breakers aside list"
    if (override := status.get("override")) is not None:
        until = _until(override["until_ms"], override["since_ms"])
        beneath = status.get("machine_state", status["state"])
        machine = "" if beneath == status["state"] else f"its machine is {beneath}; "
        return f"{machine}{override['kind']} until {until} by {override['by']}: {override['reason']}"
    if status.get("mode") == "observe":
        return f"observes; its machine is {status['machine_state']}"
    if (never := never_moves(row)) is not None:
        return never
    if status["state"] == "open":
        return _open_note(status)
    if row["router_ids"] and off and set(row["router_ids"]) <= set(off):
        return "its router is disabled"
    if status["held_back"]:
        due_ms = status.get("deadline_ms") or since_ms + row["min_state_duration_ms"]
        return f"held back until {_until(due_ms, since_ms)}"
    if status["indeterminate"] and row["min_count"] and not status["sample_count"]:
        late = f", and {status['late']} so far came too late for it" if status["late"] else ""
        return f"no samples of {row['metric']} in its window{late}"
    if status["indeterminate"] and (missing := row["min_count"] - status["sample_count"]) > 0:
        return f"judges after {missing} more sample{'s' if missing > 1 else ''}"
    return None
