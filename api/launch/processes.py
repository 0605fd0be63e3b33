"""The operating system's side of a service: free ports, the tree of processes below us, and its certain end.

Ray starts a raylet, which starts workers, one of which starts HAProxy: each can outlive its parent. We take orphans of
this tree as our own children, so "everything below us" stays a complete list and the end can be checked.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import re
import resource
import signal
import socket
import sys
import time
from pathlib import Path

from breaker_actors.clock import Clock
from breaker_actors.errors import Invalid

_PR_SET_CHILD_SUBREAPER = 36
# Below the range the kernel hands out for outgoing connections (from 32768): Ray opens dozens of those between the
# moment we choose and the moment the listener binds.
_PORTS = range(20_000, 30_000)
_BLOCKS = range(10_000, 20_000, 100)
_LOOKS, _LOOK_EACH_S = 40, 0.05
_TRIES = 200


def check_port(host: str, port: int) -> None:
    """Raises Invalid when nobody could listen there."""
    try:
        with _bound(host, port):
            pass
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise Invalid(f"{host} is no address of this machine; choose another one with --host") from None
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"can't be used: {error.strerror}"
        raise Invalid(f"port {port} on {host} {reason}; choose another one with --port") from None


def address_of(host: str) -> str:
    """The address that a name stands for, of version 4 where it has one: what is checked, held and listened at has to
    be the same, and a name may have several. Raises Invalid for a name without any."""
    try:
        found = sorted(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM), key=lambda entry: entry[0].value)
    except OSError as error:
        raise Invalid(f"{host} has no address: {error.strerror}; choose another one with --host") from None
    return str(found[0][4][0])


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on at this moment: of _PORTS, or where others have taken those, any that the kernel finds.
    Raises Invalid when there is none."""
    for port in (*random.sample(_PORTS, _TRIES), 0):  # nosec B311 # a free port is no secret
        try:
            with _bound(host, port) as listener:
                found: int = listener.getsockname()[1]
                return found
        except OSError:
            continue
    raise Invalid(
        f"no free port found on {host}: other programs of this machine have them all, or it has no such address"
    )


def port_block() -> range:
    """A hundred ports, most likely another hundred than other services on this machine got."""
    start = random.choice(_BLOCKS)  # nosec B311 # a free port is no secret
    return range(start, start + _BLOCKS.step)


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # As HAProxy does: connections of an earlier run that linger in TIME_WAIT don't count.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1)
    except BaseException:
        listener.close()
        raise
    return listener


def raise_file_limit() -> int:
    """Lifts this process's limit of open files (inherited by all below) as far as allowed, and returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def adopt_orphans() -> None:
    """From here on, a process below us that loses its parent becomes our child instead of init's."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def below(pid: int) -> list[int]:
    """The living processes below one, parents before children."""
    children = _children()
    found: list[int] = []
    todo = [pid]
    while todo:
        next_ones = children.get(todo.pop(), [])
        found += next_ones
        todo += next_ones
    return found


def children_of(pid: int) -> list[int]:
    """The living processes that one has started, without what those started in turn."""
    return _children().get(pid, [])


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            found.setdefault(parent, []).append(int(entry.name))
    return found


def _parent(entry: Path) -> int | None:
    try:
        state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state == "Z" else int(parent)


def named(pids: list[int], name: str) -> list[int]:
    """Those of the processes whose program has this name."""
    return [pid for pid in pids if _program(pid) == name]


def options_of(program: str, option: str, executable: Path) -> list[str]:
    """The values that an option has in the command lines of this user's processes of a program, which is this very
    file: a process may give itself any name."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            ours = _is_ours(entry) and _program(int(entry.name)) == program
            if ours and os.path.samefile(entry / "exe", executable):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                found += [word.removeprefix(option) for word in words if word.startswith(option)]
    return found


def started_with(name: str, value: str) -> list[int]:
    """Processes of this user that were started with this environment variable."""
    wanted = f"{name}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if _is_ours(entry) and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def end_users_of(folder: Path, variable: str) -> None:
    """Kills what was started for a folder or has files open in it, and looks again until nothing is left of it."""
    for _ in range(_LOOKS):
        users = {*started_with(variable, str(folder)), *_with_open_files(folder)} - {os.getpid()}
        if not users:
            return
        send(sorted(users), signal.SIGKILL)
        time.sleep(_LOOK_EACH_S)


def _is_ours(entry: Path) -> bool:
    """A process of this user: what another one's says of itself counts for nothing. One that somebody else started
    with this user's rights (setuid) has that one's real uid."""
    if not entry.name.isdigit() or entry.stat().st_uid != os.geteuid():
        return False
    uids = re.search(r"^Uid:(.*)", (entry / "status").read_text(errors="replace"), re.MULTILINE)
    return uids is not None and uids[1].split() == [str(os.geteuid())] * 4


def _with_open_files(folder: Path) -> list[int]:
    """Ray's processes (by their titles) that have a file below the folder open. An operator's `tail` is left alone."""
    below_folder = f"{folder}{os.sep}"
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            rays = _is_ours(entry) and (entry / "cmdline").read_bytes().startswith(b"ray::")
            if rays and any(_leads(fd, below_folder) for fd in (entry / "fd").iterdir()):
                found.append(int(entry.name))
    return found


def _leads(descriptor: Path, below_folder: str) -> bool:
    try:
        return os.readlink(descriptor).startswith(below_folder)
    except OSError:
        return False


def _program(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None


def alive(pid: int) -> bool:
    """Whether the process still runs (a dead one that nobody collected does not)."""
    return _parent(Path(f"/proc/{pid}")) is not None


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def end_all(clock: Clock, within_s: float) -> list[int]:
    """Kills everything below this process until nothing is left (some start others while they die); returns what is."""
    deadline = clock.monotonic() + within_s
    while left := below(os.getpid()):
        send(left, signal.SIGKILL)
        _reap()
        if clock.monotonic() > deadline:
            return left
    _reap()
    return []


def _reap() -> None:
    """Collects dead children, adopted ones too: nobody else waits for those."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
