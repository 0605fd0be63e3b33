"""What is noted of every request: its id, duration and outcome as metrics, one log line if it failed or was slow."""

from __future__ import annotations

import structlog
from quart import Quart, Response, g, request

from api.wire.http import name_request, request_id
from breaker_actors.clock import Clock
from breaker_actors.telemetry.meters import Meters

SLOW_S = 1.0
OUTCOMES = {202: "accepted", 401: "unauthorized", 429: "limited", 503: "unavailable"}
"""What became of an ingest request by its status, unless the handler knows better (`note_outcome`)."""

log = structlog.get_logger(__name__)


def install(app: Quart, meters: Meters, clock: Clock, names_requests: bool) -> None:
    """Puts the notes around every request of the app. `names_requests`: its answers carry its id."""
    app.before_request(name_request)

    @app.after_request
    async def finish(response: Response) -> Response:
        if names_requests:
            response.headers["X-Request-ID"] = request_id()
        if request.method == "HEAD":
            headers = response.headers.copy()
            response.set_data(b"")
            response.headers = headers
        return response

    @app.before_request
    async def begin() -> None:
        g.begun = clock.monotonic()

    @app.after_request
    async def note(response: Response) -> Response:
        seconds = clock.monotonic() - g.begun
        route, status = request.blueprint or "none", response.status_code
        meters.observe("breakers_http_request_seconds", seconds, route=route, status=status_label(status))
        if route == "ingest" and request.method == "POST":
            meters.count("breakers_ingest_requests_total", outcome=g.get("outcome") or outcome_of(status))
        # streams are refused slowly on purpose
        if status >= 500 or (seconds > SLOW_S and route != "stream"):
            _tell(seconds, status)
        return response


def note_outcome(outcome: str) -> None:
    """The current ingest request ends like this."""
    g.outcome = outcome


def outcome_of(status: int) -> str:
    """The outcome of an ingest request whose handler noted none."""
    return OUTCOMES.get(status, "invalid" if status < 500 else "failed")


def status_label(status: int) -> str:
    """The class of a status; 429 stands for itself."""
    return "429" if status == 429 else f"{status // 100}xx"


def _tell(seconds: float, status: int) -> None:
    # the rule, not the path: an address may carry what is nobody's business
    rule = request.url_rule.rule if request.url_rule else None
    say = log.error if status >= 500 else log.warning
    say("request", method=request.method, route=rule, status=status, duration_ms=round(seconds * 1000))
