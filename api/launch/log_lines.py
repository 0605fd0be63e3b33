"""The log lines of all processes of a service on this machine, from the files in which Ray keeps what they write to
stderr, while they grow."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from breaker_actors.errors import Invalid
from breaker_actors.store.own_file import check_regular, open_itself

Line = dict[str, Any]

READ_MAX = 1 << 20
"""Bytes of a file that one look takes in; the next look goes on there."""
LINE_BYTES_MAX = 64 << 10
"""What is longer without an end is passed over."""
LAST_BYTES = 256 << 10
"""Bytes at a file's end among which the last lines are looked for."""


class LogLines:
    """Reads the `*.err` files of a folder. What is no JSON line of ours (Ray's own words, traces) is passed over, and
    so is what is no regular file of this user or the folder's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_to: dict[Path, int] = {}
        self._rests: dict[Path, bytes] = {}

    def last(self) -> list[Line]:
        """What stands at the ends of the files now, by time; `new` goes on behind it."""
        found: list[Line] = []
        for path in self._files():
            self._read_to[path] = begin = max(0, _size(path) - LAST_BYTES)
            self._rests[path] = b""
            lines = list(self._more(path))
            found += lines[1:] if begin and lines else lines  # the first may be the end of one
        return sorted(found, key=_time)

    def new(self) -> list[Line]:
        """What was written since the last look, by time; of a new file all of it."""
        return sorted((line for path in self._files() for line in self._more(path)), key=_time)

    def _files(self) -> list[Path]:
        found = sorted(self._folder.glob("*.err"))
        for gone in self._read_to.keys() - set(found):
            del self._read_to[gone], self._rests[gone]
        return found

    def _more(self, path: Path) -> Iterator[Line]:
        at = self._read_to.setdefault(path, 0)
        try:
            with self._open(path) as file:
                if at > os.fstat(file.fileno()).st_size:  # a new file has taken its place
                    at, self._rests[path] = 0, b""
                file.seek(at)
                read = file.read(READ_MAX)
        except (OSError, Invalid):
            return
        self._read_to[path] = at + len(read)
        *whole, rest = (self._rests.get(path, b"") + read).split(b"\n")
        self._rests[path] = rest if len(rest) <= LINE_BYTES_MAX else b""
        for text in whole:
            if (line := _parse(text)) is not None:
                yield line

    def _open(self, path: Path) -> BinaryIO:
        """Waits for nobody, and follows no link at the end. Raises Invalid, OSError."""
        file = open(open_itself(path, os.O_RDONLY), "rb")
        try:
            check_regular(file.fileno(), path)
            if os.fstat(file.fileno()).st_uid not in (os.geteuid(), self._folder.stat().st_uid):
                raise Invalid(f"{path} belongs to another user")
        except BaseException:
            file.close()
            raise
        return file


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _parse(text: bytes) -> Line | None:
    if not text.startswith(b"{"):
        return None
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and {"ts", "level", "event"} <= line.keys() else None


def _time(line: Line) -> str:
    return str(line["ts"])
