"""Steps that every ingest request takes, whether its samples come one by one or as columns."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from quart import request

from api.admission import shares
from api.auth import check_signature, check_signing, milliseconds
from api.context.appended import check_outcomes, outcome_word
from api.context.current import callers, count_as, proven, remark
from api.context.replica import replica
from api.lookup.ingest_memory import Example
from api.middleware.request_log import note_outcome
from api.wire import samples
from api.wire.remarks import REPEATED, heard_remarks
from breaker_actors.errors import Unauthorized
from breaker_actors.messages import AppendResult, Part
from breaker_actors.store.rows import ProjectRow

NO_TOKEN = "The signature is missing, and what Authorization carries is no ingest token."  # nosec B105 # words
HEAVY_BYTES = 1 << 15
"""Bodies up to this are worked on at once (300 samples of JSON): a fifth of a millisecond."""


def request_signature() -> str | None:
    """The request's signature. What can't be one is refused before its body is read."""
    parts, headers = replica(), request.headers
    signature = headers.get("X-EB-Signature")
    if not signature and headers.get("Authorization"):
        raise Unauthorized(NO_TOKEN)
    check_signing(headers.get("X-EB-Timestamp"), signature, parts.clock.now_ms(), parts.settings.signature_skew_ms)
    return signature


async def prove(project: ProjectRow, raw: bytes, on_thread: bool = False) -> None:
    """Refuses a body that isn't signed with a secret of the project. From here on the request counts as the project's
    own, which nobody without its secret does. `on_thread`: in the caller's turn, where the body is large."""
    parts, headers = replica(), request.headers
    timestamp, signature = headers.get("X-EB-Timestamp"), headers.get("X-EB-Signature")
    now_ms, skew_ms = parts.clock.now_ms(), parts.settings.signature_skew_ms
    judged = project.secrets(now_ms), timestamp, signature, raw, now_ms, skew_ms
    if on_thread and len(raw) > HEAVY_BYTES:
        async with parts.intake.decodes.turn(callers()):
            await asyncio.to_thread(check_signature, *judged)
    else:
        check_signature(*judged)
    proven()
    count_as(shares.signed(project.id, project.org_id))


def judging_bounds(routers: Mapping[str, bool], is_strict: bool) -> samples.ValidationContext:
    """What decides about the request's samples now."""
    parts = replica()
    sent_ms = milliseconds(request.headers.get("X-EB-Timestamp"))
    age_ms, ahead_ms = parts.settings.max_sample_age_ms, parts.settings.max_sample_ahead_ms
    return samples.ValidationContext.at(parts.clock.now_ms(), age_ms, ahead_ms, routers, sent_ms, is_strict)


def key_maker(signature: str | None) -> Callable[[bytes, bytes | bytearray], tuple[bytes, ...]]:
    """Makes, of the body as it was sent and without gzip, that by what the request is recognised when it is sent again,
    by a replica or by its caller. It may be called on any thread."""
    key, timestamp = request.headers.get("Idempotency-Key"), request.headers.get("X-EB-Timestamp")

    def keys(raw: bytes, body: bytes | bytearray) -> tuple[bytes, ...]:
        return uuid.uuid4().bytes, *samples.duplicate_keys(signature, key, timestamp, raw, body)

    return keys


def note_refused(project: ProjectRow, reasons: Mapping[str, int], examples: Mapping[str, tuple[str, str, str]]) -> None:
    """Counts samples that were refused, and remembers an example for each reason."""
    parts = replica()
    for reason, n in reasons.items():
        parts.meters.count("breakers_samples_rejected_total", n, reason=reason)
    if reasons:
        told = {code: Example(*words) for code, words in examples.items()}
        parts.ingested.refused(project.org_id, project.id, reasons, told)


async def store(
    project: ProjectRow, rounds: Iterable[list[Part]], pairs: Iterable[tuple[str, str]], n: int, is_named: bool
) -> None:
    """Appends the request's `n` good samples to their logs, one round after the other; raises what the request is
    refused for where one was not taken, and then begins with no other. `pairs`: their routers and metrics; `is_named`:
    its caller says by what it is recognised."""
    parts = replica()
    sent: list[Part] = []
    outcomes: list[AppendResult] = []
    for round_ in rounds:
        sent += round_
        outcomes += await parts.gateway.ingest(project.id, round_, project.org_id)
        if outcome_word(outcomes) not in ("accepted", "duplicate"):
            break
    count_samples(outcomes, n)
    parts.ingested.took(project.org_id, project.id, sent, outcomes)
    remark(heard_remarks(pairs, sent, outcomes))
    if not is_named and any(outcome.status == "duplicate" for outcome in outcomes):
        remark([REPEATED])  # a repeat that nobody named as one may be none to its sender
    check_outcomes(outcomes)


def count_samples(outcomes: Sequence[AppendResult], n: int) -> None:
    """A request's good samples count as taken together, as it is answered."""
    meters, word = replica().meters, outcome_word(outcomes)
    if word in ("accepted", "duplicate"):
        meters.count("breakers_samples_accepted_total", n)
    else:
        meters.count("breakers_samples_rejected_total", n, reason=word)
    if word != "reused":
        note_outcome(word)


def is_named(signature: str | None) -> bool:
    """Whether the caller says by what the request is recognised."""
    return bool(signature or request.headers.get("Idempotency-Key"))
