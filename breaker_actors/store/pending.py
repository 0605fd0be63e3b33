"""How many changes an organisation may have on their way into the routers' logs: rows that nobody has taken yet."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, ScalarSelect, Select, func, select

from breaker_actors.errors import Overloaded
from breaker_actors.store import tables as t

PENDING_MAX, PENDING_BYTES_MAX = 40_000, 256 << 20
"""Beyond it an organisation changes nothing more; steps of large changes wait from half of it on."""
LOOKED_FROM = 50
"""Where all organisations together can have no more than so many, nobody counts."""

_CHANGES = t.changes.c
_FIRST, _LAST = (select(edge(_CHANGES.id)).scalar_subquery() for edge in (func.min, func.max))
_SPAN = select(_LAST - _FIRST)


def refuse_more(c: Connection, project_id: str) -> None:
    """Raises Overloaded where the project's organisation has as many on their way as it may."""
    if not _are_few(c) and _share(c, org_of(project_id).scalar_subquery()) >= 1:
        message = "Too many changes of this organisation are on their way into the routers' logs: try again later."
        raise Overloaded(message, {"limit": f"{PENDING_MAX} changes, {PENDING_BYTES_MAX} bytes", "retry_after_s": 5})


def is_half_full(c: Connection, org_id: str) -> bool:
    """Whether large changes of an organisation have to wait."""
    return not _are_few(c) and _share(c, org_id) >= 0.5


def _are_few(c: Connection) -> bool:
    return (c.execute(_SPAN).scalar() or 0) < LOOKED_FROM


def _share(c: Connection, org_id: str | ScalarSelect[str]) -> float:
    count, size = c.execute(select(func.count(), func.sum(func.length(_CHANGES.entries))).where(_of(org_id))).one()
    return max(float(count) / PENDING_MAX, float(size or 0) / PENDING_BYTES_MAX)


def _of(org_id: str | ScalarSelect[str]) -> ColumnElement[bool]:
    mine = select(t.projects.c.id).join(t.workspaces, t.workspaces.c.id == t.projects.c.workspace_id)
    return _CHANGES.project_id.in_(mine.where(t.workspaces.c.org_id == org_id))


def org_of(project_id: str) -> Select[Any]:
    """The organisation of a project, of a deleted one too."""
    query = select(t.workspaces.c.org_id).join(t.projects, t.projects.c.workspace_id == t.workspaces.c.id)
    return query.where(t.projects.c.id == project_id)
