"""Epochs that fence: whoever opens raises the epoch, and holders of older ones are refused from here on."""

from __future__ import annotations

from typing import Any, NoReturn

from sqlalchemy import Connection, Row, Table, bindparam, select, update

from breaker_actors.errors import Fenced
from breaker_actors.store import tables as t
from breaker_actors.store.section import insert_new


class Fence:
    """The epochs in a table: one row for each number of its primary key. `role` is who holds an epoch."""

    def __init__(self, table: Table, role: str) -> None:
        (self._key,) = table.primary_key
        self._table = table
        self._role = role
        mine = self._key == bindparam("which")
        self._stored = select(table).where(mine)
        self._locked = self._stored.with_for_update()
        self._raised = update(table).where(mine).values(epoch=table.c.epoch + 1).returning(*table.c)

    def open(self, c: Connection, which: int = 1, known: int | None = None) -> Row[Any]:
        """Raises the epoch; answers its row. `known`: only if it is still this one, else Fenced is raised."""
        if known is not None:
            self.check(c, known, which)
        insert_new(c, self._table, dict.fromkeys(self._table.c.keys(), 0) | {self._key.name: which})
        return c.execute(self._raised, {"which": which}).one()

    def stored(self, c: Connection, which: int = 1) -> Row[Any] | None:
        """The row as it is, if anybody has opened yet."""
        return c.execute(self._stored, {"which": which}).first()

    def is_newest(self, c: Connection, epoch: int, which: int = 1) -> bool:
        """Whether nobody has opened since; that stays true until the transaction ends."""
        row = c.execute(self._locked, {"which": which}).first()
        return row is not None and bool(row.epoch == epoch)

    def check(self, c: Connection, epoch: int, which: int = 1) -> None:
        """Raises Fenced when somebody has opened since."""
        if not self.is_newest(c, epoch, which):
            self._refuse()

    def look(self, c: Connection, epoch: int, which: int = 1) -> None:
        """The same without a lock, where nothing is written: it may be so just afterwards."""
        row = self.stored(c, which)
        if row is None or row.epoch != epoch:
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise Fenced(f"a newer {self._role} has taken over")


DIRECTORY = Fence(t.directory, "directory")
NOTIFIER = Fence(t.notifier, "notifier")
JOURNALS = Fence(t.journals, "journal")
