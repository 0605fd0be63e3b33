"""Error classes of the service: one class per meaning, positional constructors (they must survive pickling).

`code` is the machine word of an error answer (interface.md, Errors; the words are fixed in api/problems.py's table).
"""

from __future__ import annotations

from typing import Any


class BreakersError(Exception):
    """Something went wrong in the service."""

    code = "internal_error"

    def __init__(self, message: str = "", details: dict[str, Any] | None = None) -> None:
        self.message = message or (self.__doc__ or "").strip()
        self.details = details or {}
        super().__init__(self.message, self.details)

    def __str__(self) -> str:
        return self.message


class BadRequest(BreakersError):
    """The request can't be read."""

    code = "bad_request"


class UnsupportedMedia(BreakersError):
    """The body is of a type or in a coat that is not taken here."""

    code = "unsupported_media_type"


class Invalid(BreakersError):
    """The request is well formed but a value in it is not allowed."""

    code = "validation_failed"


class Unauthorized(BreakersError):
    """The API key or signature is missing or invalid."""

    code = "unauthorized"


class Forbidden(BreakersError):
    """The key is valid but lacks the right for this operation."""

    code = "forbidden"


class NotFound(BreakersError):
    """There is no such thing here."""

    code = "not_found"


class BreakerExists(BreakersError):
    """A breaker with this id already exists."""

    code = "breaker_exists"


class RouterHasBreakers(BreakersError):
    """The router still has linked breakers; unlink them first."""

    code = "router_has_breakers"


class WorkspaceHasProjects(BreakersError):
    """The workspace still has projects; delete them first."""

    code = "workspace_has_projects"


class NotRedrivable(BreakersError):
    """This delivery can't be sent again now."""

    code = "not_redrivable"


class GuardrailBlocked(BreakersError):
    """The change would remove, or override, too many breakers."""

    code = "guardrail_blocked"


class ConfirmationNeeded(BreakersError):
    """Callers would feel this at once: send confirm true to do it."""

    code = "confirmation_needed"


class NotOwned(BreakersError):
    """Some of these things are not this owner's: adopt them first, or leave them out."""

    code = "not_owned"


class PreconditionFailed(BreakersError):
    """If-Match does not match what is there."""

    code = "precondition_failed"


class IdempotencyKeyReused(Invalid):
    """Another request was made under this Idempotency-Key; a new request needs a new key."""

    code = "idempotency_key_reused"


class SendFailed(BreakersError):
    """The test notification could not be sent."""

    code = "send_failed"


class PayloadTooLarge(BreakersError):
    """The body is larger than the service takes."""

    code = "payload_too_large"


class Overloaded(BreakersError):
    """Too much is in flight; try again after a pause (details.retry_after_s)."""

    code = "rate_limited"


class Unavailable(BreakersError):
    """A part of the service that this call needs does not answer now."""

    code = "not_ready"
    cause: str
    """What a driver said, which may name hosts and roles: logs and commands on the machine tell it, answers do not."""

    def __init__(self, message: str = "", details: dict[str, Any] | None = None, cause: str = "") -> None:
        super().__init__(message, details)
        self.cause = cause
        self.args = (self.message, self.details, cause)

    def __str__(self) -> str:
        return f"{self.message}: {self.cause}" if self.cause else self.message


class TookTooLong(Unavailable):
    """The database ended a transaction that took too long; it left no trace."""


class LogDamaged(Unavailable):
    """A router's log is not as it was written: nothing is taken into it until an operator says how to go on."""

    code = "log_damaged"


class ClockBehindLog(Unavailable):
    """A router's log is ahead of the clock: its samples could not count and are refused, until the clock gets there or
    an operator says how to go on."""

    code = "clock_behind_log"


class Fenced(BreakersError):
    """A newer owner has taken over; the caller must drop what it holds."""

    code = "fenced"


class NotOwner(BreakersError):
    """This process does not own the breaker or router under the epoch of the call."""

    code = "not_owner"


class SchemaMismatch(BreakersError):
    """The store's schema is not the one this program works with."""

    code = "schema_mismatch"


def too_many_breakers(most: int) -> Invalid:
    """The error for breakers beyond what a project may have."""
    return Invalid(f"A project has at most {most} breakers.", {"breakers": f"at most {most}"})


def log_damaged(router_id: str, words: str, offset: int = 0) -> LogDamaged:
    """The error for a log that is not as it was written: what is wrong, from which record on if that is known."""
    return LogDamaged(f"the log of router {router_id} is damaged: {words}", {"router_id": router_id, "offset": offset})
