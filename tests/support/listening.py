"""Which sockets the processes of a service listen on."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from pathlib import Path

LISTEN = "0A"


def listeners(pids: list[int]) -> set[tuple[str, int]]:
    """Address and port of every TCP socket that one of the processes listens on."""
    table = _table()
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inode = os.readlink(descriptor).removeprefix("socket:[").removesuffix("]")
                    found |= {table[inode]} if inode in table else set()
    return found


def _table() -> dict[str, tuple[str, int]]:
    """Listening sockets of this network namespace by inode."""
    found = {}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            address, _, port = words[1].partition(":")
            if words[3] == LISTEN:
                found[words[9]] = (_readable(address), int(port, 16))
    return found


def _readable(digits: str) -> str:
    """The kernel writes words of four bytes in the machine's order."""
    words = [bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


def is_loopback(address: str) -> bool:
    found = ipaddress.ip_address(address)
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback
