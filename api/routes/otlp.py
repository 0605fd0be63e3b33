"""OTLP/HTTP metrics, protobuf and JSON (opentelemetry.io/docs/specs/otlp, 1.11). An addition of ours.

Errors are google.rpc.Status in the type that was sent. A sender repeats 429 and 503 alone, so what may be over in a
while is one of these, a failure of ours too.
"""

from __future__ import annotations

from http import HTTPStatus

from quart import Blueprint, Response, request
from werkzeug.exceptions import HTTPException

from api import problems
from api.context.current import sender_project
from api.context.payloads import JSON, PROTOBUF, gunzip
from api.context.receiving import receive
from api.protocols import otlp_json, otlp_protobuf
from api.protocols.otlp_answers import response, status
from api.protocols.taking import Taking
from breaker_actors.errors import BreakersError, UnsupportedMedia

CODES = {400: 3, 401: 16, 403: 7, 404: 5, 405: 12, 413: 8, 415: 3, 429: 8, 503: 14}
"""google.rpc.Code by HTTP status."""
PASSING = {408, 500}
"""Statuses that a sender would take as final: a body that came too slowly, and a failure of ours."""
AGAIN_S = 5

blueprint = Blueprint("otlp", __name__, url_prefix="/v1/projects/<project_id>/otlp")


@blueprint.post("/v1/metrics")
async def receive_otlp(project_id: str) -> Response:
    project = await sender_project(project_id)
    decode = otlp_json.decode if _is_json() else otlp_protobuf.decode
    found, _ = await receive(project, "otlp", gunzip, decode)
    return _typed(response(found.rejected, _words(found), _is_json()), 200)


def _is_json() -> bool:
    """Whether the body is JSON; it may be protobuf, too."""
    kind = request.mimetype
    if kind not in (JSON, PROTOBUF):
        raise UnsupportedMedia(f"Content-Type is {PROTOBUF} or {JSON}.")
    return kind == JSON


def _words(found: Taking) -> str:
    """What the sender is told: why points were rejected, or that nothing becomes of any."""
    if found.rejected:
        return found.words("points")
    if found.unmatched and not found.taken:
        return f"No mapping takes any of these {found.unmatched} points: see /v1/projects/<id>/mappings"
    return ""


def _typed(body: bytes, code: int) -> Response:
    return Response(body, code, content_type=JSON if request.mimetype == JSON else PROTOBUF)


@blueprint.errorhandler(BreakersError)
async def refused(error: BreakersError) -> Response:
    code = problems.status_of(error)
    if code == 500:
        return await broke(error)
    problems.CAUSES.note(error)
    code = 400 if code == 422 else code
    return _refusal(code, error.message, error.details.get("retry_after_s", AGAIN_S))


@blueprint.errorhandler(HTTPException)
async def refused_early(error: HTTPException) -> Response:
    code = error.code or 500
    return _refusal(503 if code in PASSING else code, error.name, getattr(error, "retry_after", AGAIN_S))


@blueprint.errorhandler(Exception)
async def broke(error: Exception) -> Response:
    """In the log as anywhere; the sender keeps the points and comes again."""
    await problems.answer_bug(error)
    return _refusal(503, "Something went wrong in the service.", AGAIN_S)


def _refusal(code: int, message: str, wait_s: float) -> Response:
    answer = _typed(status(CODES.get(code, 2), message or HTTPStatus(code).phrase, request.mimetype == JSON), code)
    if code in (429, 503):
        answer.headers["Retry-After"] = problems.whole_seconds(wait_s)
    return answer
