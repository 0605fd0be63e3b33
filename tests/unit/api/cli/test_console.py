"""`breakers console`: a link that signs in once, on the store of a data directory."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from breaker_actors.clock import SystemClock
from breaker_actors.persistence import make_store
from breaker_actors.settings import Settings
from breaker_actors.store.rows import KeyRow
from tests.unit.api.cli.test_admin import breakers, find, folder, refused

__all__ = ["folder"]

URL = ("--url", "https://breakers.example")


def opened(folder: Path, link: str) -> KeyRow | None:
    """The key of the session that a link opens."""

    async def redeem() -> KeyRow | None:
        store, now_ms = make_store(Settings(data_dir=folder)), SystemClock().now_ms()
        await store.open()
        try:
            found = await store.redeem_link(link, "token", now_ms, now_ms + 60_000)
            return None if found is None else found.key
        finally:
            await store.close()

    return asyncio.run(redeem())


@pytest.mark.parametrize("named", [False, True])
def test_a_link_is_printed_that_signs_in_once(folder: Path, named: bool) -> None:
    admin, user = (breakers(folder, "keys", "create", "--kind", kind).stdout.strip() for kind in ("admin", "user"))
    key = find(folder, user if named else admin)
    assert key is not None
    done = breakers(folder, "console", *URL, *(["--key", key.id] if named else []))
    address, _, link = done.stdout.strip().partition("#")
    assert address == "https://breakers.example/console/enter"
    assert opened(folder, link) == key
    assert opened(folder, link) is None


@pytest.mark.parametrize("url", ["http://127.0.0.1:7411", "http://[::1]:7411", "http://localhost:7411"])
def test_a_session_on_loopback_is_of_a_name_that_nobody_else_knows(folder: Path, url: str) -> None:
    """Cookies know no ports: who has another one of the same address would be sent them."""
    breakers(folder, "keys", "create", "--kind", "admin")
    links = [breakers(folder, "console", "--url", url).stdout.strip() for _ in range(2)]
    hosts = [re.fullmatch(r"http://([0-9a-f]{16})\.localhost:7411/console/enter#.{43}", link) for link in links]
    assert None not in hosts
    assert len({host[1] for host in hosts if host}) == 2


def test_what_is_missing_is_named(folder: Path) -> None:
    refused(breakers(folder, "console", *URL), "breakers keys create --kind admin")
    refused(breakers(folder, "console"), "set BREAKERS_URL")
    unknown = breakers(folder, "console", *URL, "--key", "nothing")
    assert (unknown.exit_code, unknown.stdout, unknown.stderr) == (1, "", "breakers: There is no such key.\n")
