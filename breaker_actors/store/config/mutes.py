"""Mutes of projects: what people don't hear of, and when."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from sqlalchemy import Connection, delete, func, insert, select, update

from breaker_actors.errors import Invalid, NotFound
from breaker_actors.store import tables as t
from breaker_actors.store.base import MuteEdit
from breaker_actors.store.config.audit_log import Note, Place, write_down
from breaker_actors.store.config.idempotency import Onces
from breaker_actors.store.mutes.matching import BreakerFacts
from breaker_actors.store.outbox.held import MUTES, end_mute, holding, project_facts
from breaker_actors.store.outbox.muting import LIVE, MUTE_COLUMNS, mute_of
from breaker_actors.store.quotas import refuse_many_mutes
from breaker_actors.store.rows import SYSTEM, MuteDraft, MuteRow, Once
from breaker_actors.store.section import bump, lock_project, new_id

KEPT_MAX = 1_000
"""Mutes of a project that are kept, those that have ended included: beyond it the oldest ended ones go."""


class Mutes(Onces):
    async def create_mute(
        self,
        project_id: str,
        draft: MuteDraft,
        now_ms: int,
        by: str = SYSTEM,
        by_name: str = SYSTEM,
        once: Once | None = None,
        check: Callable[[], None] | None = None,
    ) -> MuteRow:
        values = {field: getattr(draft, field) for field in MuteDraft.__struct_fields__}
        values |= {"id": new_id(), "project_id": project_id, "created_by": by, "created_name": by_name}
        values |= {"inserted_ms": now_ms, "updated_ms": now_ms}

        def work(c: Connection) -> MuteRow:
            if check is not None:
                check()
            lock_project(c, project_id)
            refuse_many_mutes(c, project_id, now_ms)
            number = c.execute(insert(t.mutes).values(values).returning(t.mutes.c.number)).scalar_one()
            _forget_oldest(c, project_id)
            row = MuteRow(**values, number=number)
            bump(c, MUTES)
            write_down(c, Place(by, now_ms, project_id), [Note("mute.create", row.id, after=row)])
            return row

        return await self.write_once(await self._steps.whose(project_id), once, work)

    async def list_mutes(self, project_id: str) -> list[MuteRow]:
        query = select(*MUTE_COLUMNS).where(t.mutes.c.project_id == project_id).order_by(t.mutes.c.number)
        return await self._db.read(lambda c: [mute_of(row) for row in c.execute(query).all()])

    async def get_mute(self, project_id: str, mute_id: str) -> MuteRow | None:
        return await self._db.read(lambda c: _find(c, project_id, mute_id))

    async def update_mute(
        self, project_id: str, mute_id: str, edit: MuteEdit, now_ms: int, by: str = SYSTEM
    ) -> MuteRow:
        def work(c: Connection) -> MuteRow:
            row = _existing(c, project_id, mute_id)
            if row.state(now_ms) == "expired":
                raise Invalid("This mute has ended: make a new one.", {"state": "expired"})
            wanted = edit(row)
            if wanted == row:
                return row
            changed = {field: getattr(wanted, field) for field in MuteDraft.__struct_fields__}
            changed["updated_ms"] = now_ms
            if wanted.matchers != row.matchers:
                changed["matched_ms"] = now_ms  # its limit for matching nothing begins anew
            new = msgspec.structs.replace(row, **changed)
            c.execute(update(t.mutes).where(t.mutes.c.id == row.id).values(changed))
            if msgspec.structs.replace(wanted, comment=row.comment) != row:
                bump(c, MUTES)  # a comment lets nothing go
            write_down(c, Place(by, now_ms, project_id), [Note("mute.update", row.id, row, new)])
            return new

        return await self._write_small(project_id, work)

    async def end_mute(self, project_id: str, mute_id: str, now_ms: int, by: str = SYSTEM) -> MuteRow:
        def work(c: Connection) -> MuteRow:
            row = _existing(c, project_id, mute_id)
            if row.state(now_ms) == "expired":
                return row
            ended = end_mute(c, row, "deleted", now_ms)
            write_down(c, Place(by, now_ms, project_id), [Note("mute.end", row.id, row, ended)])
            return ended

        return await self._write_small(project_id, work)

    async def muted_breakers(self, project_id: str) -> list[BreakerFacts]:
        return await self._db.read(lambda c: project_facts(c, project_id))

    async def held_counts(self, project_id: str) -> dict[str, int]:
        return await self._db.read(lambda c: holding(c, project_id))


def _find(c: Connection, project_id: str, mute_id: str) -> MuteRow | None:
    mine = (t.mutes.c.id == mute_id) & (t.mutes.c.project_id == project_id)
    found = c.execute(select(*MUTE_COLUMNS).where(mine)).first()
    return None if found is None else mute_of(found)


def _existing(c: Connection, project_id: str, mute_id: str) -> MuteRow:
    lock_project(c, project_id)
    row = _find(c, project_id, mute_id)
    if row is None:
        raise NotFound("There is no such mute.", {"mute_id": mute_id})
    return row


def _forget_oldest(c: Connection, project_id: str) -> None:
    m = t.mutes.c
    mine = m.project_id == project_id
    much = c.execute(select(func.count()).select_from(t.mutes).where(mine)).scalar_one() - KEPT_MAX
    if much > 0:
        ended = select(m.number).where(mine, ~LIVE).order_by(m.number).limit(much)
        c.execute(delete(t.mutes).where(m.number.in_(list(c.execute(ended).scalars()))))
