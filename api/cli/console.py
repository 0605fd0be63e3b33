"""`breakers console`: a link that signs in to the console once."""

from __future__ import annotations

import secrets
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit, urlunsplit

import typer

from api.cli.admin_client import read_or_ask
from api.cli.breaker_client import Url
from api.cli.errors import one_line_errors
from api.cli.output import put
from api.cli.store_access import DataDir, on_store
from breaker_actors.errors import Invalid

if TYPE_CHECKING:
    from pathlib import Path

    from breaker_actors.store.base import Store

LINK_MS = 3_600_000
"""How long a link waits for whom it was made."""
NO_KEY = "no admin key is left to sign in with; `breakers keys create --kind admin` makes one"

Key = Annotated[str | None, typer.Option(help="Id of the key to sign in with, as `keys list` shows it.")]


def console(key: Key = None, url: Url = None, data_dir: DataDir = None) -> None:
    """Print a link that signs in to the console once, within an hour; without --key with the first admin key.

    On a loopback address without TLS the link has a name of its own below localhost: see docs/security.md."""
    with one_line_errors():
        base_url = url or read_or_ask(data_dir, {"BREAKERS_URL": url}, with_secret=False).base_url
        put(link_to(base_url, data_dir, key))


def link_to(base_url: str, data_dir: Path | None, key_id: str | None = None) -> str:
    """A link for a key, or for the operator's first admin key. What is behind the # is sent to nobody by a browser.
    Raises Invalid where there is no such key."""
    token = secrets.token_urlsafe(32)

    async def work(store: Store, now_ms: int) -> None:
        await store.create_link(key_id or await _first_admin(store), token, now_ms, now_ms + LINK_MS)

    on_store(data_dir, work)
    return f"{_apart(base_url)}/console/enter#{token}"


def _apart(base_url: str) -> str:
    """The address under a name that nobody else knows, where other programs may have a port of the same address: a
    browser gives cookies to a name whatever the port (RFC 6265 section 8.5), and takes every name below localhost for
    the machine itself (RFC 6761 section 6.3). With TLS those have no certificate, and need no such name."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    if parts.scheme != "http" or not (host == "localhost" or _is_loopback(host)):
        return base_url
    port = "" if parts.port is None else f":{parts.port}"
    return urlunsplit(parts._replace(netloc=f"{secrets.token_hex(8)}.localhost{port}"))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


async def _first_admin(store: Store) -> str:
    for row in await store.list_keys(await store.operator_org()):
        if row.kind == "admin":
            return row.id
    raise Invalid(NO_KEY)
