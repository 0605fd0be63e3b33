"""The audit log: who changed what, and how it was before. Written in the transaction of the change, secrets masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec
import structlog
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    case,
    delete,
    func,
    insert,
    literal,
    null,
    select,
    type_coerce,
    update,
)

from breaker_actors.errors import Invalid
from breaker_actors.store import tables as t
from breaker_actors.store.quotas import ROW_BYTES, SHORTENED, add, shares, used
from breaker_actors.store.rows import EVERY_ENTRY, SYSTEM, AuditFilter, AuditRow, BreakerRow
from breaker_actors.store.section import DAY_MS, IDS, StorePart, bump, by_ids
from breaker_actors.telemetry.after_commit import after_commit
from breaker_actors.text.redaction import mask

log = structlog.get_logger()

LINES_MAX = 20
"""Log lines of one request; a bulk PUT may make 10,000 breakers, and the audit log has them all."""
_SIDES = ("before", "after")
ALWAYS = frozenset(
    (
        "breaker.delete",
        "router.delete",
        "router.unlink",
        "channel.delete",
        "mute.end",
        "mapping.delete",
        "key.revoke",
        "project.delete",
        "workspace.delete",
    )
)
"""Actions that a full log does not stop: each takes something away, so there is an end to them."""
REPEATED = frozenset(("console.sign_in", "console.sign_out"))
"""Actions that a full log does not stop either, though there is no end to them: beyond FEW of a day, and at once in a
full log, one entry of each for a key counts them. (In a full log one does so for overrides of a breaker, too: see
`Note.is_override`.)"""
FEW = 10
OVERRIDES = ("override.set", "override.end")
_OPEN = ("trace_id_url_template", "metadata")
ENTRY_CHARS_MAX, PAGE_CHARS_MAX = 65_536, 1 << 20
"""Characters of JSON: of what an entry says about before and after each, and of all entries that are read at once (one
that is larger alone is read alone)."""
OMITTED = "omitted_characters"
"""Stands, with their number, for what is too large for an entry."""


def _size(column: Column[Any]) -> Any:
    return func.coalesce(func.length(column), 0).label(f"{column.name}_size")


def _unless_large(column: Column[Any]) -> Any:
    small = case((func.length(column) <= ENTRY_CHARS_MAX, column), else_=null())
    return type_coerce(small, column.type).label(column.name)


_BEFORE_SIZE, _AFTER_SIZE = _size(t.audit.c.before), _size(t.audit.c.after)
_COLUMNS = [
    _unless_large(t.audit.c[f]) if f in ("before", "after") else t.audit.c[f] for f in AuditRow.__struct_fields__
]


class Place(NamedTuple):
    """Where a change happened (an organisation or a project), who made it, and when."""

    by: str
    now_ms: int
    project_id: str | None = None
    org_id: str | None = None


class Note(NamedTuple):
    """One change of one thing; `before` None: it was made, `after` None: it went. `is_override`: it sets or ends an
    override and does nothing else."""

    action: str
    target_id: str
    before: Any = None
    after: Any = None
    is_override: bool = False

    @property
    def is_counted(self) -> bool:
        """Whether a full log counts it."""
        return self.action in REPEATED or self.is_override


class _Log(NamedTuple):
    """The log of a project, or what an organisation has beside those of its projects."""

    of_id: str
    what: Literal["audit", "org_audit"]
    word: str


class Audits(StorePart):
    async def audit(
        self, project_id: str, limit: int, before: int | None = None, only: AuditFilter = EVERY_ENTRY
    ) -> list[AuditRow]:
        return await self._audit(t.audit.c.project_id == project_id, limit, before, only)

    async def org_audit(
        self, org_id: str, limit: int, before: int | None = None, only: AuditFilter = EVERY_ENTRY
    ) -> list[AuditRow]:
        return await self._audit(_of_org(org_id), limit, before, only)

    async def names_of_keys(self, org_id: str, key_ids: Sequence[str]) -> dict[str, str]:
        return await self._db.read(lambda c: _names_of_keys(c, org_id, key_ids))

    async def _audit(
        self, mine: ColumnElement[bool], limit: int, before: int | None, only: AuditFilter
    ) -> list[AuditRow]:
        if only.action is not None:
            mine &= t.audit.c.action.startswith(only.action, autoescape=True)
        if only.target_id is not None:
            mine &= t.audit.c.target_id == only.target_id
        if before is not None:
            mine &= t.audit.c.number < before
        sizes = select(t.audit.c.number, _BEFORE_SIZE, _AFTER_SIZE).where(mine)
        sizes = sizes.order_by(t.audit.c.number.desc()).limit(limit)
        return await self._db.read(lambda c: _page(c, c.execute(sizes).all()))


def _of_org(org_id: str) -> ColumnElement[bool]:
    return t.audit.c.project_id.is_(None) & (t.audit.c.org_id == org_id)


def _names_of_keys(c: Connection, org_id: str, key_ids: Sequence[str]) -> dict[str, str]:
    k, a = t.api_keys.c, t.audit.c
    there = select(k.id, k.name, k.key_prefix).where(k.org_id == org_id, k.id.in_(IDS))
    found = {row.id: row.name or row.key_prefix for row in by_ids(c, there, key_ids)}
    # Whoever may change something has a key of the organisation, so the end of the key is in the organisation's log.
    ended = select(a.target_id, a.before).where(_of_org(org_id), a.action == "key.revoke", a.target_id.in_(IDS))
    for row in by_ids(c, ended, [key_id for key_id in key_ids if key_id not in found]):
        if name := (row.before or {}).get("name") or (row.before or {}).get("prefix"):
            found[row.target_id] = name
    return found


def _page(c: Connection, sizes: Sequence[Row[Any]]) -> list[AuditRow]:
    """The first of these entries, as many as fit into a page and one at least."""
    shown: dict[int, Row[Any]] = {}
    left = PAGE_CHARS_MAX
    for row in sizes:
        left -= min(row.before_size, ENTRY_CHARS_MAX) + min(row.after_size, ENTRY_CHARS_MAX)
        if shown and left < 0:
            break
        shown[row.number] = row
    query = select(*_COLUMNS).where(t.audit.c.number.in_(shown)).order_by(t.audit.c.number.desc())
    return [_entry(row, shown[row.number]) for row in c.execute(query)]


def _entry(row: Row[Any], sizes: Row[Any]) -> AuditRow:
    """An entry; of what was written before entries were bounded the size stands for what is too large."""
    values = dict(row._mapping)
    for name, size in (("before", sizes.before_size), ("after", sizes.after_size)):
        if size > ENTRY_CHARS_MAX:
            values[name] = {OMITTED: size}
    return AuditRow(**values)


def write_down(c: Connection, place: Place, notes: Sequence[Note], judged: bool = False) -> None:
    """Puts changes into the log. `judged`: `refuse_beyond` was asked before."""
    head: dict[str, Any] = {"org_id": place.org_id, "project_id": place.project_id}
    head |= {"at_ms": place.now_ms, "who": place.by}
    rows = [
        head
        | {
            "action": note.action,
            "target_id": note.target_id,
            "before": bounded(_shown(note.before)),
            "after": bounded(_shown(note.after)),
        }
        for note in notes
    ]
    if rows and (where := _log_of(place)) is not None:
        if not judged:
            refuse_beyond(c, place, notes)
        if any(note.is_counted for note in notes):
            rows = _without_counted(c, where, notes, rows)
        _count(c, where, rows)
    if rows:
        c.execute(insert(t.audit), rows)
        after_commit(partial(_log_lines, rows, _name_of(c, place.by)))


def _without_counted(
    c: Connection, log: _Log, notes: Sequence[Note], rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Those that get an entry each; the others are counted."""
    is_full, left = used(c, log.of_id, log.what) >= 2 * shares(c).audit_bytes, []
    for note, row in zip(notes, rows, strict=True):
        if note.is_counted and (is_full or (note.action in REPEATED and not _is_of_few(c, row))):
            _count_repeated(c, log, row, is_full)
        else:
            left.append(row)
    return left


def _is_of_few(c: Connection, row: dict[str, Any]) -> bool:
    """Whether it is one of the first FEW of its day, which it is counted as."""
    mine = t.counters.c.name == repeated_name(row["action"] + OF_DAY, row["target_id"])
    none = row["at_ms"] // DAY_MS * (FEW + 1)
    n = max(none, c.execute(select(t.counters.c.value).where(mine)).scalar() or 0)
    if n - none >= FEW:
        return False
    c.execute(delete(t.counters).where(mine))
    c.execute(insert(t.counters).values(name=repeated_name(row["action"] + OF_DAY, row["target_id"]), value=n + 1))
    return True


def _count_repeated(c: Connection, log: _Log, row: dict[str, Any], is_full: bool) -> None:
    """One more in the entry that counts the action for its target that day, in a full log whichever day, or the first
    of them."""
    a, known = t.audit.c, t.counters.c.name == repeated_name(row["action"], row["target_id"])
    number = c.execute(select(t.counters.c.value).where(known)).scalar()
    found = c.execute(select(a.after, a.at_ms, a.who).where(a.number == number)).first() if number else None
    if found is not None and not is_full and found.at_ms // DAY_MS != row["at_ms"] // DAY_MS:
        found = None
    before = found.after if found else None
    after_commit(partial(_log_lines, [dict(row)], _name_of(c, row["who"])))
    row["before"], row["after"] = None, {"times": 1 + (before or {}).get("times", 0), "last_ms": row["at_ms"]}
    if found is not None and found.who != row["who"]:
        row["after"]["last_who"] = row["who"]
    if before is not None:
        add(c, log.of_id, log.what, len(msgspec.json.encode(row["after"])) - len(msgspec.json.encode(before)))
        c.execute(update(t.audit).where(a.number == number).values(after=row["after"]))
        return
    add(c, log.of_id, log.what, ROW_BYTES + _octets(row))
    number = c.execute(insert(t.audit).values(row).returning(a.number)).scalar_one()
    c.execute(delete(t.counters).where(known))
    c.execute(insert(t.counters).values(name=repeated_name(row["action"], row["target_id"]), value=number))


OF_DAY = ".day"
COUNTED = (*REPEATED, *(action + OF_DAY for action in REPEATED))
"""What a key has counters for."""


def repeated_name(action: str, target_id: str | ColumnElement[str]) -> Any:
    """The counter that tells the number of the entry which counts an action; with OF_DAY how many entries of its own it
    has had in a day."""
    return f"{action} " + target_id if isinstance(target_id, str) else literal(f"{action} ") + target_id


def _name_of(c: Connection, by: str) -> str | None:
    """What the key is called that made a change; None where it is gone with the change, or no key made it."""
    if by == SYSTEM:
        return None
    row = c.execute(select(t.api_keys.c.name, t.api_keys.c.key_prefix).where(t.api_keys.c.id == by)).first()
    return None if row is None else row.name or row.key_prefix


def _log_lines(rows: Sequence[Mapping[str, Any]], who_name: str | None) -> None:
    """A line for each change, the first LINES_MAX of one request; who made it by name, too."""
    for row in rows[:LINES_MAX]:
        name = next((side["name"] for side in (row["after"], row["before"]) if side and side.get("name")), None)
        known = {"project_id": row["project_id"], "org_id": row["org_id"], "name": name, "who_name": who_name}
        said = {word: value for word, value in known.items() if value is not None}
        log.info("change", action=row["action"], target_id=row["target_id"], who=row["who"], **said)
    if len(rows) > LINES_MAX:
        more = len(rows) - LINES_MAX
        log.info("changes_unlogged", n=more, who=rows[0]["who"], project_id=rows[0]["project_id"])


def _log_of(place: Place) -> _Log | None:
    """An entry belongs to the project where it happened, any other to the organisation."""
    if place.project_id is not None:
        return _Log(place.project_id, "audit", "project")
    return None if place.org_id is None else _Log(place.org_id, "org_audit", "organisation")


def refuse_beyond(c: Connection, place: Place, notes: Sequence[Note]) -> None:
    """Raises Invalid where even short entries have filled the log, but for what takes something away."""
    log, most = _log_of(place), 2 * shares(c).audit_bytes
    if log is None or all(note.action in ALWAYS or note.is_counted for note in notes):
        return
    if used(c, log.of_id, log.what) >= most:
        raise Invalid(
            f"The audit log of this {log.word} has {most} bytes, and old entries are not given up early: nothing can be"
            " changed before some are old enough, only taken away.",
            {"limit": "BREAKERS_AUDIT_BYTES_MAX"},
        )


def _count(c: Connection, log: _Log, rows: Sequence[dict[str, Any]]) -> None:
    """Adds entries to what the log takes; beyond its share they tell only the size of before and after."""
    begin = used(c, log.of_id, log.what)
    total, most, shortened = begin, shares(c).audit_bytes, 0
    for row in rows:
        size = ROW_BYTES + _octets(row)
        if total + size > most and size > ROW_BYTES:
            row |= {side: {OMITTED: _chars(row[side])} for side in _SIDES if row[side] is not None}
            size, shortened = ROW_BYTES + _octets(row), shortened + 1
        total += size
    add(c, log.of_id, log.what, total - begin)
    if shortened:
        bump(c, SHORTENED, shortened)


def _octets(row: Mapping[str, Any]) -> int:
    """Bytes of what an entry says about before and after, as they are stored."""
    return sum(len(msgspec.json.encode(row[side])) for side in _SIDES if row[side] is not None)


def _chars(value: Any) -> int:
    return len(msgspec.json.encode(value).decode())


def bounded(fields: dict[str, Any] | None) -> dict[str, Any] | None:
    """The fields as they are, or without the largest ones where they would be too much for an entry."""
    if fields is None:
        return None
    if _chars(fields) <= ENTRY_CHARS_MAX // 2:
        return fields
    sizes = {name: _chars(value) for name, value in fields.items()}
    room = ENTRY_CHARS_MAX - sum(len(name) + len(OMITTED) + 32 for name in fields)
    out = dict(fields)
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if sum(sizes.values()) <= room:
            break
        out[name] = {OMITTED: sizes.pop(name)}
    return out


def _shown(value: Any) -> dict[str, Any] | None:
    """A row as the log shows it: without what never changes or is nobody's business, secrets masked."""
    if value is None or isinstance(value, Mapping):
        return None if value is None else dict(mask(value))
    fields = msgspec.to_builtins(value)
    for name in ("id", "project_id", "org_id", "shard", "version", "previous_secret"):
        fields.pop(name, None)
    if isinstance(value, BreakerRow):
        fields["actions"] = mask(fields["actions"])
        return dict(fields)
    return dict(mask(fields)) | {name: fields[name] for name in _OPEN if name in fields}
