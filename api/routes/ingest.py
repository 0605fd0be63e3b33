"""Stop 2 of a sample's life: samples in, 202 once they are in the log of their routers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from quart import Blueprint, Response, request

from api import samples
from api.auth import check_signature, milliseconds
from api.context import open_project, raw_body, replica
from api.observing import note_outcome
from api.reply import json_response
from breaker_actors.errors import Invalid, Overloaded, Unavailable
from breaker_actors.messages import Outcome
from breaker_actors.meters import Meters
from breaker_actors.stores.base import ProjectRow

blueprint = Blueprint("ingest", __name__, url_prefix="/v1/projects/<project_id>")


@blueprint.post("/ingest")
async def ingest(project_id: str) -> Response:
    project, parts = await open_project(project_id), replica()
    raw = await raw_body()
    keys = _keys(project, raw)
    body = samples.inflate(raw, request.headers.get("Content-Encoding"), parts.settings.max_inflated_bytes)
    asked = samples.Request(body)
    wanted = asked.router_ids()
    routers = await parts.caches.routers(project.id, wanted)
    result = _sort(asked, routers)
    for reason, n in result.reasons.items():
        parts.meters.count("breakers_samples_rejected_total", n, reason=reason)
    if result.good:
        splitting = {router_id for router_id in wanted if routers.get(router_id)}
        with_traces = bool(project.trace_id_url_template)
        outcomes = await parts.gateway.ingest(samples.to_parts(result.good, keys, splitting, with_traces))
        count_samples(parts.meters, outcomes, len(result.good))
        check_outcomes(outcomes)
    return json_response(answer(result), 202)


def _keys(project: ProjectRow, raw: bytes) -> tuple[bytes, ...]:
    """Proves the signature where the project asks for one, and says by what the request is recognised when repeated."""
    parts, headers = replica(), request.headers
    timestamp, signature = headers.get("X-EB-Timestamp"), headers.get("X-EB-Signature")
    if project.enable_signed_ingest:
        skew_ms = parts.settings.signature_skew_ms
        now_ms = parts.clock.now_ms()
        check_signature(project.secrets(now_ms), timestamp, signature, raw, now_ms, skew_ms)
    else:
        signature = None
    duplicate = samples.duplicate_key(signature, headers.get("Idempotency-Key"), timestamp, raw)
    append_id = uuid.uuid4().bytes
    return (append_id,) if duplicate is None else (append_id, duplicate)


def _sort(asked: samples.Request, routers: Mapping[str, bool]) -> samples.Sorted:
    parts = replica()
    sent_ms = milliseconds(request.headers.get("X-EB-Timestamp"))
    age_ms, ahead_ms = parts.settings.max_sample_age_ms, parts.settings.max_sample_ahead_ms
    return asked.sort(samples.Bounds.at(parts.clock.now_ms(), age_ms, ahead_ms, routers, sent_ms))


def answer(result: samples.Sorted) -> dict[str, object]:
    """What was taken and what was not; a request with nothing good in it is refused as a whole."""
    body: dict[str, object] = {"accepted": len(result.good)}
    if result.rejected:
        body |= {"rejected": result.rejected, "errors": result.errors}
    if result.rejected and not result.good:
        raise Invalid("None of the samples can be taken.", body)
    return body


def count_samples(meters: Meters, outcomes: Sequence[Outcome], n: int) -> None:
    """A request's good samples count as taken together, as it is answered."""
    words = {outcome.word for outcome in outcomes}
    if words <= {"ok", "duplicate"}:
        meters.count("breakers_samples_accepted_total", n)
        note_outcome("duplicate" if "duplicate" in words else "accepted")
        return
    reason = "full" if words <= {"ok", "duplicate", "full"} else "unavailable"
    meters.count("breakers_samples_rejected_total", n, reason=reason)
    note_outcome(reason)


def check_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Raises unless every part is in its log; what is will be recognised when the request comes again."""
    words = {outcome.word for outcome in outcomes}
    if words & {"failed", "not_owner"}:
        raise Unavailable("A part of the samples could not be stored; send the request again.")
    if "full" in words:
        raise Overloaded("Too many samples are in flight; send the request again.", {"retry_after_s": 1})
