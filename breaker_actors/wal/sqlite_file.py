"""One file of the SQLite sample log: its tables and every statement on it, as sync functions over a connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from breaker_actors.core.log_entries import VIEW, LogRecord
from breaker_actors.messages import LogRead
from breaker_actors.sql.sqlite import BUSY_TIMEOUT_S, make_file, synchronous
from breaker_actors.wal import chain
from breaker_actors.wal import faults as logfaults
from breaker_actors.wal import head as loghead
from breaker_actors.wal.base import READ_BYTES, Append, Entry, LogStock, Loss, RouterHead, StoredKey, check_slot
from breaker_actors.wal.chain import Extent, Row
from breaker_actors.wal.faults import Lying
from breaker_actors.wal.head import Head, Judged

TRIM_ROWS = 200
KEY_ROWS = 5_000
PAGE_BYTES, ROW_BYTES = 4096, 100
"""Pages are SQLite's default; ROW_BYTES is what a record takes beside its payload."""
_OVERFLOW_PAGE = PAGE_BYTES - 4
_ROW_MIN, _ROW_MAX = (PAGE_BYTES - 12) * 32 // 255 - 23, (PAGE_BYTES - 12) * 64 // 255 - 23
"""How much of a row lies in the tree itself where the rest has overflow pages, and where it has none (SQLite's file
format, section 1.6)."""
_CACHED_STATEMENTS = 64
_BEHIND_ALL = 1 << 62

# Payloads come last in a row: SQLite reads the columns before them without touching their overflow pages.
# `told` has the highest number of a change of configuration that a record here belongs to, also one that is trimmed.
# `keys` is clustered by offset, not by key: owners look keys up in memory, the table is only written and read in order.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    router_id TEXT NOT NULL, offset INTEGER NOT NULL, received_ms INTEGER NOT NULL, kind INTEGER NOT NULL,
    view_offset INTEGER NOT NULL, before INTEGER, checksum INTEGER, payload BLOB NOT NULL,
    PRIMARY KEY (router_id, offset)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS heads (
    router_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL, owner TEXT NOT NULL, offset INTEGER NOT NULL,
    last_received_ms INTEGER NOT NULL, view_offset INTEGER NOT NULL, taken_offset INTEGER NOT NULL,
    before_ms INTEGER NOT NULL, keys_from_ms INTEGER NOT NULL, turn INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0, checksum INTEGER NOT NULL DEFAULT 0, unchained INTEGER NOT NULL DEFAULT 0,
    floor INTEGER NOT NULL DEFAULT 0, seal INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keys (
    router_id TEXT NOT NULL, offset INTEGER NOT NULL, key BLOB NOT NULL, received_ms INTEGER NOT NULL,
    PRIMARY KEY (router_id, offset, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counters (
    router_id TEXT NOT NULL, series BLOB NOT NULL, state BLOB NOT NULL, PRIMARY KEY (router_id, series)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS told (one INTEGER PRIMARY KEY CHECK (one = 1), change INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS alive (owner TEXT PRIMARY KEY, alive_ms INTEGER NOT NULL) WITHOUT ROWID;
"""


_HEAD_COLUMNS = ", ".join({"generation": "turn"}.get(field, field) for field in Head.__struct_fields__)
_SELECT_HEAD = f"SELECT {_HEAD_COLUMNS} FROM heads WHERE router_id = ?"  # nosec B608 # constants
_COLUMNS = "router_id, offset, received_ms, kind, view_offset, payload, before, checksum"
_SELECT_RECORD = f"SELECT {_COLUMNS} FROM records WHERE router_id = ? AND offset = ?"  # nosec B608 # constants
_SELECT_RECORDS = f"SELECT {_COLUMNS} FROM records WHERE router_id = ? ORDER BY offset"  # nosec B608 # constants
_INSERT_RECORD = f"INSERT INTO records ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"  # nosec B608 # constants
_BOUNDS = """
SELECT coalesce(min(offset), 0), coalesce(max(offset), 0), coalesce(max(offset) FILTER (WHERE checksum IS NULL), 0)
FROM records WHERE router_id = ?
"""
_SELECT_RANGE = (
    f"SELECT {_COLUMNS} FROM records WHERE router_id = ? AND offset > ? AND offset <= ? ORDER BY offset LIMIT ?"  # nosec B608
)
_STORE_HEAD = f"REPLACE INTO heads ({_HEAD_COLUMNS}) VALUES ({', '.join('?' * len(Head.__struct_fields__))})"  # nosec B608


_KEYS_PAGE = """
SELECT offset, key, received_ms FROM keys WHERE router_id = ? AND (offset, key) > (?, ?) ORDER BY offset, key LIMIT ?
"""
_KEYS_UPTO = "SELECT router_id, offset, key FROM keys WHERE router_id = ? AND offset <= ? ORDER BY offset, key LIMIT ?"
_TWICE = """
SELECT min(offset), max(offset) FROM keys WHERE router_id = ? GROUP BY key HAVING count(*) > 1 ORDER BY 1
"""


_TELL = "INSERT INTO told VALUES (1, ?) ON CONFLICT DO UPDATE SET change = max(change, excluded.change)"


def file_name(slot: str) -> str:
    """The file of a slot. Raises Invalid for a name that could leave the folder."""
    return f"{check_slot(slot)}.sqlite"


def open_writer(path: Path, synced: bool) -> sqlite3.Connection:
    """Makes the file when it is missing."""
    make_file(path)
    connection = _connect(path)
    connection.execute(f"PRAGMA synchronous={synchronous(synced)}")
    # The -wal file keeps the size of its longest time otherwise, for instance behind a slow reader.
    connection.execute("PRAGMA journal_size_limit=67108864")
    with _transaction(connection):
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        _add_columns(connection)
    return connection


def _add_columns(c: sqlite3.Connection) -> None:
    """Brings a file of an earlier version up to date."""
    records = [row[1] for row in c.execute("PRAGMA table_info(records)")]
    if "checksum" not in records:
        c.execute("ALTER TABLE records ADD COLUMN before INTEGER")
        c.execute("ALTER TABLE records ADD COLUMN checksum INTEGER")
    known = [row[1] for row in c.execute("PRAGMA table_info(heads)")]
    for name in ("turn", "bytes", "checksum", "unchained", "floor", "seal"):
        if name not in known:
            c.execute(f"ALTER TABLE heads ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0")
    if "bytes" not in known or "checksum" not in records:  # a record takes more now
        taken: dict[str, int] = {}
        for router_id, payload in c.execute("SELECT router_id, length(payload) FROM records"):
            taken[router_id] = taken.get(router_id, 0) + record_bytes(payload)
        c.executemany("UPDATE heads SET bytes = ? WHERE router_id = ?", [(n, id_) for id_, n in taken.items()])
    if "unchained" not in known:
        c.execute("UPDATE heads SET unchained = offset, floor = offset + 1")


def record_bytes(payload: int) -> int:
    """What a record with so many bytes of payload takes up: its row, and whole pages for what has no room in there."""
    row = ROW_BYTES + payload
    if row <= _ROW_MAX:
        return row
    local = _ROW_MIN + (row - _ROW_MIN) % _OVERFLOW_PAGE
    local = local if local <= _ROW_MAX else _ROW_MIN
    return local + -(-(row - local) // _OVERFLOW_PAGE) * PAGE_BYTES


def open_reader(path: Path) -> sqlite3.Connection | None:
    """None when the owner has not made the file and its tables yet. A file of an earlier version is brought up to date:
    a log may be read before its owner is there."""
    if not path.exists():
        return None
    connection = _connect(path)
    if "checksum" not in {row[1] for row in connection.execute("PRAGMA table_info(records)")} and _has_tables(
        connection
    ):
        open_writer(path, False).close()
    connection.execute("PRAGMA query_only=1")
    if not _has_tables(connection):
        connection.close()
        return None
    return connection


def newest_change(path: Path) -> int:
    """The highest number of a change of configuration that a file has; 0 where it is of a time before that was noted,
    or can't be read."""
    try:
        if (connection := open_reader(path)) is None:
            return 0
        with closing(connection):
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'told'").fetchone() is None:
                return 0
            return int(connection.execute("SELECT coalesce(max(change), 0) FROM told").fetchone()[0])
    except sqlite3.Error:
        return 0


def _has_tables(connection: sqlite3.Connection) -> bool:
    """Whether the last of them is there."""
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alive'").fetchone() is not None


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


def _head(c: sqlite3.Connection, router_id: str) -> Head | None:
    row = c.execute(_SELECT_HEAD, (router_id,)).fetchone()
    return None if row is None else Head(*row)


class Owners:
    """Epoch and owner of routers, as a file's writer has read them: watermarks ask for them many times a second. They
    hold until another connection writes to the file, which SQLite tells, or this one takes, recovers or forgets a
    router."""

    def __init__(self) -> None:
        self._version = 0
        self._of: dict[str, tuple[int, str]] = {}

    def clear(self) -> None:
        self._of.clear()

    def are(self, c: sqlite3.Connection, owner: str, routers: Sequence[tuple[str, int]]) -> list[bool]:
        """Which routers [(id, epoch)] are an owner's. Inside a transaction that nobody else writes beside."""
        (version,) = c.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._version = version
            self._of.clear()
        for router_id in [router_id for router_id, _ in routers if router_id not in self._of]:
            if row := c.execute("SELECT epoch, owner FROM heads WHERE router_id = ?", (router_id,)).fetchone():
                self._of[router_id] = row
        return [self._of.get(router_id) == (epoch, owner) for router_id, epoch in routers]


def acquire(
    c: sqlite3.Connection,
    owners: Owners,
    owner: str,
    routers: Sequence[tuple[str, int]],
    now_ms: int,
    keys_after_ms: int,
    keys_upto: Mapping[str, int],
) -> list[RouterHead]:
    """Puts routers under an owner incarnation; see SampleLog.acquire."""
    owners.clear()
    with _transaction(c):
        alive: dict[str, int] = dict(c.execute("SELECT owner, alive_ms FROM alive"))
        taken = []
        for router_id, epoch in routers:
            stored = _head(c, router_id)
            head = loghead.acquire(stored, router_id, epoch, owner, now_ms, alive)
            if head is not None:
                view = _record(c, router_id, head.view_offset)
                damage = loghead.fault(stored, _end(c, router_id, head.offset), view)
                if not damage:  # else all stays as it was found
                    c.execute(_STORE_HEAD, msgspec.structs.astuple(head))
                taken.append((head, view, damage))
        c.execute("DELETE FROM alive WHERE owner <> ? AND owner NOT IN (SELECT owner FROM heads)", (owner,))
        return [
            _router_head(c, head, view, keys_after_ms, keys_upto.get(head.router_id, 0), damage)
            for head, view, damage in taken
        ]


def keys(c: sqlite3.Connection, after: Mapping[str, tuple[int, bytes]], each: int) -> dict[str, list[StoredKey]]:
    """See SampleLog.keys."""
    return {id_: list(map(StoredKey._make, c.execute(_KEYS_PAGE, (id_, *at, each)))) for id_, at in after.items()}


def _record(c: sqlite3.Connection, router_id: str, offset: int) -> Row | None:
    row = c.execute(_SELECT_RECORD, (router_id, offset)).fetchone()
    return None if row is None else Row(*row)


def _end(c: sqlite3.Connection, router_id: str, offset: int) -> list[tuple[int, int | None]]:
    """Offset and checksum of the first two records from an offset on."""
    return c.execute(
        "SELECT offset, checksum FROM records WHERE router_id = ? AND offset >= ? ORDER BY offset LIMIT 2",
        (router_id, offset),
    ).fetchall()


def drop_keys(c: sqlite3.Connection, left: dict[str, int]) -> bool:
    """Drops up to KEY_ROWS keys of routers, up to an offset each; True: there may be more. Takes out of `left` those
    that have none any more."""
    with _transaction(c):
        room = KEY_ROWS
        for router_id, upto in list(left.items()):
            found = c.execute(_KEYS_UPTO, (router_id, upto, room)).fetchall()
            c.executemany("DELETE FROM keys WHERE router_id = ? AND offset = ? AND key = ?", found)
            room -= len(found)
            if not room:
                return True
            del left[router_id]
    return False


def _router_head(
    c: sqlite3.Connection, head: Head, view: Row | None, keys_after_ms: int, keys_upto: int, damage: str
) -> RouterHead:
    kept = c.execute(
        "SELECT key, offset FROM keys WHERE router_id = ? AND offset > ? AND received_ms > ? ORDER BY offset",
        (head.router_id, keys_upto, keys_after_ms),
    )
    counters = c.execute("SELECT series, state FROM counters WHERE router_id = ?", (head.router_id,)).fetchall()
    return loghead.router_head(head, None if view is None else view.payload, kept.fetchall(), damage, counters)


def alive(c: sqlite3.Connection, owner: str, now_ms: int) -> None:
    """Only who owns something here is noted: a process that was replaced must not come back into the table."""
    with _transaction(c):
        if c.execute("SELECT 1 FROM heads WHERE owner = ? LIMIT 1", (owner,)).fetchone():
            _note_alive(c, owner, now_ms)


def advance_watermark(
    c: sqlite3.Connection, owners: Owners, owner: str, routers: Sequence[tuple[str, int]], upto_ms: int
) -> list[bool]:
    """See SampleLog.advance_watermark."""
    with _transaction(c):
        mine = owners.are(c, owner, routers)
        if any(mine):
            _note_alive(c, owner, upto_ms)
        return mine


def _note_alive(c: sqlite3.Connection, owner: str, now_ms: int) -> None:
    """What is stored already is not written, nor synced, again."""
    c.execute(
        "INSERT INTO alive VALUES (?, ?) ON CONFLICT (owner) DO UPDATE SET alive_ms = excluded.alive_ms"
        " WHERE alive_ms < excluded.alive_ms",
        (owner, now_ms),
    )


def append(c: sqlite3.Connection, records: Sequence[Append], keys_ms: int) -> list[bool]:
    """One transaction for all records; see SampleLog.append."""
    with _transaction(c):
        heads = {id_: head for id_ in {record.router_id for record in records} if (head := _head(c, id_)) is not None}
        judged = loghead.judge(heads, records)
        pairs = zip(judged.results, records, strict=True)
        results = [_lies_there(c, record) if result is None else result for result, record in pairs]
        _insert(c, judged)
        grown = dict.fromkeys((head.router_id for head in judged.moved), 0)
        for row in judged.fresh:
            grown[row.router_id] += record_bytes(len(row.payload))
        for head in judged.moved:
            _store_head(c, head, keys_ms, grown[head.router_id])
        return results


def _lies_there(c: sqlite3.Connection, record: Append) -> bool:
    row = _record(c, record.router_id, record.offset)
    return row is not None and row[:6] == loghead.values_of(record)


def _insert(c: sqlite3.Connection, judged: Judged) -> None:
    c.executemany(_INSERT_RECORD, judged.fresh)
    if change := max((r.change for r in judged.appends), default=0):
        c.execute(_TELL, (change,))
    c.executemany(
        "INSERT OR IGNORE INTO keys VALUES (?, ?, ?, ?)",
        ((r.router_id, r.offset, key, r.received_ms) for r in judged.appends for key in r.keys),
    )
    if counters := loghead.last_counters(judged.appends):
        gone = [place for place, state in counters.items() if not state]
        c.executemany("DELETE FROM counters WHERE router_id = ? AND series = ?", gone)
        rows = ((*place, state) for place, state in counters.items() if state)
        c.executemany("REPLACE INTO counters VALUES (?, ?, ?)", rows)


def _store_head(c: sqlite3.Connection, head: Head, keys_ms: int, grown: int) -> None:
    oldest_ms = loghead.due_keys_ms(head, keys_ms)
    if oldest_ms is not None:
        c.execute("DELETE FROM keys WHERE router_id = ? AND received_ms <= ?", (head.router_id, oldest_ms))
    c.execute(
        "UPDATE heads SET offset = ?, last_received_ms = ?, view_offset = ?, keys_from_ms = ?, bytes = bytes + ?,"
        " checksum = ?, seal = ? WHERE router_id = ?",
        (
            head.offset,
            head.last_received_ms,
            head.view_offset,
            head.keys_from_ms,
            grown,
            head.checksum,
            head.seal,
            head.router_id,
        ),
    )


def read(
    c: sqlite3.Connection, router_id: str, after: int, upto: int, limit: int, bytes_max: int = READ_BYTES
) -> list[LogRecord]:
    """See SampleLog.read. Without a head there is no log. Head and records are of one moment."""
    c.execute("BEGIN")
    try:
        extent = c.execute("SELECT offset, floor, unchained FROM heads WHERE router_id = ?", (router_id,)).fetchone()
        if extent is None:
            return []
        rows, is_full = _rows(c, router_id, after, upto, limit, bytes_max)

        def behind() -> Row | None:
            return next(iter(_rows(c, router_id, upto, _BEHIND_ALL, 1)[0]), None)

        return chain.verified(router_id, rows, Extent(*extent), after, upto, None if is_full else behind)
    finally:
        c.execute("COMMIT")


def _rows(
    c: sqlite3.Connection, router_id: str, after: int, upto: int, limit: int, bytes_max: int = READ_BYTES
) -> tuple[list[Row], bool]:
    """Also whether these are as many as may be."""
    rows: list[Row] = []
    for columns in c.execute(_SELECT_RANGE, (router_id, after, upto, limit)):
        rows.append(row := Row(*columns))
        bytes_max -= len(row.payload)
        if bytes_max <= 0:
            return rows, True
    return rows, len(rows) == limit


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
    rows = c.execute("SELECT router_id, offset, last_received_ms, bytes FROM heads ORDER BY router_id")
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
        found = c.execute(
            "SELECT offset, length(payload) FROM records WHERE router_id = ? AND offset < ? AND offset <> ?"
            " ORDER BY offset LIMIT ?",
            (router_id, below, view_offset, TRIM_ROWS),
        ).fetchall()
        return _drop(c, router_id, found, below)


def _drop(c: sqlite3.Connection, router_id: str, found: Sequence[tuple[int, int]], below: int) -> int:
    """Removes records [(offset, bytes of payload)] of a router, all below an offset; answers how many."""
    rows = [(router_id, offset) for offset, _ in found]
    c.executemany("DELETE FROM records WHERE router_id = ? AND offset = ?", rows)
    freed = sum(record_bytes(payload) for _, payload in found)
    c.execute(
        "UPDATE heads SET bytes = max(0, bytes - ?), floor = max(floor, min(?, offset + 1)) WHERE router_id = ?",
        (freed, below, router_id),
    )
    return len(found)


def forget(c: sqlite3.Connection, owners: Owners, router_id: str) -> int:
    """Drops up to TRIM_ROWS records, and once fewer are left everything; answers how many records went."""
    owners.clear()
    with _transaction(c):
        found = c.execute(
            "SELECT offset, length(payload) FROM records WHERE router_id = ? ORDER BY offset LIMIT ?",
            (router_id, TRIM_ROWS),
        ).fetchall()
        dropped = _drop(c, router_id, found, _BEHIND_ALL)
        if dropped < TRIM_ROWS:
            c.execute("DELETE FROM keys WHERE router_id = ?", (router_id,))
            c.execute("DELETE FROM counters WHERE router_id = ?", (router_id,))
            c.execute("DELETE FROM heads WHERE router_id = ?", (router_id,))
        return dropped


def recover(
    c: sqlite3.Connection,
    owners: Owners,
    router_id: str,
    upto: int,
    now_ms: int,
    entries: Sequence[Entry] | None,
    ahead_max_ms: int | None,
) -> list[Loss]:
    """See SampleLog.recover."""
    owners.clear()
    with _transaction(c):
        head = _head(c, router_id)
        stood = loghead.extent(head, c.execute(_BOUNDS, (router_id,)).fetchone())
        promised_ms = loghead.promised_ms(head, dict(c.execute("SELECT owner, alive_ms FROM alive")))
        rows = map(Row._make, c.execute(_SELECT_RECORDS, (router_id,)))
        if is_ahead := loghead.is_ahead(head, promised_ms, now_ms, ahead_max_ms):
            promised_ms = now_ms - 1
        until_ms = max(now_ms, promised_ms + 1)
        found = list(chain.losses(rows, router_id, stood, upto, until_ms, is_ahead))
        losses = loghead.losses(found, head, _record(c, router_id, head.view_offset) if head else None, until_ms)
        if entries is not None and (found or _head_is_wrong(c, router_id, head)):
            gone = "DELETE FROM records WHERE router_id = ? AND offset BETWEEN ? AND ?"
            c.executemany(gone, ((router_id, first, row.offset) for first, row in found))
            c.executemany(_INSERT_RECORD, (row for _, row in found))
            _renew_head(c, router_id, head, stood, upto, entries, promised_ms)
        return losses


def _head_is_wrong(c: sqlite3.Connection, router_id: str, head: Head | None) -> bool:
    if head is None:
        return bool(_end(c, router_id, 0))
    words = loghead.fault(head, _end(c, router_id, head.offset), _record(c, router_id, head.view_offset))
    return bool(words) or head.bytes != _taken_up(c, router_id)


def _taken_up(c: sqlite3.Connection, router_id: str) -> int:
    sizes = c.execute("SELECT length(payload) FROM records WHERE router_id = ?", (router_id,))
    return sum(record_bytes(size) for (size,) in sizes)


def _renew_head(
    c: sqlite3.Connection,
    router_id: str,
    head: Head | None,
    stood: Extent,
    upto: int,
    entries: Sequence[Entry],
    promised_ms: int,
) -> None:
    """Of records that are whole; the entries come behind them."""
    lying = next(map(Row._make, c.execute(f"{_SELECT_RECORDS} DESC LIMIT 1", (router_id,))), None)
    last = loghead.last_of(head, stood, lying, router_id, upto)
    if last is None:
        c.execute("DELETE FROM heads WHERE router_id = ?", (router_id,))
        return
    newest = "SELECT coalesce(max(offset), 0) FROM records WHERE router_id = ? AND kind = ?"
    ((view,),) = c.execute(newest, (router_id, VIEW))
    added = list(chain.behind(last, view, entries, promised_ms))
    c.executemany(_INSERT_RECORD, added)
    ((view,),) = c.execute(newest, (router_id, VIEW))
    taken_up = _taken_up(c, router_id)
    last = added[-1] if added else last
    c.execute(_STORE_HEAD, msgspec.structs.astuple(loghead.recovered(stood, last, view, taken_up, promised_ms)))


def faults(c: sqlite3.Connection, read: LogRead, now_ms: int) -> list[str]:
    """See SampleLog.faults; all of one moment."""
    router_id = read.router_id
    c.execute("BEGIN")
    try:
        head = _head(c, router_id)
        lying = Lying(
            head=head,
            extent=loghead.extent(head, c.execute(_BOUNDS, (router_id,)).fetchone()),
            end=_end(c, router_id, head.offset if head is not None else 0),
            view=None if head is None else _record(c, router_id, head.view_offset),
            rows=map(Row._make, c.execute(_SELECT_RECORDS, (router_id,))),
            twice=c.execute(_TWICE, (router_id,)),
            size=record_bytes,
        )
        return list(logfaults.faults(lying, read, now_ms))
    finally:
        c.execute("COMMIT")


def size_bytes(c: sqlite3.Connection) -> int:
    def ask(name: str) -> int:
        return int(c.execute(f"PRAGMA {name}").fetchone()[0])

    return (ask("page_count") - ask("freelist_count")) * ask("page_size")
