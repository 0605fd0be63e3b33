"""The store on a SQL database: one SQLite file shared by the processes of a node (PostgreSQL for clusters)."""

from __future__ import annotations

import asyncio

from sqlalchemy import text

from breaker_actors.stores.accounts import Accounts
from breaker_actors.stores.audits import Audits
from breaker_actors.stores.breakers import Breakers
from breaker_actors.stores.channels import Channels
from breaker_actors.stores.engine import Database, is_sqlite
from breaker_actors.stores.migrations import upgrade
from breaker_actors.stores.placement import Placements
from breaker_actors.stores.projects import Projects
from breaker_actors.stores.reads import Reads
from breaker_actors.stores.routers import Routers
from breaker_actors.stores.runtime import Journals
from breaker_actors.stores.secrets import SecretBox
from breaker_actors.stores.upkeep import Upkeeps

__all__ = ["SqlStore", "upgrade"]


class SqlStore(Accounts, Projects, Channels, Audits, Breakers, Routers, Placements, Journals, Reads, Upkeeps):
    """`url` as SQLAlchemy writes it, e.g. `sqlite:////path/to/store.sqlite`. `shards`: journals that new projects are
    spread over; a project never changes its own. `breakers_max`: breakers a project may have."""

    def __init__(self, url: str, secret_box: SecretBox, shards: int = 1, breakers_max: int = 10_000) -> None:
        self._url = url
        self._box = secret_box
        self._shards = shards
        self._breakers_max = breakers_max
        self._db = Database(url)

    async def open(self) -> None:
        """Connects; a SQLite file is made and upgraded first. Raises SchemaMismatch for a newer database."""
        if is_sqlite(self._url):
            await asyncio.to_thread(upgrade, self._url)
        self._db.open()
        await self.ping()

    async def close(self) -> None:
        await self._db.close()

    async def ping(self) -> None:
        await self._db.read(lambda c: c.execute(text("SELECT 1")).scalar())
