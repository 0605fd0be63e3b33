"""Breakers: create, change, delete, replace all, list. What a change entails is in `plan.py`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, func, select, type_coerce

from breaker_actors.errors import NotFound, too_many_breakers
from breaker_actors.store import tables as t
from breaker_actors.store.base import Check, Edit
from breaker_actors.store.config.audit_log import Place
from breaker_actors.store.config.bulk_steps import BulkReplace
from breaker_actors.store.config.change_rows import stream_names
from breaker_actors.store.config.change_set import Plan, carry_out, edited, load_breakers
from breaker_actors.store.config.idempotency import Onces
from breaker_actors.store.config.router_set import link_shadows, watched_routers
from breaker_actors.store.rows import (
    SYSTEM,
    UNREADABLE_RULE,
    BreakerBrief,
    BreakerDraft,
    BreakerItem,
    BreakerMetadata,
    BreakerRow,
    BriefRule,
    Once,
    Replaced,
    ScrapedBreaker,
    ScrapedRule,
)
from breaker_actors.store.section import IDS, belongs, by_ids, lock_project, new_id

EDITED_AT_ONCE = 500


class Breakers(Onces):
    async def create_breaker(
        self, project_id: str, draft: BreakerDraft, now_ms: int, by: str = SYSTEM, once: Once | None = None
    ) -> tuple[BreakerRow, list[int]]:
        place = Place(by, now_ms, project_id)
        return await self.write_once(
            await self._steps.whose(project_id),
            once,
            lambda c: _create(c, place, project_id, draft, self._breakers_max),
        )

    async def update_breaker(
        self, project_id: str, breaker_id: str, edit: Edit, now_ms: int, by: str = SYSTEM
    ) -> tuple[BreakerRow, list[int]]:
        place = Place(by, now_ms, project_id)
        return await self._write_small(project_id, lambda c: _update(c, place, project_id, breaker_id, edit))

    async def update_breakers(
        self, project_id: str, breaker_ids: Sequence[str], edit: Edit, now_ms: int, by: str = SYSTEM
    ) -> tuple[int, list[int]]:
        place, changed, change_ids = Place(by, now_ms, project_id), 0, list[int]()
        for first in range(0, len(breaker_ids), EDITED_AT_ONCE):
            some = breaker_ids[first : first + EDITED_AT_ONCE]
            work = partial(_update_some, place=place, project_id=project_id, breaker_ids=some, edit=edit)
            count, ids = await self._write_small(project_id, work)
            changed, change_ids = changed + count, change_ids + ids
        return changed, change_ids

    async def controlled_breakers(self, project_id: str) -> list[BreakerRow]:
        b = t.breakers.c
        query = select(b.id).where(b.project_id == project_id, b.control.is_not(None))
        return await self._db.read(lambda c: load_breakers(c, project_id, list(c.execute(query).scalars())))

    async def delete_breaker(self, project_id: str, breaker_id: str, now_ms: int, by: str = SYSTEM) -> list[int]:
        def work(c: Connection) -> list[int]:
            row = _existing(c, project_id, breaker_id)
            return carry_out(c, Place(by, now_ms, project_id), Plan(removed=[row]))

        return await self._write_small(project_id, work)

    async def replace_breakers(
        self, project_id: str, items: Sequence[BreakerItem], check: Check, now_ms: int, by: str = SYSTEM
    ) -> Replaced:
        _refuse_too_many(len(items), self._breakers_max)
        replace = BulkReplace(self._steps, Place(by, now_ms, project_id), items, check, self._breakers_max)
        return await replace.run()

    async def list_breakers(
        self, project_id: str, breaker_ids: Sequence[str] | None = None
    ) -> tuple[list[BreakerRow], int]:
        updated = select(t.projects.c.breakers_updated_ms).where(t.projects.c.id == project_id)
        return await self._db.read(
            lambda c: (load_breakers(c, project_id, breaker_ids), c.execute(updated).scalar() or 0)
        )

    async def named_alike(self, project_id: str, name: str) -> int:
        b = t.breakers.c
        query = select(func.count()).where(b.project_id == project_id, b.name == name)
        return int(await self._db.read(lambda c: c.execute(query).scalar_one()))

    async def breaker_briefs(self, project_id: str, breaker_ids: Sequence[str] | None = None) -> list[BreakerBrief]:
        b = t.breakers.c
        query = select(b.id, b.name, type_coerce(b.rule, _BRIEF_RULE).label("rule"))
        if breaker_ids is None:
            query = _of_project(query, project_id)
            return await self._db.read(lambda c: [BreakerBrief(**row._mapping) for row in c.execute(query)])
        query = query.where(b.id.in_(IDS), belongs(b.project_id, project_id))
        return await self._db.read(lambda c: [BreakerBrief(**row._mapping) for row in by_ids(c, query, breaker_ids)])

    async def scraped_breakers(self, most: int) -> tuple[list[ScrapedBreaker], int]:
        b, p = t.breakers.c, t.projects.c
        query = select(
            b.id, b.name, b.project_id, p.name.label("project"), type_coerce(b.rule, _SCRAPED_RULE).label("rule")
        ).where(p.id == b.project_id)
        query = query.order_by(b.created_ms, b.number).limit(most)
        count = select(func.count()).select_from(t.breakers)

        def work(c: Connection) -> tuple[list[ScrapedBreaker], int]:
            return [ScrapedBreaker(**row._mapping) for row in c.execute(query)], c.execute(count).scalar_one()

        return await self._db.read(work)

    async def breaker_metadata(self, project_id: str) -> list[BreakerMetadata]:
        query = select(*(t.breakers.c[name] for name in BreakerMetadata.__struct_fields__))
        query = _of_project(query, project_id)
        return await self._db.read(lambda c: [BreakerMetadata(**row._mapping) for row in c.execute(query)])

    async def get_breaker(self, project_id: str, breaker_id: str) -> BreakerRow | None:
        found = await self._db.read(lambda c: load_breakers(c, project_id, [breaker_id]))
        return found[0] if found else None


_BRIEF_RULE = t.JsonText(BriefRule, "breakers.rule", msgspec.convert(UNREADABLE_RULE, BriefRule, from_attributes=True))

_SCRAPED_RULE = t.JsonText(
    ScrapedRule, "breakers.rule", msgspec.convert(UNREADABLE_RULE, ScrapedRule, from_attributes=True)
)


def _of_project(query: Select[Any], project_id: str) -> Select[Any]:
    """The breakers of one project, in creation order."""
    b = t.breakers.c
    return query.where(b.project_id == project_id).order_by(b.created_ms, b.number)


def _refuse_too_many(count: int, most: int) -> None:
    if count > most:
        raise too_many_breakers(most)


def _free_name(c: Connection, project_id: str, breaker_id: str) -> str:
    short = f"breaker-{breaker_id[:8]}"
    return f"breaker-{breaker_id}" if stream_names(c, project_id, [short]) else short


def _create(
    c: Connection, place: Place, project_id: str, draft: BreakerDraft, most: int
) -> tuple[BreakerRow, list[int]]:
    lock_project(c, project_id)
    count = select(func.count()).select_from(t.breakers).where(t.breakers.c.project_id == project_id)
    _refuse_too_many(c.execute(count).scalar_one() + 1, most)
    breaker_id = draft.id or new_id()
    row = BreakerRow(
        id=breaker_id,
        project_id=project_id,
        name=draft.name or _free_name(c, project_id, breaker_id),
        rule=draft.rule,
        actions=draft.actions,
        metadata=dict(draft.metadata),
        version=1,
        created_ms=place.now_ms,
        updated_ms=place.now_ms,
        router_ids=(new_id(),),
        control=draft.control,
        shadow_of=draft.shadow_of,
    )
    asked = [] if draft.shadow_of is None else [draft.shadow_of]
    watched = [id_ for router_ids in watched_routers(c, project_id, asked).values() for id_ in router_ids]
    change_ids = carry_out(c, place, Plan(created=[row]))
    change_ids += link_shadows(c, place, project_id, {row.id: watched})
    return msgspec.structs.replace(row, router_ids=(*row.router_ids, *watched)), change_ids


def _existing(c: Connection, project_id: str, breaker_id: str) -> BreakerRow:
    lock_project(c, project_id)
    found = load_breakers(c, project_id, [breaker_id])
    if not found:
        raise NotFound("There is no such breaker.", {"breaker_id": breaker_id})
    return found[0]


def _update_some(
    c: Connection, place: Place, project_id: str, breaker_ids: Sequence[str], edit: Edit
) -> tuple[int, list[int]]:
    lock_project(c, project_id)
    pairs = [(row, wanted) for row in load_breakers(c, project_id, breaker_ids) if (wanted := edit(row)) != row]
    plan = Plan(edited=[(row, edited(row, wanted, place.now_ms)) for row, wanted in pairs])
    return len(pairs), carry_out(c, place, plan)


def _update(c: Connection, place: Place, project_id: str, breaker_id: str, edit: Edit) -> tuple[BreakerRow, list[int]]:
    row = _existing(c, project_id, breaker_id)
    wanted = edit(row)
    if wanted == row:
        return row, []
    name = wanted.name or _free_name(c, project_id, breaker_id)
    new = edited(row, msgspec.structs.replace(wanted, name=name), place.now_ms)
    return new, carry_out(c, place, Plan(edited=[(row, new)]))
