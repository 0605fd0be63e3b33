"""Stop 2 of a sample's life: samples in, 202 once they are in the log of their routers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
from quart import Blueprint, Response, request

from api.admission import inflate
from api.context.current import (
    arrival,
    callers,
    open_project,
    raw_body,
    remark,
    sender_project,
    sender_token,
)
from api.context.fields import strict
from api.context.replica import replica
from api.routes import ingest_steps as steps
from api.routes.ingest_columns import Taken, is_stream, take_columns
from api.routes.ingest_steps import HEAVY_BYTES
from api.wire import samples
from api.wire.http import json_response
from api.wire.remarks import sample_remarks
from api.wire.responses import Accepted
from breaker_actors.errors import BreakersError, Invalid
from breaker_actors.store.rows import ProjectRow

blueprint = Blueprint("ingest", __name__, url_prefix="/v1/projects/<project_id>")


@blueprint.post("/ingest")
async def ingest(project_id: str) -> Response:
    parts, by_token = replica(), bool(sender_token())
    try:
        project = await (sender_project(project_id) if by_token else open_project(project_id))
        take = take_columns if is_stream() else _take
        result = await take(project, project.enable_signed_ingest and not by_token)
    except BreakersError as error:
        if known := parts.caches.remembered_project(project_id):
            parts.ingested.turned_away(known.org_id, known.id, error.code, error.message)
        raise
    return json_response(answer(result), 202)


async def _take(project: ProjectRow, asks_signature: bool) -> samples.Validated:
    """The current request's samples, the good ones in their logs."""
    parts, signature = replica(), steps.request_signature() if asks_signature else None
    raw = await raw_body(parts.settings.max_inflated_bytes)
    if asks_signature:
        await steps.prove(project, raw)
    request_samples, body = await _decode(raw)
    is_strict = strict()
    if not is_strict:
        remark(sample_remarks(body))
    router_ids = request_samples.router_ids()
    routers = await parts.caches.routers(project.id, router_ids)
    result = await _validate(request_samples, routers, is_strict)
    last = {error.code: error.index for error in result.errors}  # of the named ones, for each reason
    steps.note_refused(project, result.reasons, {code: request_samples.told(n) for code, n in last.items()})
    if good := result.good:
        splitting = {router_id for router_id in router_ids if routers.get(router_id)}
        keys = steps.key_maker(signature)(raw, body)
        sent = samples.to_parts(good, keys, splitting, bool(project.trace_id_url_template))
        pairs = zip(good.router_id, good.metric, strict=True)
        await steps.store(project, [sent], pairs, len(good), steps.is_named(signature))
    return result


async def _decode(raw: bytes) -> tuple[samples.Request, bytes]:
    """The samples of a body, and its plain bytes. A body of more than HEAVY_BYTES waits for its caller's turn, and
    others are served between its steps; smaller ones wait only while many that are slow to read come together."""
    parts = replica()
    body = inflate.Inflation(raw, request.headers.get("Content-Encoding"), parts.settings.max_inflated_bytes)
    try:
        body.step(HEAVY_BYTES)
        if body.done and len(body.plain) <= HEAVY_BYTES:
            plain = bytes(body.plain)
            async with parts.intake.small.turn(callers()):
                return samples.Request(plain), plain
        async with parts.intake.turns.turn(callers()):
            while not body.done:
                await asyncio.sleep(0)
                body.step()
            plain = bytes(body.plain)
            return samples.Request(plain), plain
    finally:
        arrival().work += len(body.plain)


async def _validate(
    request_samples: samples.Request, routers: Mapping[str, bool], is_strict: bool
) -> samples.Validated:
    """The good and the bad samples. Where more than a few have to be judged one by one, that waits for its caller's
    turn, and others are served between its steps."""
    judging = request_samples.validating(steps.judging_bounds(routers, is_strict))
    result = next(judging)
    if result is None:
        async with replica().intake.turns.turn(callers()):
            for result in judging:
                if result is None:
                    await asyncio.sleep(0)
    assert result is not None, "the last step has the result"
    return result


def answer(result: samples.Validated | Taken) -> Accepted:
    """What was taken and what was not; a request with nothing good in it is refused as a whole."""
    body = Accepted(accepted=result.accepted, rejected=result.rejected, errors=result.errors)
    if result.rejected and not result.accepted:
        raise Invalid("None of the samples can be taken.", msgspec.structs.asdict(body))
    return body
