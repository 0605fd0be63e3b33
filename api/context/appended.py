"""What the logs said of a request's samples, as the request is told."""

from __future__ import annotations

from collections.abc import Sequence

from breaker_actors.errors import ClockBehindLog, IdempotencyKeyReused, LogDamaged, Overloaded, Unavailable
from breaker_actors.messages import AppendResult

FULL = {
    "share_full": (
        "This project's share of the sample log is used up, or its organisation's: breakers still need what lies there."
        " Shorter windows or fewer samples need less.",
        "BREAKERS_LOG_PROJECT_PERCENT_MAX",
        10,
    ),
    "log_full": ("The sample log has reached its bound; send the request again later.", "BREAKERS_LOG_BYTES_MAX", 10),
    "full": ("Too many samples are in flight; send the request again.", "BREAKERS_LANE_SAMPLES_MAX", 1),
}
"""Words of outcomes that ask for a pause: what the answer says, the setting that is the limit, seconds to wait."""


def outcome_word(outcomes: Sequence[AppendResult]) -> str:
    """What became of a request's samples together: accepted, duplicate, reused, full or unavailable."""
    words = {outcome.status for outcome in outcomes}
    if words <= {"ok", "duplicate"}:
        return "duplicate" if "duplicate" in words else "accepted"
    if "reused" in words:
        return "reused"
    return "full" if words <= {"ok", "duplicate", *FULL} else "unavailable"


def check_outcomes(outcomes: Sequence[AppendResult]) -> None:
    """Raises unless every part is in its log; what is will be recognised when the request comes again."""
    words = {outcome.status for outcome in outcomes}
    if "damaged" in words:
        raise LogDamaged
    if "clock_behind" in words:
        raise ClockBehindLog
    if words & {"failed", "not_owner", "not_configured"}:
        raise Unavailable("A part of the samples could not be stored; send the request again.")
    if "reused" in words:
        raise IdempotencyKeyReused
    for word, (message, limit, retry_after_s) in FULL.items():
        if word in words:
            raise Overloaded(message, {"limit": limit, "retry_after_s": retry_after_s})
