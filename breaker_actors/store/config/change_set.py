"""A set of changes to breakers of one project, carried out in one go: one breaker or thousands take the same way.

Everything that a change of breakers entails is here, in set-based statements: rows, runtime records, routers made with
breakers and gone with them, change rows for the logs, names that streams lose, alerts that end, the audit log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from breaker_actors.core.log_entries import BREAKER, BreakerSet, RouterView, encode_entry
from breaker_actors.errors import BreakerExists
from breaker_actors.store import tables as t
from breaker_actors.store.alerts import write_ends
from breaker_actors.store.config.audit_log import OVERRIDES, Note, Place, write_down
from breaker_actors.store.config.change_rows import (
    BREAKER_COLUMNS,
    Change,
    Entry,
    add_changes,
    add_links,
    birth_entry,
    breaker_entry,
    current_views,
    links_of,
    load_routers,
    mark_routers_deleted,
    note_stream_names,
    raise_views,
    stream_names,
    view_entry,
)
from breaker_actors.store.config.routing_tables import names_matter
from breaker_actors.store.quotas import add_ended_links, add_link_count, reweighed, within_share
from breaker_actors.store.reached import note_reached
from breaker_actors.store.rows import BreakerRow
from breaker_actors.store.section import IDS, by_ids, chunks, touch_breakers

EDITABLE = ("name", "rule", "actions", "metadata", "control")
"""What of a breaker its owner can change."""
_CHANGEABLE = (*EDITABLE, "version", "updated_ms")
_OF_PROJECT = select(*BREAKER_COLUMNS, t.breakers.c.number).where(t.breakers.c.project_id == bindparam("project"))
_SOME_OF_PROJECT = _OF_PROJECT.where(t.breakers.c.id.in_(IDS))
_LOCK = (
    select(t.breakers.c.id, t.records.c.state, t.records.c.transition_seq)
    .join(t.records, t.records.c.breaker_id == t.breakers.c.id)
    .where(t.breakers.c.id.in_(IDS))
    .order_by(t.breakers.c.id)
    .with_for_update()
)
_LAST = (
    select(t.events.c.transition_seq)
    .where(t.events.c.breaker_id == t.breakers.c.id, t.events.c.project_id == t.breakers.c.project_id)
    .order_by(t.events.c.transition_seq.desc())
    .limit(1)
    .correlate(t.breakers)
)
_LAST_SEQ = select(t.breakers.c.id, func.coalesce(_LAST.scalar_subquery(), 0)).where(t.breakers.c.id.in_(IDS))
"""Of each breaker the number of the last transition that its id had in its project, 0 without one. A look at the end of
an index for each: a grouped maximum walks all that they ever had."""
_UPDATE = update(t.breakers).where(t.breakers.c.id == bindparam("which"))
_UPDATE = _UPDATE.values({name: bindparam(f"new_{name}") for name in _CHANGEABLE})


class Plan(NamedTuple):
    """`created` rows bring the id of their router; `edited` are (before, after)."""

    created: Sequence[BreakerRow] = ()
    edited: Sequence[tuple[BreakerRow, BreakerRow]] = ()
    removed: Sequence[BreakerRow] = ()

    def ids(self) -> list[str]:
        return [row.id for row in (*self.created, *self.removed, *(old for old, _ in self.edited))]

    def names(self) -> list[str]:
        """Those that somebody gets or loses."""
        renamed = (row for old, new in self.edited if old.name != new.name for row in (old, new))
        return sorted({row.name for row in (*self.created, *self.removed, *renamed)})

    def notes(self) -> list[Note]:
        made = [Note("breaker.create", row.id, after=row) for row in self.created]
        changed = [Note(_action_of(old, new), old.id, old, new, _only_overrides(old, new)) for old, new in self.edited]
        return made + changed + [Note("breaker.delete", row.id, before=row) for row in self.removed]


def _action_of(old: BreakerRow, new: BreakerRow) -> str:
    """What was done to a breaker: its override set or ended, or something else changed."""
    before, after = old.controls.override, new.controls.override
    if before == after:
        return "breaker.update"
    return "override.end" if after is None else "override.set"


def _only_overrides(old: BreakerRow, new: BreakerRow) -> bool:
    """Whether an edit sets or ends the override of a breaker and does nothing else, but say by whom and why."""
    if _action_of(old, new) not in OVERRIDES or old.controls.mode != new.controls.mode:
        return False
    return all(getattr(old, name) == getattr(new, name) for name in EDITABLE if name != "control")


def load_breakers(c: Connection, project_id: str, breaker_ids: Sequence[str] | None = None) -> list[BreakerRow]:
    """The breakers of a project, or those of them with the ids, in creation order."""
    rows: list[Row[*tuple[Any, ...]]]
    if breaker_ids is None:
        rows = list(c.execute(_OF_PROJECT, {"project": project_id}))
    else:
        rows = by_ids(c, _SOME_OF_PROJECT, breaker_ids, project=project_id)
    rows.sort(key=lambda row: (row.created_ms, row.number))
    links = links_of(c, [row.id for row in rows])
    names = [column.name for column in BREAKER_COLUMNS]
    return [BreakerRow(**{n: getattr(row, n) for n in names}, router_ids=tuple(links[row.id])) for row in rows]


def carry_out(c: Connection, place: Place, plan: Plan, judged: bool = False) -> list[int]:
    """Writes a plan for a locked project; the ids of the change rows. An empty plan leaves no trace. `judged`: a step
    of a larger change, for which the project's share and its audit log were found to have room."""
    if not any(plan):
        return []
    with nullcontext() if judged else within_share(c, place.project_id or ""):
        return _carry_out(c, place, place.project_id or "", plan, judged)


def _carry_out(c: Connection, place: Place, project_id: str, plan: Plan, judged: bool) -> list[int]:
    touched = plan.names()
    names = stream_names(c, project_id, touched)
    affected = _AffectedRouters.of(c, plan)
    with reweighed(c, project_id, t.breakers, plan.ids()):
        change_ids = _create(c, plan.created)
        states = _lock(c, plan)
        _update(c, plan.edited)
        write_ends(c, plan.removed, states, place.now_ms)
        harmless = _remove(c, project_id, [row.id for row in plan.removed])
    change_ids += affected.write_changes(c, plan, place.now_ms)
    note_stream_names(c, project_id, names, stream_names(c, project_id, touched), harmless, place.now_ms)
    touch_breakers(c, project_id, place.now_ms)
    write_down(c, place, plan.notes(), judged)
    return change_ids


class _AffectedRouters(NamedTuple):
    """The routers that edited and removed breakers hang on, as they were: in link order, with the old links of those
    whose view may change."""

    routers: dict[str, Row[Any]]
    by_breaker: dict[str, list[str]]
    before: dict[str, RouterView]

    @classmethod
    def of(cls, c: Connection, plan: Plan) -> _AffectedRouters:
        ids = [old.id for old, _ in plan.edited] + [row.id for row in plan.removed]
        by_breaker = links_of(c, ids)
        order = dict.fromkeys(router_id for id_ in ids for router_id in by_breaker[id_])
        found = load_routers(c, list(order))
        # Views of large routers are dear: they are compared only when something they are made of has changed.
        seen = dict.fromkeys(
            router_id
            for old, new in plan.edited
            for router_id in by_breaker[old.id]
            if old.rule.metric != new.rule.metric or (old.name != new.name and names_matter(found[router_id].mode))
        )
        return cls({id_: found[id_] for id_ in order}, by_breaker, current_views(c, [found[id_] for id_ in seen]))

    def write_changes(self, c: Connection, plan: Plan, now_ms: int) -> list[int]:
        """One change per router: the settings of its breakers, then its view where that is another one."""
        entries: dict[str, list[Entry]] = {router_id: [] for router_id in self.routers}
        self._add(entries, ((new.id, breaker_entry(new)) for _, new in plan.edited))
        self._add(entries, ((row.id, _end(row)) for row in plan.removed))
        shrunk = {router_id for row in plan.removed for router_id in self.by_breaker[row.id]}
        now = current_views(c, [self.routers[router_id] for router_id in self.before])
        moved = {router_id for router_id, view in now.items() if view.links != self.before[router_id].links}
        views = raise_views(c, [router for id_, router in self.routers.items() if id_ in shrunk | moved])
        for router_id, view in views.items():
            entries[router_id].append(view_entry(view))
        empty = [id_ for id_ in shrunk if self.routers[id_].created_by == "system" and not views[id_].links]
        mark_routers_deleted(c, plan.removed[0].project_id if plan.removed else "", empty, now_ms)
        return add_changes(c, [Change(self.routers[id_], found) for id_, found in entries.items()])

    def _add(self, entries: dict[str, list[Entry]], found: Iterable[tuple[str, Entry]]) -> None:
        for breaker_id, entry in found:
            for router_id in self.by_breaker[breaker_id]:
                entries[router_id].append(entry)


def _end(row: BreakerRow) -> Entry:
    return BREAKER, encode_entry(BreakerSet(breaker_id=row.id, version=row.version + 1, name=row.name, rule=None))


def _values(row: BreakerRow) -> dict[str, Any]:
    return {column.name: getattr(row, column.name) for column in BREAKER_COLUMNS}


def _create(c: Connection, rows: Sequence[BreakerRow]) -> list[int]:
    """Breakers with their runtime records, their routers and links, and the change that brings each to life."""
    if not rows:
        return []
    after_seq = _insert_breakers(c, rows)
    with reweighed(c, rows[0].project_id, t.routers, [row.router_ids[0] for row in rows]):
        c.execute(insert(t.routers), [_system_router(row) for row in rows])
    add_links(c, rows[0].project_id, [(row.router_ids[0], row.id) for row in rows])
    routers = load_routers(c, [row.router_ids[0] for row in rows])
    views = current_views(c, list(routers.values()))
    changes = []
    for row in rows:
        router = routers[row.router_ids[0]]
        entries = (birth_entry(row, after_seq[row.id]), view_entry(views[router.id]))
        changes.append(Change(router, entries, (row.id,)))
    return add_changes(c, changes)


def _insert_breakers(c: Connection, rows: Sequence[BreakerRow]) -> dict[str, int]:
    """Returns the transition_seq that each id goes on from: one that this project had before does not begin anew. Nor
    do its epochs, whoever had it: an owner of its predecessor that has not noticed yet must stay fenced."""
    ids = [row.id for row in rows]
    refuse_taken(c, ids)
    try:
        c.execute(insert(t.breakers), [_values(row) | {"epoch": row.created_ms} for row in rows])
    except IntegrityError:
        # Another project took the id after our look: possible where writers of two projects run side by side.
        raise BreakerExists(details={"breaker_id": ids[0]} if len(ids) == 1 else None) from None
    after_seq: dict[str, int] = dict(by_ids(c, _LAST_SEQ, ids))
    _insert_records(c, after_seq)
    return after_seq


def begin_anew(c: Connection, rows: Sequence[BreakerRow], now_ms: int) -> dict[str, int]:
    """Breakers that are there, and whose ends stand in logs: all that they did is over, as when they are deleted and
    made again. Answers as `_insert_breakers` does; the links are the caller's."""
    ids = [row.id for row in rows]
    write_ends(c, rows, {row.id: row for row in by_ids(c, _LOCK, sorted(ids))}, now_ms)
    after_seq: dict[str, int] = dict(by_ids(c, _LAST_SEQ, ids))
    for some in chunks(ids):
        c.execute(delete(t.records).where(t.records.c.breaker_id.in_(some)))
    _insert_records(c, after_seq)
    return after_seq


def _insert_records(c: Connection, after_seq: Mapping[str, int]) -> None:
    fresh = {"state": "closed", "allow_rate": 1.0, "cut": {}}
    rows = [fresh | {"breaker_id": id_, "transition_seq": seq} for id_, seq in after_seq.items()]
    if rows:
        c.execute(insert(t.records), rows)


def taken_ids(c: Connection, breaker_ids: Sequence[str]) -> set[str]:
    """Those of the ids that some project's breaker has."""
    return {id_ for (id_,) in by_ids(c, select(t.breakers.c.id).where(t.breakers.c.id.in_(IDS)), breaker_ids)}


def refuse_taken(c: Connection, breaker_ids: Sequence[str]) -> None:
    if taken := taken_ids(c, breaker_ids):
        raise BreakerExists(details={"breaker_id": min(taken)})


def _system_router(row: BreakerRow) -> dict[str, Any]:
    """The router that is made with a breaker and goes with it."""
    return {
        "id": row.router_ids[0],
        "project_id": row.project_id,
        "name": row.name,
        "mode": "static",
        "enabled": True,
        "created_by": "system",
        "metadata": {},
        "version": 1,
        "inserted_ms": row.created_ms,
        "epoch": 0,
    }


def _lock(c: Connection, plan: Plan) -> dict[str, Row[Any]]:
    """What the records say of breakers that are changed or go, by id. They are locked before the first of them is
    written, all in order of the ids, as the Journal locks those of a commit: else each may hold what the other waits
    for."""
    ids = [row.id for row in plan.removed] + [old.id for old, _ in plan.edited]
    return {row.id: row for row in by_ids(c, _LOCK, sorted(ids))}


def _update(c: Connection, pairs: Sequence[tuple[BreakerRow, BreakerRow]]) -> None:
    if not pairs:
        return
    rows = [{f"new_{n}": getattr(new, n) for n in _CHANGEABLE} | {"which": new.id} for _, new in pairs]
    c.execute(_UPDATE, rows)


def _remove(c: Connection, project_id: str, breaker_ids: Sequence[str]) -> set[str]:
    """Those of them that never left closed. The records say so as they go: nothing can be added to them any more."""
    harmless: set[str] = set()
    read: dict[str, int] = {}
    r = t.records.c
    for some in chunks(breaker_ids):
        add_link_count(c, project_id, -c.execute(delete(t.links).where(t.links.c.breaker_id.in_(some))).rowcount)
        ended = c.execute(delete(t.ended_links).where(t.ended_links.c.breaker_id.in_(some)))
        add_ended_links(c, project_id, -ended.rowcount)
        gone = delete(t.records).where(r.breaker_id.in_(some)).returning(r.breaker_id, r.transition_seq, r.cut)
        for breaker_id, seq, cut in c.execute(gone):
            harmless |= {breaker_id} if seq == 0 else set()
            read |= {router_id: max(offset, read.get(router_id, 0)) for router_id, offset in (cut or {}).items()}
        c.execute(delete(t.breakers).where(t.breakers.c.id.in_(some)))
    note_reached(c, read)
    return harmless


def edited(row: BreakerRow, wanted: BreakerRow, now_ms: int) -> BreakerRow:
    """The next version of a breaker: an edit can't change its identity and history."""
    return msgspec.structs.replace(
        wanted,
        id=row.id,
        project_id=row.project_id,
        version=row.version + 1,
        created_ms=row.created_ms,
        updated_ms=now_ms,
        router_ids=row.router_ids,
    )
