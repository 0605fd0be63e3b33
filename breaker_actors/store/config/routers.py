"""Routers: create, change, delete, link, list. A router marked as deleted is invisible here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, Select, delete, exists, func, insert, or_, select, update

from breaker_actors.core.log_entries import MODES, RouterView
from breaker_actors.errors import Invalid, NotFound, RouterHasBreakers
from breaker_actors.store import tables as t
from breaker_actors.store.base import RouterEdit
from breaker_actors.store.config.audit_log import Note, Place, write_down
from breaker_actors.store.config.change_rows import (
    Change,
    Entry,
    add_changes,
    add_links,
    birth_entry,
    breaker_entry,
    current_views,
    end_links,
    linked_of,
    links_of,
    load_routers,
    mark_routers_deleted,
    note_ended_links,
    raise_views,
    view_entry,
)
from breaker_actors.store.config.change_set import load_breakers
from breaker_actors.store.config.idempotency import ANSWER_BYTES_MAX, Onces
from breaker_actors.store.config.routing_tables import check_shares
from breaker_actors.store.quotas import refuse_many_links, reweighed, weigh, within_share
from breaker_actors.store.rows import SYSTEM, BreakerRow, Once, RouterDraft, RouterRow
from breaker_actors.store.section import IDS, by_ids, chunks, lock_project, new_id, touch_breakers

TOLD_BYTES = 1_000
"""What a breaker takes in an answer beside its stored texts."""
LINKS_NOTED_MAX = 1_000
"""Breakers of a router that an audit entry lists whole."""
_COLUMNS = [t.routers.c[f] for f in RouterRow.__struct_fields__ if f != "breaker_ids"]


class Routers(Onces):
    async def create_router(
        self, project_id: str, draft: RouterDraft, now_ms: int, by: str = SYSTEM, once: Once | None = None
    ) -> tuple[RouterRow, list[int]]:
        place = Place(by, now_ms, project_id)
        return await self.write_once(
            await self._steps.whose(project_id),
            once,
            lambda c: create_router(c, place, project_id, draft),
            lambda c, made: (made[0], load_breakers(c, project_id, made[0].breaker_ids)),
            lambda c, made: made[0].id if _told_bytes(c, made[0]) > ANSWER_BYTES_MAX else None,
        )

    async def list_routers(self, project_id: str) -> list[RouterRow]:
        return await self._db.read(lambda c: load_router_rows(c, project_id))

    async def get_router(self, project_id: str, router_id: str) -> RouterRow | None:
        return await self._db.read(lambda c: find_router(c, project_id, router_id))

    async def update_router(
        self, project_id: str, router_id: str, edit: RouterEdit, now_ms: int, by: str = SYSTEM
    ) -> tuple[RouterRow, list[int]]:
        place = Place(by, now_ms, project_id)
        return await self._write_small(
            project_id, lambda c: change_router(c, place, _locked(c, project_id, router_id), edit)
        )

    async def router_entries(
        self, project_id: str, router_id: str, now_ms: int, by: str = SYSTEM
    ) -> list[tuple[int, bytes]]:
        place = Place(by, now_ms, project_id)
        return await self._write_small(project_id, lambda c: _entries(c, place, _locked(c, project_id, router_id)))

    async def delete_router(self, project_id: str, router_id: str, now_ms: int, by: str = SYSTEM) -> list[int]:
        place = Place(by, now_ms, project_id)
        return await self._write_small(project_id, lambda c: remove_router(c, place, _locked(c, project_id, router_id)))

    async def link_breakers(
        self, project_id: str, router_id: str, breaker_ids: Sequence[str], now_ms: int, by: str = SYSTEM
    ) -> tuple[RouterRow, list[int]]:
        place = Place(by, now_ms, project_id)
        return await self._write_small(
            project_id, lambda c: link(c, place, _locked(c, project_id, router_id), breaker_ids)
        )

    async def unlink_breaker(
        self, project_id: str, router_id: str, breaker_id: str, now_ms: int, by: str = SYSTEM
    ) -> list[int]:
        place = Place(by, now_ms, project_id)
        return await self._write_small(
            project_id, lambda c: unlink(c, place, _locked(c, project_id, router_id), [breaker_id])
        )


# reading


def _told_bytes(c: Connection, row: RouterRow) -> int:
    """About what the answer for a router takes: its breakers in full, under two names."""
    return 2 * (TOLD_BYTES * len(row.breaker_ids) + weigh(c, t.breakers, row.breaker_ids))


def _live(project_id: str) -> Select[Any]:
    return select(*_COLUMNS).where(t.routers.c.project_id == project_id, t.routers.c.deleted_ms.is_(None))


def _row(found: Row[Any], breaker_ids: Iterable[str]) -> RouterRow:
    return RouterRow(**found._mapping, breaker_ids=tuple(breaker_ids))


def find_router(c: Connection, project_id: str, router_id: str) -> RouterRow | None:
    found = c.execute(_live(project_id).where(t.routers.c.id == router_id)).first()
    return None if found is None else _row(found, (b.breaker_id for b in linked_of(c, [router_id])[router_id]))


def load_router_rows(c: Connection, project_id: str) -> list[RouterRow]:
    links = (
        select(t.links.c.router_id, t.links.c.breaker_id)
        .join(t.routers, t.routers.c.id == t.links.c.router_id)
        .where(t.routers.c.project_id == project_id)
        .order_by(t.links.c.number)
    )
    breaker_ids: dict[str, list[str]] = {}
    for router_id, breaker_id in c.execute(links):
        breaker_ids.setdefault(router_id, []).append(breaker_id)
    rows = c.execute(_live(project_id).order_by(t.routers.c.inserted_ms, t.routers.c.number)).all()
    return [_row(row, breaker_ids.get(row.id, ())) for row in rows]


def _locked(c: Connection, project_id: str, router_id: str) -> RouterRow:
    """A live router of a project that nobody else writes to meanwhile."""
    lock_project(c, project_id)
    row = find_router(c, project_id, router_id)
    if row is None:
        raise NotFound("There is no such router.", {"router_id": router_id})
    return row


def _breakers(c: Connection, project_id: str, breaker_ids: Sequence[str]) -> list[BreakerRow]:
    """The breakers in the order asked; raises NotFound when one is not in the project."""
    found = {row.id: row for row in load_breakers(c, project_id, breaker_ids)}
    missing = [breaker_id for breaker_id in breaker_ids if breaker_id not in found]
    if missing:
        raise NotFound("There is no such breaker.", {"breaker_id": missing[0]})
    return [found[breaker_id] for breaker_id in breaker_ids]


def _stored(c: Connection, router_id: str) -> Row[Any]:
    return c.execute(select(t.routers).where(t.routers.c.id == router_id)).one()


# writing


def create_router(
    c: Connection, place: Place, project_id: str, draft: RouterDraft, id_: str | None = None
) -> tuple[RouterRow, list[int]]:
    check_shares(draft.metadata)
    lock_project(c, project_id)
    linked = _breakers(c, project_id, tuple(dict.fromkeys(draft.breaker_ids)))
    refuse_many_links(c, project_id, len(linked))
    router_id = id_ or new_id()
    row = RouterRow(
        id=router_id,
        project_id=project_id,
        name=draft.name or f"router-{router_id[:8]}",
        mode=draft.mode,
        enabled=draft.enabled,
        created_by="user",
        metadata=dict(draft.metadata),
        version=1,
        inserted_ms=place.now_ms,
        breaker_ids=tuple(breaker.id for breaker in linked),
    )
    with within_share(c, project_id):
        with reweighed(c, project_id, t.routers, [router_id]):
            c.execute(insert(t.routers).values({x.name: getattr(row, x.name) for x in _COLUMNS} | {"epoch": 0}))
        add_links(c, project_id, [(router_id, breaker.id) for breaker in linked])
    write_down(c, place, [Note("router.create", row.id, after=row)])
    router = _stored(c, router_id)
    if not linked:
        return row, add_changes(c, [Change(router, [view_entry(current_views(c, [router])[router_id])])])
    touch_breakers(c, project_id, place.now_ms)
    return row, _tell_linked(c, router, linked, current_views(c, [router])[router_id])


def _tell_linked(c: Connection, router: Row[Any], linked: Sequence[BreakerRow], view: RouterView) -> list[int]:
    """Settings first: a breaker that starts to read here must find them in this log before its first sample."""
    entries = [*map(breaker_entry, linked), view_entry(view)]
    return add_changes(c, [Change(router, entries, tuple(breaker.id for breaker in linked))])


def _tell_view(c: Connection, router_id: str) -> list[int]:
    """The router splits otherwise from here on."""
    router = _stored(c, router_id)
    return add_changes(c, [Change(router, [view_entry(raise_views(c, [router])[router_id])])])


def _entries(c: Connection, place: Place, row: RouterRow) -> list[tuple[int, bytes]]:
    view = current_views(c, [_stored(c, row.id)])[row.id]  # of its own version: changes that are on the way come behind
    write_down(c, place, [Note("router.recover", row.id)])
    homeless = _bring_back(c, row)
    breakers = _breakers(c, row.project_id, row.breaker_ids)
    return [*_settings(breakers, _unborn(c, row)), *homeless, view_entry(view)]


def _settings(breakers: Sequence[BreakerRow], unborn: Mapping[str, int]) -> list[tuple[int, bytes]]:
    """The settings of breakers; of an unborn one those that bring it to life."""
    return [
        birth_entry(one, unborn[one.id], again=True) if one.id in unborn else breaker_entry(one) for one in breakers
    ]


def _unborn(c: Connection, router: RouterRow) -> dict[str, int]:
    """Breakers of which nothing is stored, and that a router's log brings to life: it was made with them, or is their
    only one. Answers the transition_seq that each goes on from."""
    r, b, links = t.records.c, t.breakers.c, t.links.c
    many = select(links.breaker_id).where(links.breaker_id == r.breaker_id).having(func.count() > 1)
    many = many.group_by(links.breaker_id)
    query = select(r.breaker_id, r.transition_seq).where(r.breaker_id.in_(IDS), r.record.is_(None))
    if router.created_by == "system":
        query = query.join(t.breakers, b.id == r.breaker_id)
        query = query.where(or_(b.created_ms == router.inserted_ms, ~exists(many)))
    else:
        query = query.where(~exists(many))
    return dict(by_ids(c, query, router.breaker_ids))


def _bring_back(c: Connection, router: RouterRow) -> list[Entry]:
    """Breakers of which nothing is stored, that were made with a router and have left it, may have lost their creation
    with its log: the first router that they are linked to now brings them to life. Those without one still read the
    log that they left, to its end: answers the entries for it that bring them to life."""
    if router.created_by != "system":
        return []
    e, b, r = t.ended_links.c, t.breakers.c, t.records.c
    query = select(b.id, r.transition_seq).join_from(t.ended_links, t.breakers, b.id == e.breaker_id)
    query = query.join(t.records, r.breaker_id == b.id).where(e.router_id == router.id, r.record.is_(None))
    query = query.where(b.created_ms == router.inserted_ms, b.id.not_in(router.breaker_ids))
    lost = {id_: seq for id_, seq in c.execute(query)}
    homes = {id_: router_ids[0] for id_, router_ids in links_of(c, sorted(lost)).items() if router_ids}
    for some in chunks(sorted(homes)):
        c.execute(delete(t.ended_links).where(e.breaker_id.in_(some)))
    routers = load_routers(c, sorted(set(homes.values())))
    rows = load_breakers(c, router.project_id, sorted(lost))
    at_home = [row for row in rows if row.id in homes]
    add_changes(c, [Change(routers[homes[row.id]], _settings([row], lost)) for row in at_home])
    return _settings([row for row in rows if row.id not in homes], lost)


def change_router(c: Connection, place: Place, row: RouterRow, edit: RouterEdit) -> tuple[RouterRow, list[int]]:
    wanted = edit(row)
    if wanted == row:
        return row, []
    check_shares(wanted.metadata)
    before = current_views(c, [_stored(c, row.id)])[row.id]
    values = {name: getattr(wanted, name) for name in ("name", "mode", "enabled", "metadata")}
    with within_share(c, row.project_id), reweighed(c, row.project_id, t.routers, [row.id]):
        c.execute(update(t.routers).where(t.routers.c.id == row.id).values(values))
    split = current_views(c, [_stored(c, row.id)])[row.id] != before
    change_ids = _tell_view(c, row.id) if split else []
    new = msgspec.structs.replace(row, **values, version=row.version + split)
    write_down(c, place, [Note("router.update", row.id, row, new)])
    return new, change_ids


def remove_router(c: Connection, place: Place, row: RouterRow) -> list[int]:
    if row.breaker_ids:
        raise RouterHasBreakers(details={"breaker_ids": list(row.breaker_ids)})
    change_ids = _tell_view(c, row.id)
    mark_routers_deleted(c, row.project_id, [row.id], place.now_ms)
    write_down(c, place, [Note("router.delete", row.id, before=row)])
    return change_ids


def link_shadow(c: Connection, place: Place, breaker: BreakerRow, router_ids: Sequence[str]) -> list[int]:
    """Links a breaker that was just made to all these routers of its locked project, in as many statements as one takes
    for each PARAMETERS_MAX of them; the ids of the change rows."""
    if not router_ids:
        return []
    found, linked = load_routers(c, router_ids), linked_of(c, router_ids)
    routers = [found[router_id] for router_id in router_ids]
    for router in routers:
        _refuse_unreadable(router.mode)
    refuse_many_links(c, breaker.project_id, len(routers))
    with within_share(c, breaker.project_id):
        add_links(c, breaker.project_id, [(router.id, breaker.id) for router in routers])
    views, settings = raise_views(c, routers), breaker_entry(breaker)
    changes = [Change(router, [settings, view_entry(views[router.id])], (breaker.id,)) for router in routers]
    change_ids = add_changes(c, changes)
    touch_breakers(c, breaker.project_id, place.now_ms)
    before = {router_id: tuple(one.breaker_id for one in of) for router_id, of in linked.items()}
    write_down(c, place, [_link_note("router.link", id_, ids, (*ids, breaker.id)) for id_, ids in before.items()])
    return change_ids


def _shadows(c: Connection, project_id: str, breaker_ids: Sequence[str]) -> list[str]:
    """The breakers that get the samples of these, too."""
    b = t.breakers.c
    query = select(b.id).where(b.shadow_of.in_(IDS), b.project_id == project_id).order_by(b.number)
    return [id_ for (id_,) in by_ids(c, query, breaker_ids)]


def _refuse_unreadable(mode: str) -> None:
    if mode not in MODES:
        raise Invalid("The mode of this router can't be read: set it anew.", {"mode": "Expected one of the modes"})


def link(c: Connection, place: Place, row: RouterRow, breaker_ids: Sequence[str]) -> tuple[RouterRow, list[int]]:
    wanted = (*breaker_ids, *_shadows(c, row.project_id, breaker_ids))
    asked = _breakers(c, row.project_id, tuple(dict.fromkeys(wanted)))
    before = set(row.breaker_ids)
    new = [breaker for breaker in asked if breaker.id not in before]
    if not new:
        return row, []
    refuse_many_links(c, row.project_id, len(new))
    _refuse_unreadable(row.mode)
    with within_share(c, row.project_id):
        add_links(c, row.project_id, [(row.id, breaker.id) for breaker in new])
    router = _stored(c, row.id)
    change_ids = _tell_linked(c, router, new, raise_views(c, [router])[row.id])
    linked = msgspec.structs.replace(
        row, version=row.version + 1, breaker_ids=row.breaker_ids + tuple(breaker.id for breaker in new)
    )
    _note_links(c, place, "router.link", row, linked)
    return linked, change_ids


def unlink(c: Connection, place: Place, row: RouterRow, breaker_ids: Sequence[str]) -> list[int]:
    """Ends the links of one or more breakers, and of their shadows, as one change."""
    linked = set(row.breaker_ids)
    if missing := [id_ for id_ in breaker_ids if id_ not in linked]:
        raise NotFound("The breaker is not linked to this router.", {"breaker_id": missing[0]})
    ended = {*breaker_ids, *_shadows(c, row.project_id, breaker_ids)} & linked
    since = end_links(c, row.project_id, row.id, sorted(ended))
    left = tuple(id_ for id_ in row.breaker_ids if id_ not in ended)
    _note_links(c, place, "router.unlink", row, msgspec.structs.replace(row, breaker_ids=left))
    (change_id,) = _tell_view(c, row.id)
    note_ended_links(c, row.id, since, change_id, place.now_ms)
    return [change_id]


def _note_links(c: Connection, place: Place, action: str, old: RouterRow, new: RouterRow) -> None:
    """Lists of breakers show their routers, so these have changed, too."""
    touch_breakers(c, old.project_id, place.now_ms)
    write_down(c, place, [_link_note(action, old.id, old.breaker_ids, new.breaker_ids)])


def _link_note(action: str, router_id: str, old: Sequence[str], new: Sequence[str]) -> Note:
    return Note(action, router_id, _linked_note(old, new), _linked_note(new, old))


def _linked_note(breaker_ids: Sequence[str], other_ids: Sequence[str]) -> dict[str, Any]:
    """The breakers of a router; of many those that another version of it has not."""
    if max(len(breaker_ids), len(other_ids)) <= LINKS_NOTED_MAX:
        return {"breaker_ids": breaker_ids}
    others = set(other_ids)
    changed = [breaker_id for breaker_id in breaker_ids if breaker_id not in others]
    return {"breaker_count": len(breaker_ids), "changed_breaker_ids": changed}
