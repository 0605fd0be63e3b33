"""The audit log: who changed what, and how it was before. Written in the transaction of the change, secrets masked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, insert, select

from breaker_actors.stores import tables as t
from breaker_actors.stores.masking import mask
from breaker_actors.stores.part import StorePart
from breaker_actors.stores.rows import AuditRow, BreakerRow

_OPEN = ("trace_id_url_template", "metadata")
_COLUMNS = [t.audit.c[f] for f in AuditRow.__struct_fields__]


class Place(NamedTuple):
    """Where a change happened (an organisation or a project), who made it, and when."""

    by: str
    now_ms: int
    project_id: str | None = None
    org_id: str | None = None


class Note(NamedTuple):
    """One change of one thing; `before` None: it was made, `after` None: it went."""

    action: str
    target_id: str
    before: Any = None
    after: Any = None


class Audits(StorePart):
    async def audit(self, project_id: str, limit: int, before: int | None = None) -> list[AuditRow]:
        query = select(*_COLUMNS).where(t.audit.c.project_id == project_id)
        if before is not None:
            query = query.where(t.audit.c.number < before)
        query = query.order_by(t.audit.c.number.desc()).limit(limit)
        return [AuditRow(**row._mapping) for row in await self._db.read(lambda c: c.execute(query).all())]


def write_down(c: Connection, place: Place, notes: Iterable[Note]) -> None:
    """Puts changes into the log."""
    head: dict[str, Any] = {"org_id": place.org_id, "project_id": place.project_id}
    head |= {"at_ms": place.now_ms, "who": place.by}
    rows = [
        head
        | {
            "action": note.action,
            "target_id": note.target_id,
            "before": _shown(note.before),
            "after": _shown(note.after),
        }
        for note in notes
    ]
    if rows:
        c.execute(insert(t.audit), rows)


def _shown(value: Any) -> dict[str, Any] | None:
    """A row as the log shows it: without what never changes or is nobody's business, secrets masked."""
    if value is None or isinstance(value, Mapping):
        return None if value is None else dict(mask(value))
    fields = msgspec.to_builtins(value)
    for name in ("id", "project_id", "org_id", "shard", "version", "previous_secret"):
        fields.pop(name, None)
    if isinstance(value, BreakerRow):
        fields["actions"] = mask(fields["actions"])
        return dict(fields)
    return dict(mask(fields)) | {name: fields[name] for name in _OPEN if name in fields}
