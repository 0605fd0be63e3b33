"""Copies of SQLite files as they were at one instant, beside those who write to them.

Who writes to several files commits to the first one first. While nobody may write to that, the others know nothing
beyond it: there all of them are pinned, by a read transaction each. A connection's copy is of its transaction, whatever
others commit, and whoever empties the write-ahead log leaves what it reads.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from breaker_actors.errors import Unavailable
from breaker_actors.sql.sqlite import BUSY_TIMEOUT_S
from breaker_actors.sql.turnstile import begin_write

STEP_PAGES = 2_048
"""Pages between two looks at how far a copy is: 8 MiB."""

Tell = Callable[[int], None]


class Pinned(NamedTuple):
    """A file, by a connection in a read transaction; `size`: bytes that a copy takes."""

    path: Path
    connection: sqlite3.Connection
    size: int


@contextmanager
def pinned(first: Path, others: Callable[[], Iterable[Path]]) -> Iterator[list[Pinned]]:
    """The first file and then the others, of one instant: whoever writes to the first one waits until all are pinned,
    some milliseconds. `others` is asked when the first one is. Raises Unavailable where the first one's write lock is
    not given within BUSY_TIMEOUT_S, or a file can't be read."""
    with ExitStack() as stack:
        with closing(_connect(first)) as writer:
            with _told(first):
                begin_write(writer, first.parent)
            files = [_pin(stack, first)]
            files += [_pin(stack, path) for path in others()]
        yield files


def copy(file: Pinned, target: Path, tell: Tell = lambda done: None) -> None:
    """Makes `target`, with mode 600, and ends the transaction: what is written meanwhile need not be kept any more.
    `tell` hears bytes so far. Raises OSError ENOSPC for a full disk, Unavailable for what can't be read or written;
    what was made of it by then stays."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def progress(_: int, left: int, total: int) -> None:
        tell(file.size * (total - left) // max(1, total))

    with _told(target), closing(_connect(target)) as made:
        made.execute("PRAGMA journal_mode=OFF")
        file.connection.backup(made, pages=STEP_PAGES, progress=progress)
        file.connection.execute("COMMIT")


def _pin(stack: ExitStack, path: Path) -> Pinned:
    with _told(path):
        connection = stack.enter_context(closing(_connect(path)))
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # a transaction begins with its first read
        pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        return Pinned(path, connection, pages * size)


def _connect(path: Path) -> sqlite3.Connection:
    with _told(path):
        address = f"{path.absolute().as_uri()}?mode=rw"
        return sqlite3.connect(address, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from None
        raise Unavailable(f"{path}: {error}") from None
