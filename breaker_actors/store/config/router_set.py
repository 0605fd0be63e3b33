"""A set of changes to routers of one project, carried out in one go: one router or hundreds take the same statements.

Each function takes rows as they are in the locked project, and answers the ids of the change rows. An apply of rules
changes a thousand routers in one transaction, for which all other writers wait: what is asked once for each router,
such as how many links a project has, would be asked of all those before it, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from breaker_actors.core.log_entries import MODES
from breaker_actors.errors import Invalid, NotFound, RouterHasBreakers
from breaker_actors.store import tables as t
from breaker_actors.store.config.audit_log import Note, Place, write_down
from breaker_actors.store.config.change_rows import (
    Change,
    add_changes,
    add_links,
    breaker_entry,
    current_views,
    end_links,
    linked_of,
    load_routers,
    mark_routers_deleted,
    note_ended_links,
    raise_versions,
    raise_views,
    view_entry,
)
from breaker_actors.store.config.change_set import load_breakers
from breaker_actors.store.config.routing_tables import check_shares, view_of
from breaker_actors.store.quotas import refuse_many_links, reweighed, within_share
from breaker_actors.store.rows import BreakerRow, RouterDraft, RouterRow
from breaker_actors.store.section import IDS, by_ids, touch_breakers

LINKS_NOTED_MAX = 1_000
"""Breakers of a router that an audit entry lists whole."""
SHADOWED_MAX = 500
"""Routers that a breaker hangs on when a shadow of it is made: all of them are linked in one transaction."""
ROUTERS_MAX = 1_000
"""Routers that one breaker hangs on: each change of it goes to the logs of all of them, in one transaction. It gets no
others while as many that it has left are not forgotten: its cut names all of them."""
CHANGEABLE = ("name", "mode", "enabled", "metadata")
"""What of a router its owner can change, beside its links."""
ROUTER_COLUMNS = [t.routers.c[f] for f in RouterRow.__struct_fields__ if f != "breaker_ids"]
_UPDATE = update(t.routers).where(t.routers.c.id == bindparam("which"))
_UPDATE = _UPDATE.values({name: bindparam(f"new_{name}") for name in CHANGEABLE})
_B, _L = t.breakers.c, t.links.c
_SHADOWS = (
    select(_B.number, _B.id, _B.shadow_of)
    .where(_B.shadow_of.in_(IDS), _B.project_id == bindparam("project"))
    .order_by(_B.number)
)
_LIVE = select(*ROUTER_COLUMNS).where(
    t.routers.c.id.in_(IDS), t.routers.c.project_id == bindparam("project"), t.routers.c.deleted_ms.is_(None)
)
_E = t.ended_links.c
_LEFT_MANY = (
    select(_E.breaker_id)
    .where(_E.breaker_id.in_(IDS))
    .group_by(_E.breaker_id)
    .having(func.count() >= bindparam("most"))
    .order_by(_E.breaker_id)
)
_LINKED = select(_L.router_id, _L.breaker_id).where(_L.router_id.in_(IDS)).order_by(_L.number)


class Linking(NamedTuple):
    """Breakers that a router gets, or loses."""

    row: RouterRow
    breaker_ids: Sequence[str]


def live_routers(c: Connection, project_id: str, router_ids: Sequence[str]) -> dict[str, RouterRow]:
    """Live routers of a project by id. Raises NotFound when there is not each of them."""
    linked: dict[str, list[str]] = {}
    for router_id, breaker_id in by_ids(c, _LINKED, router_ids):
        linked.setdefault(router_id, []).append(breaker_id)
    rows = by_ids(c, _LIVE, router_ids, project=project_id)
    found = {row.id: RouterRow(**row._mapping, breaker_ids=tuple(linked.get(row.id, ()))) for row in rows}
    for router_id in router_ids:
        if router_id not in found:
            raise NotFound("There is no such router.", {"router_id": router_id})
    return found


def find_breakers(c: Connection, project_id: str, breaker_ids: Iterable[str]) -> dict[str, BreakerRow]:
    """Breakers by id, in the order asked; raises NotFound when one is not in the project."""
    wanted = list(dict.fromkeys(breaker_ids))
    found = {row.id: row for row in load_breakers(c, project_id, wanted)}
    for breaker_id in wanted:
        if breaker_id not in found:
            raise NotFound("There is no such breaker.", {"breaker_id": breaker_id})
    return {breaker_id: found[breaker_id] for breaker_id in wanted}


# making, changing, removing


def create_routers(
    c: Connection, place: Place, project_id: str, drafts: Sequence[tuple[str, RouterDraft]]
) -> tuple[list[RouterRow], list[int]]:
    """Makes routers under these ids."""
    if not drafts:
        return [], []
    for _, draft in drafts:
        check_shares(draft.metadata)
    breakers = find_breakers(c, project_id, chain.from_iterable(draft.breaker_ids for _, draft in drafts))
    rows = [_new_row(place, project_id, router_id, draft) for router_id, draft in drafts]
    pairs = [(row.id, breaker_id) for row in rows for breaker_id in row.breaker_ids]
    refuse_many_links(c, project_id, len(pairs))
    _refuse_spread(c, breakers, pairs)
    ids = [row.id for row in rows]
    with within_share(c, project_id):
        with reweighed(c, project_id, t.routers, ids):
            c.execute(insert(t.routers), [_values(row) for row in rows])
        add_links(c, project_id, pairs)
    write_down(c, place, [Note("router.create", row.id, after=row) for row in rows])
    if pairs:
        touch_breakers(c, project_id, place.now_ms)
    stored = load_routers(c, ids)
    views = current_views(c, [stored[router_id] for router_id in ids])
    told = _Settings(breakers)
    # Settings first: a breaker that starts to read here must find them in this log before its first sample.
    entries = [[*told.of(row.breaker_ids), view_entry(views[row.id])] for row in rows]
    return rows, add_changes(c, [Change(stored[r.id], e, r.breaker_ids) for r, e in zip(rows, entries, strict=True)])


def _new_row(place: Place, project_id: str, router_id: str, draft: RouterDraft) -> RouterRow:
    return RouterRow(
        id=router_id,
        project_id=project_id,
        name=draft.name or f"router-{router_id[:8]}",
        mode=draft.mode,
        enabled=draft.enabled,
        created_by="user",
        metadata=dict(draft.metadata),
        version=1,
        inserted_ms=place.now_ms,
        breaker_ids=tuple(dict.fromkeys(draft.breaker_ids)),
    )


def _values(row: RouterRow) -> dict[str, Any]:
    return {column.name: getattr(row, column.name) for column in ROUTER_COLUMNS} | {"epoch": 0}


def change_routers(
    c: Connection, place: Place, wanted: Sequence[tuple[RouterRow, RouterRow]]
) -> tuple[list[RouterRow], list[int]]:
    """Writes what is CHANGEABLE of (before, after); the rows after it, also of those that did not change."""
    pairs = [(old, new) for old, new in wanted if any(_differs(old, new, name) for name in CHANGEABLE)]
    if not pairs:
        return [old for old, _ in wanted], []
    for _, new in pairs:
        check_shares(new.metadata)
    project_id, ids = pairs[0][0].project_id, [old.id for old, _ in pairs]
    values = [{"which": old.id} | {f"new_{name}": getattr(new, name) for name in CHANGEABLE} for old, new in pairs]
    with within_share(c, project_id), reweighed(c, project_id, t.routers, ids):
        c.execute(_UPDATE, sorted(values, key=lambda one: str(one["which"])))
    change_ids, split = _tell_splits(c, [pair for pair in pairs if _may_split_otherwise(*pair)])
    found = {old.id: old for old, _ in wanted}
    for old, new in pairs:
        fields = {name: getattr(new, name) for name in CHANGEABLE}
        found[old.id] = msgspec.structs.replace(old, **fields, version=old.version + (old.id in split))
    write_down(c, place, [Note("router.update", old.id, old, found[old.id]) for old, _ in pairs])
    return list(found.values()), change_ids


def _differs(old: RouterRow, new: RouterRow, name: str) -> bool:
    return bool(getattr(old, name) != getattr(new, name))


def _may_split_otherwise(old: RouterRow, new: RouterRow) -> bool:
    return any(_differs(old, new, name) for name in CHANGEABLE if name != "name")


def _tell_splits(c: Connection, pairs: Sequence[tuple[RouterRow, RouterRow]]) -> tuple[list[int], set[str]]:
    """Tells those that split otherwise from here on; which they are."""
    ids = [old.id for old, _ in pairs]
    stored, linked = load_routers(c, ids), linked_of(c, ids)
    entries = {}
    for old, new in pairs:
        version, breakers = stored[old.id].version, linked[old.id]
        before = view_of(version, old.mode, old.enabled, old.metadata, breakers)
        after = view_of(version, new.mode, new.enabled, new.metadata, breakers)
        if after != before:
            entries[old.id] = view_entry(msgspec.structs.replace(after, version=version + 1))
    raise_versions(c, [stored[router_id] for router_id in entries])
    return add_changes(c, [Change(stored[id_], [entry]) for id_, entry in entries.items()]), set(entries)


def remove_routers(c: Connection, place: Place, rows: Sequence[RouterRow]) -> list[int]:
    """Marks routers without breakers as deleted. Raises RouterHasBreakers."""
    if not rows:
        return []
    for row in rows:
        if row.breaker_ids:
            raise RouterHasBreakers(details={"breaker_ids": list(row.breaker_ids)})
    ids = [row.id for row in rows]
    change_ids = _tell_views(c, ids)
    mark_routers_deleted(c, rows[0].project_id, ids, place.now_ms)
    write_down(c, place, [Note("router.delete", row.id, before=row) for row in rows])
    return change_ids


def _tell_views(c: Connection, router_ids: Sequence[str]) -> list[int]:
    """The routers split otherwise from here on; the ids of the change rows in their order."""
    stored = load_routers(c, router_ids)
    views = raise_views(c, [stored[router_id] for router_id in router_ids])
    return add_changes(c, [Change(stored[id_], [view_entry(views[id_])]) for id_ in router_ids])


# linking


def link_routers(c: Connection, place: Place, wanted: Sequence[Linking]) -> tuple[list[RouterRow], list[int]]:
    """Links breakers, and their shadows, to routers; the rows after it. What is linked already is left out."""
    if not any(ids for _, ids in wanted):
        return [row for row, _ in wanted], []
    project_id = wanted[0].row.project_id
    shadows = _shadows(c, project_id, wanted)
    asked = [Linking(row, list(dict.fromkeys((*ids, *_of(shadows, ids))))) for row, ids in wanted]
    breakers = find_breakers(c, project_id, chain.from_iterable(ids for _, ids in asked))
    new = [one for one in (unlinked(*one) for one in asked) if one.breaker_ids]
    if not new:
        return [row for row, _ in wanted], []
    pairs = [(row.id, breaker_id) for row, ids in new for breaker_id in ids]
    refuse_many_links(c, project_id, len(pairs))
    _refuse_spread(c, breakers, pairs)
    for row, _ in new:
        refuse_unreadable(row.mode)
    with within_share(c, project_id):
        add_links(c, project_id, pairs)
    stored = load_routers(c, [row.id for row, _ in new])
    views, told = raise_views(c, [stored[row.id] for row, _ in new]), _Settings(breakers)
    changes = [Change(stored[r.id], [*told.of(ids), view_entry(views[r.id])], tuple(ids)) for r, ids in new]
    change_ids = add_changes(c, changes)
    found = {row.id: row for row, _ in wanted}
    for row, ids in new:
        found[row.id] = msgspec.structs.replace(row, version=row.version + 1, breaker_ids=(*row.breaker_ids, *ids))
    _note_links(c, place, "router.link", [(row, found[row.id]) for row, _ in new])
    return list(found.values()), change_ids


def unlinked(row: RouterRow, breaker_ids: Iterable[str]) -> Linking:
    """Those of the breakers that the router does not have."""
    linked = set(row.breaker_ids)
    return Linking(row, [id_ for id_ in breaker_ids if id_ not in linked])


def unlink_routers(c: Connection, place: Place, wanted: Sequence[Linking]) -> list[int]:
    """Ends links of breakers, and of their shadows, one change for each router. Raises NotFound for one that is not
    linked."""
    if not wanted:
        return []
    project_id = wanted[0].row.project_id
    shadows = _shadows(c, project_id, wanted)
    ended, pairs = list[tuple[str, str]](), list[tuple[RouterRow, RouterRow]]()
    for row, ids in wanted:
        linked = set(row.breaker_ids)
        if missing := [id_ for id_ in ids if id_ not in linked]:
            raise NotFound("The breaker is not linked to this router.", {"breaker_id": missing[0]})
        gone = {*ids, *_of(shadows, ids)} & linked
        ended += [(row.id, breaker_id) for breaker_id in sorted(gone)]
        left = tuple(id_ for id_ in row.breaker_ids if id_ not in gone)
        pairs.append((row, msgspec.structs.replace(row, breaker_ids=left)))
    since = end_links(c, project_id, ended)
    _note_links(c, place, "router.unlink", pairs)
    ids = [row.id for row, _ in wanted]
    change_ids = _tell_views(c, ids)
    note_ended_links(c, project_id, since, dict(zip(ids, change_ids, strict=True)), place.now_ms)
    return change_ids


def watched_routers(c: Connection, project_id: str, breaker_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The routers of breakers that new ones are to be shadows of. Raises Invalid."""
    found = {row.id: row.router_ids for row in load_breakers(c, project_id, list(dict.fromkeys(breaker_ids)))}
    for breaker_id in breaker_ids:
        if breaker_id not in found:
            raise Invalid("shadow_of: there is no such breaker", {"shadow_of": "there is no such breaker"})
        if len(found[breaker_id]) > SHADOWED_MAX:
            words = f"it hangs on more than {SHADOWED_MAX} routers, too many for a shadow of it"
            raise Invalid(f"shadow_of: {words}", {"shadow_of": words})
    return found


def link_shadows(c: Connection, place: Place, project_id: str, watched: Mapping[str, Iterable[str]]) -> list[int]:
    """Links breakers that were just made to all routers of what they watch, given by id."""
    ids: dict[str, list[str]] = {}
    for breaker_id, router_ids in watched.items():
        for router_id in router_ids:
            ids.setdefault(router_id, []).append(breaker_id)
    rows = live_routers(c, project_id, list(ids))
    return link_routers(c, place, [Linking(rows[router_id], some) for router_id, some in ids.items()])[1]


def refuse_unreadable(mode: str) -> None:
    if mode not in MODES:
        raise Invalid("The mode of this router can't be read: set it anew.", {"mode": "Expected one of the modes"})


def _refuse_spread(c: Connection, breakers: Mapping[str, BreakerRow], pairs: Sequence[tuple[str, str]]) -> None:
    """Refuses links (router, breaker) of a breaker to more routers than one may hang on, or of one that has left as
    many of late. Raises Invalid."""
    linked = list(dict.fromkeys(breaker_id for _, breaker_id in pairs))
    for (breaker_id,) in by_ids(c, _LEFT_MANY, linked, most=ROUTERS_MAX):
        raise Invalid(
            f"{breakers[breaker_id].name!r} has left {ROUTERS_MAX} routers of late, and gets no others while its window"
            " reaches back to them: wait for that, and an hour longer.",
            {"breaker_id": breaker_id},
        )
    for breaker_id, more in Counter(breaker_id for _, breaker_id in pairs).items():
        row = breakers[breaker_id]
        if len(row.router_ids) + more > ROUTERS_MAX:
            raise Invalid(
                f"A breaker hangs on at most {ROUTERS_MAX} routers, and {row.name!r} would on"
                f" {len(row.router_ids) + more}.",
                {"breaker_id": breaker_id},
            )


class _Settings:
    """The settings record of each breaker, made once, however many routers it goes to."""

    def __init__(self, breakers: Mapping[str, BreakerRow]) -> None:
        self._breakers = breakers
        self._made: dict[str, tuple[int, bytes]] = {}

    def of(self, breaker_ids: Iterable[str]) -> list[tuple[int, bytes]]:
        made, breakers = self._made, self._breakers
        for id_ in breaker_ids:
            if id_ not in made:
                made[id_] = breaker_entry(breakers[id_])
        return [made[id_] for id_ in breaker_ids]


def _shadows(c: Connection, project_id: str, wanted: Sequence[Linking]) -> dict[str, list[Row[Any]]]:
    """The breakers that get the samples of others, too, by those."""
    found: dict[str, list[Row[Any]]] = {}
    watched = list(dict.fromkeys(chain.from_iterable(ids for _, ids in wanted)))
    for row in by_ids(c, _SHADOWS, watched, project=project_id):
        found.setdefault(row.shadow_of, []).append(row)
    return found


def _of(shadows: Mapping[str, Sequence[Row[Any]]], breaker_ids: Iterable[str]) -> list[str]:
    """The shadows of some breakers, oldest first."""
    found = [row for breaker_id in breaker_ids for row in shadows.get(breaker_id, ())]
    return [row.id for row in sorted(found, key=lambda row: row.number)]


def _note_links(c: Connection, place: Place, action: str, pairs: Sequence[tuple[RouterRow, RouterRow]]) -> None:
    """Lists of breakers show their routers, so these have changed, too."""
    touch_breakers(c, pairs[0][0].project_id, place.now_ms)
    write_down(c, place, [_link_note(action, old.id, old.breaker_ids, new.breaker_ids) for old, new in pairs])


def _link_note(action: str, router_id: str, old: Sequence[str], new: Sequence[str]) -> Note:
    return Note(action, router_id, _linked_note(old, new), _linked_note(new, old))


def _linked_note(breaker_ids: Sequence[str], other_ids: Sequence[str]) -> dict[str, Any]:
    """The breakers of a router; of many those that another version of it has not."""
    if max(len(breaker_ids), len(other_ids)) <= LINKS_NOTED_MAX:
        return {"breaker_ids": breaker_ids}
    others = set(other_ids)
    changed = [breaker_id for breaker_id in breaker_ids if breaker_id not in others]
    return {"breaker_count": len(breaker_ids), "changed_breaker_ids": changed}
