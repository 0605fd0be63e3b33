"""The audit log of a project, and of its organisation: who changed what, field by field, newest first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec
from quart import Response, request

from api.admission.intake import Turn
from api.console import overriding
from api.console.asking import ask
from api.console.blueprint import blueprint
from api.console.looks import page, span
from api.console.project import open_project
from api.context.current import callers
from api.context.replica import replica
from api.wire.changed_fields import changed_fields, value_at

ROWS = 25
FIELDS_MAX, SHORT, LONG = 60, 60, 4_000
"""Fields of an entry that are listed; and characters of a value that are shown at once, and unfolded."""
TIMES_FROM, TIMES_TO = 10**12, 10**13
"""Milliseconds from 2001 to 2286 are points in time; less are spans."""
ACTIONS = (
    "breaker.",
    "router.",
    "channel.",
    "delivery.",
    "mute.",
    "mapping.",
    "override.",
    "key.",
    "project.",
    "console.",
)
ORG_ACTIONS = ("workspace.", "key.", "project.", "console.")
PLACES = {
    "breaker": "b/{}",
    "override": "b/{}",
    "channel": "channels/{}",
    "mute": "mutes/{}",
    "key": "keys",
    "project": "",
    "router": "routers/{}",
}
"""Where what was changed is shown, by the first word of an action."""
GONE = ("delete", "revoke")
LINKS = ("router.link", "router.unlink")
"""Entries that have ids and no names."""
SIDES = ("before", "after")
_OVER = re.compile(r"[\r\n]")


class Value(NamedTuple):
    """A value on the screen: `short` at once; `whole` folded away, "" where `short` says all; `more`: characters that
    are left out even there; `ms`: it is a point in time."""

    short: str
    whole: str = ""
    more: int = 0
    ms: int | None = None


class Change(NamedTuple):
    """A field that is other than before; None: it was, or is, not there."""

    field: str
    old: Value | None
    new: Value | None


DID = {
    "breaker.create": "made the breaker",
    "breaker.update": "changed the breaker",
    "breaker.delete": "deleted the breaker",
    "override.end": "ended the override of",
    "router.create": "made the router",
    "router.update": "changed the router",
    "router.delete": "deleted the router",
    "router.link": "linked breakers to the router",
    "router.unlink": "unlinked a breaker from the router",
    "router.recover": "set the log aside of the router",
    "channel.create": "made the channel",
    "channel.update": "changed the channel",
    "channel.delete": "deleted the channel",
    "delivery.redrive": "sent dead deliveries again, with",
    "mute.create": "made the mute",
    "mute.update": "changed the mute",
    "mute.end": "ended the mute",
    "mapping.create": "made the mapping",
    "mapping.update": "changed the mapping",
    "mapping.delete": "deleted the mapping",
    "rules.apply": "applied files of rules to the project",
    "key.create": "made the key",
    "key.revoke": "revoked the key",
    "project.create": "made the project",
    "project.update": "changed the project",
    "project.delete": "deleted the project",
    "project.rotate_secret": "replaced the ingest secret of the project",  # nosec B105 # words
    "workspace.create": "made the workspace",
    "workspace.update": "changed the workspace",
    "workspace.delete": "deleted the workspace",
    "console.sign_in": "signed in to the console",
    "console.sign_out": "signed out of the console",
}
"""What somebody did, by the action; its thing follows."""


class Entry(NamedTuple):
    """One change of configuration, as a sentence: who `did` what to the thing `name`, `then` for how long. `changes`:
    FIELDS_MAX at most, `more` beside them."""

    row: Mapping[str, Any]
    did: str
    name: str
    then: str
    place: str | None
    changes: list[Change]
    more: int
    why: str

    @property
    def alone(self) -> bool:
        """The sentence says all without a thing: who signed in is its subject already."""
        return str(self.row["action"]).startswith("console.")

    @property
    def told(self) -> bool:
        """The sentence tells what changed; the fields are beside it."""
        return str(self.row["action"]).startswith("override.")


@blueprint.get("/p/<project_id>/audit")
async def audit(project_id: str) -> Response:
    project = await open_project(project_id)
    of_org = request.args.get("of") == "organisation"
    wanted = {name: request.args.get(name, "").strip()[:100] for name in ("action", "target", "cursor")}
    asked: dict[str, str | int | bool | None] = {
        "limit": ROWS,
        "action": wanted["action"],
        "target_id": wanted["target"],
        "cursor": wanted["cursor"],
    }
    found = (await ask("GET", "/audit" if of_org else f"/projects/{project.id}/audit", None, asked)).body
    root = "" if of_org else f"/console/p/{project.id}"
    base = ({"of": "organisation"} if of_org else {}) | {
        name: wanted[name] for name in ("action", "target") if wanted[name]
    }
    return await page(
        "audit.html",
        project=project,
        of_org=of_org,
        wanted=wanted,
        entries=await _entries(found["entries"], root, await _names_of(project.id, found["entries"])),
        actions=ORG_ACTIONS if of_org else ACTIONS,
        older=_address(base | {"cursor": found["next_cursor"]}) if found["next_cursor"] else None,
        newest=_address(base) if wanted["cursor"] else None,
    )


async def _names_of(project_id: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The names of breakers, and of routers that have some, that entries of links tell by their ids alone."""
    links = [row for row in rows if row["action"] in LINKS]
    if not links:
        return {}
    index = await replica().indexes.get(project_id)
    breakers = {id_ for row in links for side in SIDES for id_ in _linked(row, side)}
    routers = {row["target_id"] for row in links}
    return {id_: index.rows[id_].name for id_ in breakers if id_ in index.rows} | {
        id_: index.routers[id_] for id_ in routers if id_ in index.routers
    }


async def _entries(rows: Sequence[Mapping[str, Any]], root: str, names: Mapping[str, str]) -> list[Entry]:
    """One in each turn of the caller's. Raises Overloaded where too many wait for theirs."""
    found = list[Entry]()
    async with Turn(replica().intake.turns, callers()) as turn:
        for row in rows:
            await turn.next()
            found.append(entry_of(row, root, names))
    return found


def entry_of(row: Mapping[str, Any], root: str, names: Mapping[str, str] | None = None) -> Entry:
    """An entry of the log for eyes. `root`: of the project's screens, "" where it is of none; `names`: of what is known
    by its id alone."""
    if row["action"] in LINKS:
        return _link_entry(row, root, names or {})
    changes, more = changes_of(row["before"], row["after"])
    sides = (row["after"] or {}, row["before"] or {})
    name = next((shortened(side[what]).short for what in ("name", "comment") for side in sides if side.get(what)), "")
    return Entry(row, *_sentence(row, name), _place(row, root), changes, more, _why(row))


def _link_entry(row: Mapping[str, Any], root: str, names: Mapping[str, str]) -> Entry:
    """Of links the breakers alone that came and went, by name where they have one still."""
    old, new = (dict.fromkeys(_linked(row, side)) for side in SIDES)
    gone, come = ([id_ for id_ in these if id_ not in those] for these, those in ((old, new), (new, old)))
    told = [shortened(", ".join(names.get(id_, id_) for id_ in ids)) if ids else None for ids in (gone, come)]
    changes = [Change("breakers", *told)] if gone or come else []
    name = shortened(names.get(row["target_id"], "")).short if row["target_id"] in names else ""
    return Entry(row, DID[row["action"]], name, "", _place(row, root), changes, 0, "")


def _linked(row: Mapping[str, Any], side: str) -> list[str]:
    """The ids of breakers that an entry of links tells of one side."""
    return (row[side] or {}).get("breaker_ids") or []


def _sentence(row: Mapping[str, Any], name: str) -> tuple[str, str, str]:
    """What somebody did, to what, and what else is to be said of it."""
    action = row["action"]
    if action == "override.set":
        kind, since, until = (
            value_at(row["after"], "control", "override", key) for key in ("kind", "since_ms", "until_ms")
        )
        lasting = f"for {span(until - since)}" if isinstance(since, int) and isinstance(until, int) else ""
        return f"{overriding.DID.get(kind or '', 'overrode')} the breaker", name, lasting
    if action == "breaker.update":
        old, new = (value_at(row[side], "control", "mode") for side in SIDES)
        if new is not None and new != old:
            return "changed the breaker", name, f"to {shortened(new).short}"
    return DID.get(action, action), name, ""


def changes_of(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> tuple[list[Change], int]:
    """The fields that differ, the first FIELDS_MAX of them, and how many there are more; all of a thing that was made
    or is gone."""
    found, more = list[Change](), 0
    for name, key, old, new in changed_fields(before, after, SHORT + 1):
        if len(found) < FIELDS_MAX:
            found.append(Change(shortened(name).short, _value(key, old), _value(key, new)))
        else:
            more += 1
    return found, more


def shortened(value: Any) -> Value:
    """A value as text: its first characters, and the whole of it folded."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if text == "":
        return Value("empty")
    if len(text) <= SHORT and not _OVER.search(text):
        return Value(text)
    short = _OVER.sub(" ", text[:SHORT])
    return Value(f"{short}…", text[:LONG], max(0, len(text) - LONG))


def _value(key: str, value: Any) -> Value | None:
    """A field's value; a time as one."""
    if value is None:
        return None
    is_time = key.endswith("_ms") and type(value) is int and TIMES_FROM < value < TIMES_TO
    return Value("", ms=value) if is_time else shortened(value)


def _place(row: Mapping[str, Any], root: str) -> str | None:
    thing, _, what = row["action"].partition(".")
    if not root or thing not in PLACES or what in GONE:
        return None
    return f"{root}/{PLACES[thing].format(row['target_id'])}".rstrip("/")


def _why(row: Mapping[str, Any]) -> str:
    """What who did it said of it: of an override its reason."""
    control = value_at(row["after"], "control")
    found = value_at(control, "override", "reason") or value_at(control, "comment")
    return shortened(found).short if found else ""


def _address(asked: Mapping[str, str]) -> str:
    return f"{request.path}?{urlencode(asked)}" if asked else request.path
