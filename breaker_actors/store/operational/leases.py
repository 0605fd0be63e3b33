"""The Directory's side of the store: owners, epochs, change rows, assignments (architecture.md sections 3.2, 3.6)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, zip_longest
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, Row, Select, bindparam, delete, exists, func, or_, select, update

from breaker_actors.core.log_entries import UNREADABLE
from breaker_actors.messages import ENDING, BreakerAssignment, ChangeRow, RouterAssignment, RouterRef
from breaker_actors.store import tables as t
from breaker_actors.store.checksums import record_checksum
from breaker_actors.store.fencing import DIRECTORY
from breaker_actors.store.reached import note_reached, reached_offsets
from breaker_actors.store.rows import Placement
from breaker_actors.store.section import IDS, StorePart, by_ids, chunks
from breaker_actors.telemetry.set_aside import Asides

Kind = Literal["breaker", "router"]
_TABLES = {"breaker": t.breakers, "router": t.routers}
PENDING_BYTES = 4 << 20
"""What the changes of one round take together, though there is one of them at least."""
_decode_entries = msgspec.msgpack.Decoder(tuple[tuple[int, bytes], ...]).decode

_C, _R = t.changes.c, t.routers.c
_CHANGES = select(t.changes).where(_C.id.in_(IDS))
_CHANGED = select(_C.id, _C.router_id, _C.links).where(_C.id.in_(IDS)).order_by(_C.id)
_FORGET_CHANGES = delete(t.changes).where(_C.id.in_(IDS))
_OLDEST = (
    select(_C.id, func.length(_C.entries).label("size"))
    .where(_C.project_id == bindparam("project"))
    .order_by(_C.id)
    .limit(bindparam("most"))
)
_OLDEST_ABLE = _OLDEST.join(t.routers, _R.id == _C.router_id).where(
    _R.owner.is_(None) | _R.owner.in_(bindparam("owners", expanding=True)),
    _C.router_id.not_in(bindparam("but", expanding=True)),
)
_END_LINKS = (
    update(t.ended_links)
    .where(t.ended_links.c.change_id == bindparam("change"))
    .values(
        until_offset=bindparam("until"),
        log_slot=select(_R.log_slot).where(_R.id == t.ended_links.c.router_id).scalar_subquery(),
    )
)
_GONE = _R.id.in_(IDS) & _R.deleted_ms.is_not(None) & ~exists().where(_C.router_id == _R.id)
_PROJECTS_OF_GONE = select(_R.project_id).where(_GONE).distinct()
_FORGET_ROUTERS = delete(t.routers).where(_GONE)


def _waiting_statement() -> Select[Any]:
    """Projects that have changes, with their organisations. The index is walked from one project to the next."""
    first = select(func.min(_C.project_id).label("id")).cte(recursive=True)
    following = select(func.min(_C.project_id)).where(_C.project_id > first.c.id).scalar_subquery()
    each = first.union_all(select(following).where(first.c.id.is_not(None)))
    query = select(each.c.id, t.workspaces.c.org_id).join(t.projects, t.projects.c.id == each.c.id)
    return query.join(t.workspaces, t.workspaces.c.id == t.projects.c.workspace_id)


_WAITING = _waiting_statement()


class Placements(StorePart):
    async def open_directory(self, known: int | None = None) -> int:
        return int((await self._db.write(lambda c: DIRECTORY.open(c, known=known))).epoch)

    async def directory_epoch(self) -> int:
        row = await self._db.read(DIRECTORY.stored)
        return 0 if row is None else int(row.epoch)

    async def placements(self, kind: Kind) -> list[Placement]:
        return await self._db.read(lambda c: _placements(c, kind))

    async def claim(self, directory_epoch: int, kind: Kind, owners: Mapping[str, str]) -> dict[str, int]:
        return await self._db.write(lambda c: _claim(c, directory_epoch, kind, owners))

    async def pending_changes(
        self,
        limit: int,
        owners: Sequence[str] | None = None,
        served: Mapping[str, int] | None = None,
        but: Collection[str] = (),
    ) -> list[ChangeRow]:
        able = None if owners is None else {"owners": owners, "but": list(but)}
        rows = await self._db.read(lambda c: _pending(c, limit, able, served or {}))
        return [_change(row, self.asides) for row in rows]

    async def count_pending(self, most: int) -> int:
        found = select(t.changes.c.id).limit(most).subquery()
        return await self._db.read(lambda c: c.execute(select(func.count()).select_from(found)).scalar_one())

    async def unsettled(self, change_ids: Sequence[int]) -> list[str]:
        return await self._db.read(lambda c: _unsettled(c, change_ids))

    async def settle_changes(self, directory_epoch: int, offsets: Mapping[int, int]) -> None:
        await self._db.write(lambda c: _settle(c, directory_epoch, offsets))

    async def breaker_assignments(self, breaker_ids: Sequence[str]) -> list[BreakerAssignment]:
        return await self._db.read(lambda c: _breaker_assignments(c, breaker_ids))

    async def link_refs(
        self, breaker_ids: Sequence[str], router_ids: Sequence[str] | None
    ) -> list[tuple[str, RouterRef]]:
        return await self._db.read(lambda c: _link_refs(c, breaker_ids, router_ids))

    async def router_assignments(self, router_ids: Sequence[str]) -> list[RouterAssignment]:
        return await self._db.read(lambda c: _router_assignments(c, router_ids))


def _placements(c: Connection, kind: Kind) -> list[Placement]:
    table = _TABLES[kind]
    columns = [table.c.id, table.c.project_id, table.c.owner, table.c.epoch]
    if kind == "router":
        columns.append(table.c.log_slot)
    return [Placement(**row._mapping) for row in c.execute(select(*columns).order_by(table.c.number))]


def _claim(c: Connection, directory_epoch: int, kind: Kind, owners: Mapping[str, str]) -> dict[str, int]:
    DIRECTORY.check(c, directory_epoch)
    if not owners:
        return {}
    table = _TABLES[kind]
    values: dict[str, Any] = {"owner": bindparam("to"), "epoch": table.c.epoch + 1}
    if kind == "router":
        # A router's log stays where it began, whoever owns it.
        values["log_slot"] = func.coalesce(table.c.log_slot, bindparam("to"))
    statement = update(table).where(table.c.id == bindparam("which")).values(values)
    c.execute(statement, [{"which": id_, "to": owner} for id_, owner in sorted(owners.items())])
    query = select(table.c.id, table.c.epoch).where(table.c.id.in_(IDS))
    return {id_: epoch for id_, epoch in by_ids(c, query, list(owners))}


def _pending(c: Connection, limit: int, able: Mapping[str, Any] | None, served: Mapping[str, int]) -> list[Row[Any]]:
    """The oldest changes of some projects, those of each in turn: as many as take PENDING_BYTES together."""
    for projects in _waiting_projects(c, limit, served):
        oldest = [_oldest(c, project_id, able, limit) for project_id in projects]
        turns = [row for turn in zip_longest(*oldest) for row in turn if row is not None][:limit]
        sums = accumulate(row.size for row in turns)
        some = [row.id for row, size in zip(turns, sums, strict=True) if row is turns[0] or size <= PENDING_BYTES]
        if some:
            found = {row.id: row for row in by_ids(c, _CHANGES, some)}
            return [found[id_] for id_ in some]
    return []


def _waiting_projects(c: Connection, most: int, served: Mapping[str, int]) -> Iterator[Sequence[str]]:
    """The projects that have changes, `most` at a time: organisations in turn, and of each its projects, those first
    that were `served` longest ago."""
    by_org: dict[str, list[str]] = {}
    for project_id, org_id in sorted(c.execute(_WAITING), key=lambda row: (served.get(row.id, 0), row.id)):
        by_org.setdefault(org_id, []).append(project_id)
    orgs = sorted(by_org.values(), key=lambda projects: served.get(projects[-1], 0))
    projects = [id_ for turn in zip_longest(*orgs) for id_ in turn if id_ is not None]
    for start in range(0, len(projects), most):
        yield projects[start : start + most]


def _oldest(c: Connection, project_id: str, able: Mapping[str, Any] | None, most: int) -> list[Row[Any]]:
    """The first changes of a project; of all its routers, or as the values of _OLDEST_ABLE say."""
    values = {"project": project_id, "most": most}
    return list(c.execute(_OLDEST, values) if able is None else c.execute(_OLDEST_ABLE, {**values, **able}))


def _unsettled(c: Connection, change_ids: Sequence[int]) -> list[str]:
    return sorted({row.router_id for row in by_ids(c, _CHANGED, change_ids)})


def _change(row: Row[Any], asides: Asides) -> ChangeRow:
    """A row that can't be read is set aside; a record that says nothing takes its place in the log, so that the later
    changes of its router go on and its links have their offsets."""
    entries = asides.attempt(
        lambda: _decode_entries(row.entries), "change", row.router_id, row.entries, row.id, row.project_id
    )
    return ChangeRow(
        id=row.id,
        router_id=row.router_id,
        project_id=row.project_id,
        entries=((UNREADABLE, b""),) if not entries else entries,
        links=row.links,
    )


def _settle(c: Connection, directory_epoch: int, offsets: Mapping[int, int]) -> None:
    DIRECTORY.check(c, directory_epoch)
    starts: list[dict[str, Any]] = []
    reached: dict[str, int] = {}
    for row in by_ids(c, _CHANGED, sorted(offsets)):
        since = offsets[row.id] - 1
        starts += [{"router": row.router_id, "breaker": breaker, "since": since} for breaker in row.links]
        reached[row.router_id] = max(reached.get(row.router_id, 0), offsets[row.id])
    for some in chunks(sorted(offsets)):
        c.execute(_FORGET_CHANGES, {"ids": some})
    if starts:
        for table in (t.links, t.ended_links):  # a link may have ended before it was in the log
            mine = (table.c.router_id == bindparam("router")) & (table.c.breaker_id == bindparam("breaker"))
            unknown = table.c.since_offset.is_(None)
            c.execute(update(table).where(mine, unknown).values(since_offset=bindparam("since")), starts)
    c.execute(_END_LINKS, [{"change": change_id, "until": offset} for change_id, offset in offsets.items()])
    note_reached(c, reached)
    _remove_deleted(c, sorted(reached))


def _remove_deleted(c: Connection, router_ids: Sequence[str]) -> None:
    """Routers that were marked as deleted go with their last change."""
    for some in chunks(router_ids):
        if project_ids := c.execute(_PROJECTS_OF_GONE, {"ids": some}).scalars().all():
            c.execute(_FORGET_ROUTERS, {"ids": some})
            remove_deleted_projects(c, project_ids)


def remove_deleted_projects(c: Connection, project_ids: Sequence[str]) -> None:
    """Projects that were marked as deleted go with their last breaker and router."""
    kept = or_(*(exists().where(table.c.project_id == t.projects.c.id) for table in (t.breakers, t.routers)))
    mine = t.projects.c.id.in_(project_ids)
    c.execute(delete(t.projects).where(mine, t.projects.c.deleted_ms.is_not(None), ~kept))


def _breaker_assignments(c: Connection, breaker_ids: Sequence[str]) -> list[BreakerAssignment]:
    found: dict[str, BreakerAssignment] = {}
    for some in chunks(breaker_ids):
        refs = _router_refs(c, some)
        for row in c.execute(
            select(
                t.breakers.c.id.label("breaker_id"),
                t.breakers.c.project_id,
                t.breakers.c.epoch,
                t.breakers.c.name,
                t.projects.c.shard,
                t.workspaces.c.org_id,
                t.records.c.state,
                t.records.c.transition_seq,
                t.records.c.record,
                t.records.c.cut.label("applied_offsets"),
                t.records.c.settings,
                t.records.c.allow_rate,
                t.records.c.checksum,
            )
            .join(t.projects, t.projects.c.id == t.breakers.c.project_id)
            .join(t.workspaces, t.workspaces.c.id == t.projects.c.workspace_id)
            .join(t.records, t.records.c.breaker_id == t.breakers.c.id)
            .where(t.breakers.c.id.in_(some))
        ):
            routers = tuple(refs.get(row.breaker_id, ()))
            values = row._asdict()
            allow_rate, checksum = values.pop("allow_rate"), values.pop("checksum")
            parts = (row.breaker_id, row.transition_seq, row.state, allow_rate, row.record)
            found[row.breaker_id] = BreakerAssignment(
                **values | {"routers": routers, "applied_offsets": _starts(routers) | (row.applied_offsets or {})},
                damaged=checksum not in (None, record_checksum(*parts, row.applied_offsets or {})),
                aside=row.applied_offsets is None,
            )
    return [found[breaker_id] for breaker_id in breaker_ids if breaker_id in found]


def _router_refs(c: Connection, breaker_ids: Sequence[str]) -> dict[str, list[RouterRef]]:
    """All links of breakers, those first that have ended."""
    refs = _ended_refs(c, breaker_ids)
    for breaker_id, ref in _link_refs(c, breaker_ids, None):
        refs.setdefault(breaker_id, []).append(ref)
    return refs


def _link_refs(
    c: Connection, breaker_ids: Sequence[str], router_ids: Sequence[str] | None
) -> list[tuple[str, RouterRef]]:
    """A link whose change is not in the log yet has nothing to read."""
    links, routers = t.links.c, t.routers.c
    query = (
        select(links.breaker_id, links.router_id, routers.owner, routers.log_slot, links.since_offset)
        .join(t.routers, routers.id == links.router_id)
        .where(links.breaker_id.in_(IDS), links.since_offset.is_not(None))
        .order_by(links.number)
    )
    if router_ids is not None:
        query = query.where(links.router_id.in_(router_ids))
    return [
        (breaker_id, RouterRef(router_id, owner or "", slot or "", since))
        for breaker_id, router_id, owner, slot, since in by_ids(c, query, breaker_ids)
    ]


def _starts(refs: Sequence[RouterRef]) -> dict[str, int]:
    """Where reading a router begins when nothing was read yet. For a link that ended and was taken up again: at its
    first beginning; the views in the log tell when it counted."""
    starts: dict[str, int] = {}
    for ref in refs:
        starts[ref.router_id] = min(ref.since_offset, starts.get(ref.router_id, ref.since_offset))
    return starts


def _ended_refs(c: Connection, breaker_ids: Sequence[str]) -> dict[str, list[RouterRef]]:
    """Links that have ended and may still have to be read, also where the same one has begun anew."""
    e = t.ended_links.c
    query = (
        select(e.breaker_id, e.router_id, t.routers.c.owner, func.coalesce(e.log_slot, t.routers.c.log_slot))
        .add_columns(e.since_offset, func.coalesce(e.until_offset, ENDING))
        .join_from(t.ended_links, t.routers, t.routers.c.id == e.router_id, isouter=True)
        .where(e.breaker_id.in_(breaker_ids), e.since_offset.is_not(None))
    )
    refs: dict[str, list[RouterRef]] = {}
    for breaker_id, router_id, owner, slot, since, until in c.execute(query):
        refs.setdefault(breaker_id, []).append(RouterRef(router_id, owner or "", slot or "", since, until))
    return refs


def _router_assignments(c: Connection, router_ids: Sequence[str]) -> list[RouterAssignment]:
    columns = (t.routers.c.id.label("router_id"), t.routers.c.project_id, t.routers.c.epoch, t.routers.c.log_slot)
    query = (
        select(*columns, t.workspaces.c.org_id)
        .join_from(t.routers, t.projects)
        .join(t.workspaces, t.workspaces.c.id == t.projects.c.workspace_id)
        .where(t.routers.c.id.in_(IDS), t.routers.c.log_slot.is_not(None))
    )
    reached = reached_offsets(c, router_ids)
    found = {
        row.router_id: RouterAssignment(**row._mapping, reached_offset=reached.get(row.router_id, 0))
        for row in by_ids(c, query, router_ids)
    }
    return [found[router_id] for router_id in router_ids if router_id in found]
