"""Events of history that was loaded afterwards: written by a backfill, told to nobody (`tables.backfill_events`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import delete, select

from breaker_actors.messages import EventDraft
from breaker_actors.store import tables as t
from breaker_actors.store.section import StorePart, insert_new

REMOVED_AT_ONCE = 5_000


class Backfills(StorePart):
    async def add_backfill_events(
        self, project_id: str, run_id: str, events: Sequence[tuple[str, EventDraft]], now_ms: int
    ) -> None:
        place = {"project_id": project_id, "run_id": run_id, "inserted_ms": now_ms}
        rows = [place | {"breaker_id": breaker_id} | _values(draft) for breaker_id, draft in events]
        if rows:
            await self._db.write_rows(lambda c: insert_new(c, t.backfill_events, rows))

    async def remove_backfill_events(self, project_id: str, run_id: str) -> int:
        e = t.backfill_events.c
        some = select(e.number).where(e.project_id == project_id, e.run_id == run_id).limit(REMOVED_AT_ONCE)
        statement, total = delete(t.backfill_events).where(e.number.in_(some)), 0
        while gone := await self._db.write_rows(lambda c: c.execute(statement).rowcount):
            total += gone
        return total


def _values(draft: EventDraft) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(draft).items() if name in t.backfill_events.c}
