"""What the projects of an organisation keep together: their sums added up, when somebody asks.

What is asked about one project knows what the transaction adds to it itself: whoever asks so changes no other project.
All else is what is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import BigInteger, Connection, bindparam, cast, func, select

from breaker_actors.store import tables as t
from breaker_actors.store.section import raised

_S, _P, _W = t.stored.c, t.projects.c, t.workspaces.c
_OWNED = t.stored.join(t.projects, _P.id == _S.of_id).join(t.workspaces, _W.id == _P.workspace_id)
_SUM = cast(func.coalesce(func.sum(_S.used), 0), BigInteger)
_SAME = _P.workspace_id.in_(
    select(_W.id).where(
        _W.org_id
        == select(_W.org_id)
        .join(t.projects, _P.workspace_id == _W.id)
        .where(_P.id == bindparam("of"))
        .correlate(None)
        .scalar_subquery()
    )
)
_OF_ONE = select(_SUM).where(_S.of_id.in_(select(_P.id).where(_SAME)), _S.what == bindparam("which"))
"""By the projects of an organisation, not by all that have such a sum."""
_OWN = select(_S.used).where(_S.of_id == bindparam("of"), _S.what == bindparam("which"))
_BOTH = select(func.coalesce(_OWN.scalar_subquery(), 0), _OF_ONE.scalar_subquery())
_OF_ALL = select(_S.what, _SUM).where(_S.what.in_(bindparam("which", expanding=True))).group_by(_S.what)
_BEYOND = (
    select(_W.org_id, _SUM)
    .select_from(_OWNED)
    .where(_S.what == bindparam("which"))
    .group_by(_W.org_id)
    .having(_SUM > bindparam("most"))
    .order_by(_SUM.desc())
)
_LARGEST = (
    select(_S.of_id, _S.used)
    .where(
        _S.of_id.in_(select(_P.id).join(t.workspaces, _W.id == _P.workspace_id).where(_W.org_id == bindparam("org")))
    )
    .where(_S.what == bindparam("which"), _S.used > 0)
    .order_by(_S.used.desc())
)


def sum_of_owner(c: Connection, project_id: str, what: str) -> int:
    """What the projects of a project's organisation keep."""
    stored = int(c.execute(_OF_ONE, {"of": project_id, "which": what}).scalar_one())
    return stored + raised(c, _S.used, project_id, what)


def own_and_owners(c: Connection, project_id: str, what: str) -> tuple[int, int]:
    """What a project keeps, and the same of all of its organisation, in one statement."""
    own, together = c.execute(_BOTH, {"of": project_id, "which": what}).one()
    more = raised(c, _S.used, project_id, what)
    return max(0, own + more), int(together) + more


def organisations_beyond(c: Connection, most: Mapping[str, int], limit: int) -> Iterator[tuple[str, str, int]]:
    """The organisations whose projects keep more than `most` of something: what, whose, and how much, the largest first
    of each. Of what all together keep no more of nothing else is looked at."""
    together = {what: int(used) for what, used in c.execute(_OF_ALL, {"which": list(most)})}
    for what, bound in most.items():
        if together.get(what, 0) > bound:
            for org_id, used in c.execute(_BEYOND.limit(limit), {"which": what, "most": bound}):
                yield what, org_id, int(used)


def largest_projects(c: Connection, org_id: str, what: str, limit: int) -> Sequence[tuple[str, int]]:
    """The projects of an organisation that keep most."""
    return [(of_id, used) for of_id, used in c.execute(_LARGEST.limit(limit), {"org": org_id, "which": what})]
