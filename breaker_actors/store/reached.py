"""How far the logs of routers reached at least, as far as the store knows. A log that ends before that is damaged: what
is missing was answered, and what would be taken in its place would never be read.

Known from where configuration was settled, where links begin, and how far breakers have read, those too that are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, select, update

from breaker_actors.store import tables as t
from breaker_actors.store.section import IDS, by_ids

_r = t.routers.c
_NOTE = (
    update(t.routers)
    .where(_r.id == bindparam("router"), _r.reached_offset < bindparam("offset"))
    .values(reached_offset=bindparam("offset"))
)


def note_reached(c: Connection, offsets: Mapping[str, int]) -> None:
    """The log of each of these routers has a record at this offset."""
    if offsets:
        c.execute(_NOTE, [{"router": id_, "offset": offset} for id_, offset in sorted(offsets.items())])


def reached_offsets(c: Connection, router_ids: Sequence[str]) -> dict[str, int]:
    """By router, 0 for one that nothing is known of."""
    found = dict(by_ids(c, select(_r.id, _r.reached_offset).where(_r.id.in_(IDS)), router_ids))
    links, r = t.links.c, t.records.c
    query = (
        select(links.router_id, links.since_offset, r.cut)
        .join_from(t.links, t.records, r.breaker_id == links.breaker_id, isouter=True)
        .where(links.router_id.in_(IDS))
    )
    for router_id, since, cut in by_ids(c, query, router_ids):
        found[router_id] = max(found.get(router_id, 0), since or 0, (cut or {}).get(router_id, 0))
    return found
