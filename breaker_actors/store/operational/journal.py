"""The Journal's side of the store: fenced commits of events, records and cuts (architecture.md sections 3.4, 3.5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Update,
    bindparam,
    exists,
    func,
    insert,
    literal,
    select,
    update,
)

from breaker_actors.errors import Fenced
from breaker_actors.messages import Commit, CommitResult
from breaker_actors.settings import JOURNALS_MAX
from breaker_actors.store import tables as t
from breaker_actors.store.alerts import is_heard, write_alerts
from breaker_actors.store.checksums import chained, checksum_of
from breaker_actors.store.fencing import JOURNALS
from breaker_actors.store.quotas import add
from breaker_actors.store.rows import JournalHead, alert_of
from breaker_actors.store.section import IDS, StorePart, by_ids, chunks
from breaker_actors.text.escaping import for_database


class Journals(StorePart):
    async def open_journal(self, shard: int, now_ms: int = 0) -> JournalHead:
        return await self._db.write_rows(lambda c: _open(c, shard, now_ms))

    async def journal_head(self, shard: int) -> JournalHead:
        row = await self._db.read(lambda c: JOURNALS.stored(c, shard))
        return JournalHead(shard, 0, 0) if row is None else JournalHead(shard, row.epoch, row.sequence)

    async def journals(self) -> int:
        newest = await self._db.read(lambda c: c.execute(_NEWEST_SHARD).scalar())
        return min(JOURNALS_MAX, max(self._shards, 0 if newest is None else newest + 1))

    async def organisations_of(self, project_ids: Sequence[str]) -> dict[str, str]:
        rows = await self._db.look_up(lambda c: by_ids(c, _ORGANISATIONS, project_ids))
        return {project_id: org_id for project_id, org_id in rows}

    async def listeners_of(self, project_ids: Sequence[str]) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for project_id, kinds, count in await self._db.look_up(lambda c: by_ids(c, _LISTENERS, project_ids)):
            mine = found.setdefault(project_id, {})
            for kind in kinds:
                mine[kind] = mine.get(kind, 0) + count
        return found

    async def commit(self, head: JournalHead, commits: Sequence[Commit]) -> tuple[JournalHead, list[CommitResult]]:
        return await self._db.write_rows(lambda c: _commit(c, head, commits))


RAISED_MAX = 1 << 52
"""A clock raises the sequence no further: what is a JSON number everywhere ends at 2^53, so after any clock there is
room for a million a second in 142 years. Microseconds since 1970 come there in 2112."""
# Two events that agree in these are the same event.
_EVENT_COLUMNS = [column.name for column in t.events.c]
_IDENTITY = ("prev", "curr", "ts_ms", "transition_seq")


def _open(c: Connection, shard: int, now_ms: int) -> JournalHead:
    """The sequence is raised to the microseconds of the time. No Journal gives so many numbers in a second: so it is
    beyond all that were given out before, also of a database that was restored and does not know of them."""
    row = JOURNALS.open(c, shard)
    sequence = max(row.sequence, min(now_ms * 1000, RAISED_MAX))
    if sequence > row.sequence:
        c.execute(_RAISE, {"of": shard, "to": sequence})
    return JournalHead(shard, row.epoch, sequence)


def _advance_statement() -> Update:
    j = t.journals.c
    mine = (j.shard == bindparam("of")) & (j.epoch == bindparam("under")) & (j.sequence == bindparam("at"))
    return update(t.journals).where(mine).values(sequence=bindparam("to"))


def _fence_statement(heard: ColumnElement[bool]) -> Select[Any]:
    query = select(t.breakers.c.id, t.breakers.c.epoch, t.records.c.transition_seq, t.records.c.event_checksum, heard)
    query = query.select_from(t.breakers).join(t.records, t.records.c.breaker_id == t.breakers.c.id)
    query = query.where(t.breakers.c.id.in_(IDS))
    return query.order_by(t.breakers.c.id).with_for_update(key_share=True)


def _store_record_statement() -> Update:
    r = t.records.c
    owned = exists().where(t.breakers.c.id == bindparam("which"), t.breakers.c.epoch == bindparam("under"))
    statement = update(t.records).where(
        r.breaker_id == bindparam("which"), r.transition_seq == bindparam("before"), owned
    )
    return statement.values(
        transition_seq=bindparam("seq"),
        state=bindparam("state"),
        allow_rate=bindparam("allow_rate"),
        record=bindparam("record"),
        cut=bindparam("cut"),
        settings=func.coalesce(bindparam("settings"), r.settings),
        event_checksum=bindparam("newest"),
        checksum=bindparam("checked"),
    )


_NEWEST_SHARD = select(func.max(t.projects.c.shard))
"""Of deleted projects, too, until they have ended."""
_ORGANISATIONS = (
    select(t.projects.c.id, t.workspaces.c.org_id)
    .join(t.workspaces, t.workspaces.c.id == t.projects.c.workspace_id)
    .where(t.projects.c.id.in_(IDS))
)
_LISTENERS = (
    select(t.channels.c.project_id, t.channels.c.events, func.count())
    .where(t.channels.c.project_id.in_(IDS), t.channels.c.enabled)
    .group_by(t.channels.c.project_id, t.channels.c.events)
)
_RAISE = update(t.journals).where(t.journals.c.shard == bindparam("of")).values(sequence=bindparam("to"))
_ADVANCE = _advance_statement()
_ADD_EVENTS = insert(t.events)
_FENCES = _fence_statement(literal(False))
_FENCES_AND_HEARD = _fence_statement(is_heard(t.breakers.c.project_id))
_STORE_RECORD = _store_record_statement()


class _Fence(NamedTuple):
    """What a commit for one breaker must match, and the checksum that its next event goes on from."""

    epoch: int
    transition_seq: int
    event_checksum: int | None


def numbers_taken(commit: Commit) -> int:
    """Sequence numbers of one commit. They are taken whatever its result, so that the journal can count them alike;
    a hole in the sequence harms nobody."""
    return len(commit.events) or int(commit.announce)


def _commit(c: Connection, head: JournalHead, commits: Sequence[Commit]) -> tuple[JournalHead, list[CommitResult]]:
    # at least one number, for checkpoints alone, too: one that was given up and comes late must not undo a newer one
    new = msgspec.structs.replace(head, sequence=head.sequence + max(1, sum(map(numbers_taken, commits))))
    _advance(c, head, new)
    heard_of = [event for commit in commits for event in commit.events if event.hidden_by != "override"]
    alerting = any(alert_of(event.prev, event.curr) for event in heard_of)
    fences, heard = _fences(c, sorted({commit.breaker_id for commit in commits}), alerting)
    results: list[CommitResult] = []
    kept: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    sequence = head.sequence
    for commit in commits:
        result = _judge(c, commit, fences, rows)
        results.append(result or "ok")
        if result is None:
            newest = fences[commit.breaker_id].event_checksum
            if new_rows := chained(_event_rows(head.shard, sequence, commit), newest):
                rows += new_rows
                newest = new_rows[-1]["checksum"]
            kept.append(_record_values(commit, newest))
            fences[commit.breaker_id] = _Fence(commit.epoch, commit.transition_seq, newest)
        sequence += numbers_taken(commit)
    write_alerts(c, [row for row in rows if row["breaker_id"] in heard])
    if rows:
        c.execute(_ADD_EVENTS, [{name: row[name] for name in _EVENT_COLUMNS} for row in rows])
    if kept:  # under the same fence once more: the statement itself can't write past it
        c.execute(_STORE_RECORD, kept)
    for project_id, count in Counter(row["project_id"] for row in rows).items():
        add(c, project_id, "events", count)
    return new, results


def _advance(c: Connection, head: JournalHead, new: JournalHead) -> None:
    values = {"of": head.shard, "under": head.epoch, "at": head.sequence, "to": new.sequence}
    if c.execute(_ADVANCE, values).rowcount != 1:
        raise Fenced("a newer journal holds this shard")


def _fences(c: Connection, breaker_ids: Sequence[str], alerting: bool) -> tuple[dict[str, _Fence], set[str]]:
    """Epoch and transition_seq per breaker, locked until the transaction ends: what is judged by them stays true. In
    order of the ids, like all who lock several; new links to a breaker need not wait. When `alerting`, also which of
    them somebody wants to hear of: asked along, as most alerts are nobody's."""
    fences: dict[str, _Fence] = {}
    heard: set[str] = set()
    query = _FENCES_AND_HEARD if alerting else _FENCES
    for some in chunks(breaker_ids):
        for id_, epoch, seq, newest, wanted in c.execute(query, {"ids": some}):
            fences[id_] = _Fence(epoch, seq, newest)
            if wanted:
                heard.add(id_)
    return fences, heard


def _judge(
    c: Connection, commit: Commit, fences: dict[str, _Fence], written: Sequence[Mapping[str, Any]]
) -> CommitResult | None:
    """None: it may be written. `written` are the event rows of this call: a commit and its repetition may meet in
    one."""
    wanted = commit.transition_seq - len(commit.events)
    if [e.transition_seq for e in commit.events] != list(range(wanted + 1, commit.transition_seq + 1)):
        return "failed"
    fence = fences.get(commit.breaker_id)
    if fence is not None and (fence.epoch, fence.transition_seq) == (commit.epoch, wanted):
        return None
    if fence is None or not commit.events:
        return "fenced"
    mine = [row for row in written if row["breaker_id"] == commit.breaker_id]
    return "repeated" if _stored_alike(c, commit, mine) else "fenced"


def _stored_alike(c: Connection, commit: Commit, written: Sequence[Mapping[str, Any]]) -> bool:
    e = t.events.c
    first, last = commit.events[0].transition_seq, commit.transition_seq
    query = (
        select(*(e[k] for k in _IDENTITY))
        .where(e.breaker_id == commit.breaker_id, e.project_id == commit.project_id)
        .where(e.transition_seq.between(first, last))
        .order_by(e.transition_seq)
    )
    stored = [tuple(row) for row in c.execute(query)]
    stored += [tuple(row[k] for k in _IDENTITY) for row in written if first <= row["transition_seq"] <= last]
    return stored == [tuple(getattr(draft, k) for k in _IDENTITY) for draft in commit.events]


def _event_rows(shard: int, sequence: int, commit: Commit) -> list[dict[str, Any]]:
    place = {"shard": shard, "project_id": commit.project_id, "breaker_id": commit.breaker_id}
    rows = [
        place | {"sequence": sequence + i} | msgspec.structs.asdict(draft) for i, draft in enumerate(commit.events, 1)
    ]
    return [{name: for_database(value) if type(value) is str else value for name, value in r.items()} for r in rows]


def _record_values(commit: Commit, newest: int | None) -> dict[str, Any]:
    """`newest`: the checksum of its newest event."""
    return {
        "which": commit.breaker_id,
        "under": commit.epoch,
        "before": commit.transition_seq - len(commit.events),
        "seq": commit.transition_seq,
        "state": commit.state,
        "allow_rate": commit.allow_rate,
        "record": commit.record,
        "cut": commit.applied_offsets,
        "settings": commit.settings,
        "newest": newest,
        "checked": checksum_of(commit),
    }
