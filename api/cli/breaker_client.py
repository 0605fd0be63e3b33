"""A client for the breakers of one project, by names or ids, and the options of the commands that use it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from api.cli.admin_client import key_given, read_or_ask
from api.cli.channel_client import ChannelClient
from api.cli.mapping_client import MappingClient
from api.cli.project_client import heeded
from api.cli.rules_client import RulesClient
from api.cli.store_access import DataDir, Project, settings_of
from api.launch.bootstrap import FILE_NAME
from breaker_actors.errors import Unavailable

__all__ = ["BreakerClient", "DataDir", "Insecure", "Project", "Url", "WhichBreaker", "open_client"]

STATES_MAX = 5_000
"""Ids of one request for states; the service takes 10,000."""
EVENTS_MAX = 200
SILENCE_S = 20.0
"""A stream without even a heartbeat for so long is broken; the service sends one every 5 s."""

Url = Annotated[
    str | None,
    typer.Option(envvar="BREAKERS_URL", help="Base URL of the service; default: what credentials.json says."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure-http", help="The key may go to another machine in the clear: on a trusted network.")
]
WhichBreaker = Annotated[str, typer.Argument(help="Name or id of the breaker.", metavar="NAME")]


class BreakerClient(ChannelClient, MappingClient, RulesClient):
    """Speaks about the breakers of one project."""

    def breakers(self) -> list[dict[str, Any]]:
        """All breakers of the project."""
        return self._items("breakers", self._ask("GET", self.path("breakers")))

    def find(self, wanted: str) -> dict[str, Any]:
        """The breaker of this name or id. Raises Invalid for none and for several."""
        return self._one("breaker", wanted, self.breakers())

    def states(self, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The states of breakers, by id."""
        found: dict[str, dict[str, Any]] = {}
        for start in range(0, len(ids), STATES_MAX):
            body = {"breaker_ids": list(ids[start : start + STATES_MAX])}
            states = self._items("states", self._ask("POST", self.path("breakers/state:batch"), body))
            found |= {state["breaker_id"]: state for state in states}
        return found

    def events(
        self, limit: int, breaker_id: str | None, source: str = "live", since_ms: int | None = None
    ) -> list[dict[str, Any]]:
        """At most `limit` events, newest first; only those later than `since_ms`."""
        query = {"source": source} | ({} if breaker_id is None else {"breaker_id": breaker_id})
        query |= {} if since_ms is None else {"since_ms": str(since_ms)}
        return list(self._pages(self.path("events"), "events", query, limit))

    def audit(self, organisation: bool, since_ms: int | None, **only: str) -> Iterator[dict[str, Any]]:
        """Entries of the audit log of the project, or of the organisation, newest first, page by page."""
        entries = self._pages("/v1/audit" if organisation else self.path("audit"), "entries", only)
        return takewhile(lambda entry: since_ms is None or entry["ts_ms"] >= since_ms, entries)

    def _pages(
        self, path: str, name: str, asked: Mapping[str, str], most: int = sys.maxsize
    ) -> Iterator[dict[str, Any]]:
        """What a list has, newest first, page by page, at most so many."""
        query: dict[str, Any] = dict(asked)
        while most > 0:
            page = self._ask("GET", path, **query, limit=min(EVENTS_MAX, most))
            found = self._items(name, page)
            yield from found
            most -= len(found)
            if not page.get("next_cursor"):
                return
            query["cursor"] = page["next_cursor"]

    def compare(self, breaker_id: str) -> dict[str, Any]:
        """A shadow beside what it watches, over the last day."""
        return self._ask("GET", self.path(f"breakers/{breaker_id}/comparison"))

    def create(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Makes a breaker; what became of it."""
        return self._single(heeded(self._ask("POST", self.path("breakers"), fields)))

    def routers(self) -> list[dict[str, Any]]:
        """All routers of the project."""
        return self._items("routers", self._ask("GET", self.path("routers")))

    def router_id(self, wanted: str) -> str:
        """The router of this name or id. Raises Invalid for none and for several."""
        return str(self._one("router", wanted, self.routers())["id"])

    def link(self, router_id: str, breaker_id: str) -> None:
        """Hangs a breaker on a router as well."""
        self._ask("POST", self.path(f"routers/{router_id}/breakers"), {"breaker_ids": [breaker_id]})

    def take_off(self, router_id: str, breaker_id: str) -> None:
        """Takes a breaker off the router that was made with it, and that router away, where it did not go with it."""
        self._ask("DELETE", self.path(f"routers/{router_id}/breakers/{breaker_id}"))
        if any(router["id"] == router_id for router in self.routers()):
            self._ask("DELETE", self.path(f"routers/{router_id}"))

    def change(self, breaker_id: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Changes fields of a breaker; what became of it."""
        return self._single(heeded(self._ask("PATCH", self.path(f"breakers/{breaker_id}"), fields)))

    def delete(self, breaker_id: str) -> None:
        self._ask("DELETE", self.path(f"breakers/{breaker_id}"))

    @contextmanager
    def stream(self) -> Iterator[Iterator[str]]:
        """The lines of the state stream. Raises Unavailable when it can't be had or breaks off."""
        path = self.path("breakers/state:stream")
        self.check()
        try:
            with self._client.stream("GET", path, timeout=SILENCE_S) as answer:
                if answer.status_code != 200:
                    answer.read()
                    error = self.refusal(answer.status_code, answer.json())
                    raise Unavailable(str(error)) if answer.status_code >= 429 else error
                yield answer.iter_lines()
        except (httpx.HTTPError, ValueError) as error:
            raise self.unanswered(error) from None


def open_client(url: str | None, project: str | None, data_dir: Path | None, insecure: bool) -> BreakerClient:
    """With what is given, and for the rest with credentials.json of the data directory. Raises Invalid."""
    key = key_given()
    if url and key and project:
        client = BreakerClient(url, key, project, insecure)
    else:
        given = {"BREAKERS_URL": url, "BREAKERS_KEY": key, "BREAKERS_PROJECT": project}
        known = read_or_ask(data_dir, given, with_secret=bool(key))
        address, project = url or known.base_url, project or known.project_id
        client = BreakerClient(address, key or known.user_key, project, insecure)
    client.key_from = "BREAKERS_KEY" if key else str(settings_of(data_dir).data_dir / FILE_NAME)
    return client
