"""The store on a SQL database: one SQLite file shared by the processes of a node, or PostgreSQL for clusters."""

from __future__ import annotations

import asyncio

from sqlalchemy import text

from breaker_actors.errors import BreakersError, Invalid
from breaker_actors.sql.database import Database, is_sqlite
from breaker_actors.sql.durability import power_loss
from breaker_actors.store import identity, key_check
from breaker_actors.store.config.parts import Configuration
from breaker_actors.store.migrations import check, revision, upgrade
from breaker_actors.store.operational.parts import Operations
from breaker_actors.store.outbox.outbox import Outbox
from breaker_actors.store.quotas import Shares, Stored
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.section import sums_at_the_end
from breaker_actors.store.steps import Steps
from breaker_actors.telemetry.set_aside import Asides

TELL_AGAIN_S = 1.0


class SqlStore(Configuration, Operations, Outbox, Stored):
    """`url`: `sqlite:////path/to/store.sqlite` or one of PostgreSQL's (`postgres.SCHEMES`). `shards`: journals that new
    projects are spread over; a project never changes its own. `breakers_max`: breakers a project may have;
    `shares`: what else it may keep. `synced`: commits to SQLite survive a power loss."""

    def __init__(
        self,
        url: str,
        secret_box: SecretBox,
        shards: int = 1,
        breakers_max: int = 10_000,
        shares: Shares | None = None,
        synced: bool = False,
    ) -> None:
        self._url = url
        self._box = secret_box
        self._shards = shards
        self._breakers_max = breakers_max
        self.asides = Asides()
        self._telling: asyncio.Task[None] | None = None
        self._db = Database(url, self.asides, self._tell, synced, sums_at_the_end, shares=shares or Shares())
        self._steps = Steps(self._db)
        self._marks, self._turns, self._cut_short = {}, {}, set()
        self._finished = ""

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
        known = await self._db.read(key_check.known)
        if known is None:
            known = await self._db.write(lambda c: key_check.note(c, self._box))
        if not self._box.fits(known):
            raise Invalid(key_check.OTHER_KEY)

    async def close(self) -> None:
        if self._telling is not None:
            await asyncio.gather(self._telling, return_exceptions=True)
        await self._db.close()

    async def database_id(self) -> str:
        return await self._db.read(identity.known)

    async def power_loss(self) -> str:
        return await self._db.read(power_loss)

    def _tell(self) -> None:
        """Something could not be read: it goes into the table beside the work. What fails waits for a later round."""
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._write_asides())

    async def _write_asides(self) -> None:
        entries = self.asides.drain()
        try:
            await self.set_aside(entries)
        except BaseException as error:
            self.asides.put_back(entries)
            if not isinstance(error, BreakersError):
                raise
            await asyncio.sleep(TELL_AGAIN_S)

    async def ping(self) -> None:
        await self._db.read(lambda c: c.execute(text("SELECT 1")).scalar())
