"""The audit log of a project, and of its organisation: who changed what, field by field, newest first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec
from quart import Response, request

from api.console import overriding
from api.console.asking import ask
from api.console.blueprint import blueprint
from api.console.looks import page, span
from api.console.project import open_project
from api.context.replica import replica

ROWS = 25
FIELDS_MAX, SHORT, LONG = 60, 60, 4_000
"""Fields of an entry that are listed; and characters of a value that are shown at once, and unfolded."""
DULL = ("updated_ms", "inserted_ms", "created_ms")
"""They change with every change."""
TIMES_FROM, TIMES_TO = 10**12, 10**13
"""Milliseconds from 2001 to 2286 are points in time; less are spans."""
OMITTED = "omitted_characters"
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
    links = not of_org and any(row["action"] in LINKS for row in found["entries"])
    names = await _names_of(project.id) if links else {}
    base = ({"of": "organisation"} if of_org else {}) | {
        name: wanted[name] for name in ("action", "target") if wanted[name]
    }
    return await page(
        "audit.html",
        project=project,
        of_org=of_org,
        wanted=wanted,
        entries=[entry_of(row, "" if of_org else f"/console/p/{project.id}", names) for row in found["entries"]],
        actions=ORG_ACTIONS if of_org else ACTIONS,
        older=_address(base | {"cursor": found["next_cursor"]}) if found["next_cursor"] else None,
        newest=_address(base) if wanted["cursor"] else None,
    )


async def _names_of(project_id: str) -> dict[str, str]:
    """The names of breakers, and of routers that have some, by id."""
    rows = (await replica().indexes.get(project_id)).rows.values()
    return {id_: name for row in rows for id_, name in ((row.id, row.name), *row.routers.items())}


def entry_of(row: Mapping[str, Any], root: str, names: Mapping[str, str] | None = None) -> Entry:
    """An entry of the log for eyes. `root`: of the project's screens, "" where it is of none; `names`: of what is known
    by its id alone."""
    if row["action"] in LINKS:
        return _link_entry(row, root, names or {})
    changes = changes_of(row["before"], row["after"])
    sides = (row["after"] or {}, row["before"] or {})
    name = next((shortened(side[what]).short for what in ("name", "comment") for side in sides if side.get(what)), "")
    more = max(0, len(changes) - FIELDS_MAX)
    return Entry(row, *_sentence(row, name, changes), _place(row, root), changes[:FIELDS_MAX], more, _why(row))


def _link_entry(row: Mapping[str, Any], root: str, names: Mapping[str, str]) -> Entry:
    """Of links the breakers alone that came and went, by name where they have one still."""
    old, new = ((row[side] or {}).get("breaker_ids") or [] for side in ("before", "after"))
    gone, come = ([id_ for id_ in these if id_ not in set(those)] for these, those in ((old, new), (new, old)))
    told = [shortened(", ".join(names.get(id_, id_) for id_ in ids)) if ids else None for ids in (gone, come)]
    changes = [Change("breakers", *told)] if gone or come else []
    name = shortened(names.get(row["target_id"], "")).short if row["target_id"] in names else ""
    return Entry(row, DID[row["action"]], name, "", _place(row, root), changes, 0, "")


def _sentence(row: Mapping[str, Any], name: str, changes: list[Change]) -> tuple[str, str, str]:
    """What somebody did, to what, and what else is to be said of it."""
    action = row["action"]
    if action == "override.set":
        after = _flat(row["after"] or {})
        since, until = (after.get(f"control.override.{side}_ms") for side in ("since", "until"))
        lasting = f"for {span(until - since)}" if isinstance(since, int) and isinstance(until, int) else ""
        return f"{overriding.DID.get(after.get('control.override.kind', ''), 'overrode')} the breaker", name, lasting
    if action == "breaker.update" and [one.field for one in changes if one.field.startswith("control.")]:
        modes = [one.new.short for one in changes if one.field == "control.mode" and one.new is not None]
        if modes:
            return "changed the breaker", name, f"to {modes[0]}"
    return DID.get(action, action), name, ""


def changes_of(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[Change]:
    """The fields that differ; all of a thing that was made or is gone."""
    old, new = _flat(before or {}), _flat(after or {})
    names = [name for name in dict.fromkeys((*old, *new)) if name not in DULL]
    return [
        Change(
            shortened(name).short,
            _value(name, old[name]) if name in old else None,
            _value(name, new[name]) if name in new else None,
        )
        for name in names
        if name not in old or name not in new or old[name] != new[name]
    ]


def shortened(value: Any) -> Value:
    """A value as text: its first characters, and the whole of it folded."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if text == "":
        return Value("empty")
    if len(text) <= SHORT and not _OVER.search(text):
        return Value(text)
    short = _OVER.sub(" ", text[:SHORT])
    return Value(f"{short}…", text[:LONG], max(0, len(text) - LONG))


def _value(name: str, value: Any) -> Value:
    """A field's value; a time as one."""
    is_time = name.endswith("_ms") and type(value) is int and TIMES_FROM < value < TIMES_TO
    return Value("", ms=value) if is_time else shortened(value)


def _flat(fields: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Fields within fields by their whole name; null is as not there."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict) and value and OMITTED not in value:
            found |= _flat(value, f"{at}{name}.")
        elif value is not None:
            found[f"{at}{name}"] = value
    return found


def _place(row: Mapping[str, Any], root: str) -> str | None:
    thing, _, what = row["action"].partition(".")
    if not root or thing not in PLACES or what in GONE:
        return None
    return f"{root}/{PLACES[thing].format(row['target_id'])}".rstrip("/")


def _why(row: Mapping[str, Any]) -> str:
    """What who did it said of it: of an override its reason."""
    after = _flat(row["after"] or {})
    found = after.get("control.override.reason") or after.get("control.comment") or ""
    return shortened(found).short if found else ""


def _address(asked: Mapping[str, str]) -> str:
    return f"{request.path}?{urlencode(asked)}" if asked else request.path
