"""Where requests of the service may go, so that a channel can't be used to reach what only the service can reach. Pure.

Held against the address that is connected to, never against a name or a spelling of a number. IPv6 is the other way
round: only global unicast is allowed, less what inside it stands for something else. The mail server is the operator's
own setting and not restricted.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address

NOT_V4 = tuple(
    IPv4Network(net)
    for net in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by carriers; metadata of one cloud
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # the host agent of one cloud, under a public address
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
GLOBAL_V6 = IPv6Network("2000::/3")
NOT_V6 = tuple(
    IPv6Network(net)
    for net in (
        "2001::/23",  # protocol assignments: Teredo and others
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
)
MAPPED, NAT64, SIX_TO_FOUR = IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96"), IPv6Network("2002::/16")
REFUSED = (
    "its host or port is not one that notifications may go to: public addresses at port 80, 443 or from 1024 on "
    "(a start with BREAKERS_ALLOW_PRIVATE_DESTINATIONS=true lifts it)"
)
NAME_REFUSED = (
    "its host name is unknown here, or leads to no address that notifications may go to "
    "(private ones take a start with BREAKERS_ALLOW_PRIVATE_DESTINATIONS=true)"
)
"""One answer to both, so that names inside are not told from unknown ones. Either may change: tried again."""
_WEB_PORTS = (80, 443)
_UNPRIVILEGED = 1024


def is_public(address: Address) -> bool:
    """True for addresses of the public Internet."""
    if isinstance(address, IPv4Address):
        return not any(address in net for net in NOT_V4)
    inner = _embedded(address)
    if inner is not None:
        return is_public(inner)
    return address in GLOBAL_V6 and not any(address in net for net in NOT_V6)


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that a mapped, translated or 6to4 address leads to."""
    if address in MAPPED or address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    if address in SIX_TO_FOUR:
        return IPv4Address(int(address) >> 80 & 0xFFFFFFFF)
    return None


def is_address(host: str) -> bool:
    """Whether a host is an address in some spelling ("0x7f.1"), so that nothing has to be looked up."""
    try:
        ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        try:
            socket.inet_aton(host)
        except (OSError, UnicodeError):
            return False
    return True


def permits_address(text: str, allow_private: bool) -> bool:
    """Whether a resolved address may be connected to; what is no address may not."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return allow_private or is_public(address)


def permits_port(port: int, allow_private: bool) -> bool:
    """The web's ports and unprivileged ones: no mail server or shell is reached through a webhook."""
    return allow_private or port in _WEB_PORTS or port >= _UNPRIVILEGED
