"""One file of the SQLite sample log: its tables and every statement on it, as sync functions over a connection.

Offsets are dense per router and received_ms never goes back with them; both are checked at every append and relied on
by the reads.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from breaker_actors.core.records import VIEW, LogRecord
from breaker_actors.errors import Invalid
from breaker_actors.stores.samplelog import Append, LogStock, RouterHead
from breaker_actors.stores.sqlite_files import BUSY_TIMEOUT_S, make_file

TRIM_ROWS = 200
_SLOT = re.compile(r"[a-z0-9-]{1,64}")
_CACHED_STATEMENTS = 64

# Payloads come last in a row: SQLite reads the columns before them without touching their overflow pages.
# `keys` is clustered by offset, not by key: owners look keys up in memory, the table is only written and read in order.
# `taken_offset` and `before_ms` make a repeated take answer like the first one, whose answer may have been lost.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    router_id TEXT NOT NULL, offset INTEGER NOT NULL, received_ms INTEGER NOT NULL, kind INTEGER NOT NULL,
    view_offset INTEGER NOT NULL, payload BLOB NOT NULL, PRIMARY KEY (router_id, offset)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS heads (
    router_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL, owner TEXT NOT NULL, offset INTEGER NOT NULL,
    last_received_ms INTEGER NOT NULL, view_offset INTEGER NOT NULL, taken_offset INTEGER NOT NULL,
    before_ms INTEGER NOT NULL, keys_from_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keys (
    router_id TEXT NOT NULL, offset INTEGER NOT NULL, key BLOB NOT NULL, received_ms INTEGER NOT NULL,
    PRIMARY KEY (router_id, offset, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS alive (owner TEXT PRIMARY KEY, alive_ms INTEGER NOT NULL) WITHOUT ROWID;
"""


class _Head(msgspec.Struct):
    router_id: str
    epoch: int
    owner: str
    offset: int
    last_received_ms: int
    view_offset: int
    taken_offset: int
    before_ms: int
    keys_from_ms: int


_HEAD_COLUMNS = ", ".join(_Head.__struct_fields__)
_SELECT_HEAD = f"SELECT {_HEAD_COLUMNS} FROM heads WHERE router_id = ?"
_RECORD_COLUMNS = "router_id, offset, received_ms, kind, view_offset, payload"


def file_name(slot: str) -> str:
    """The file of a slot. Raises Invalid for a name that could leave the folder."""
    if _SLOT.fullmatch(slot) is None:
        raise Invalid(f"not a log slot: {slot!r}")
    return f"{slot}.sqlite"


def open_writer(path: Path, synchronous_full: bool) -> sqlite3.Connection:
    """Makes the file when it is missing."""
    make_file(path)
    connection = _connect(path)
    connection.execute(f"PRAGMA synchronous={'FULL' if synchronous_full else 'NORMAL'}")
    # The -wal file keeps the size of its longest time otherwise, for instance behind a slow reader.
    connection.execute("PRAGMA journal_size_limit=67108864")
    with _transaction(connection):
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
    return connection


def open_reader(path: Path) -> sqlite3.Connection | None:
    """None when the owner has not made the file and its tables yet."""
    if not path.exists():
        return None
    connection = _connect(path)
    connection.execute("PRAGMA query_only=1")
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alive'").fetchone() is None:
        connection.close()
        return None
    return connection


def _connect(path: Path) -> sqlite3.Connection:
    # check_same_thread stays on: one thread per connection is what makes this file free of locks.
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        cached_statements=_CACHED_STATEMENTS,
    )


@contextmanager
def _transaction(c: sqlite3.Connection) -> Iterator[None]:
    c.execute("BEGIN IMMEDIATE")
    try:
        yield
        c.execute("COMMIT")
    except BaseException:
        if c.in_transaction:
            c.execute("ROLLBACK")
        raise


def _head(c: sqlite3.Connection, router_id: str) -> _Head | None:
    row = c.execute(_SELECT_HEAD, (router_id,)).fetchone()
    return None if row is None else _Head(*row)


def take(
    c: sqlite3.Connection, owner: str, routers: Sequence[tuple[str, int]], now_ms: int, keys_after_ms: int
) -> list[RouterHead]:
    """Puts routers under an owner incarnation; see SampleLog.take."""
    with _transaction(c):
        taken = [head for router_id, epoch in routers if (head := _take(c, router_id, epoch, owner, now_ms))]
        _note_alive(c, owner, now_ms)
        c.execute("DELETE FROM alive WHERE owner <> ? AND owner NOT IN (SELECT owner FROM heads)", (owner,))
        return [_router_head(c, head, keys_after_ms) for head in taken]


def _take(c: sqlite3.Connection, router_id: str, epoch: int, owner: str, now_ms: int) -> _Head | None:
    head = _head(c, router_id)
    if head is None:
        head = _Head(router_id, epoch, owner, 0, 0, 0, 0, now_ms, 0)
    elif head.epoch > epoch or (head.epoch == epoch and head.owner != owner):
        return None
    elif head.epoch == epoch and head.offset == head.taken_offset:
        return head
    else:
        head.before_ms = max(_alive_ms(c, head.owner), head.last_received_ms)
        head.epoch, head.owner, head.taken_offset = epoch, owner, head.offset
    c.execute("REPLACE INTO heads VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", msgspec.structs.astuple(head))
    return head


def _router_head(c: sqlite3.Connection, head: _Head, keys_after_ms: int) -> RouterHead:
    view = c.execute(
        "SELECT payload FROM records WHERE router_id = ? AND offset = ?", (head.router_id, head.view_offset)
    ).fetchone()
    keys = c.execute(
        "SELECT key, offset FROM keys WHERE router_id = ? AND received_ms > ? ORDER BY offset",
        (head.router_id, keys_after_ms),
    )
    return RouterHead(
        router_id=head.router_id,
        epoch=head.epoch,
        offset=head.offset,
        last_received_ms=head.last_received_ms,
        alive_ms=head.before_ms,
        view_offset=head.view_offset,
        view=None if view is None else view[0],
        keys=tuple(keys.fetchall()),
    )


def alive(c: sqlite3.Connection, owner: str, now_ms: int) -> None:
    """Only who owns something here is noted: a process that was replaced must not come back into the table."""
    with _transaction(c):
        if c.execute("SELECT 1 FROM heads WHERE owner = ? LIMIT 1", (owner,)).fetchone():
            _note_alive(c, owner, now_ms)


def promise(c: sqlite3.Connection, owner: str, routers: Sequence[tuple[str, int]], upto_ms: int) -> list[bool]:
    """See SampleLog.promise."""
    with _transaction(c):
        heads = [(_head(c, router_id), epoch) for router_id, epoch in routers]
        mine = [head is not None and head.epoch == epoch and head.owner == owner for head, epoch in heads]
        if any(mine):
            _note_alive(c, owner, upto_ms)
        return mine


def _note_alive(c: sqlite3.Connection, owner: str, now_ms: int) -> None:
    c.execute(
        "INSERT INTO alive VALUES (?, ?) ON CONFLICT (owner) DO UPDATE SET alive_ms = max(alive_ms, excluded.alive_ms)",
        (owner, now_ms),
    )


def _alive_ms(c: sqlite3.Connection, owner: str) -> int:
    row = c.execute("SELECT alive_ms FROM alive WHERE owner = ?", (owner,)).fetchone()
    return 0 if row is None else int(row[0])


def append(c: sqlite3.Connection, records: Sequence[Append], keys_ms: int) -> list[bool]:
    """One transaction for all records; see SampleLog.append. A record that lies there already, under the same epoch
    and byte for byte, counts as appended: its first answer got lost."""
    with _transaction(c):
        heads = {router_id: _head(c, router_id) for router_id in {record.router_id for record in records}}
        moved: dict[str, _Head] = {}
        fresh: list[Append] = []
        results: list[bool] = []
        for record in records:
            head = heads[record.router_id]
            if head is None or head.epoch != record.epoch:
                results.append(False)
            elif record.offset == head.offset + 1 and record.received_ms >= head.last_received_ms:
                _move_on(head, record)
                moved[head.router_id] = head
                fresh.append(record)
                results.append(True)
            else:
                results.append(record.offset > head.taken_offset and _lies_there(c, record))
        _insert(c, fresh)
        for head in moved.values():
            _store_head(c, head, keys_ms)
        return results


def _move_on(head: _Head, record: Append) -> None:
    head.offset = record.offset
    head.last_received_ms = record.received_ms
    head.view_offset = record.offset if record.kind == VIEW else record.view_offset


def _lies_there(c: sqlite3.Connection, record: Append) -> bool:
    row = c.execute(
        f"SELECT {_RECORD_COLUMNS} FROM records WHERE router_id = ? AND offset = ?", (record.router_id, record.offset)
    ).fetchone()
    return row is not None and row == _record_row(record)


def _record_row(r: Append) -> tuple[str, int, int, int, int, bytes]:
    return r.router_id, r.offset, r.received_ms, r.kind, r.view_offset, r.payload


def _insert(c: sqlite3.Connection, records: Sequence[Append]) -> None:
    c.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)", map(_record_row, records))
    c.executemany(
        "INSERT OR IGNORE INTO keys VALUES (?, ?, ?, ?)",
        ((r.router_id, r.offset, key, r.received_ms) for r in records for key in r.keys),
    )


def _store_head(c: sqlite3.Connection, head: _Head, keys_ms: int) -> None:
    """Stores where the log stands; once in a tenth of their life also drops the keys that are too old."""
    oldest_ms = head.last_received_ms - keys_ms
    if oldest_ms - head.keys_from_ms > keys_ms // 10:
        head.keys_from_ms = oldest_ms
        c.execute("DELETE FROM keys WHERE router_id = ? AND received_ms <= ?", (head.router_id, oldest_ms))
    c.execute(
        "UPDATE heads SET offset = ?, last_received_ms = ?, view_offset = ?, keys_from_ms = ? WHERE router_id = ?",
        (head.offset, head.last_received_ms, head.view_offset, head.keys_from_ms, head.router_id),
    )


def read(c: sqlite3.Connection, router_id: str, after: int, upto: int, limit: int) -> list[LogRecord]:
    rows = c.execute(
        f"SELECT {_RECORD_COLUMNS} FROM records WHERE router_id = ? AND offset > ? AND offset <= ?"
        " ORDER BY offset LIMIT ?",
        (router_id, after, upto, limit),
    )
    return [LogRecord(*row) for row in rows]


def find(c: sqlite3.Connection, router_id: str, at_ms: int) -> int:
    """Halves the range of offsets until one is left: received_ms never falls, so no index on it is needed."""
    low, high = 0, c.execute("SELECT max(offset) FROM records WHERE router_id = ?", (router_id,)).fetchone()[0] or 0
    while low < high:
        middle = (low + high + 1) // 2
        row = c.execute(
            "SELECT offset, received_ms FROM records WHERE router_id = ? AND offset >= ? AND offset <= ?"
            " ORDER BY offset LIMIT 1",
            (router_id, middle, high),
        ).fetchone()
        if row is not None and row[1] <= at_ms:
            low = row[0]
        else:
            high = middle - 1
    return low


def stock(c: sqlite3.Connection) -> list[LogStock]:
    rows = c.execute("SELECT router_id, offset, last_received_ms FROM heads ORDER BY router_id")
    return [LogStock(*row) for row in rows]


def trim(c: sqlite3.Connection, router_id: str, below: int) -> int:
    """Drops up to TRIM_ROWS records below an offset, but not the view that the first kept record refers to."""
    with _transaction(c):
        first_kept = c.execute(
            "SELECT view_offset FROM records WHERE router_id = ? AND offset >= ? ORDER BY offset LIMIT 1",
            (router_id, below),
        ).fetchone()
        head = _head(c, router_id)
        view_offset = first_kept[0] if first_kept else head.view_offset if head else 0
        return c.execute(
            "DELETE FROM records WHERE router_id = ?1 AND offset IN (SELECT offset FROM records"
            " WHERE router_id = ?1 AND offset < ?2 AND offset <> ?3 ORDER BY offset LIMIT ?4)",
            (router_id, below, view_offset, TRIM_ROWS),
        ).rowcount


def forget(c: sqlite3.Connection, router_id: str) -> int:
    """Drops up to TRIM_ROWS records, and once fewer are left everything; answers how many records went."""
    with _transaction(c):
        dropped = c.execute(
            "DELETE FROM records WHERE router_id = ?1 AND offset IN"
            " (SELECT offset FROM records WHERE router_id = ?1 ORDER BY offset LIMIT ?2)",
            (router_id, TRIM_ROWS),
        ).rowcount
        if dropped < TRIM_ROWS:
            c.execute("DELETE FROM keys WHERE router_id = ?", (router_id,))
            c.execute("DELETE FROM heads WHERE router_id = ?", (router_id,))
        return dropped


def size_bytes(c: sqlite3.Connection) -> int:
    def ask(name: str) -> int:
        return int(c.execute(f"PRAGMA {name}").fetchone()[0])

    return (ask("page_count") - ask("freelist_count")) * ask("page_size")
