"""Where a request comes from, as far as it can be counted by that."""

from __future__ import annotations

import functools
import ipaddress

IPV6_PREFIX = 64
"""Whoever has one address of such a network has all of them."""


@functools.lru_cache(4096)
def source(address: str | None) -> str:
    """What shares a budget: an IPv4 address, or the /64 of an IPv6 one; the text itself when it is no address."""
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:
        return (address or "unknown")[:64]
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, IPV6_PREFIX), strict=False))
    return str(found)
