"""Stop 2 of a sample's life: samples in, 202 once they are in the log of their routers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence

import msgspec
from quart import Blueprint, Response, request

from api.admission import inflate as inflating
from api.admission import shares
from api.auth import check_signature, check_signing, milliseconds
from api.context.current import arrival, callers, count_as, open_project, proven, raw_body, remark
from api.context.fields import strict
from api.context.replica import replica
from api.middleware.request_log import note_outcome
from api.wire import samples
from api.wire.http import json_response
from api.wire.remarks import REPEATED, heard_remarks, sample_remarks
from api.wire.responses import Accepted
from breaker_actors.errors import IdempotencyKeyReused, Invalid, LogDamaged, Overloaded, Unavailable
from breaker_actors.messages import AppendResult
from breaker_actors.store.rows import ProjectRow
from breaker_actors.telemetry.meters import Meters

FULL = {
    "share_full": (
        "This project's share of the sample log is used up: its breakers still need what lies there. Shorter windows or"
        " fewer samples need less.",
        "BREAKERS_LOG_PROJECT_PERCENT_MAX",
        10,
    ),
    "log_full": ("The sample log has reached its bound; send the request again later.", "BREAKERS_LOG_BYTES_MAX", 10),
    "full": ("Too many samples are in flight; send the request again.", "BREAKERS_LANE_SAMPLES_MAX", 1),
}
"""Words of outcomes that ask for a pause: what the answer says, the setting that is the limit, seconds to wait."""

HEAVY_BYTES = 1 << 15
"""Plain bodies up to this (300 samples) are read as they come: a fifth of a millisecond."""

blueprint = Blueprint("ingest", __name__, url_prefix="/v1/projects/<project_id>")


@blueprint.post("/ingest")
async def ingest(project_id: str) -> Response:
    project, parts = await open_project(project_id), replica()
    signature = _signature(project)
    raw = await raw_body(parts.settings.max_inflated_bytes)
    if project.enable_signed_ingest:
        _prove(project, raw)
    request_samples, body = await _decode(raw)
    is_strict = strict()
    if not is_strict:
        remark(sample_remarks(body))
    router_ids = request_samples.router_ids()
    routers = await parts.caches.routers(project.id, router_ids)
    result = await _validate(request_samples, routers, is_strict)
    for reason, n in result.reasons.items():
        parts.meters.count("breakers_samples_rejected_total", n, reason=reason)
    if result.good:
        splitting = {router_id for router_id in router_ids if routers.get(router_id)}
        with_traces = bool(project.trace_id_url_template)
        keys = _keys(signature, raw, body)
        sent = samples.to_parts(result.good, keys, splitting, with_traces)
        outcomes = await parts.gateway.ingest(sent)
        count_samples(parts.meters, outcomes, len(result.good))
        remark(heard_remarks(result.good, sent, outcomes))
        _remark(signature, outcomes)
        check_outcomes(outcomes)
    return json_response(answer(result), 202)


def _signature(project: ProjectRow) -> str | None:
    """The request's signature where the project asks for one. What can't be one is refused before its body is read."""
    if not project.enable_signed_ingest:
        return None
    parts, headers = replica(), request.headers
    signature = headers.get("X-EB-Signature")
    check_signing(headers.get("X-EB-Timestamp"), signature, parts.clock.now_ms(), parts.settings.signature_skew_ms)
    return signature


def _prove(project: ProjectRow, raw: bytes) -> None:
    """Refuses a body that isn't signed with a secret of the project. From here on the request counts as the project's
    own, which nobody without its secret does."""
    parts, headers = replica(), request.headers
    timestamp, signature = headers.get("X-EB-Timestamp"), headers.get("X-EB-Signature")
    now_ms, skew_ms = parts.clock.now_ms(), parts.settings.signature_skew_ms
    check_signature(project.secrets(now_ms), timestamp, signature, raw, now_ms, skew_ms)
    proven()
    count_as(shares.signed(project.id, project.org_id))


def _keys(signature: str | None, raw: bytes, body: bytes) -> tuple[bytes, ...]:
    """By what the request is recognised when it is sent again, by a replica or by its caller."""
    key, timestamp = request.headers.get("Idempotency-Key"), request.headers.get("X-EB-Timestamp")
    return uuid.uuid4().bytes, *samples.duplicate_keys(signature, key, timestamp, raw, body)


def _remark(signature: str | None, outcomes: Sequence[AppendResult]) -> None:
    """A repeat that nobody named as one may be none to its sender."""
    named = signature or request.headers.get("Idempotency-Key")
    if not named and any(outcome.status == "duplicate" for outcome in outcomes):
        remark([REPEATED])


async def _decode(raw: bytes) -> tuple[samples.Request, bytes]:
    """The samples of a body, and its plain bytes. A body of more than HEAVY_BYTES waits for its caller's turn, and
    others are served between its steps."""
    parts = replica()
    body = inflating.Inflation(raw, request.headers.get("Content-Encoding"), parts.settings.max_inflated_bytes)
    try:
        body.step(HEAVY_BYTES)
        if body.done and len(body.plain) <= HEAVY_BYTES:
            plain = bytes(body.plain)
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
    parts = replica()
    sent_ms = milliseconds(request.headers.get("X-EB-Timestamp"))
    age_ms, ahead_ms = parts.settings.max_sample_age_ms, parts.settings.max_sample_ahead_ms
    steps = request_samples.validating(
        samples.ValidationContext.at(parts.clock.now_ms(), age_ms, ahead_ms, routers, sent_ms, is_strict)
    )
    result = next(steps)
    if result is None:
        async with parts.intake.turns.turn(callers()):
            for result in steps:
                if result is None:
                    await asyncio.sleep(0)
    assert result is not None, "the last step has the result"
    return result


def answer(result: samples.Validated) -> Accepted:
    """What was taken and what was not; a request with nothing good in it is refused as a whole."""
    body = Accepted(accepted=len(result.good), rejected=result.rejected, errors=result.errors)
    if result.rejected and not result.good:
        raise Invalid("None of the samples can be taken.", msgspec.structs.asdict(body))
    return body


def count_samples(meters: Meters, outcomes: Sequence[AppendResult], n: int) -> None:
    """A request's good samples count as taken together, as it is answered."""
    words = {outcome.status for outcome in outcomes}
    if words <= {"ok", "duplicate"}:
        meters.count("breakers_samples_accepted_total", n)
        note_outcome("duplicate" if "duplicate" in words else "accepted")
        return
    if "reused" in words:
        meters.count("breakers_samples_rejected_total", n, reason="reused")
        return
    reason = "full" if words <= {"ok", "duplicate", *FULL} else "unavailable"
    meters.count("breakers_samples_rejected_total", n, reason=reason)
    note_outcome(reason)


def check_outcomes(outcomes: Sequence[AppendResult]) -> None:
    """Raises unless every part is in its log; what is will be recognised when the request comes again."""
    words = {outcome.status for outcome in outcomes}
    if "damaged" in words:
        raise LogDamaged
    if words & {"failed", "not_owner", "not_configured"}:
        raise Unavailable("A part of the samples could not be stored; send the request again.")
    if "reused" in words:
        raise IdempotencyKeyReused
    for word, (message, limit, retry_after_s) in FULL.items():
        if word in words:
            raise Overloaded(message, {"limit": limit, "retry_after_s": retry_after_s})
