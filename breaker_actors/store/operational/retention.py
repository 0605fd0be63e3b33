"""What keeps the store bounded: rows that are too old, or too many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    case,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)

from breaker_actors.store import tables as t
from breaker_actors.store.aging import Aging, Found, Kept, Part, Walk, alone, page_of
from breaker_actors.store.config.audit_log import OVERRIDES
from breaker_actors.store.outages import begins_outage
from breaker_actors.store.outbox.held import forget_mutes
from breaker_actors.store.quotas import AUDIT_WEIGHT, DROPPED, add, audit_sum, sweep
from breaker_actors.store.section import bump, chunks

HISTORY = "history_ms"
"""The counter that says up to when time has gone on for what grows old."""
PAGE = 1_000
PAGES_MAX = 20
"""A round looks at PAGE x PAGES_MAX rows of a table at most, of events at so many for each journal, and removes what of
them may go; what is left goes in the next one."""


class Upkeeps(Aging):
    async def history_ms(self) -> int | None:
        return await self._db.read(_history_ms)

    async def note_history_ms(self, at_ms: int) -> None:
        def work(c: Connection) -> None:
            mine, values = t.counters.c.name == HISTORY, {"value": at_ms}
            if c.execute(update(t.counters).where(mine).values(values)).rowcount == 0:
                c.execute(insert(t.counters).values(values | {"name": HISTORY}))

        await self._db.write(work)

    async def prune(self, before_ms: int) -> dict[str, int]:
        removed = dict.fromkeys(("events", "audit", "backfill_events"), 0)
        failed = list[Exception]()
        for part in await self._db.read(_parts):
            remove = partial(_remove, part=part)
            with alone(failed):
                removed[part.age.table.name] += await self._remove_old(part, before_ms, PAGE, PAGES_MAX, remove)
        with alone(failed):
            await self._db.write(_forget_counted)
        with alone(failed):
            removed["events"] += await self._prune_beyond()
        with alone(failed):
            removed["mutes"] = await self._prune_mutes(before_ms)
        if failed:
            raise failed[0]
        return removed

    async def _prune_mutes(self, before_ms: int) -> int:
        mutes = await self._db.read(partial(_old_mutes, before_ms=before_ms))
        removed, is_done = await self._in_steps(mutes, forget_mutes)
        self._note_end("mutes", is_done and len(mutes) < PAGE)
        return removed

    async def prune_ended(self, now_ms: int) -> dict[str, int]:
        removed, failed = dict.fromkeys(_ENDING, 0), list[Exception]()
        for name in _ENDING:
            with alone(failed):
                removed[name] = await self._prune_pages(name, now_ms)
        if failed:
            raise failed[0]
        return removed

    async def _prune_pages(self, name: str, now_ms: int) -> int:
        removed = 0
        for _ in range(PAGES_MAX):
            gone = await self._db.write(partial(_forget_page, columns=_ENDING[name], now_ms=now_ms))
            removed += gone
            self._note_end(name, gone < PAGE)
            if gone < PAGE:
                break
        return removed

    async def _prune_beyond(self) -> int:
        """Removes the oldest events of projects that have more than their share, all of deleted ones; how many."""
        removed, is_done = await self._take_turns("events", _oldest_events)
        self._note_end("too many events", is_done)
        await self._db.write(sweep)
        return removed


def _forget_counted(c: Connection) -> None:
    """Drops the counters of overrides whose entries have gone."""
    name, there = t.counters.c.name, select(t.audit.c.number).where(t.audit.c.number == t.counters.c.value)
    overrides = or_(*(name.startswith(f"{action} ") for action in OVERRIDES))
    c.execute(delete(t.counters).where(overrides, ~there.exists()))


def _history_ms(c: Connection) -> int | None:
    """The counter; where there is none yet, the newest time of events and audit entries, those written last."""
    noted = c.execute(select(t.counters.c.value).where(t.counters.c.name == HISTORY)).scalar()
    if noted is not None:
        return int(noted)
    newest = (select(p.age).where(p.mine).order_by(*(one.desc() for one in p.order)).limit(1) for p in _parts(c))
    times = [at_ms for query in newest if (at_ms := c.execute(query).scalar()) is not None]
    return max(times, default=None)


def _parts(c: Connection) -> list[Part]:
    """Tables whose rows are written about in order of age, so that old ones are found at the beginning of the key
    without an index on the age; of events those of each journal, as they are numbered there."""
    b, a = t.backfill_events.c, t.audit.c
    return [
        *(_events_of(shard) for shard in c.execute(select(t.journals.c.shard).order_by(t.journals.c.shard)).scalars()),
        Part("backfill_events", b.inserted_ms, (b.number,)),
        Part("audit", a.at_ms, (a.number,)),
    ]


def _events_of(shard: int) -> Part:
    e = t.events.c
    return Part(f"events {shard}", e.ts_ms, (e.sequence,), ~_STARTS_ONGOING_OUTAGE, e.shard == shard)


# Per table: the column of its end, with an index, then the key.
_ENDING: dict[str, tuple[Column[Any], ...]] = {
    "gone_names": (t.gone_names.c.until_ms, t.gone_names.c.project_id, t.gone_names.c.name),
    "sessions": (t.console_sessions.c.ends_ms, t.console_sessions.c.token_sha256),
}


def _old_mutes(c: Connection, before_ms: int) -> list[int]:
    m = t.mutes.c
    old = select(m.number).where(m.ended_ms < before_ms).order_by(m.ended_ms).limit(PAGE)
    return list(c.execute(old).scalars())


def _forget_page(c: Connection, columns: Sequence[Column[Any]], now_ms: int) -> int:
    """Removes up to PAGE rows that have ended; how many. Those that others hold go another time: nobody waits for who
    waits."""
    end, *key = columns
    found = c.execute(
        select(*key).where(end <= now_ms).order_by(end).limit(PAGE).with_for_update(skip_locked=True)
    ).all()
    for some in chunks(found):
        c.execute(delete(end.table).where(tuple_(*key).in_([tuple(row) for row in some])))
    return len(found)


def _starts_ongoing_outage(e: Any) -> ColumnElement[bool]:
    """The beginning of an outage that goes on: who is told of its end must have heard of it, and how long it was. `e`:
    columns of events."""
    later = t.events.alias()
    same_life = (later.c.breaker_id == e.breaker_id) & (later.c.project_id == e.project_id)
    newer = exists().where(same_life, begins_outage(later.c), later.c.transition_seq > e.transition_seq)
    b = t.breakers.c
    its_breaker = (b.id == e.breaker_id) & (b.project_id == e.project_id)
    going_on = exists().where(its_breaker, t.records.c.breaker_id == b.id, t.records.c.state != "closed")
    return begins_outage(e) & going_on & ~newer


_E = t.events.c
_STARTS_ONGOING_OUTAGE = _starts_ongoing_outage(_E)
_KEPT = Kept(
    order=(_E.project_id, _E.ts_ms, _E.sequence),
    columns=(
        *(_E.shard, _E.sequence, _E.project_id, _E.breaker_id, _E.prev, _E.ts_ms, _E.transition_seq),
        _E.hidden_by,
    ),
)


def _remove(c: Connection, keys: Sequence[int], part: Part) -> int:
    """Deletes those rows of a part that may still go, and takes them from what their projects and organisations keep;
    how many."""
    table = part.age.table
    which = part.mine & part.order[-1].in_(keys) & part.goes
    if table is not t.events:
        if table is t.audit:
            _take_audit(c, which)
        return c.execute(delete(table).where(which)).rowcount
    gone = Counter(c.execute(delete(t.events).where(which).returning(t.events.c.project_id)).scalars())
    for project_id, count in gone.items():
        add(c, project_id, "events", -count)
    return gone.total()


def _take_audit(c: Connection, mine: ColumnElement[bool]) -> None:
    """Takes entries from the sums they are in: of a deleted project that of its organisation, as its own is gone."""
    a = t.audit.c
    project, org = a.project_id, case((a.project_id.is_(None), a.org_id))
    for project_id, org_id, size in c.execute(
        select(project, org, func.sum(AUDIT_WEIGHT)).where(mine).group_by(project, org)
    ).all():
        if org_id is not None:
            add(c, org_id, "org_audit", -int(size))
        elif project_id is not None:
            of_id, what = audit_sum(c, project_id)
            add(c, of_id, what, -int(size))


def _oldest_events(c: Connection, project_id: str, much: int, walk: Walk) -> Found:
    """Of a page of a project's events, oldest first, those that may go, in one journal. Nobody's writes may wait for
    the look."""
    p = page_of(c, _KEPT, project_id, walk.mark, PAGE).c
    query = select(p.shard, p.ts_ms, p.sequence, (~_starts_ongoing_outage(p)).label("goes"))
    rows = c.execute(query.order_by(p.ts_ms, p.sequence)).all()
    last = (rows[-1].ts_ms, rows[-1].sequence) if len(rows) == PAGE else None
    going = [row for row in rows if row.goes]
    shard = going[0].shard if going else 0
    keys = [row.sequence for row in going if row.shard == shard]
    return Found(keys[:much], partial(_drop, part=_events_of(shard)), last)


def _drop(c: Connection, keys: Sequence[int], part: Part) -> int:
    """Removes events before their time, counted."""
    gone = _remove(c, keys, part)
    if gone:
        bump(c, DROPPED, gone)
    return gone
