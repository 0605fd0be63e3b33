"""States of breakers, and what the service counts, for Prometheus.

For who has the token, which is nobody's API key: it shows all organisations.
"""

from __future__ import annotations

import asyncio
from functools import partial

from quart import Blueprint, Response, request

from api.auth import check_metrics_token
from api.context.replica import Replica, replica
from api.wire.exposition import CONTENT_TYPE, Scrape, exposition
from api.wire.http import text_bytes
from breaker_actors.messages import Counted

blueprint = Blueprint("metrics", __name__)


@blueprint.before_request
async def check_token() -> None:
    settings = replica().settings
    check_metrics_token(settings.metrics_token, settings.metrics_open, request.headers.get("Authorization"))


@blueprint.get("/metrics")
async def metrics() -> Response:
    """One look for all who ask within a second."""
    parts = replica()
    return text_bytes(await parts.scrapes.get("", partial(_look, parts)), CONTENT_TYPE)


async def _look(parts: Replica) -> bytes:
    counted = asyncio.create_task(parts.gateway.counted())
    try:
        return await _tell(parts, counted)
    finally:
        counted.cancel()


async def _tell(parts: Replica, counted: asyncio.Task[tuple[list[Counted], int]]) -> bytes:
    shown, total = await parts.config.scraped_breakers(parts.settings.metrics_breakers_max)
    by_project: dict[str, list[str]] = {}
    for breaker in shown:
        by_project.setdefault(breaker.project_id, []).append(breaker.id)
    readings = {}
    for project_id, ids in by_project.items():
        readings.update(await parts.gateway.states(project_id, ids))
    found = [(breaker, readings[breaker.id]) for breaker in shown if breaker.id in readings]
    return await asyncio.to_thread(exposition, Scrape(found, total, *await counted))
