"""The console of one replica: the same app and store as the API's tests, and people who are signed in to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import pytest
import pytest_asyncio

from api.console.guard import csrf_of
from tests.support.asgi import Headers, Reply, ask
from tests.support.estate import Estate, build, open_estate
from tests.support.web_world import World
from tests.unit.api.app.conftest import defaults, populated, settings, world

__all__ = ["defaults", "populated", "settings", "world"]

HOUR_MS = 3_600_000


@dataclass
class Visitor:
    """Somebody signed in with a key; `token`: of the session. A path may be relative to the project's screens."""

    world: World
    token: str
    extra: Headers = field(default_factory=list)

    @property
    def csrf(self) -> str:
        return csrf_of(self.token)

    def path(self, path: str) -> str:
        root = f"/console/p/{self.world.project.id}"
        return path if path.startswith("/") else root + path if path[:1] in ("", "?") else f"{root}/{path}"

    async def get(self, path: str = "", part: bool = False, headers: Headers = ()) -> Reply:  # type: ignore[assignment]
        more = [("HX-Request", "true")] if part else []
        return await ask(self.world.app, "GET", self.path(path), [self._cookie, *more, *self.extra, *headers], None)

    async def page(self, path: str = "", part: bool = False) -> str:
        """The text of a page that is there."""
        reply = await self.get(path, part)
        assert reply.status == 200, (path, reply)
        return reply.body.decode()

    async def post(self, path: str, csrf: str | None = None, headers: Headers = (), **fields: Any) -> Reply:  # type: ignore[assignment]
        """Sends a form, with the session's proof unless another is given."""
        body = urlencode({"csrf": self.csrf if csrf is None else csrf, **fields}, doseq=True)
        sent = [self._cookie, ("Content-Type", "application/x-www-form-urlencoded"), ("HX-Request", "true"), *headers]
        return await ask(self.world.app, "POST", self.path(path), [*sent, *self.extra], body.encode())

    @property
    def _cookie(self) -> tuple[str, str]:
        return "Cookie", f"breakers_session={self.token}"


async def sign_in(world: World, kind: str = "user") -> Visitor:
    """With the world's key of this kind."""
    key = await world.store.find_key(world.keys[kind])
    assert key is not None
    token, now_ms = f"token-of-{kind}", world.clock.now_ms()
    await world.store.create_session(key.id, token, now_ms, now_ms + HOUR_MS)
    return Visitor(world, token)


@pytest.fixture
async def ann(world: World) -> Visitor:
    """Signed in with a user key."""
    return await sign_in(world)


@pytest.fixture
async def guest(world: World) -> Visitor:
    """Signed in with a project key: may see states and change nothing."""
    return await sign_in(world, "project")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def estate(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Estate]:
    """One for all tests of a module: each leaves it as it was."""
    folder = tmp_path_factory.mktemp("estate")
    content = await build(folder / "template.sqlite")
    async with open_estate(folder / "template.sqlite", folder, content) as found:
        yield found
