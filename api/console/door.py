"""The door: a key that is pasted, or the one-time link that `breakers serve` prints, becomes a session; and out."""

from __future__ import annotations

import secrets

from quart import Blueprint, Response, request
from werkzeug.exceptions import HTTPException

from api import problems
from api.auth import RIGHTS
from api.console import guard
from api.console.asking import Refused
from api.console.blueprint import blueprint as screens
from api.console.guard import HOME, SIGN_IN, check_site, form, only_signed_in_to
from api.console.looks import page, secured
from api.context.current import SESSION_COOKIE, proven, session_token
from api.context.replica import replica
from api.middleware.rate_limits import spend_sign_in
from breaker_actors.errors import BreakersError, NotFound, Overloaded
from breaker_actors.messages import SESSIONS
from breaker_actors.store.rows import SessionRow

blueprint = Blueprint("console_door", __name__)
blueprint.after_request(secured)
blueprint.register_error_handler(BreakersError, guard.failed)

NO_KEY = "This is no key of this service, or it was revoked."
NO_READER = "An ingest token sends samples and opens nothing. Sign in with a user, admin or project key."
ENDED = "Your session is over. Sign in to go on where you were."
NOWHERE = "There is no such page. What it showed may be gone, or the address is not whole."
NOT_SO = "This address takes what a form of the console sends. Open the screen that has the form."
NO_LINK = "This link was used already, or it is too old. Ask for a new one: breakers console"


@blueprint.get("/")
async def root() -> Response:
    """Browsers are led to the console; there is nothing here for programs."""
    if "text/html" in request.headers.get("Accept", ""):
        return Response("", status=303, headers={"Location": HOME})
    return await problems.answer_error(NotFound(problems.SAID[404]))


@blueprint.app_errorhandler(404)
@blueprint.app_errorhandler(405)
async def nowhere(error: HTTPException) -> Response:
    """What is no path of the console, or takes another method: a page for browsers, JSON for programs."""
    answer = await problems.answer_http(error)
    below = request.path == HOME or request.path.startswith(f"{HOME}/")
    if not below or "text/html" not in request.headers.get("Accept", ""):
        return answer
    words = NOWHERE if error.code == 404 else NOT_SO
    told = await page("error.html", error.code or 404, error=Refused(error.code or 404, "", words, {}))
    if "Allow" in answer.headers:
        told.headers["Allow"] = answer.headers["Allow"]
    return secured(told)


@blueprint.get("/console/sign-in")
async def sign_in_page() -> Response:
    to, ended = only_signed_in_to(request.args.get("to", HOME)), request.args.get("why") == "ended"
    return await page("sign_in.html", to=to, wrong=ENDED if ended else "")


@blueprint.post("/console/sign-in")
async def sign_in() -> Response:
    check_site()
    parts, given = replica(), await form()
    to = only_signed_in_to(given.get("to", HOME))
    key = await parts.caches.key(given.get("key", "").strip())
    if key is None:
        return await page("sign_in.html", 401, to=to, wrong=NO_KEY)
    if "read_runtime" not in RIGHTS[key.kind]:
        proven()
        return await page("sign_in.html", 403, to=to, wrong=NO_READER)
    try:
        await spend_sign_in(key)
        proven()
        token, now_ms, ends_ms = _new_session()
        session = await parts.sessions.create_session(key.id, token, now_ms, ends_ms)
    except Overloaded as refusal:
        return await page("sign_in.html", 429, to=to, wrong=refusal.message)
    return _with_session(session, token, to)


@blueprint.get("/console/enter")
async def enter_page() -> Response:
    """What the link opens. Its token is behind the #, so it gets into no log; the page's script brings it."""
    return await page("enter.html", wrong="")


@blueprint.post("/console/enter")
async def enter() -> Response:
    check_site()
    parts, (token, now_ms, ends_ms) = replica(), _new_session()
    link = (await form()).get("link", "").strip().rpartition("#")[2]
    session = await parts.sessions.redeem_link(link, token, now_ms, ends_ms)
    if session is None:
        if await parts.caches.session(session_token(), now_ms) is not None:
            return Response("", status=303, headers={"Location": HOME})
        return await page("enter.html", 401, wrong=NO_LINK)
    proven()
    return _with_session(session, token, HOME)


@screens.post("/sign-out")
async def sign_out() -> Response:
    parts = replica()
    await parts.sessions.end_session(session_token(), parts.clock.now_ms())
    parts.caches.forget_access(SESSIONS)
    response = Response("", status=303, headers={"Location": SIGN_IN})
    response.delete_cookie(SESSION_COOKIE, path=HOME)
    return response


def _new_session() -> tuple[str, int, int]:
    """The token of a session that begins now, now, and when it ends."""
    parts = replica()
    now_ms = parts.clock.now_ms()
    return secrets.token_urlsafe(32), now_ms, now_ms + parts.settings.console_session_ms


def _with_session(session: SessionRow, token: str, to: str) -> Response:
    lasting_s = (session.ends_ms - replica().clock.now_ms()) // 1_000
    response = Response("", status=303, headers={"Location": to})
    response.set_cookie(
        SESSION_COOKIE, token, max_age=lasting_s, path=HOME, secure=request.scheme == "https", httponly=True,
        samesite="Strict",
    )  # fmt: skip
    return response
