"""The store on a SQL database: one SQLite file shared by the processes of a node, or PostgreSQL for clusters."""

from __future__ import annotations

import asyncio

from sqlalchemy import text

from breaker_actors.errors import Invalid
from breaker_actors.stores import sealing
from breaker_actors.stores.accounts import Accounts
from breaker_actors.stores.audits import Audits
from breaker_actors.stores.backfills import Backfills
from breaker_actors.stores.breakers import Breakers
from breaker_actors.stores.channels import Channels
from breaker_actors.stores.engine import Database, is_sqlite
from breaker_actors.stores.migrations import check, revision, upgrade
from breaker_actors.stores.outbox import Outbox
from breaker_actors.stores.placement import Placements
from breaker_actors.stores.projects import Projects
from breaker_actors.stores.reads import Reads
from breaker_actors.stores.routers import Routers
from breaker_actors.stores.runtime import Journals
from breaker_actors.stores.secrets import SecretBox
from breaker_actors.stores.upkeep import Upkeeps

__all__ = ["SqlStore", "upgrade"]


class SqlStore(
    Accounts, Projects, Channels, Audits, Backfills, Breakers, Routers, Placements, Journals, Reads, Outbox, Upkeeps
):
    """`url`: `sqlite:////path/to/store.sqlite` or one of PostgreSQL's (`postgres.SCHEMES`). `shards`: journals that new
    projects are spread over; a project never changes its own. `breakers_max`: breakers a project may have."""

    def __init__(self, url: str, secret_box: SecretBox, shards: int = 1, breakers_max: int = 10_000) -> None:
        self._url = url
        self._box = secret_box
        self._shards = shards
        self._breakers_max = breakers_max
        self._db = Database(url)

    async def open(self) -> None:
        """Connects. A SQLite file is made and upgraded first, so is an empty PostgreSQL database; any other has to have
        the schema this program knows, else SchemaMismatch. Raises Invalid for a key that did not seal its secrets."""
        if is_sqlite(self._url):
            await asyncio.to_thread(upgrade, self._url)
        self._db.open()
        try:
            await self._check_schema()
            await self._check_key()
        except BaseException:
            await self.close()
            raise

    async def _check_schema(self) -> None:
        found = await self._db.read(revision)
        if found is None:
            await asyncio.to_thread(upgrade, self._url)
        else:
            check(found)

    async def _check_key(self) -> None:
        """A store of the time before check values gets its one now."""
        known = await self._db.read(sealing.known)
        if known is None:
            known = await self._db.write(lambda c: sealing.note(c, self._box))
        if not self._box.fits(known):
            raise Invalid(sealing.OTHER_KEY)

    async def close(self) -> None:
        await self._db.close()

    async def ping(self) -> None:
        await self._db.read(lambda c: c.execute(text("SELECT 1")).scalar())
