"""How far the logs of routers reached at least, as far as the store knows. A log that ends before that is damaged: what
is missing was answered, and what would be taken in its place would never be read.

Known from where configuration was settled, where links begin, and how far breakers have read, those too that are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, select, update

from breaker_actors.store import tables as t
from breaker_actors.store.section import IDS, by_ids, chunks

_r = t.routers.c
_NOTE = (
    update(t.routers)
    .where(_r.id == bindparam("router"), _r.reached_offset < bindparam("offset"))
    .values(reached_offset=bindparam("offset"))
)
_L = t.links.c
_REACHED = select(_r.id, _r.reached_offset).where(_r.id.in_(IDS))
_LINKS = select(_L.router_id, _L.breaker_id, _L.since_offset).where(_L.router_id.in_(IDS))
_CUTS = select(t.records.c.breaker_id, t.records.c.cut).where(t.records.c.breaker_id.in_(IDS))


def note_reached(c: Connection, offsets: Mapping[str, int]) -> None:
    """The log of each of these routers has a record at this offset."""
    if offsets:
        c.execute(_NOTE, [{"router": id_, "offset": offset} for id_, offset in sorted(offsets.items())])


def reached_offsets(c: Connection, router_ids: Sequence[str]) -> dict[str, int]:
    """By router, 0 for one that nothing is known of. Each breaker's cut is read once, however many of them it names."""
    found = dict(by_ids(c, _REACHED, router_ids))
    readers: dict[str, list[str]] = {}
    for router_id, breaker_id, since in by_ids(c, _LINKS, router_ids):
        found[router_id] = max(found.get(router_id, 0), since or 0)
        readers.setdefault(breaker_id, []).append(router_id)
    for some in chunks(list(readers)):
        for breaker_id, cut in c.execute(_CUTS, {"ids": some}):
            for router_id in readers[breaker_id]:
                found[router_id] = max(found[router_id], (cut or {}).get(router_id, 0))
    return found
