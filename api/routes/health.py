"""Probes of the infrastructure. Open unless a token is configured, and never behind an API key."""

from __future__ import annotations

from quart import Blueprint, Response, request

from api.auth import check_health_token
from api.context import replica
from api.reply import json_response

blueprint = Blueprint("health", __name__, url_prefix="/api")


@blueprint.before_request
async def check_token() -> None:
    check_health_token(replica().settings.health_token, request.headers.get("Authorization"))


@blueprint.get("/health")
@blueprint.get("/healthz")
async def live() -> Response:
    return json_response({"status": "ok"})


@blueprint.get("/readyz")
async def ready() -> Response:
    await replica().gateway.ready()
    return json_response({"status": "ready"})
