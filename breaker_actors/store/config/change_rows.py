"""Statements over breakers, routers and links that both resources use, and the change rows that carry them to the logs.

Sync functions over a `Connection`; each runs inside the transaction of its caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, Select, bindparam, delete, insert, select, text, update

from breaker_actors.core.log_entries import BREAKER, VIEW, BreakerSet, RouterView, encode_entry
from breaker_actors.store import tables as t
from breaker_actors.store.config.routing_tables import Linked, view_of
from breaker_actors.store.pending import refuse_more
from breaker_actors.store.quotas import add_ended_links, add_link_count, reweighed, shares
from breaker_actors.store.reached import note_reached
from breaker_actors.store.rows import BreakerRow
from breaker_actors.store.section import DAY_MS, IDS, by_ids, chunks
from breaker_actors.store.steps import STEP

Entry = tuple[int, bytes]
_entries = msgspec.msgpack.Encoder()

BREAKER_COLUMNS = [t.breakers.c[f] for f in BreakerRow.__struct_fields__ if f != "router_ids"]
_B, _L, _E = t.breakers.c, t.links.c, t.ended_links.c
_LINKS = select(_L.breaker_id, _L.router_id).where(_L.breaker_id.in_(IDS)).order_by(_L.number)
_LINKED = select(_L.router_id, _L.breaker_id).where(_L.router_id.in_(IDS)).order_by(_L.number)
_NAMES = select(_B.id, _B.name, _B.rule).where(_B.id.in_(IDS))
_CUTS = select(t.records.c.breaker_id, t.records.c.cut).where(t.records.c.breaker_id.in_(IDS))
_SINCE = select(_L.router_id, _L.breaker_id, _L.since_offset).where(_L.router_id.in_(IDS))
_ENDED_SINCE = select(_E.router_id, _E.breaker_id, _E.since_offset).where(_E.breaker_id.in_(IDS))
_UNLINK = delete(t.links).where(_L.router_id == bindparam("router"), _L.breaker_id == bindparam("breaker"))
_FORGET_ENDED = delete(t.ended_links).where(_E.router_id == bindparam("router"), _E.breaker_id == bindparam("breaker"))
_ROUTERS = select(t.routers).where(t.routers.c.id.in_(IDS))
_NAMED = select(_B.created_ms, _B.number, _B.id, _B.name).where(_B.project_id == bindparam("project"), _B.name.in_(IDS))
_RAISE = update(t.routers).where(t.routers.c.id == bindparam("which")).values(version=bindparam("next"))
_ADD_CHANGES = insert(t.changes).returning(t.changes.c.id, sort_by_parameter_order=True)


BEHIND = "behind_logs"
"""The counter that is there from when logs were found to be later than the database until that is put right."""


def breaker_entry(row: BreakerRow) -> Entry:
    """The settings record of a breaker that existed before."""
    return BREAKER, encode_entry(_settings(row))


def birth_entry(row: BreakerRow, after_seq: int, again: bool = False) -> Entry:
    """The settings record that brings a breaker to life; it goes on from `after_seq`. `again`: see BreakerSet."""
    born = msgspec.structs.replace(_settings(row), created=True, after_seq=after_seq, again=again)
    return BREAKER, encode_entry(born)


def _settings(row: BreakerRow) -> BreakerSet:
    return BreakerSet(breaker_id=row.id, version=row.version, name=row.name, rule=row.rule, control=row.control)


def view_entry(view: RouterView) -> Entry:
    return VIEW, encode_entry(view)


class Change(NamedTuple):
    """The entries that go to one router's log, in this order; `links`: breakers that start to count with them."""

    router: Row[Any]
    entries: Sequence[Entry]
    links: tuple[str, ...] = ()


def add_changes(c: Connection, changes: Sequence[Change]) -> list[int]:
    """One change row each; their ids in the same order. Raises Overloaded where too many are on their way already."""
    if not changes:
        return []
    refuse_more(c, changes[0].router.project_id)
    rows = [
        {
            "router_id": change.router.id,
            "project_id": change.router.project_id,
            "entries": _entries.encode(list(change.entries)),
            "links": change.links,
        }
        for change in changes
    ]
    return [int(id_) for id_ in c.execute(_ADD_CHANGES, rows).scalars()]


def is_behind(c: Connection, newest: int) -> bool:
    """Whether no change was ever given a number that logs have (SQLite, "AUTOINCREMENT"), or that was so and is not put
    right yet."""
    if c.dialect.name != "sqlite":
        return False
    marked = c.execute(select(t.counters.c.value).where(t.counters.c.name == BEHIND)).scalar()
    return bool(marked) or newest > _last_change(c)


def note_behind(c: Connection) -> None:
    c.execute(delete(t.counters).where(t.counters.c.name == BEHIND))
    c.execute(insert(t.counters).values(name=BEHIND, value=1))


def note_caught_up(c: Connection, newest: int) -> None:
    c.execute(delete(t.counters).where(t.counters.c.name == BEHIND))
    if c.dialect.name == "sqlite" and newest > _last_change(c):
        c.execute(text("DELETE FROM sqlite_sequence WHERE name = 'changes'"))
        c.execute(text("INSERT INTO sqlite_sequence (name, seq) VALUES ('changes', :seq)"), {"seq": newest})


def _last_change(c: Connection) -> int:
    return int(c.execute(text("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'changes'")).scalar_one())


def linked_of(c: Connection, router_ids: Sequence[str]) -> dict[str, list[Linked]]:
    """The breakers of each router, in link order. The rule of a breaker is read once, on however many routers."""
    pairs = by_ids(c, _LINKED, router_ids)
    rows = by_ids(c, _NAMES, list(dict.fromkeys(breaker_id for _, breaker_id in pairs)))
    breakers = {row.id: Linked(row.id, row.name, row.rule.metric) for row in rows}
    found: dict[str, list[Linked]] = {router_id: [] for router_id in router_ids}
    for router_id, breaker_id in pairs:
        found[router_id].append(breakers[breaker_id])
    return found


def end_links(c: Connection, project_id: str, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], int | None]:
    """Removes links (router, breaker); the offset after which each counted (None: it was not in the log yet). As many
    statements as a link takes for each PARAMETERS_MAX."""
    ended = _by_router(pairs)
    cuts = dict(map(tuple, by_ids(c, _CUTS, list(dict.fromkeys(breaker_id for _, breaker_id in pairs)))))
    note_reached(c, {id_: max(((cuts.get(b) or {}).get(id_, 0) for b in ids), default=0) for id_, ids in ended.items()})
    there = {(row.router_id, row.breaker_id): row.since_offset for row in by_ids(c, _SINCE, list(ended))}
    left = {router_id for router_id, breaker_id in there if breaker_id not in ended[router_id]}
    for some in chunks([router_id for router_id in ended if router_id not in left]):
        c.execute(delete(t.links).where(_L.router_id.in_(some)))
    if single := [{"router": one, "breaker": breaker_id} for one, breaker_id in pairs if one in left]:
        c.execute(_UNLINK, single)
    add_link_count(c, project_id, -sum(pair in there for pair in pairs))
    return {pair: there.get(pair) for pair in pairs}


def _by_router(pairs: Iterable[tuple[str, str]]) -> dict[str, dict[str, None]]:
    found: dict[str, dict[str, None]] = {}
    for router_id, breaker_id in pairs:
        found.setdefault(router_id, {})[breaker_id] = None
    return found


def note_ended_links(
    c: Connection,
    project_id: str,
    since: Mapping[tuple[str, str], int | None],
    change_ids: Mapping[str, int],
    now_ms: int,
) -> None:
    """Keeps in mind what is still to be read through links (router, breaker) that changes end, one for each router. One
    that ended before and was taken up again stays readable from its first beginning: the views in the log tell when it
    counted."""
    breaker_ids = list(dict.fromkeys(breaker_id for _, breaker_id in since))
    known = {(row.router_id, row.breaker_id): row.since_offset for row in by_ids(c, _ENDED_SINCE, breaker_ids)}
    earlier = {pair: offset for pair, offset in known.items() if pair in since}
    if earlier:
        c.execute(_FORGET_ENDED, [{"router": router_id, "breaker": breaker_id} for router_id, breaker_id in earlier])
    rows = []
    for (router_id, breaker_id), offset in since.items():
        offsets = [one for one in (earlier.get((router_id, breaker_id)), offset) if one is not None]
        row = {"router_id": router_id, "breaker_id": breaker_id, "since_offset": min(offsets, default=None)}
        rows.append(row | {"change_id": change_ids[router_id], "ended_ms": now_ms})
    if rows:
        c.execute(insert(t.ended_links), rows)
    add_ended_links(c, project_id, len(rows) - len(earlier))


def current_views(c: Connection, routers: Sequence[Row[Any]]) -> dict[str, RouterView]:
    """The view that each router's configuration asks for now, under its stored version."""
    linked = linked_of(c, [router.id for router in routers])
    return {r.id: view_of(r.version, r.mode, r.enabled, r.metadata, linked[r.id]) for r in routers}


def raise_versions(c: Connection, routers: Sequence[Row[Any]]) -> None:
    """Gives each router its next version."""
    if routers:
        c.execute(_RAISE, [{"which": router.id, "next": router.version + 1} for router in routers])


def raise_views(c: Connection, routers: Sequence[Row[Any]]) -> dict[str, RouterView]:
    """The current views, each under the next version of its router."""
    raise_versions(c, routers)
    views = current_views(c, routers)
    return {id_: msgspec.structs.replace(view, version=view.version + 1) for id_, view in views.items()}


def links_of(c: Connection, breaker_ids: Sequence[str]) -> dict[str, list[str]]:
    """The ids of the routers each breaker hangs on, in link order."""
    found: dict[str, list[str]] = {breaker_id: [] for breaker_id in breaker_ids}
    for breaker_id, router_id in by_ids(c, _LINKS, breaker_ids):
        found[breaker_id].append(router_id)
    return found


def load_routers(c: Connection, router_ids: Sequence[str]) -> dict[str, Row[Any]]:
    return {row.id: row for row in by_ids(c, _ROUTERS, router_ids)}


def add_links(c: Connection, project_id: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Links (router, breaker)."""
    if pairs:
        c.execute(insert(t.links), [{"router_id": router, "breaker_id": breaker} for router, breaker in pairs])
        add_link_count(c, project_id, len(pairs))


def mark_routers_deleted(c: Connection, project_id: str, router_ids: Sequence[str], now_ms: int) -> None:
    """They go with their last change, which only an owner can put into their log."""
    with reweighed(c, project_id, t.routers, router_ids):
        for some in chunks(router_ids):
            c.execute(update(t.routers).where(t.routers.c.id.in_(some)).values(deleted_ms=now_ms))


def end_routers(c: Connection, project_id: str, now_ms: int, most: int) -> list[int]:
    """The live routers of a project, all without breakers by now, `most` of them, go: their last view takes nothing."""
    live = (t.routers.c.project_id == project_id) & t.routers.c.deleted_ms.is_(None)
    routers = c.execute(select(t.routers).where(live).order_by(t.routers.c.number).limit(most)).all()
    views = raise_views(c, routers)
    mark_routers_deleted(c, project_id, [router.id for router in routers], now_ms)
    return add_changes(c, [Change(router, [view_entry(views[router.id])]) for router in routers])


def stream_names(c: Connection, project_id: str, names: Sequence[str]) -> dict[str, str]:
    """The stream names of all breakers called one of `names`, with whose they are."""
    rows = [tuple(row) for row in by_ids(c, _NAMED, names, project=project_id)]
    # Sorted here: asked for the order, SQLite takes the index on creation and walks through the whole project.
    return name_streams((id_, name) for _, _, id_, name in sorted(rows))


def name_streams(breakers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Breakers (id, name), oldest first, by stream name: the oldest has its name, the others of that name their id."""
    taken: dict[str, str] = {}
    for id_, name in breakers:
        taken[id_ if name in taken else name] = id_
    return taken


def note_stream_names(
    c: Connection, project_id: str, before: Mapping[str, str], after: Mapping[str, str], harmless: set[str], now_ms: int
) -> None:
    """Keeps the names that went away for a day (upkeep forgets them), the newest ones of too many. `harmless`: breakers
    that went and never left closed: nobody was told anything else of them, so nobody has to hear of their names again.
    (Of one that goes on under another name a state may still be shown under the old one, until replicas know the new
    one.)"""
    names = sorted(name for name in before.keys() - after.keys() if before[name] not in harmless)
    if not names:
        return
    _forget_names(c, project_id, names)
    until_ms = now_ms + DAY_MS
    c.execute(insert(t.gone_names), [{"project_id": project_id, "name": n, "until_ms": until_ms} for n in names])
    # As many as came and a step more: their number never grows beyond the bound, and comes down to it.
    beyond = newest_gone(project_id).offset(shares(c).gone_names).limit(len(names) + STEP)
    _forget_names(c, project_id, c.execute(beyond).scalars().all())


def newest_gone(project_id: str) -> Select[Any]:
    """The names that went away, the last ones first."""
    g = t.gone_names.c
    return select(g.name).where(g.project_id == project_id).order_by(g.until_ms.desc(), g.name.desc())


def _forget_names(c: Connection, project_id: str, names: Sequence[str]) -> None:
    g = t.gone_names.c
    for some in chunks(names):
        c.execute(delete(t.gone_names).where(g.project_id == project_id, g.name.in_(some)))
