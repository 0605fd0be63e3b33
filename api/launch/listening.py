"""Whose program listens at an address of this machine: a key is not shown to another user who took the port."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from breaker_actors.errors import Invalid, Unavailable

_TABLES = {"/proc/net/tcp": 4, "/proc/net/tcp6": 6}
_LISTENS = "0A"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_here(base_url: str) -> bool:
    """Whether it is an address of this machine, by itself: what a name means now it may not mean in a moment."""
    try:
        host = urlsplit(base_url).hostname or ""
        return host == "localhost" or _is_own(_plain(ipaddress.ip_address(host)))
    except ValueError:
        return False


def check_listener(base_url: str, allowed: set[int], insecure: bool = False) -> None:
    """Raises Invalid when one of other users than root and those allowed listens there, and Unavailable when nobody
    listens at a loopback address: whoever comes a moment later would get what is sent.

    Of other machines, and behind https, a certificate has to tell: plain http to another machine raises Invalid, unless
    it may be `insecure`. Where there is no /proc, nothing is known of who listens here."""
    try:
        url = urlsplit(base_url)
        port = url.port or 80
    except ValueError as error:
        raise Invalid(f"{base_url!r} is no URL: {error}") from None
    if url.scheme != "http" or url.hostname is None:
        return
    addresses = _addresses(url.hostname, port)
    own = {address for address in addresses if _is_own(address)}
    if not insecure and (foreign := sorted(map(str, addresses - own))):
        raise Invalid(
            f"{base_url} is plain HTTP to another machine ({foreign[0]}): the key would go there in the clear; give the"
            " service a certificate (https), or say --insecure-http if nobody else reads or answers on that network"
        )
    if not os.path.exists("/proc/net/tcp"):
        return
    for address in own:
        users = {uid for at, uid in _listeners(port) if at.is_unspecified or address.is_unspecified or at == address}
        if strangers := users - allowed - {0}:
            raise Invalid(f"at {base_url} a program of another user listens (uid {min(strangers)}): it gets no key")
        if not users and (address.is_loopback or address.is_unspecified):
            raise Unavailable(f"nobody listens at {base_url}: start the service with `breakers serve`")


def _addresses(host: str, port: int) -> set[Address]:
    """All addresses of a name. Raises Unavailable when it has none."""
    try:
        found = {ipaddress.ip_address(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except (OSError, ValueError) as error:
        raise Unavailable(f"{host} has no address: {error}") from None
    return set(map(_plain, found))


def _is_own(address: Address) -> bool:
    """Whether this machine has the address. Binding tells, unless the machine lets everybody bind foreign ones (as
    for a virtual address that moves between machines); then it is one from which the machine would send to itself."""
    if address.is_loopback or address.is_unspecified:
        return True
    with socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            if _binds_foreign(address.version):
                probe.connect((str(address), 9))
                return ipaddress.ip_address(probe.getsockname()[0]) == address
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def _binds_foreign(version: int) -> bool:
    try:
        return Path(f"/proc/sys/net/ipv{version}/ip_nonlocal_bind").read_text().strip() != "0"
    except OSError:
        return False


def _listeners(port: int) -> Iterator[tuple[Address, int]]:
    """Address and user of each socket that listens at the port."""
    for table, version in _TABLES.items():
        if not os.path.exists(table):
            continue
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            host, _, at = fields[1].partition(":")
            if fields[3] == _LISTENS and int(at, 16) == port:
                yield _plain(_parse(host, version)), int(fields[7])


def _parse(text: str, version: int) -> Address:
    """The kernel writes addresses as words of 32 bits in the machine's order."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    packed = b"".join(socket.ntohl(word).to_bytes(4, "big") for word in words)
    return ipaddress.IPv4Address(packed) if version == 4 else ipaddress.IPv6Address(packed)


def _plain(address: Address) -> Address:
    """An IPv4 address that is written as one of IPv6, as such."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
