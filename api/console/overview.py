"""The first screen: all breakers of a project, those that are not closed first; a page of them at a time."""

from __future__ import annotations

import secrets
from itertools import islice
from typing import Any, NamedTuple, cast

from quart import Response, redirect, request

from api.admission.intake import Turn
from api.auth import uuid_or_none
from api.console.blueprint import blueprint
from api.console.breaker_facts import muted_among
from api.console.looks import is_part, page
from api.console.outages import Outage, outage_of
from api.console.paging import address_of_page, asked_page, pages_of
from api.console.project import may_act, open_project, projects_of
from api.console.unreached import unreached_of
from api.context.current import callers
from api.context.replica import replica
from api.lookup.project_index import SPECIAL, ProjectIndex, Search, Shown
from breaker_actors.core.model import View
from breaker_actors.messages import StateReading

ROWS = 50
CHOICES = 100
"""Metrics and routers to choose from; others are found by their names."""
STATES = ("open", "half_open", "closed")


class Line(NamedTuple):
    """A breaker on the screen. `reading` None: it was made, or went, a moment ago."""

    row: Shown
    reading: StateReading | None
    outage: Outage | None

    @property
    def view(self) -> View | None:
        return None if self.reading is None else self.reading.view


@blueprint.get("")
async def home() -> Response:
    """Leads to the project, where there is one only."""
    found = await projects_of()
    if len(found) == 1:
        return cast(Response, redirect(f"/console/p/{found[0]['project_id']}", 303))
    return await page("projects.html", projects=found, project=None)


@blueprint.get("/p/<project_id>")
async def overview(project_id: str) -> Response:
    project, parts = await open_project(project_id), replica()
    search, number, now_ms = asked_search(), asked_page(), parts.clock.now_ms()
    index = await parts.indexes.get(project.id)
    async with Turn(parts.intake.turns, callers()) as turn:
        found = await index.find(search, (number - 1) * ROWS, ROWS, now_ms, turn.next)
    readings = await parts.states.read(project.id, [row.id for row in found.rows]) if found.rows else {}
    return await page(
        "overview.html",
        project=project,
        search=search,
        number=number,
        pages=pages_of(found.total, ROWS),
        found=found,
        lines=[await _line(project.id, row, readings.get(row.id)) for row in found.rows],
        **_choices(index, search),
        states=STATES,
        special=_special(),
        page_address=address_of_page,
        unreached=await unreached_of(project.id),
        muted=await muted_among(project.id, found.rows) if may_act() else {},
        once=secrets.token_hex(16),
    )


def _choices(index: ProjectIndex, search: Search) -> dict[str, Any]:
    """Metrics and routers that the search offers, with the one that is looked for, and how many more there are; none
    where the page's script asks for the live part."""
    if is_part() or not may_act():
        return {"metrics": [], "routers": {}, "more_metrics": 0, "more_routers": 0}
    metrics, routers = index.metrics[:CHOICES], dict(islice(index.routers.items(), CHOICES))
    if search.metric and search.metric not in metrics:
        metrics.append(search.metric)
    if search.router_id in index.routers:
        routers[search.router_id] = index.routers[search.router_id]
    return {
        "metrics": metrics,
        "routers": routers,
        "more_metrics": max(0, len(index.metrics) - CHOICES),
        "more_routers": max(0, len(index.routers) - CHOICES),
    }


async def _line(project_id: str, row: Shown, reading: StateReading | None) -> Line:
    if reading is None:
        return Line(row, None, await outage_of(project_id, row.id, row.state, row.since_ms))
    return Line(row, reading, await outage_of(project_id, row.id, reading.view.state, reading.view.state_since_ms))


def asked_search() -> Search:
    """What the address looks for; what is none of its words asks for nothing, nor does what its reader may not see."""
    asked, whole = request.args, may_act()
    return Search(
        text=asked.get("q", "")[:200],
        state=_one_of(asked.get("state", ""), STATES),
        metric=asked.get("metric", "")[:128] if whole else "",
        router_id=uuid_or_none(asked.get("router", "")) or "" if whole else "",
        special=_one_of(asked.get("special", ""), _special()),
        whole=whole,
    )


def _special() -> tuple[str, ...]:
    """What tells of configuration is for those who may see that."""
    return tuple(word for word in SPECIAL if word != "shadow" or may_act())


def _one_of(text: str, words: tuple[str, ...]) -> str:
    return text if text in words else ""
