"""The sockets that datagrams come in by, and how many of them the kernel dropped before they could be read."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterable
from pathlib import Path

from breaker_actors.errors import Invalid

DATAGRAM_BYTES_MAX = 65_535
"""Of a longer datagram, which only a Unix socket takes, the rest is cut off."""
RECEIVE_BYTES = 8 << 20
"""What is asked of the kernel as room for datagrams that wait; it gives at most net.core.rmem_max."""
UNIX_MODE = 0o622
"""Everybody on the machine may send, as they may over UDP."""
TABLES = ("/proc/net/udp", "/proc/net/udp6")


def open_udp(address: str, receive_bytes: int = RECEIVE_BYTES) -> socket.socket:
    """A socket at HOST:PORT; an IPv6 host stands in brackets. Raises Invalid."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isdecimal() and int(port) < 1 << 16):
        raise Invalid(f"--listen {address}: say HOST:PORT")
    try:
        family, kind, protocol, _, at = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise Invalid(f"--listen {address}: {error.strerror}") from None
    return _bound(made, at, f"--listen {address}", receive_bytes)


def open_unix(path: Path, receive_bytes: int = RECEIVE_BYTES) -> socket.socket:
    """A socket at a path. One that nobody reads from is replaced. Raises Invalid."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    _remove_unread(path)
    # Made with its mode: by its name another file might get it, in a folder where somebody else may replace it.
    before = os.umask(0o777 & ~UNIX_MODE)
    try:
        return _bound(made, str(path), f"--unix {path}", receive_bytes)
    finally:
        os.umask(before)


def _remove_unread(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
            except OSError:
                return


def _bound(made: socket.socket, at: object, option: str, receive_bytes: int) -> socket.socket:
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        made.bind(at)  # type: ignore[arg-type]
    except OSError as error:
        made.close()
        raise Invalid(f"{option}: {error.strerror or error}") from None
    made.setblocking(False)
    return made


def receive_bytes_of(sock: socket.socket) -> int:
    """The room that the kernel gives, its own accounts included."""
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def kernel_drops(sockets: Iterable[socket.socket], tables: Iterable[str] = TABLES) -> int:
    """How many datagrams the kernel dropped, as there was no room; of UDP: with a Unix socket the sender hears of it.
    0 where there is no /proc."""
    inodes = {str(os.fstat(each.fileno()).st_ino) for each in sockets}
    drops = 0
    for table in tables:
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[9] in inodes:
                    drops += int(fields[-1])
    return drops
