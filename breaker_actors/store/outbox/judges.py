"""Who is judged with what effort in a transaction that is everybody's: the commit of alerts, of as many projects and
organisations as came together in it.

There is one effort for all of it. Organisations share it, and within one its projects; what takes little comes first,
and what it leaves goes to the others: many projects, or mutes that are slow to match, cost their own organisation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, func, select

from breaker_actors.store import tables as t
from breaker_actors.store.mutes.matching import Effort
from breaker_actors.store.outbox.judging import EFFORT_MAX, LOADED, Judge
from breaker_actors.store.outbox.muting import LIVE, Births, Routers, Superseded, live_mutes
from breaker_actors.store.quotas import UNMUTED
from breaker_actors.store.section import IDS, bump, by_ids

PART_MIN = 500_000
"""Nobody's part of the effort is smaller as long as there is so much: where thousands share it, it serves a few of them
rather than none."""


def _counts_statement() -> Select[Any]:
    p, w, m = t.projects.c, t.workspaces.c, t.mutes.c
    live = select(func.count()).select_from(t.mutes).where(LIVE, m.project_id == p.id).scalar_subquery()
    query = select(p.id, w.org_id, live.label("mutes")).join(t.workspaces, w.id == p.workspace_id)
    return query.where(p.id.in_(IDS)).order_by(p.id)


_COUNTS = _counts_statement()


def hold_back(c: Connection, rows: Sequence[dict[str, Any]]) -> list[Superseded]:
    """Judges new rows before they are stored, those of a project in order. Answers what of the store ends with them.
    Beyond EFFORT_MAX trips are held for the Notifier to decide; what can't be held goes out, counted."""
    if not rows:
        return []
    births = Births(c, rows)
    for mine, judge in _judges(c, rows):
        births.judge(mine, judge)
    births.own_up()
    if births.unmuted:
        bump(c, UNMUTED, births.unmuted)
    return births.ended


def _judges(c: Connection, rows: Sequence[dict[str, Any]]) -> Iterator[tuple[list[dict[str, Any]], Judge | None]]:
    """The rows of each project, and who judges them; None where there was no effort left to load its mutes."""
    by_project: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_project.setdefault(row["project_id"], []).append(row)
    counts: dict[str, dict[str, int]] = {}
    for id_, org_id, count in by_ids(c, _COUNTS, sorted(by_project)):
        counts.setdefault(org_id, {})[id_] = count
    effort = Effort(EFFORT_MAX)
    loaded = _loadable(effort, counts)
    mutes, routers = live_mutes(c, loaded), Routers(c)
    wants = {
        org_id: {id_: n * len(by_project[id_]) for id_, n in mine.items() if id_ in loaded}
        for org_id, mine in counts.items()
    }
    for org_id, part in divided(effort, {org_id: sum(mine.values()) for org_id, mine in wants.items()}, PART_MIN):
        for id_, its in divided(part, wants[org_id], PART_MIN):
            yield by_project.pop(id_), Judge(mutes.get(id_, ()), routers.of, its)
    for mine in by_project.values():
        yield mine, None


def _loadable(effort: Effort, counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The projects whose mutes are loaded, for half of the effort at most: it is spent."""
    half = Effort(effort.left // 2)
    effort.left -= half.left
    found: list[str] = []
    for org_id, part in divided(half, {org_id: sum(mine.values()) for org_id, mine in counts.items()}):
        for id_, count in sorted(counts[org_id].items(), key=lambda one: one[1]):
            if LOADED * count <= part.left:
                part.left -= LOADED * count
                found.append(id_)
    effort.left += half.left
    return sorted(found)


def divided(effort: Effort, wants: Mapping[str, int], least: int = 0) -> Iterator[tuple[str, Effort]]:
    """Gives each its part of an effort, who wants least first; what one leaves is divided among those who follow.
    `least`: no part is smaller where there is so much."""
    for number, key in enumerate(sorted(wants, key=lambda key: (wants[key], key))):
        given = min(effort.left, max(least, effort.left // (len(wants) - number)))
        part = Effort(given)
        yield key, part
        effort.left -= given - max(0, part.left)
