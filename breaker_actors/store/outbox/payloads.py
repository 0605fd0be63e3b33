"""What alerts say, stored once for all channels that are told the same: rows of the outbox point to it.

Rows from before schema 0023 have their own, and keep it. A payload is written in the transaction of its rows, no other
row points to it later, and it goes with the last of them. Sync functions over a `Connection`; neighbours: `alerts.py`
and `held.py`, which write them, `outbox.py`, which removes rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Text, cast, delete, exists, func, insert, select

from breaker_actors.store import tables as t
from breaker_actors.store.quotas import add, octets
from breaker_actors.store.rows import AlertPayload
from breaker_actors.store.section import IDS, by_ids, chunks, new_id

UNIT = 1 << 10
"""Bytes. A payload counts as many deliveries of its project's share as it has whole units: a short one none."""

_O, _P = t.outbox.c, t.alert_payloads.c
# Cast: in RETURNING SQLite takes the column for one without a type, which no index of a text serves, and would read the
# whole table for each row.
_POINTED_TO = cast(_O.payload_id, Text)
_SHARED = select(_P.payload).where(_P.id == _POINTED_TO).correlate(t.outbox).scalar_subquery()
TOLD: ColumnElement[Any] = func.coalesce(_O.told, _SHARED).label("told")
"""What a row of the outbox tells, its own or what it points to."""
UNITS: ColumnElement[int] = octets(_P.payload) // UNIT
"""What a stored payload counts."""
_UNUSED = _P.id.in_(IDS) & ~exists().where(_O.payload_id == _P.id)
_COUNTS = select(_P.project_id, func.sum(UNITS)).where(_UNUSED).group_by(_P.project_id)
_ADD, _REMOVE = insert(t.alert_payloads), delete(t.alert_payloads).where(_UNUSED)


class Payload(NamedTuple):
    """A new one; `units`: what it counts."""

    id: str
    project_id: str
    told: AlertPayload
    units: int


def point_to_payloads(rows: Sequence[dict[str, Any]]) -> dict[str, Payload]:
    """New payloads by id, one for each text that rows of a project tell (`told`), none of them stored yet; each row
    gets the `payload_id` of its own."""
    texts: dict[int, bytes] = {}
    found: dict[tuple[str, bytes], Payload] = {}
    for row in rows:
        told: AlertPayload = row["told"]
        if (text := texts.get(id(told))) is None:
            text = texts[id(told)] = msgspec.json.encode(told)
        key = (row["project_id"], text)
        if key not in found:
            found[key] = Payload(new_id(), row["project_id"], told, len(text) // UNIT)
        row["payload_id"] = found[key].id
    return {payload.id: payload for payload in found.values()}


def store_payloads(c: Connection, payloads: Mapping[str, Payload], rows: Iterable[Mapping[str, Any]]) -> None:
    """Stores and counts those that rows point to. Call before the rows are stored."""
    wanted = [payloads[id_] for id_ in dict.fromkeys(row["payload_id"] for row in rows)]
    if not wanted:
        return
    c.execute(_ADD, [{"id": one.id, "project_id": one.project_id, "payload": one.told} for one in wanted])
    for one in wanted:
        add(c, one.project_id, "deliveries", one.units)


def drop_unused(c: Connection, payload_ids: Iterable[str | None]) -> None:
    """Removes those of these payloads that no row points to any more, and takes them from their projects' counts."""
    ids = sorted({id_ for id_ in payload_ids if id_ is not None})
    for project_id, count in by_ids(c, _COUNTS, ids):
        add(c, project_id, "deliveries", -int(count))
    for some in chunks(ids):
        c.execute(_REMOVE, {"ids": some})
