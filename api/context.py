"""What every handler reaches: the parts of this replica, and the one way in through key, right and project."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from quart import current_app, g, request

from api import auth
from api.caches import Caches
from api.feed import Feed
from api.sse import StreamTiming
from api.usage import KeyUses
from breaker_actors.clock import Clock
from breaker_actors.errors import Forbidden, NotFound
from breaker_actors.gateway import Gateway
from breaker_actors.meters import Meters
from breaker_actors.notify.model import Sender
from breaker_actors.settings import Settings
from breaker_actors.stores.base import KeyRow, ProjectRow, Store

EXTENSION = "breakers"


@dataclass(frozen=True, slots=True)
class Replica:
    """The parts of one API replica."""

    gateway: Gateway
    settings: Settings
    clock: Clock
    feed: Feed
    timing: StreamTiming
    uses: KeyUses
    meters: Meters
    sender: Sender

    @property
    def store(self) -> Store:
        return self.gateway.store

    @property
    def caches(self) -> Caches:
        return self.feed.caches


def replica() -> Replica:
    """The replica that answers the current request."""
    found: Replica = current_app.extensions[EXTENSION]
    return found


async def raw_body() -> bytes:
    """The body of the current request as it came over the wire."""
    return cast(bytes, await request.get_data(as_text=False))


async def caller(right: auth.Right) -> KeyRow:
    """The key of the current request, if it has the right."""
    key = await replica().caches.key(auth.bearer(request.headers.get("Authorization")))
    allowed = auth.permit(key, right)
    g.key_id = allowed.id
    replica().uses.note(allowed)
    return allowed


async def operator() -> None:
    """Lets admin keys of the organisation pass that was made at the first start: its keys are whoever runs the service.
    Other organisations are tenants; what all of them share is not theirs to see or to change."""
    key = await caller("operate")
    first, *_ = await replica().store.list_orgs()
    if key.org_id != first.id:
        raise Forbidden("Only the organisation that was made at the first start may do this.")


def acting() -> str:
    """Whose key the current request carries, for the audit log."""
    return str(g.key_id)


async def reach(project_id: str, right: auth.Right) -> ProjectRow:
    """The project of a path, if the caller has the right and it is within the caller's reach."""
    key = await caller(right)
    return auth.belongs(key, await replica().caches.project(auth.path_uuid(project_id)))


async def open_project(project_id: str) -> ProjectRow:
    """The project of a path that asks for no key."""
    if project := await replica().caches.project(auth.path_uuid(project_id)):
        return project
    raise NotFound("There is no such project.")


async def access_changed(project_id: str) -> None:
    """After a key was revoked or a project's way in was changed: every replica forgets what it remembers of access."""
    parts = replica()
    parts.caches.forget_access()
    await parts.gateway.announce("keys", [project_id])


async def configured(project_id: str, change_ids: list[int]) -> None:
    """After a configuration write: it is in the routers' logs when this returns, and not remembered otherwise here."""
    parts = replica()
    parts.caches.forget_project(project_id)
    await parts.gateway.configured(project_id, change_ids)
