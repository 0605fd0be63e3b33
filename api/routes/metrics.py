"""States of breakers, and what the service counts, for Prometheus.

For who has the token, which is nobody's API key: it shows all organisations.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial

from quart import Blueprint, Response, g, request

from api.auth import check_metrics_token
from api.context.replica import Replica, replica
from api.wire.exposition import CONTENT_TYPE, Scrape, exposition
from api.wire.http import text_bytes
from breaker_actors.errors import BreakersError
from breaker_actors.messages import StateReading
from breaker_actors.store.rows import ScrapedBreaker

BREAKERS_S = 5.0
"""For the states of breakers; those that were not read in time are only counted."""

blueprint = Blueprint("metrics", __name__)


@blueprint.before_request
async def check_token() -> None:
    settings = replica().settings
    check_metrics_token(settings.metrics_token, settings.metrics_open, request.headers.get("Authorization"))
    if not settings.metrics_open:
        g.callers = ()  # whoever has the token counts for nobody


@blueprint.get("/metrics")
async def metrics() -> Response:
    """One look for all who ask within a second."""
    parts = replica()
    return text_bytes(await parts.scrapes.get("", partial(_look, parts)), CONTENT_TYPE)


async def _look(parts: Replica) -> bytes:
    """Both halves at once: what is away takes nothing from the other half."""
    (found, total), (processes, silent) = await asyncio.gather(_read_breakers(parts), parts.gateway.counted())
    return await asyncio.to_thread(exposition, Scrape(found, total, processes, silent))


async def _read_breakers(parts: Replica) -> tuple[list[tuple[ScrapedBreaker, StateReading]], int | None]:
    """Breakers with their states, as far as they are read within BREAKERS_S, and how many there are; None: the store
    does not say."""
    shown: Sequence[ScrapedBreaker] = ()
    total: int | None = None
    readings: dict[str, StateReading] = {}
    with contextlib.suppress(BreakersError, TimeoutError):
        async with asyncio.timeout(BREAKERS_S):
            shown, total = await parts.config.scraped_breakers(parts.settings.metrics_breakers_max)
            by_project: dict[str, list[str]] = {}
            for breaker in shown:
                by_project.setdefault(breaker.project_id, []).append(breaker.id)
            for project_id, ids in by_project.items():
                readings.update(await parts.gateway.states(project_id, ids))
    return [(breaker, readings[breaker.id]) for breaker in shown if breaker.id in readings], total
