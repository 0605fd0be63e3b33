"""The current request: its caller and project, its body, its answer on the way out, and what it may use up."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import msgspec
from quart import Response, g, request

from api import auth
from api.admission import shares
from api.admission.addresses import source
from api.admission.intake import Arrival, Turn
from api.admission.outgoing import DEPARTURE, Departure
from api.admission.read_budget import SETTING
from api.context.replica import replica
from api.wire.http import READS, holds, json_pieces, no_content, tagged
from api.wire.remarks import PENDING
from api.wire.responses import Texts, listing
from api.wire.telling import Telling
from api.wire.unknown import WARNINGS_MAX, FieldWarning
from breaker_actors.errors import Forbidden, NotFound, Overloaded
from breaker_actors.sql.readers import read_for
from breaker_actors.store.rows import KeyRow, ProjectRow

T = TypeVar("T")

ARRIVAL = "breakers.arrival"
ACTING = "breakers.acting"
"""In the scope of a request: the key in whose name somebody asks who is signed in to the console."""
SESSION_COOKIE = "breakers_session"
POSTS_SAMPLES = frozenset({"ingest", "otlp", "remote_write"})
"""Blueprints whose requests bring samples: here, and nowhere else, an ingest token is looked at."""
BODY_BYTES_MAX = 1 << 18
"""Of a body that is neither samples nor a set of breakers: `actions` of 64 KiB, all of it escaped, are 192 KiB."""
IDS_BODY_BYTES_MAX = 1 << 20
"""The same of a body of ids: 20,000 are 800 KB."""


async def raw_body(bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """The body of the current request as it came over the wire, of at most `bytes_max` or BREAKERS_MAX_BODY_BYTES.
    Nothing of it is received before: look at key and project first."""
    return await arrival().read(request.content_length, min(bytes_max, replica().settings.max_body_bytes))


def arrival() -> Arrival:
    """The current request on its way in."""
    found: Arrival = cast(dict[str, Any], request.scope)[ARRIVAL]
    return found


def departure() -> Departure:
    """The answer of the current request on its way out."""
    found: Departure = cast(dict[str, Any], request.scope)[DEPARTURE]
    return found


async def expect_answer(project_id: str) -> None:
    """To be asked before anything is done for an answer that tells much of a project's configuration: it counts as on
    its way out, twice, for such answers say it under two names. Raises Overloaded where callers don't read theirs."""
    await departure().expect(callers(), 2 * await replica().gateway.store.configuration_bytes(project_id))


def spend_reads(project_id: str, n: int) -> None:
    """Counts `n` things that the current request has told of a project, before they are told; 0 where their number is
    not known yet. Raises Overloaded when nothing is left."""
    parts = replica()
    wait_s = parts.reads.spend(project_id, n, parts.clock.monotonic())
    if wait_s:
        rate = parts.settings.rate_reads_per_s
        words = f"More than {rate} things of this project a second in lists: this is what {SETTING} allows."
        raise Overloaded(words, {"limit": SETTING, "retry_after_s": math.ceil(wait_s)})


def count_reads(project_id: str, n: int) -> None:
    """Counts `n` things more of a request that has begun, also where nothing is left: the next one waits for them."""
    parts = replica()
    parts.reads.spend(project_id, n, parts.clock.monotonic(), sure=True)


async def expect_list(project_id: str) -> None:
    """The same as `expect_answer` for a list, whose things count in the project's budget of reads once they are known.
    Raises Overloaded where nothing is left of that, too."""
    spend_reads(project_id, 0)
    await expect_answer(project_id)


@asynccontextmanager
async def telling(done: bool | None = None) -> AsyncIterator[Telling]:
    """What tells the current request's answer where it may be large, in its caller's turns. Raises Overloaded where too
    many wait for theirs, unless what was asked for is `done`, as it is for all but reads."""
    sure = request.method not in READS if done is None else done
    async with Turn(replica().intake.turns, callers(), sure) as turn:
        yield Telling(turn)


async def tell(
    rows: Sequence[T], item: Callable[[T], Any], kind: type[msgspec.Struct], done: bool | None = None, **more: Any
) -> Response:
    """An answer that lists rows, each as its `item`, in a body of this kind with `more` in it; see `telling`."""
    async with telling(done) as teller:
        texts = await teller.texts(rows, item)
        return json_pieces(await teller.body(listing(kind, texts, **more)), done=done)


async def tell_tagged(
    rows: Sequence[T], item: Callable[[T], Any], body: Callable[[Texts, str], msgspec.Struct]
) -> Response:
    """The same with a weak ETag, in the `body` made of the items and their hash; 304 when the caller holds it."""
    async with telling() as teller:
        texts, content_hash = await teller.hashed(rows, item)
        if holds(content_hash):
            return tagged(no_content(304), content_hash)
        pieces = await teller.body(body(texts, content_hash))
    return tagged(json_pieces(pieces), content_hash)


def session_token() -> str:
    """The token of the console's session that the current request comes with; "" without one."""
    return request.cookies.get(SESSION_COOKIE, "")


def acting_key() -> KeyRow | None:
    """The key of whoever is signed in to the console, where the current request comes from there."""
    return cast(dict[str, Any], request.scope).get(ACTING)


async def presented_key() -> KeyRow | None:
    """The key that the current request comes with, whatever it may do."""
    return acting_key() or await replica().caches.key(auth.bearer(request.headers.get("Authorization")))


def sender_token() -> str:
    """What the current request shows as an ingest token where samples are posted; "" without one, and elsewhere."""
    if request.blueprint not in POSTS_SAMPLES:
        return ""
    return auth.ingest_token(request.headers.get("Authorization"))


def callers() -> shares.Holders:
    """For whom the current request counts in the intake. A key that is remembered counts at once, so that what else
    comes from its address is nothing to it; other keys once they were found."""
    if counted := g.get("callers"):
        return cast(shares.Holders, counted)
    address = source(request.remote_addr)
    if token := sender_token():
        found = replica().caches.remembered_key(token)
        g.callers = shares.asking(address) if found is None else shares.keyed(found)
    elif request.blueprint == "ingest":
        g.callers = shares.keyless(address, path_project())
    elif key := acting_key() or replica().caches.remembered_key(auth.bearer(request.headers.get("Authorization"))):
        g.callers = shares.keyed(key)
    else:
        g.callers = shares.asking(address)
    return cast(shares.Holders, g.callers)


def count_as(holders: shares.Holders) -> None:
    """The current request counts for these from now on. Raises Overloaded."""
    if callers() != holders:
        g.callers = holders
        arrival().move(holders)


async def authenticate(right: auth.Right) -> KeyRow:
    """The key of the current request, if it has the right."""
    return _let_in(await presented_key(), right)


def _let_in(key: KeyRow | None, right: auth.Right) -> KeyRow:
    if key is not None:
        count_as(shares.keyed(key))
    allowed = auth.permit(key, right, request.headers.get("Authorization"))
    proven()
    g.key_id, g.org_id, g.actor = allowed.id, allowed.org_id, allowed.name or allowed.key_prefix
    g.rights = auth.RIGHTS[allowed.kind]
    read_for(allowed.org_id)
    replica().uses.note(allowed)
    return allowed


def proven() -> None:
    """What the current request presents is known: it does not count against its address
    (api/middleware/rate_limits.py)."""
    if refund := g.pop("refund", None):
        refund()


async def require_operator() -> None:
    """Lets admin keys of the organisation pass that was made at the first start: its keys are whoever runs the service.
    Other organisations are tenants; what all of them share is not theirs to see or to change."""
    key = await authenticate("operate")
    if key.org_id != await replica().accounts.operator_org():
        raise Forbidden("Only the organisation that was made at the first start may do this.")


def may(right: auth.Right) -> bool:
    """Whether the current request's key has another right than the one it was asked for, too."""
    return right in cast(frozenset[auth.Right], g.rights)


def current_key_id() -> str:
    """Whose key the current request carries, for the audit log."""
    return str(g.key_id)


def current_actor() -> str:
    """Who the current request's key says it is, for people: its name, or its beginning where it has none."""
    return str(g.actor)


async def authorized_project(project_id: str, right: auth.Right) -> ProjectRow:
    """The project of a path, if the caller has the right and it is within the caller's reach."""
    key = await authenticate(right)
    return auth.project_in_scope(key, await replica().caches.project(auth.path_uuid(project_id)))


async def sender_project(project_id: str) -> ProjectRow:
    """The project of a path, if the caller has an ingest token of it, as a bearer or as the password of HTTP Basic; any
    other key is refused as everywhere. Its id is `current_key_id` then. To be asked before the body is read."""
    key = await replica().caches.key(auth.sender_key(request.headers.get("Authorization")))
    sender = _let_in(key, "ingest")
    return auth.project_in_scope(sender, await replica().caches.project(auth.path_uuid(project_id)))


def path_project() -> str:
    """The project of the current request's path as what is counted or remembered names it, "" without one: an id may be
    spelled in capitals, and is still one project's."""
    return str((request.view_args or {}).get("project_id", "")).lower()


async def open_project(project_id: str) -> ProjectRow:
    """The project of a path that asks for no key. Where it asks for a signature, nothing is proven by its id."""
    if project := await replica().caches.project(auth.path_uuid(project_id)):
        if not project.enable_signed_ingest:
            proven()
        read_for(project.org_id)
        return project
    raise NotFound("There is no such project.")


async def access_changed(project_id: str) -> None:
    """After a key of a project was revoked or its settings were changed: every replica forgets what it remembers of
    both, and of nobody else."""
    parts = replica()
    parts.caches.forget_access(project_id)
    await parts.gateway.announce("keys", [project_id])


async def configured(project_id: str, change_ids: list[int]) -> None:
    """After a configuration write: it is in the routers' logs when this returns, or the answer says that it is not, and
    not remembered otherwise here."""
    parts = replica()
    parts.caches.forget_project(project_id)
    if not await parts.gateway.configured(project_id, change_ids):
        parts.meters.count("breakers_changes_late_total")
        remark([PENDING])


def remark(found: Sequence[FieldWarning]) -> None:
    """Has the current request's answer say so; nothing is refused for it."""
    if found:
        g.warnings = [*g.get("warnings", ()), *found][:WARNINGS_MAX]
