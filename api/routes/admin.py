"""For whoever operates the service: how it is doing, and evening out. Keys of tenants don't open this."""

from __future__ import annotations

from quart import Blueprint, Response

from api.context.current import require_operator
from api.context.fields import sent_fields
from api.context.replica import replica
from api.wire import responses_admin as bodies
from api.wire.http import json_response
from api.wire.requests import shape
from api.wire.requests_accounts import Rebalance

blueprint = Blueprint("admin", __name__, url_prefix="/v1/admin")


@blueprint.get("/status")
async def cluster_status() -> Response:
    await require_operator()
    return json_response(bodies.cluster_status(await replica().gateway.status()))


@blueprint.post("/rebalance")
async def rebalance() -> Response:
    await require_operator()
    asked = shape(await sent_fields(Rebalance), Rebalance)
    return json_response(bodies.rebalanced(await replica().gateway.rebalance(asked.max)))
