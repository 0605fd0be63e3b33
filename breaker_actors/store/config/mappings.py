"""Mappings of projects: what becomes of series of open protocols, in order.

Every change is made of the list as it was and as it is to be: what was made, changed, taken away, or only moved.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, delete, insert, select, update

from breaker_actors.errors import Invalid, NotFound
from breaker_actors.store import tables as t
from breaker_actors.store.base import MappingEdit
from breaker_actors.store.config.audit_log import Note, Place, write_down
from breaker_actors.store.config.idempotency import Onces
from breaker_actors.store.mappings.model import LABEL, RESOURCE
from breaker_actors.store.quotas import refuse_many_mappings, reweighed, within_share
from breaker_actors.store.rows import SYSTEM, MappingDraft, MappingItem, MappingRow, Once
from breaker_actors.store.section import lock_project, new_id

_M = t.mappings.c
_COLUMNS = [_M[f] for f in MappingRow.__struct_fields__]
_FIELDS = ("name", "matchers", "to", "enabled", "position", "version", "updated_ms")
_MOVE = update(t.mappings).where(_M.id == bindparam("moved")).values(position=bindparam("place"))


class Mappings(Onces):
    async def create_mapping(
        self, project_id: str, draft: MappingDraft, now_ms: int, by: str = SYSTEM, once: Once | None = None
    ) -> MappingRow:
        def work(c: Connection) -> MappingRow:
            lock_project(c, project_id)
            rows, row = load_mappings(c, project_id), _new(project_id, draft, now_ms)
            wanted = _put(rows, row, draft.position or len(rows) + 1)
            return carry_out_mappings(c, Place(by, now_ms, project_id), rows, wanted, {row.id: ""})[row.id]

        return await self.write_once(await self._steps.whose(project_id), once, work)

    async def list_mappings(self, project_id: str) -> list[MappingRow]:
        return await self._db.read(lambda c: load_mappings(c, project_id))

    async def get_mapping(self, project_id: str, mapping_id: str) -> MappingRow | None:
        query = select(*_COLUMNS).where(_M.id == mapping_id, _M.project_id == project_id)
        found = await self._db.read(lambda c: c.execute(query).first())
        return None if found is None else MappingRow(**found._mapping)

    async def update_mapping(
        self, project_id: str, mapping_id: str, edit: MappingEdit, now_ms: int, by: str = SYSTEM
    ) -> MappingRow:
        def work(c: Connection) -> MappingRow:
            rows, row = _locked(c, project_id, mapping_id)
            new = edit(row)
            wanted = _put([one for one in rows if one.id != row.id], new, new.position)
            return carry_out_mappings(c, Place(by, now_ms, project_id), rows, wanted, {row.id: ""})[row.id]

        return await self._write_small(project_id, work)

    async def delete_mapping(self, project_id: str, mapping_id: str, now_ms: int, by: str = SYSTEM) -> None:
        def work(c: Connection) -> None:
            rows, row = _locked(c, project_id, mapping_id)
            wanted = [one for one in rows if one.id != row.id]
            carry_out_mappings(c, Place(by, now_ms, project_id), rows, wanted, {row.id: ""})

        await self._write_small(project_id, work)

    async def replace_mappings(
        self, project_id: str, items: Sequence[MappingItem], now_ms: int, by: str = SYSTEM
    ) -> tuple[list[MappingRow], bool]:
        return await self._write_small(project_id, partial(_replace, Place(by, now_ms, project_id), items))


# reading


def load_mappings(c: Connection, project_id: str) -> list[MappingRow]:
    query = select(*_COLUMNS).where(_M.project_id == project_id).order_by(_M.position, _M.number)
    return [MappingRow(**row._mapping) for row in c.execute(query)]


def _locked(c: Connection, project_id: str, mapping_id: str) -> tuple[list[MappingRow], MappingRow]:
    """All mappings of a project that nobody else writes to meanwhile, and the one that is meant."""
    lock_project(c, project_id)
    rows = load_mappings(c, project_id)
    for row in rows:
        if row.id == mapping_id:
            return rows, row
    raise NotFound("There is no such mapping.", {"mapping_id": mapping_id})


# planning


def _new(project_id: str, draft: MappingDraft | MappingItem, now_ms: int, id_: str | None = None) -> MappingRow:
    mapping_id = id_ or new_id()
    return MappingRow(
        id=mapping_id,
        project_id=project_id,
        position=0,
        name=draft.name or f"mapping-{mapping_id[:8]}",
        matchers=draft.matchers,
        to=draft.to,
        enabled=draft.enabled,
        version=1,
        inserted_ms=now_ms,
        updated_ms=now_ms,
    )


def _put(rows: Sequence[MappingRow], row: MappingRow, position: int) -> list[MappingRow]:
    """The rows with one more at a position, or at the end where there are not as many."""
    return [*rows[: position - 1], row, *rows[position - 1 :]]


def _replace(place: Place, items: Sequence[MappingItem], c: Connection) -> tuple[list[MappingRow], bool]:
    """The rows as they are then, and whether anything was changed."""
    project_id = place.project_id or ""
    lock_project(c, project_id)
    rows = load_mappings(c, project_id)
    wanted = _wanted(c, place, rows, items)
    meant = {row.id: f"mappings[{n}]." for n, row in enumerate(wanted)}
    done = list(carry_out_mappings(c, place, rows, wanted, {row.id: "" for row in rows} | meant).values())
    return done, done != rows


def _wanted(c: Connection, place: Place, rows: Sequence[MappingRow], items: Sequence[MappingItem]) -> list[MappingRow]:
    """What each item makes of the mapping that it means: by id, else by name among those that no id means."""
    by_id = {row.id: row for row in rows}
    meant = {item.id for item in items if item.id in by_id}
    by_name = {row.name: row for row in rows if row.id not in meant}
    given = [item.id for item in items if item.id is not None and item.id not in by_id]
    taken = set(c.execute(select(_M.id).where(_M.id.in_(given))).scalars()) if given else set()
    wanted, seen = list[MappingRow](), set[str]()
    for n, item in enumerate(items):
        if item.id is not None and (item.id in taken or item.id in seen):
            raise _invalid(f"mappings[{n}].id", "is taken" if item.id in taken else "is there twice")
        seen |= {item.id} if item.id is not None else set()
        row = by_id.get(item.id or "") or by_name.pop(item.name or "", None)
        if row is None:
            wanted.append(_new(place.project_id or "", item, place.now_ms, item.id))
            continue
        changed = {"name": item.name or row.name, "matchers": item.matchers, "to": item.to, "enabled": item.enabled}
        wanted.append(msgspec.structs.replace(row, **changed))
    return wanted


def _refuse_twice(rows: Collection[MappingRow], paths: Mapping[str, str]) -> None:
    """Raises Invalid where a name is there twice. `paths`: what stands before the field of those that are meant."""
    seen = set[str]()
    for row in sorted(rows, key=lambda row: row.id in paths):  # who stays as he is keeps his name
        if row.name in seen:
            raise _invalid(f"{paths.get(row.id, '')}name", "another mapping has it")
        seen.add(row.name)


def _refuse_strangers(
    c: Connection,
    project_id: str,
    before: Mapping[str, MappingRow],
    rows: Collection[MappingRow],
    paths: Mapping[str, str],
) -> None:
    """Raises Invalid where a mapping names a router that is none of the project's, unless it did so before: routers
    go, and their mappings stay."""
    known = {id_: row.to.router for id_, row in before.items()}
    asked = [row for row in rows if row.to.router != known.get(row.id)]
    named = {row.to.router for row in asked if not row.to.router.startswith((LABEL, RESOURCE))}
    r = t.routers.c
    mine = select(r.id).where(r.project_id == project_id, r.id.in_(named), r.deleted_ms.is_(None))
    there = set(c.execute(mine).scalars()) if named else set()
    for row in asked:
        if row.to.router in named - there:
            raise _invalid(f"{paths[row.id]}to.router", "the project has no router of this id")


def _invalid(field: str, words: str) -> Invalid:
    return Invalid(f"{field}: {words}", {field: words})


# writing


def carry_out_mappings(
    c: Connection, place: Place, rows: Sequence[MappingRow], wanted: Sequence[MappingRow], paths: Mapping[str, str]
) -> dict[str, MappingRow]:
    """Makes `wanted` the list of a locked project, in this order; the rows as they are then, by id. `paths`: those
    whose change is meant, and what stands before their fields in an error; others only move."""
    project_id, before = place.project_id or "", {row.id: row for row in rows}
    after = {row.id: _placed(row, n, before.get(row.id), place.now_ms, paths) for n, row in enumerate(wanted, 1)}
    removed = [row for row in rows if row.id not in after]
    changed = [(before[id_], row) for id_, row in after.items() if id_ in before and row != before[id_]]
    created = [row for id_, row in after.items() if id_ not in before]
    edited = {new.id: paths[new.id] for old, new in changed if new.version != old.version}
    fresh = {row.id: paths[row.id] for row in created}
    refuse_many_mappings(c, len(rows), len(after))
    _refuse_twice(after.values(), edited | fresh)
    _refuse_strangers(c, project_id, before, after.values(), paths)
    ids = [row.id for row in (*removed, *created)] + list(edited)
    with within_share(c, project_id), reweighed(c, project_id, t.mappings, ids):
        for gone in removed:
            c.execute(delete(t.mappings).where(_M.id == gone.id))
        if created:
            c.execute(insert(t.mappings), [msgspec.structs.asdict(row) for row in created])
        _change(c, changed)
    notes = [Note("mapping.delete", row.id, before=row) for row in removed]
    notes += [Note("mapping.create", row.id, after=row) for row in created]
    notes += [Note("mapping.update", new.id, old, new) for old, new in changed if new.id in edited]
    write_down(c, place, notes)
    return after


def _placed(row: MappingRow, n: int, old: MappingRow | None, now_ms: int, paths: Mapping[str, str]) -> MappingRow:
    """The row at its position; one whose change is meant, and is one, has a new version."""
    new = msgspec.structs.replace(row, position=n)
    if old is None or new == old or row.id not in paths:
        return new
    return msgspec.structs.replace(new, version=old.version + 1, updated_ms=now_ms)


def _change(c: Connection, changed: Sequence[tuple[MappingRow, MappingRow]]) -> None:
    """Writes what differs, so that what can't be read of a row stays as it is until it is given anew."""
    moved = [{"moved": new.id, "place": new.position} for old, new in changed if new.version == old.version]
    if moved:
        c.execute(_MOVE, moved)
    for old, new in changed:
        if new.version != old.version:
            values: dict[str, Any] = {f: getattr(new, f) for f in _FIELDS if getattr(new, f) != getattr(old, f)}
            c.execute(update(t.mappings).where(_M.id == new.id).values(values))
