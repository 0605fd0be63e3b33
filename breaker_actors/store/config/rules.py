"""What files of rules declare of a project, read at once and applied at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, delete, func, insert, select

from breaker_actors.errors import Invalid, NotFound, too_many_breakers
from breaker_actors.store import tables as t
from breaker_actors.store.base import Decide
from breaker_actors.store.config import mappings, mutes, routers
from breaker_actors.store.config.audit_log import Note, Place, write_down
from breaker_actors.store.config.change_set import Plan, carry_out, edited, load_breakers
from breaker_actors.store.config.channels import Channels, remove_channel
from breaker_actors.store.quotas import redeclared, within_share
from breaker_actors.store.rows import SYSTEM, DeclaredRow, ProjectRules, RouterRow, RulesChange
from breaker_actors.store.section import lock_project

RULES_MAX = 1_000
"""Things that one apply changes at most: it is one transaction, for which other writers wait about a second."""
RULES_LINKS_MAX = 10_000
"""Links of routers to breakers that one apply changes at most: as many as one request to link them."""
DECLARED_MAX = 20_000
"""Things of a project that all owners together declare, those that were deleted by hand since included."""
_D = t.declared.c
_COLUMNS = [_D[field] for field in DeclaredRow.__struct_fields__]


class _Applier(NamedTuple):
    """An apply to a locked project."""

    c: Connection
    place: Place
    by_name: str

    @property
    def project_id(self) -> str:
        return self.place.project_id or ""


class Rules(Channels):
    async def project_rules(self, project_id: str) -> ProjectRules:
        return await self._db.read(lambda c: self._project_rules(c, project_id))

    async def apply_rules(
        self, project_id: str, decide: Decide, now_ms: int, by: str = SYSTEM, by_name: str = SYSTEM
    ) -> tuple[RulesChange | None, list[int]]:
        work = partial(self._apply, Place(by, now_ms, project_id), by_name, decide)
        who = (await self._steps.whose(project_id))._replace(is_large=True)
        return await self._steps.whole(who, lambda: self._steps.write(who, work))

    def _project_rules(self, c: Connection, project_id: str) -> ProjectRules:
        declared = select(*_COLUMNS).where(_D.project_id == project_id).order_by(_D.kind, _D.name, _D.thing_id)
        return ProjectRules(
            breakers=load_breakers(c, project_id),
            routers=routers.load_router_rows(c, project_id),
            mappings=mappings.load_mappings(c, project_id),
            channels=self._channels(c, project_id),
            mutes=mutes.load_mutes(c, project_id),
            declared=[DeclaredRow(**row._mapping) for row in c.execute(declared)],
        )

    def _apply(self, place: Place, by_name: str, decide: Decide, c: Connection) -> tuple[RulesChange | None, list[int]]:
        applier = _Applier(c, place, by_name)
        lock_project(c, applier.project_id)
        change = decide(self._project_rules(c, applier.project_id))
        if change is None:
            return None, []
        _refuse_many(change)
        self._apply_channels(applier, change)
        change_ids = _apply_breakers(applier, change, self._breakers_max)
        change_ids += _apply_routers(applier, change)
        _apply_mappings(applier, change)
        _apply_mutes(applier, change)
        _declare(applier, change)
        after = {"owner": change.owner, "declared": len(change.declared)}
        write_down(c, place, [Note("rules.apply", applier.project_id, after=after)])
        return change, change_ids

    def _apply_channels(self, applier: _Applier, change: RulesChange) -> None:
        for row in change.channels_removed:
            remove_channel(applier.c, applier.place, row)
        for row in change.channels_made:
            self._put_channel(applier.c, applier.place, row)
        for old, new in change.channels_edited:
            self._change_channel(applier.c, applier.place, old, new)


def _refuse_many(change: RulesChange) -> None:
    counts = (len(value) for name in change.__struct_fields__ if isinstance(value := getattr(change, name), tuple))
    count = sum(counts) - len(change.declared) - len(change.mappings or ())
    if count > RULES_MAX:
        raise Invalid(
            f"{count} things would change, and at most {RULES_MAX} do at once: apply in parts.", {"changes": count}
        )
    links = sum(len(row.breaker_ids) for row in change.routers_removed)
    links += sum(len(draft.breaker_ids) for _, draft in change.routers_made)
    links += sum(len({*old.breaker_ids} ^ {*new.breaker_ids}) for old, new in change.routers_edited)
    if links > RULES_LINKS_MAX:
        raise Invalid(
            f"{links} links would change, and at most {RULES_LINKS_MAX} do at once: apply in parts.", {"links": links}
        )


def _apply_breakers(applier: _Applier, change: RulesChange, breakers_max: int) -> list[int]:
    c, place, project_id = applier.c, applier.place, applier.project_id
    if len(change.breakers_made) > len(change.breakers_removed):
        mine = t.breakers.c.project_id == project_id
        count = c.execute(select(func.count()).select_from(t.breakers).where(mine)).scalar_one()
        if count + len(change.breakers_made) - len(change.breakers_removed) > breakers_max:
            raise too_many_breakers(breakers_max)
    pairs = [(old, edited(old, new, place.now_ms)) for old, new in change.breakers_edited]
    change_ids = carry_out(c, place, Plan(change.breakers_made, pairs, change.breakers_removed))
    for row in change.breakers_made:
        if row.shadow_of is not None:
            watched = load_breakers(c, project_id, [row.shadow_of])
            if not watched:
                raise Invalid("shadow_of: there is no such breaker", {"shadow_of": "there is no such breaker"})
            change_ids += routers.link_shadow(c, place, row, watched[0].router_ids)
    return change_ids


def _apply_routers(applier: _Applier, change: RulesChange) -> list[int]:
    """Links end first, so that routers that go have none."""
    c, place, project_id = applier.c, applier.place, applier.project_id
    change_ids = list[int]()
    wanted = [(old, set[str]()) for old in change.routers_removed]
    wanted += [(old, set(new.breaker_ids)) for old, new in change.routers_edited]
    for old, kept in wanted:
        if had := set(old.breaker_ids) - kept:
            row = _router(applier, old.id)
            if ended := [id_ for id_ in row.breaker_ids if id_ in had]:
                change_ids += routers.unlink(c, place, row, ended)
    for old in change.routers_removed:
        change_ids += routers.remove_router(c, place, _router(applier, old.id))
    for id_, draft in change.routers_made:
        change_ids += routers.create_router(c, place, project_id, draft, id_)[1]
    for old, new in change.routers_edited:
        row = _router(applier, old.id)
        fields = {name: getattr(new, name) for name in ("name", "mode", "enabled", "metadata")}
        wanted_row = msgspec.structs.replace(row, **fields)
        row, ids = routers.change_router(c, place, row, partial(_instead, wanted_row))
        change_ids += ids
        linked = set(row.breaker_ids)
        if missing := [id_ for id_ in new.breaker_ids if id_ not in linked]:
            change_ids += routers.link(c, place, row, missing)[1]
    return change_ids


def _instead(wanted: RouterRow, row: RouterRow) -> RouterRow:
    return wanted


def _router(applier: _Applier, router_id: str) -> RouterRow:
    row = routers.find_router(applier.c, applier.project_id, router_id)
    if row is None:
        raise NotFound("There is no such router.", {"router_id": router_id})
    return row


def _apply_mappings(applier: _Applier, change: RulesChange) -> None:
    if change.mappings is not None:
        rows = mappings.load_mappings(applier.c, applier.project_id)
        paths = {row.id: "" for row in rows} | {row.id: f"mappings.{row.name}." for row in change.mappings}
        mappings.carry_out_mappings(applier.c, applier.place, rows, change.mappings, paths)


def _apply_mutes(applier: _Applier, change: RulesChange) -> None:
    for row in change.mutes_ended:
        mutes.remove_mute(applier.c, applier.place, row)
    for old, new in change.mutes_edited:
        mutes.change_mute(applier.c, applier.place, old, new)
    for id_, draft in change.mutes_made:
        mutes.put_mute(applier.c, applier.place, id_, draft, applier.by_name)


def _declare(applier: _Applier, change: RulesChange) -> None:
    """Writes what the owner declares in the place of what it declared, and takes it from those who did before."""
    c, project_id = applier.c, applier.project_id
    with within_share(c, project_id), redeclared(c, project_id):
        _write_declared(c, project_id, change)
    count = select(func.count()).select_from(t.declared).where(_D.project_id == project_id)
    if c.execute(count).scalar_one() > DECLARED_MAX:
        raise Invalid(f"At most {DECLARED_MAX} things of a project may be declared in files.")


def _write_declared(c: Connection, project_id: str, change: RulesChange) -> None:
    mine = _D.project_id == project_id
    c.execute(delete(t.declared).where(mine, _D.owner == change.owner))
    for kind in {row.kind for row in change.declared}:
        ids = [row.thing_id for row in change.declared if row.kind == kind]
        for start in range(0, len(ids), 500):
            c.execute(delete(t.declared).where(mine, _D.kind == kind, _D.thing_id.in_(ids[start : start + 500])))
    if change.declared:
        c.execute(insert(t.declared), _values(project_id, change.declared))


def _values(project_id: str, rows: Sequence[DeclaredRow]) -> list[dict[str, object]]:
    return [msgspec.structs.asdict(row) | {"project_id": project_id} for row in rows]
