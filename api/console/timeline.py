"""All moves of a project's breakers, newest first, and a picture of the last hour, day or week."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from itertools import pairwise
from typing import Any, NamedTuple

from quart import Response

from api.console.absences import Absence, absences_of
from api.console.blueprint import blueprint
from api.console.breaker_facts import trace_of
from api.console.finding import KINDS, SOURCES, Found, asked_timeline, find, meant
from api.console.lanes import SPANS, shades
from api.console.looks import is_part, page
from api.console.project import managed_project
from api.console.strip import pictured
from api.console.unreached import unreached_of
from api.context.replica import replica
from breaker_actors.notify.channels.wording import REASONS
from breaker_actors.store.rows import DeliveryRow, EventRow, ProjectRow
from breaker_actors.text.escaping import for_line

NAMES_MAX = 100
"""Names that the search proposes."""


class Move(NamedTuple):
    """A row of the screen. `absences`: of the service, that began between it and the move above it."""

    event: EventRow
    reason: str
    threshold: float | None
    by: str
    comment: str
    trace: str | None
    absences: list[Absence]


@blueprint.get("/p/<project_id>/timeline")
async def timeline(project_id: str) -> Response:
    project = await managed_project(project_id)
    asked = asked_timeline()
    index = await replica().indexes.get(project.id)
    breaker_id, choices = await meant(index, asked.breaker)
    found, picture = Found([], None, 0), None
    if breaker_id is not None:
        found = await find(project, asked, breaker_id)
        picture = await pictured(project, breaker_id, asked.span, asked.source, index)
    absences = await absences_of(project, asked.span) if picture is not None and asked.source != "backfill" else None
    above = placed(absences.all if absences else (), [row.ts_ms for row in found.events], found.ends_ms)
    return await page(
        "timeline.html",
        project=project,
        asked=asked,
        moves=await _moves(project, found.events, above),
        below=above[-1],
        absences=absences,
        shades=shades(picture, absences.all) if picture and absences else [],
        found=found,
        picture=picture,
        choices=choices,
        unreached=await unreached_of(project.id),
        there=index.rows,
        names=[] if is_part() else nsmallest(NAMES_MAX, {row.name for row in index.rows.values()}),
        reasons=REASONS,
        kinds=KINDS,
        sources=SOURCES,
        spans=SPANS,
        newer=bool(asked.cursor),
    )


def placed(
    absences: Sequence[Absence], moves_ms: Sequence[int], ends_ms: tuple[int | None, int | None]
) -> list[list[Absence]]:
    """Absences, newest first, above the newest move that was before their begin; in the last place those below all
    moves. `moves_ms`: newest first; `ends_ms`: of the page, as Found has them. Pure."""
    ends = [ends_ms[0], *moves_ms, ends_ms[1]]
    return [
        [
            one
            for one in reversed(absences)
            if (newer is None or one.from_ms < newer) and (older is None or one.from_ms >= older)
        ]
        for newer, older in pairwise(ends)
    ]


async def _moves(project: ProjectRow, events: Sequence[EventRow], above: Sequence[list[Absence]]) -> list[Move]:
    told: dict[int, list[DeliveryRow]] = {}
    live = [row.sequence for row in events if row.source == "live"]
    if project.trace_id_url_template and live:
        told = await replica().outbox.deliveries_of(project.id, project.shard, live)
    return [
        Move(
            event=row,
            reason=for_line(REASONS.get(row.reason, row.reason), 100),
            threshold=_number(row.rule.get("threshold")),
            by=for_line(row.by or "", 200),
            comment=for_line(row.comment or "", 500),
            trace=trace_of(told.get(row.sequence, ())) if row.source == "live" else None,
            absences=absences,
        )
        for row, absences in zip(events, above, strict=False)
    ]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
