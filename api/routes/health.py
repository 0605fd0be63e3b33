"""Probes of the infrastructure. Open unless a token is configured, and never behind an API key."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from quart import Blueprint, Response, request

from api.auth import check_health_token
from api.context.replica import replica
from api.wire.http import json_response
from api.wire.responses import Health, Ready
from breaker_actors.errors import BreakersError
from breaker_actors.gateway.gateway import Gateway

blueprint = Blueprint("health", __name__, url_prefix="/api")


@blueprint.before_request
async def check_token() -> None:
    check_health_token(replica().settings.health_token, request.headers.get("Authorization"))


@blueprint.get("/health")
@blueprint.get("/healthz")
async def live() -> Response:
    return json_response(Health(status="ok"))


@blueprint.get("/readyz")
async def ready() -> Response:
    """One look for all who ask within half a second. 200 also while something could not be read, or logs
    are ahead of the clock: all others are served, and the words say so."""
    return json_response(await replica().readiness.get("", partial(_look, replica().gateway)))


async def _look(gateway: Gateway) -> Ready:
    await gateway.ready()
    body, words = Ready(status="ready"), [await gateway.notice()]
    with suppress(BreakersError):
        if aside := sum(await gateway.store.count_aside()):
            body.set_aside = aside
            words.append(f"{aside} stored things could not be read and were set aside: `breakers aside list`")
    if message := "; ".join(filter(None, words)):
        body.message = message
    return body
