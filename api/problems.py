"""Every error answer is made here: one table from error class to status, one JSON body (interface.md, Errors).

The machine word is the class's own `code`; framework errors (unknown route, wrong method, body too large) get a word
from the same closed list, so that no client ever sees an HTML page or an empty error.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from typing import Any

import structlog
from quart import Quart, Response
from werkzeug.exceptions import HTTPException

from api.wire.http import json_response, request_id
from api.wire.responses import Error
from breaker_actors import errors
from breaker_actors.clock import SystemClock

log = structlog.get_logger(__name__)
_monotonic = SystemClock().monotonic

SAY_EACH_S = 10.0
"""How often a process tells the log why it answers that something is away."""

STATUS: dict[type[errors.BreakersError], int] = {
    errors.BadRequest: 400,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.BreakerExists: 409,
    errors.RouterHasBreakers: 409,
    errors.WorkspaceHasProjects: 409,
    errors.GuardrailBlocked: 409,
    errors.ConfirmationNeeded: 409,
    errors.NotRedrivable: 409,
    errors.NotOwned: 409,
    errors.PreconditionFailed: 412,
    errors.PayloadTooLarge: 413,
    errors.UnsupportedMedia: 415,
    errors.Invalid: 422,
    errors.IdempotencyKeyReused: 422,
    errors.SendFailed: 422,
    errors.Overloaded: 429,
    errors.Unavailable: 503,
}

METHOD_NOT_ALLOWED = "method_not_allowed"

WORDS = {
    401: errors.Unauthorized.code,
    403: errors.Forbidden.code,
    404: errors.NotFound.code,
    405: METHOD_NOT_ALLOWED,
    413: errors.PayloadTooLarge.code,
    429: errors.Overloaded.code,
    503: errors.Unavailable.code,
}
"""Framework statuses that have a word of their own; other 4xx are bad_request, other 5xx internal_error."""
SAID = {404: "There is nothing at this path; /docs describes the API."}


def status_of(error: Exception) -> int:
    """The HTTP status of an error; anything the table doesn't know is our fault."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def problem_body(code: str, message: str, details: dict[str, Any] | None = None) -> Error:
    """The Error object; all four texts are always there (some clients can't read a null)."""
    return Error(error=code, code=code, message=message, request_id=request_id(), details=details or {})


class Causes:
    """Why something was away, which answers do not tell: the log does, once in SAY_EACH_S, with how many it was."""

    def __init__(self, monotonic: Callable[[], float] = _monotonic) -> None:
        self._monotonic = monotonic
        self._quiet_until_s = 0.0
        self._n = 0

    def note(self, error: errors.BreakersError) -> None:
        """Nothing for an error without a cause."""
        if not isinstance(error, errors.Unavailable) or not error.cause:
            return
        self._n += 1
        now_s = self._monotonic()
        if now_s >= self._quiet_until_s:
            log.warning("part_away", error=str(error), n=self._n)
            self._quiet_until_s, self._n = now_s + SAY_EACH_S, 0


CAUSES = Causes()


async def answer_error(error: errors.BreakersError) -> Response:
    """An error of ours; one that isn't meant for callers is logged and answered without details."""
    status = status_of(error)
    if status == 500:
        return await answer_bug(error)
    CAUSES.note(error)
    response = json_response(problem_body(error.code, error.message, error.details), status)
    # Seconds, on 429 only: one public client crashes on any other error answer that carries the header.
    if status == 429:
        response.headers["Retry-After"] = whole_seconds(error.details.get("retry_after_s", 1))
    return response


def whole_seconds(seconds: float) -> str:
    """A pause as Retry-After says it: whole seconds, never none."""
    return str(max(1, math.ceil(seconds)))


async def answer_http(error: HTTPException) -> Response:
    """An error the framework raised before or instead of a handler."""
    status = error.code or 500
    word = WORDS.get(status, errors.BadRequest.code if status < 500 else errors.BreakersError.code)
    allowed = ", ".join(sorted(getattr(error, "valid_methods", None) or ()))
    message = f"This path doesn't take the method; allowed: {allowed}." if allowed else SAID.get(status, error.name)
    response = json_response(problem_body(word, message), status)
    if allowed:
        response.headers["Allow"] = allowed
    if status == 408:
        # The rest of the body may come for ever, a byte now and then; nobody waits for it.
        response.headers["Connection"] = "close"
    if status == 429:
        response.headers["Retry-After"] = whole_seconds(getattr(error, "retry_after", 1))
    return response


async def answer_bug(error: Exception) -> Response:
    """A failure of ours: everything in the log under the request id, nothing in the answer."""
    # As text: a pretty renderer of exceptions would print local variables, and those hold keys and bodies.
    lines = traceback.format_exception(error)
    log.error("request_failed", request_id=request_id(), traceback="".join(lines))
    body = problem_body(errors.BreakersError.code, "Something went wrong in the service.")
    return json_response(body, 500)


def install(app: Quart) -> None:
    """Makes every error of this app leave through the functions above."""
    app.register_error_handler(errors.BreakersError, answer_error)
    app.register_error_handler(HTTPException, answer_http)
    app.register_error_handler(Exception, answer_bug)
