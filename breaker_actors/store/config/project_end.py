"""The end of a deleted project, in steps: its breakers and routers end through the routers' logs.

For callers it is gone before the first step. What a process that dies leaves of it `finish_deletions` takes up. The
names of its breakers that went away go with their day.
"""

from __future__ import annotations

from functools import partial

from sqlalchemy import ColumnElement, Connection, exists, or_, select

from breaker_actors.store import tables as t
from breaker_actors.store.config.audit_log import Place
from breaker_actors.store.config.change_rows import end_routers
from breaker_actors.store.config.change_set import Plan, carry_out, load_breakers
from breaker_actors.store.operational.leases import remove_deleted_projects
from breaker_actors.store.quotas import forget, hand_over, weight_of
from breaker_actors.store.steps import STEP, Steps, Who, first_few

UNFINISHED_MS = 60_000
"""After so much time a deletion that is not finished is nobody's."""
FINISHED_AT_ONCE = 10


def has_more() -> ColumnElement[bool]:
    """A project, of a query of `projects`, with breakers or routers that have not ended yet."""
    routers = exists().where(t.routers.c.project_id == t.projects.c.id, t.routers.c.deleted_ms.is_(None))
    return or_(exists().where(t.breakers.c.project_id == t.projects.c.id), routers)


async def end_rest(steps: Steps, who: Who, place: Place) -> list[int]:
    """The ids of the change rows."""
    change_ids, left = list[int](), True
    while left:
        more, left = await steps.write(who, partial(end_some, place=place))
        change_ids += more
    return change_ids


def end_some(c: Connection, place: Place) -> tuple[list[int], bool]:
    """The ids of the change rows of one step, and whether it takes more."""
    project_id, org_id = place.project_id or "", place.org_id or ""
    b = t.breakers.c
    first = select(b.id, weight_of(t.breakers)).where(b.project_id == project_id).order_by(b.created_ms, b.number)
    found = c.execute(first.limit(STEP + 1)).all()
    some = found[: first_few(size for _, size in found)]
    change_ids = carry_out(c, place, Plan(removed=load_breakers(c, project_id, [id_ for id_, _ in some])))
    if len(some) < len(found):
        return change_ids, True
    change_ids += end_routers(c, project_id, place.now_ms, STEP)
    if c.execute(select(t.projects.c.id).where(t.projects.c.id == project_id, has_more())).first() is not None:
        return change_ids, True
    forget(c, project_id)
    hand_over(c, project_id, org_id)
    remove_deleted_projects(c, [project_id])
    return change_ids, False
