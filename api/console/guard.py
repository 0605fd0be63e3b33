"""Who may open a page of the console, and what comes of what goes wrong there.

A session is a random token in an HttpOnly, SameSite=Strict cookie; the store knows its hash, its key and its end. Every
change brings back a token that only a page of that session can know, and comes from this site, by the browser's word.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, cast
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

from quart import Blueprint, Response, g, redirect, request

from api import problems
from api.admission import shares
from api.console.asking import Refused
from api.console.looks import is_part, page, part, secured
from api.context.current import ACTING, count_as, proven, raw_body, session_token
from api.context.replica import replica
from api.wire.http import READS
from breaker_actors.errors import BreakersError, Forbidden, Invalid

HOME = "/console"
SIGN_IN = "/console/sign-in"
FORM_BYTES_MAX, FIELDS_MAX = 1 << 18, 1_000


class SignedOut(Exception):
    """The request comes with no session that counts."""


async def let_in() -> None:
    """Before each page: its session's key is who asks. Raises SignedOut, and Forbidden for a change that no page of
    the session asked for."""
    parts, token = replica(), session_token()
    session = await parts.caches.session(token, parts.clock.now_ms())
    if session is None:
        raise SignedOut
    cast(dict[str, Any], request.scope)[ACTING] = session.key
    g.csrf, g.ends_ms = csrf_of(token), session.ends_ms
    count_as(shares.keyed(session.key))
    proven()
    parts.uses.note(session.key)
    if request.method not in READS:
        check_site()
        given = (await form()).get("csrf", "") or request.headers.get("X-CSRF-Token", "")
        if not hmac.compare_digest(given.encode(), g.csrf.encode()):
            raise Forbidden("This form is not of your session any more; load the page again.")


def csrf_of(token: str) -> str:
    """What forms of a session bring back; it tells nothing of the token."""
    return hmac.new(token.encode(), b"console form", hashlib.sha256).hexdigest()


def check_site() -> None:
    """Raises Forbidden for a request that a page of another site makes."""
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
    if site not in (None, "same-origin", "none") or (origin is not None and _split(origin).netloc != request.host):
        raise Forbidden("This came from another site.")


async def form() -> dict[str, str]:
    """The fields of the current request's form, of at most FORM_BYTES_MAX; of a name that comes twice the last one."""
    if "form" not in g:
        g.fields = parsed(await raw_body(FORM_BYTES_MAX))
        g.form = dict(g.fields)
    return cast(dict[str, str], g.form)


async def fields() -> list[tuple[str, str]]:
    """The same with names that come more than once, in the order of the form."""
    await form()
    return cast(list[tuple[str, str]], g.fields)


def parsed(body: bytes) -> list[tuple[str, str]]:
    """Name and value of each field of a form. Raises Invalid for more than FIELDS_MAX."""
    try:
        return parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise Invalid(f"A form has at most {FIELDS_MAX} fields.") from None


async def to_sign_in(_: SignedOut) -> Response:
    """A page of a session that is over leads to the door; what a script asked for says so."""
    if is_part() or request.method not in READS:
        response = Response("", status=401)
        response.headers["HX-Redirect"] = SIGN_IN
        return secured(response)
    if request.headers.get("Sec-Fetch-Site") == "cross-site":
        # A strict cookie does not come with a link from elsewhere, a mail say; it does once this site asks.
        return secured(await page("again.html", 401, to=request.full_path.rstrip("?")))
    return secured(cast(Response, redirect(f"{SIGN_IN}?to={quote(request.full_path.rstrip('?'))}", 303)))


async def refused(error: Refused) -> Response:
    """What the API did not do, in its words."""
    if is_part() or request.method not in READS:
        return secured(await part("refused.html", error.status, error=error))
    return secured(await page("error.html", error.status, error=error))


async def failed(error: BreakersError) -> Response:
    status = problems.status_of(error)
    if status == 500:
        await problems.answer_bug(error)
    problems.CAUSES.note(error)
    return await refused(Refused(status, error.code, error.message, error.details))


def install(blueprint: Blueprint) -> None:
    """Puts the guard before every page of a blueprint, and what secures it on every answer."""
    blueprint.before_request(let_in)
    blueprint.after_request(secured)
    blueprint.register_error_handler(SignedOut, to_sign_in)
    blueprint.register_error_handler(Refused, refused)
    blueprint.register_error_handler(BreakersError, failed)


def _split(address: str) -> SplitResult:
    """The parts of an address; of what is none the host is one that nobody has."""
    try:
        return urlsplit(address)
    except ValueError:
        return SplitResult("", "\0", "", "", "")


def only_signed_in_to(path: str) -> str:
    """A path of the console to go on to; the console's first page where it is none."""
    if not (path.isascii() and path.isprintable()):
        return HOME  # the parts are judged without control characters, and a header may have none
    found = _split(path)
    inside = found.path == HOME or found.path.startswith(f"{HOME}/")
    elsewhere = found.netloc or found.scheme or "\\" in path or path.startswith("//")  # of "///a" browsers make a host
    return path if inside and not elsewhere else HOME
