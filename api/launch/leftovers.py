"""Which folder a killed service left, known for certain: copies of its data directory and made-up locks know none.

The lock file names the service's folder and a nonce; a file in the folder holds the same nonce and the device and inode
of the lock file. A copied or restored lock is another file, so the folder does not answer to it. That the service has
ended is known by the lock itself: who reads here holds it, and a running service would.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tempfile
from pathlib import Path
from typing import TextIO

from api.launch import private_files as private
from breaker_actors.errors import Invalid

FOLDER_PREFIX, OWNER_FILE = "brk-", "owner"
# What a service writes into its lock: its pid, its folder, a nonce; `deploy` writes nothing.
_LOCK = re.compile(r"(?:(\d{1,10})\n(?:(/[^\n\0]*)\n(?:([0-9a-f]{32})\n)?)?)?\Z")


def note(lock: TextIO, folder: Path) -> None:
    """Binds the folder and the lock that this process holds to each other."""
    nonce = secrets.token_hex(16)
    private.make_own(folder / OWNER_FILE, _bond(lock.fileno(), nonce))
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n{folder}\n{nonce}\n")
    lock.flush()


def parse_lock(content: bytes) -> tuple[int | None, Path | None]:
    """Pid and folder of the service that wrote the lock. Raises Invalid for what no service writes."""
    pid, folder, _ = _parts(content)
    return int(pid) if pid else None, Path(folder) if folder else None


def folder_of(descriptor: int, content: bytes) -> Path | None:
    """The folder that the service left whose lock this is: bound to this very file, where services make theirs, and
    this user's alone. Raises Invalid for a content that no service writes."""
    folder = bound_folder(descriptor, content)
    return folder if folder is not None and _is_usual(folder) else None


def bound_folder(descriptor: int, content: bytes) -> Path | None:
    """The folder of the service that has this lock, or had: bound to this very file, wherever it is, and this user's
    alone. A lock that was copied, cloned or unpacked has none. Raises Invalid for a content that no service writes."""
    _, named, nonce = _parts(content)
    if named is None or nonce is None:
        return None
    folder = Path(named)
    if not _is_usual(folder) and folder.resolve() != folder:
        return None  # as by /proc/self/cwd, which is wherever a command runs
    with contextlib.suppress(OSError, Invalid):
        private.check_folder(folder)
        if private.read_own(folder / OWNER_FILE, private.OTHERS) == _bond(descriptor, nonce).encode():
            return folder
    return None


def _is_usual(folder: Path) -> bool:
    places = ("/tmp", tempfile.gettempdir())  # nosec B108 # compared only
    return folder.name.startswith(FOLDER_PREFIX) and str(folder.parent) in places


def _parts(content: bytes) -> tuple[str | None, str | None, str | None]:
    found = _LOCK.match(content.decode(errors="replace"))
    if found is None:
        raise Invalid("the file `lock` of the data directory is damaged; when no service runs there, remove it")
    return found[1], found[2], found[3]


def _bond(descriptor: int, nonce: str) -> str:
    lock = os.fstat(descriptor)
    return f"{lock.st_dev}:{lock.st_ino} {nonce}\n"
