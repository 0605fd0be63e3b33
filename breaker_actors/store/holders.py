"""Who works with a data directory. `deploy` leaves no process of its own, so each actor of the service holds a file
there for as long as it lives, together with the others. Who wants the directory for itself holds the file alone.

It is a lock of the file (flock), which ends with its process. The file says which service holds it.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO, NamedTuple

from breaker_actors.errors import Invalid, Unavailable
from breaker_actors.store.own_file import open_own

FILE = "service.lock"
HELD = "BRK_HELD"
"""The environment variable that tells the processes below `serve` the data directory that their service has alone."""
GONE_S, LOOK_S = 2.0, 0.02
"""How long it is waited for a service that is about to end, and between two looks."""
_BYTES_MAX = 1_024


class Service(NamedTuple):
    """A deployed service: the name of its Ray session, and HOST:PORT of its cluster."""

    session: str
    address: str


def hold(folder: Path, service: Service) -> IO[bytes]:
    """Holds the data directory together with other actors of the service, until it is closed. Raises Unavailable while
    somebody has it alone, OSError or Invalid where it can't be held."""
    file = _open(folder)
    try:
        if not _locked(file, fcntl.LOCK_SH):
            raise Unavailable(f"data directory {folder} is somebody's alone")
        _say(file, service)
    except BaseException:
        file.close()
        raise
    return file


def take(folder: Path, session: str | None = None) -> IO[bytes]:
    """Has the data directory alone until it is closed, or together with the service of `session`. Raises Invalid when
    it is still in use after GONE_S."""
    try:
        file = _open(folder)
        try:
            _wait(file, folder, session)
        except BaseException:
            file.close()
            raise
    except OSError as error:
        raise Invalid(f"data directory {folder} can't be used: {error.strerror}") from None
    return file


def check(folder: Path, session: str | None = None) -> None:
    """Raises Invalid as `take` does; nothing is made or kept."""
    if (folder / FILE).exists():
        take(folder, session).close()


def _wait(file: IO[bytes], folder: Path, session: str | None) -> None:
    until = time.perf_counter() + GONE_S
    while not _locked(file, fcntl.LOCK_EX):
        service = _service(file) if _locked(file, fcntl.LOCK_SH) else None
        if service is not None and service.session == session:
            return
        if time.perf_counter() >= until:
            raise Invalid(_in_use(folder, service))
        fcntl.flock(file, fcntl.LOCK_UN)
        time.sleep(LOOK_S)


def _open(folder: Path) -> IO[bytes]:
    return os.fdopen(open_own(folder / FILE, os.O_RDWR | os.O_CREAT), "r+b", buffering=0)


def _locked(file: IO[bytes], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _say(file: IO[bytes], service: Service) -> None:
    """Writes which service it is, unless it is said already: on a full disk an actor comes back all the same."""
    line = f"{service.session} {service.address}\n".encode()
    if os.pread(file.fileno(), _BYTES_MAX, 0) != line:
        os.pwrite(file.fileno(), line, 0)  # in one step; readers take the first line
        os.ftruncate(file.fileno(), len(line))


def _service(file: IO[bytes]) -> Service:
    words = os.pread(file.fileno(), _BYTES_MAX, 0).decode(errors="replace").partition("\n")[0].split(" ")
    return Service(*words) if len(words) == 2 and all(word.isprintable() for word in words) else Service("", "?")


def _in_use(folder: Path, service: Service | None) -> str:
    if service is None:
        return f"data directory {folder} is in use by a command or service that has it alone; end that first"
    return (
        f"data directory {folder} is in use by the service on the Ray cluster at {service.address}; take it down first:"
        f" breakers deploy --remove --address {service.address} --data-dir {folder}"
    )
