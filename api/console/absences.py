"""When the service was away from a project: its routers could take no samples. Read from their logs in the desk's
thread, one look for all who ask, told anew after a while."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from quart import current_app

from api.console.lanes import SPANS
from api.console.recorded import desk
from api.context.replica import replica
from api.lookup.remembered import Remembered
from breaker_actors.errors import BreakersError
from breaker_actors.store.rows import ProjectRow

if TYPE_CHECKING:
    from pipelines.away import Away

KEEP_S, KEPT_MAX = 20.0, 50
"""How old it may be what is told, and of how many pictures it is kept."""
ALL_MAX = 50
"""Of one picture, the newest."""
PATIENCE_S = 0.7
"""So long a page waits for it. What is found later is told the next time the page asks."""
READ_S = 2.0
"""So long the logs are read, the newest records first."""
EXTENSION = "breakers.console.absences"


class Absence(NamedTuple):
    """A stretch in which no samples could be taken, in ms."""

    from_ms: int
    to_ms: int


class Absences(NamedTuple):
    """`all`: oldest first, ALL_MAX at most; they are known since `known_ms`."""

    all: list[Absence]
    known_ms: int


async def absences_of(project: ProjectRow, span: str) -> Absences | None:
    """Those within the last `span` of SPANS; None where it is not known here (yet)."""
    kept: Remembered[Away] | None = current_app.extensions.get(EXTENSION)
    if kept is None:
        kept = current_app.extensions[EXTENSION] = Remembered(KEEP_S, replica().clock.monotonic, KEPT_MAX)
    looked = kept.get(f"{project.id} {span}", partial(_look, project.id, SPANS[span]))
    try:
        found = await asyncio.wait_for(looked, PATIENCE_S)
    except (BreakersError, TimeoutError):
        return None
    return Absences([Absence(*stretch) for stretch in found.stretches[-ALL_MAX:]], found.known_ms)


async def _look(project_id: str, length_ms: int) -> Away:
    parts = replica()
    settings, monotonic, now_ms = parts.settings, parts.clock.monotonic, parts.clock.now_ms()

    def read() -> Away:
        from pipelines.away import away

        begun = monotonic()
        return away(project_id, settings, now_ms - length_ms, now_ms, lambda: monotonic() - begun > READ_S)

    return await desk().aside(read, with_log=True)
