"""For whoever operates the service: how it is doing, and evening out. Keys of tenants don't open this."""

from __future__ import annotations

from quart import Blueprint, Response

from api import bodies_admin as bodies
from api.context import operator, raw_body, replica
from api.reply import json_response
from api.wire import decode_object, shape
from api.wire_accounts import Rebalance

blueprint = Blueprint("admin", __name__, url_prefix="/v1/admin")


@blueprint.get("/status")
async def cluster_status() -> Response:
    await operator()
    return json_response(bodies.cluster_status(await replica().gateway.status()))


@blueprint.post("/rebalance")
async def rebalance() -> Response:
    await operator()
    asked = shape(decode_object(await raw_body()), Rebalance)
    return json_response(bodies.rebalanced(await replica().gateway.rebalance(asked.max)))
