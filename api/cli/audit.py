"""`breakers audit`: who changed what of a project, or of the organisation, and when."""

from __future__ import annotations

import json as to_json
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import typer

from api.cli.breaker_client import DataDir, Insecure, Project, Url, open_client
from api.cli.errors import one_line_errors
from api.cli.named import is_id
from api.cli.output import put_json, put_table
from api.cli.spans import SINCE_HELP, since_ms
from api.cli.store_access import AsJson, instant
from api.wire.changed_fields import changed_fields, value_at
from breaker_actors.clock import SystemClock

TITLES = ("time", "who", "action", "name", "id", "what changed")
SIDES = ("before", "after")
INSTANTS = ("starts_ms", "ends_ms", "ended_ms", "until_ms", "since_ms")
VALUE_CHARS, CHANGES_CHARS = 40, 160


def audit(
    action: Annotated[
        str | None, typer.Option(help="Only actions that begin so: breaker. or override.set, say.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Only what was done to this one, by its id or its name.")] = None,
    who: Annotated[str | None, typer.Option(help="Only what this key did, by its name or id.")] = None,
    since: Annotated[str | None, typer.Option(help=SINCE_HELP)] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many, newest first.")] = 50,
    org: Annotated[
        bool, typer.Option("--org", help="Of the organisation instead: its workspaces, user and admin keys.")
    ] = False,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List changes of configuration, newest first: time, whose key, action, name and id of what was changed, and what
    changed or why. Who is the key's name, of a revoked one too; where that is not known any more, its id."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        only = {} if action is None else {"action": action}
        if target is not None and is_id(target):
            only["target_id"], target = target, None
        found = client.audit(org, since_ms(since, SystemClock().now_ms()), **only)
        rows = list(islice(_meant(found, who, target), limit))
        if json:
            put_json({"entries": rows})
            return
        try:
            table = [
                (row["timestamp"], row["who"], row["action"], name_of(row), row["target_id"], changes(row))
                for row in rows
            ]
        except (LookupError, TypeError, AttributeError):
            raise client.odd() from None
        put_table(TITLES, table, least=("id",))


def name_of(entry: dict[str, Any]) -> str | None:
    """The name of what was changed, after the change or else before it."""
    sides = (entry["after"] or {}, entry["before"] or {})
    return next((str(side["name"]) for side in sides if side.get("name")), None)


def changes(entry: dict[str, Any]) -> str | None:
    """Fields that have another value than before, shortly, and of an override why."""
    before, after = (entry[side] for side in SIDES)
    control = value_at(after, "control")
    if entry["action"] == "override.set" and (kind := value_at(control, "override", "kind")) is not None:
        return f"{kind}: {value_at(control, 'override', 'reason')}"
    ended = entry["action"] == "override.end"
    if ended or before is None or after is None:
        comment: str | None = value_at(control if ended else after or before, "comment")  # or a mute's
        return comment
    told = [
        f"{name} {_text(old, key)} -> {_text(new, key)}"
        for name, key, old, new in changed_fields(before, after, CHANGES_CHARS)
    ]
    return _cut(", ".join(told), CHANGES_CHARS) or None


def _meant(entries: Iterator[dict[str, Any]], who: str | None, name: str | None) -> Iterator[dict[str, Any]]:
    for entry in entries:
        named = {str(side["name"]) for side in (entry["before"], entry["after"]) if side and side.get("name")}
        if (who is None or who in (entry["who"], entry["key_id"])) and (name is None or name in named):
            yield entry


def _text(value: Any, name: str = "") -> str:
    if value is None:
        return "-"
    if name.endswith(INSTANTS) and isinstance(value, int):
        return instant(value)
    return _cut(value if isinstance(value, str) else to_json.dumps(value), VALUE_CHARS)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
