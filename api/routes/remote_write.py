"""Prometheus remote-write 1.0 and 2.0 (prometheus.io/docs/specs/prw). An addition of ours.

A sender repeats 5xx, and 429 where it was told to, which is rare; anything else of 4xx it drops. So 429 is for a
sender beyond its own rate, and what is too much for us is 503. What no mapping takes counts as written: it was left out
on purpose. Who sends 1.0 is not told what was written. Errors are a line of text, which Prometheus puts into its log.
"""

from __future__ import annotations

from collections.abc import Sequence

from quart import Blueprint, Response
from werkzeug.exceptions import HTTPException

from api import problems
from api.context.current import arrival, sender_project
from api.context.payloads import V1, unsnap, written_decoder, written_version
from api.context.receiving import receive
from breaker_actors.errors import BreakersError

WRITTEN = "X-Prometheus-Remote-Write-{}-Written"
OWN_RATE = "BREAKERS_RATE_"
"""Begins the names of the settings that say how much one sender may ask."""

blueprint = Blueprint("remote_write", __name__, url_prefix="/v1/projects/<project_id>")


@blueprint.post("/remote_write")
async def receive_remote_write(project_id: str) -> Response:
    project = await sender_project(project_id)
    version = written_version()
    found, points = await receive(project, "remote_write", unsnap, written_decoder(version))
    counts: Sequence[int] = (
        found.accepted - found.histograms,
        found.histograms,
        0 if found.rejected else points.exemplars,
    )
    if version == V1:
        counts = ()
    if not found.rejected:
        return _answer("", 204, counts)
    if found.accepted:
        arrival().work = 0  # not for nothing (api/middleware/waste.py)
    return _answer(found.words("samples"), 400, counts)


def _answer(line: str, code: int, counts: Sequence[int] = (0, 0, 0)) -> Response:
    """`counts`: samples, histograms and exemplars that were written; none where nobody wants to know."""
    made = Response(f"{line}\n" if line else "", code, content_type="text/plain; charset=utf-8")
    for name, n in zip(("Samples", "Histograms", "Exemplars"), counts, strict=False):
        made.headers[WRITTEN.format(name)] = str(n)
    return made


@blueprint.errorhandler(BreakersError)
async def refused(error: BreakersError) -> Response:
    code = problems.status_of(error)
    if code == 500:
        return await broke(error)
    problems.CAUSES.note(error)
    if code == 429 and not str(error.details.get("limit")).startswith(OWN_RATE):
        code = 503
    return _refusal(400 if code == 422 else code, error.message, error.details.get("retry_after_s", 1))


@blueprint.errorhandler(HTTPException)
async def refused_early(error: HTTPException) -> Response:
    return _refusal(error.code or 500, error.name, getattr(error, "retry_after", 1))


@blueprint.errorhandler(Exception)
async def broke(error: Exception) -> Response:
    await problems.answer_bug(error)
    return _refusal(500, "Something went wrong in the service.", 1)


def _refusal(code: int, message: str, wait_s: float) -> Response:
    made = _answer(message, code)
    if code in (429, 503):
        made.headers["Retry-After"] = problems.whole_seconds(wait_s)
    return made
