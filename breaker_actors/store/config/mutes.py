"""Mutes of projects: what people don't hear of, and when."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import msgspec
from sqlalchemy import Connection, func, insert, select, update

from breaker_actors.errors import Invalid, NotFound
from breaker_actors.store import tables as t
from breaker_actors.store.base import MuteEdit
from breaker_actors.store.config.audit_log import Note, Place, write_down
from breaker_actors.store.config.idempotency import Onces
from breaker_actors.store.mutes.matching import BreakerFacts
from breaker_actors.store.outbox.held import MUTES, end_mute, forget_mutes, holding, project_facts
from breaker_actors.store.outbox.muting import LIVE, MUTE_COLUMNS, mute_of
from breaker_actors.store.quotas import refuse_many_mutes, reweighed, weight_of, within_share
from breaker_actors.store.rows import SYSTEM, MuteDraft, MuteRow, Once
from breaker_actors.store.section import bump, chunks, lock_project, new_id

KEPT_MAX, KEPT_BYTES = 1_000, 1 << 19
"""Mutes of a project that are kept, those that have ended included, and bytes that they count: where there are
more when one is made the oldest ended ones go."""


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
        def work(c: Connection) -> MuteRow:
            if check is not None:
                check()
            lock_project(c, project_id)
            with making_mutes(c, project_id):
                return put_mute(c, Place(by, now_ms, project_id), new_id(), draft, by_name)

        return await self.write_once(await self._steps.whose(project_id), once, work)

    async def list_mutes(self, project_id: str) -> list[MuteRow]:
        return await self._db.read(lambda c: load_mutes(c, project_id))

    async def get_mute(self, project_id: str, mute_id: str) -> MuteRow | None:
        return await self._db.read(lambda c: _find(c, project_id, mute_id))

    async def update_mute(
        self, project_id: str, mute_id: str, edit: MuteEdit, now_ms: int, by: str = SYSTEM
    ) -> MuteRow:
        def work(c: Connection) -> MuteRow:
            row = _existing(c, project_id, mute_id)
            if row.state(now_ms) == "expired":
                raise _ended()
            return change_mute(c, Place(by, now_ms, project_id), row, edit(row))

        return await self._write_small(project_id, work)

    async def end_mute(self, project_id: str, mute_id: str, now_ms: int, by: str = SYSTEM) -> MuteRow:
        def work(c: Connection) -> MuteRow:
            row = _existing(c, project_id, mute_id)
            if row.state(now_ms) == "expired":
                return row
            return remove_mute(c, Place(by, now_ms, project_id), row)

        return await self._write_small(project_id, work)

    async def muted_breakers(self, project_id: str) -> list[BreakerFacts]:
        return await self._db.read(lambda c: project_facts(c, project_id))

    async def held_counts(self, project_id: str) -> dict[str, int]:
        return await self._db.read(lambda c: holding(c, project_id))


def load_mutes(c: Connection, project_id: str) -> list[MuteRow]:
    """All mutes of a project, oldest first."""
    query = select(*MUTE_COLUMNS).where(t.mutes.c.project_id == project_id).order_by(t.mutes.c.number)
    return [mute_of(row) for row in c.execute(query).all()]


@contextmanager
def making_mutes(c: Connection, project_id: str) -> Iterator[None]:
    """Makes room for what a block makes. Raises Invalid where it is beyond the project's share all the same."""
    with within_share(c, project_id):
        yield
        _forget_oldest(c, project_id)


def put_mute(c: Connection, place: Place, id_: str, draft: MuteDraft, by_name: str) -> MuteRow:
    """Makes a mute of a locked project, inside `making_mutes`. Raises Invalid for one too many."""
    project_id = place.project_id or ""
    values = {field: getattr(draft, field) for field in MuteDraft.__struct_fields__}
    values |= {"id": id_, "project_id": project_id, "created_by": place.by, "created_name": by_name}
    values |= {"inserted_ms": place.now_ms, "updated_ms": place.now_ms}
    refuse_many_mutes(c, project_id, place.now_ms)
    with reweighed(c, project_id, t.mutes, [id_]):
        number = c.execute(insert(t.mutes).values(values).returning(t.mutes.c.number)).scalar_one()
    row = MuteRow(**values, number=number)
    bump(c, MUTES)
    write_down(c, place, [Note("mute.create", row.id, after=row)])
    return row


def change_mute(c: Connection, place: Place, row: MuteRow, wanted: MuteRow) -> MuteRow:
    """Changes a mute of a locked project; nothing is written where nothing is wanted. Raises Invalid beyond the
    project's share, and where the mute has ended: the Notifier asks for no lock of the project to end one."""
    if wanted == row:
        return row
    changed = {field: getattr(wanted, field) for field in MuteDraft.__struct_fields__}
    changed["updated_ms"] = place.now_ms
    if wanted.matchers != row.matchers:
        changed["matched_ms"] = place.now_ms  # its limit for matching nothing begins anew
    new = msgspec.structs.replace(row, **changed)
    with within_share(c, row.project_id), reweighed(c, row.project_id, t.mutes, [row.id]):
        found = c.execute(update(t.mutes).where(t.mutes.c.id == row.id, LIVE).values(changed)).rowcount
    if not found:
        raise _ended()
    if msgspec.structs.replace(wanted, comment=row.comment) != row:
        bump(c, MUTES)  # a comment lets nothing go
    write_down(c, place, [Note("mute.update", row.id, row, new)])
    return new


def remove_mute(c: Connection, place: Place, row: MuteRow) -> MuteRow:
    """Ends a mute of a locked project now."""
    ended = end_mute(c, row, "deleted", place.now_ms)
    write_down(c, place, [Note("mute.end", row.id, row, ended)])
    return ended


def all_live(c: Connection, rows: Collection[MuteRow]) -> bool:
    """Whether none of these mutes, which had not ended, has ended since."""
    live = select(func.count()).select_from(t.mutes).where(t.mutes.c.id.in_([row.id for row in rows]), LIVE)
    return c.execute(live).scalar_one() == len(rows)


def _ended() -> Invalid:
    return Invalid("This mute has ended: make a new one.", {"state": "expired"})


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
    """Removes the oldest mutes that have ended, as many as there are beyond KEPT_MAX and KEPT_BYTES."""
    m = t.mutes.c
    query = select(m.number, weight_of(t.mutes), ~LIVE).where(m.project_id == project_id).order_by(m.number)
    rows = c.execute(query).all()
    much, bytes_much = len(rows) - KEPT_MAX, sum(size for _, size, _ in rows) - KEPT_BYTES
    oldest: list[int] = []
    for number, size, has_ended in rows:
        if has_ended and (much > 0 or bytes_much > 0):
            oldest.append(number)
            much, bytes_much = much - 1, bytes_much - size
    for some in chunks(oldest):
        forget_mutes(c, some)
