"""Routers: create, change, delete, link, list. A router marked as deleted is invisible here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection, Row, Select, delete, exists, func, or_, select, update

from breaker_actors.core.log_entries import RouterView
from breaker_actors.errors import NotFound
from breaker_actors.store import tables as t
from breaker_actors.store.base import RouterEdit
from breaker_actors.store.config.audit_log import Note, Place, write_down
from breaker_actors.store.config.change_rows import (
    Change,
    Entry,
    add_changes,
    birth_entry,
    breaker_entry,
    current_views,
    is_behind,
    linked_of,
    links_of,
    load_routers,
    note_behind,
    note_caught_up,
    raise_views,
    view_entry,
)
from breaker_actors.store.config.change_set import begin_anew, load_breakers
from breaker_actors.store.config.idempotency import ANSWER_BYTES_MAX, Onces
from breaker_actors.store.config.router_set import (
    ROUTER_COLUMNS,
    Linking,
    change_routers,
    create_routers,
    find_breakers,
    link_routers,
    remove_routers,
    unlink_routers,
)
from breaker_actors.store.quotas import add_ended_links, weigh
from breaker_actors.store.rows import SYSTEM, BreakerRow, Once, RouterDraft, RouterRow, is_told_later
from breaker_actors.store.section import IDS, by_ids, chunks, lock_project, new_id, touch_breakers

_L = t.links.c
TOLD_BYTES = 1_000
"""What a breaker takes in an answer beside its stored texts."""


class Routers(Onces):
    async def create_router(
        self, project_id: str, draft: RouterDraft, now_ms: int, by: str = SYSTEM, once: Once | None = None
    ) -> tuple[RouterRow, list[int]]:
        place = Place(by, now_ms, project_id)
        return await self.write_once(
            await self._steps.whose(project_id),
            once,
            lambda c: _create(c, place, project_id, draft),
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
        return await self._write_small(project_id, lambda c: _change(c, place, _locked(c, project_id, router_id), edit))

    async def router_entries(
        self, project_id: str, router_id: str, now_ms: int, by: str = SYSTEM
    ) -> list[tuple[int, bytes]]:
        place = Place(by, now_ms, project_id)
        return await self._write_small(project_id, lambda c: _entries(c, place, _locked(c, project_id, router_id)))

    async def tell_again(
        self,
        project_id: str,
        router_id: str,
        view: RouterView,
        told: Mapping[str, tuple[int, int, bool]],
        highest: Mapping[str, int],
        now_ms: int,
        by: str = SYSTEM,
        dry: bool = False,
    ) -> list[str]:
        place = Place(by, now_ms, project_id)
        return await self._write_small(
            project_id, lambda c: _tell_again(c, place, _locked(c, project_id, router_id), view, told, highest, dry)
        )

    async def is_behind(self, newest: int) -> bool:
        if not await self._db.read(lambda c: is_behind(c, newest)):
            return False
        await self._db.write(note_behind)
        return True

    async def caught_up(self, newest: int) -> None:
        await self._db.write(lambda c: note_caught_up(c, newest))

    async def delete_router(self, project_id: str, router_id: str, now_ms: int, by: str = SYSTEM) -> list[int]:
        place = Place(by, now_ms, project_id)
        return await self._write_small(
            project_id, lambda c: remove_routers(c, place, [_locked(c, project_id, router_id)])
        )

    async def link_breakers(
        self, project_id: str, router_id: str, breaker_ids: Sequence[str], now_ms: int, by: str = SYSTEM
    ) -> tuple[RouterRow, list[int]]:
        place = Place(by, now_ms, project_id)
        return await self._write_small(
            project_id, lambda c: _link(c, place, _locked(c, project_id, router_id), breaker_ids)
        )

    async def unlink_breaker(
        self, project_id: str, router_id: str, breaker_id: str, now_ms: int, by: str = SYSTEM
    ) -> list[int]:
        place = Place(by, now_ms, project_id)
        return await self._write_small(
            project_id, lambda c: unlink_routers(c, place, [Linking(_locked(c, project_id, router_id), [breaker_id])])
        )


# reading


def _told_bytes(c: Connection, row: RouterRow) -> int:
    """About what the answer for a router takes: its breakers in full, under two names."""
    return 2 * (TOLD_BYTES * len(row.breaker_ids) + weigh(c, t.breakers, row.breaker_ids))


def _live(project_id: str) -> Select[Any]:
    return select(*ROUTER_COLUMNS).where(t.routers.c.project_id == project_id, t.routers.c.deleted_ms.is_(None))


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


def _stored(c: Connection, router_id: str) -> Row[Any]:
    return c.execute(select(t.routers).where(t.routers.c.id == router_id)).one()


# writing


def _create(c: Connection, place: Place, project_id: str, draft: RouterDraft) -> tuple[RouterRow, list[int]]:
    lock_project(c, project_id)
    (row,), change_ids = create_routers(c, place, project_id, [(new_id(), draft)])
    return row, change_ids


def _change(c: Connection, place: Place, row: RouterRow, edit: RouterEdit) -> tuple[RouterRow, list[int]]:
    (changed,), change_ids = change_routers(c, place, [(row, edit(row))])
    return changed, change_ids


def _link(c: Connection, place: Place, row: RouterRow, breaker_ids: Sequence[str]) -> tuple[RouterRow, list[int]]:
    (linked,), change_ids = link_routers(c, place, [Linking(row, breaker_ids)])
    return linked, change_ids


def _entries(c: Connection, place: Place, row: RouterRow) -> list[tuple[int, bytes]]:
    view = current_views(c, [_stored(c, row.id)])[row.id]  # of its own version: changes that are on the way come behind
    write_down(c, place, [Note("router.recover", row.id)])
    homeless = _bring_back(c, row)
    breakers = list(find_breakers(c, row.project_id, row.breaker_ids).values())
    return [*_settings(breakers, _unborn(c, row)), *homeless, view_entry(view)]


def _tell_again(
    c: Connection,
    place: Place,
    row: RouterRow,
    view: RouterView,
    told: Mapping[str, tuple[int, int, bool]],
    highest: Mapping[str, int],
    dry: bool,
) -> list[str]:
    breakers, is_later = find_breakers(c, row.project_id, row.breaker_ids), view.version > row.version
    query = select(_L.breaker_id, _L.since_offset).where(_L.router_id == row.id, _L.since_offset.is_not(None))
    linked = {id_: since for id_, since in c.execute(query)}
    later = {
        id_: told[id_]
        for id_, since in linked.items()
        if id_ in told and is_told_later(told[id_], since, breakers[id_].version)
    }
    found = sorted(later) + [row.id] * is_later
    if dry or not found:
        return found
    kept = {link.breaker_id for link in view.links}
    left = [id_ for id_ in linked if is_later and id_ not in kept and not (id_ in later and later[id_][2])]
    raised = {
        id_: replace(breakers[id_], version=max(at, breakers[id_].version, highest.get(id_, 0)) + 1)
        for id_, (_, at, _) in later.items()
    }
    for one in raised.values():
        c.execute(update(t.breakers).where(t.breakers.c.id == one.id).values(version=one.version))
    c.execute(update(t.routers).where(t.routers.c.id == row.id).values(version=max(view.version, row.version)))
    ended = [one for id_, one in raised.items() if later[id_][2]]
    entries, links = {row.id: list[Entry]()}, {row.id: left}
    for id_, seq in begin_anew(c, ended, place.now_ms).items():
        for number, router_id in enumerate(raised[id_].router_ids):
            entry = breaker_entry(raised[id_]) if number else birth_entry(raised[id_], seq)
            entries.setdefault(router_id, []).append(entry)
            links.setdefault(router_id, []).append(id_)
    told_on = dict.fromkeys([id_ for id_ in raised if not later[id_][2]] + left)
    entries[row.id] += _settings([raised.get(id_, breakers[id_]) for id_ in told_on], _unborn(c, row))
    for router_id, ids in links.items():
        for some in chunks(ids):
            anew = update(t.links).where(_L.router_id == router_id, _L.breaker_id.in_(some))
            c.execute(anew.values(since_offset=None))  # until the change is in the log
    views = raise_views(c, list((routers := load_routers(c, list(entries))).values()))
    changes = [Change(routers[i], [*of, view_entry(views[i])], tuple(links[i])) for i, of in entries.items()]
    add_changes(c, changes)
    touch_breakers(c, row.project_id, place.now_ms)
    write_down(c, place, [Note("router.recover", row.id)])
    return found


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
        ended = c.execute(delete(t.ended_links).where(e.breaker_id.in_(some)))
        add_ended_links(c, router.project_id, -ended.rowcount)
    routers = load_routers(c, sorted(set(homes.values())))
    rows = load_breakers(c, router.project_id, sorted(lost))
    at_home = [row for row in rows if row.id in homes]
    add_changes(c, [Change(routers[homes[row.id]], _settings([row], lost)) for row in at_home])
    return _settings([row for row in rows if row.id not in homes], lost)
