"""Whether a channel's destination can ever be reached, as far as that shows without a look-up. Pure.

A name that is not known now may be known in a moment: it passes. What passes here is still held against the policy at
each connection.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from breaker_actors.notify.channels import apprise
from breaker_actors.notify.channels.config import ADDRESS_KEYS, WEB_PORTS, Problem, check, parse_address, recipients
from breaker_actors.notify.egress.policy import (
    NAME_REFUSED,
    REFUSED,
    is_address,
    permits_address,
    permits_port,
)
from breaker_actors.store.rows import ChannelKind


def unreachable(kind: ChannelKind, config: Mapping[str, Any], allow_private: bool) -> Problem | None:
    """Why nothing can ever be sent to the destination, in the words of a test notification; None where something may.
    A config without a destination passes: the test says what it lacks."""
    key = ADDRESS_KEYS[kind]
    if not (given := config.get(key)):
        return None
    try:
        if kind == "email":
            recipients(given)
            return None
        if kind == "apprise":
            return _of_place(apprise.parse(given), allow_private)
        url = parse_address(given)
    except ValueError as error:
        return Problem(f"config.{key}", str(error))
    if not all(c.isprintable() and not c.isspace() for c in given):  # came with it by accident
        return Problem(f"config.{key}", "has blanks, or characters that are not printed")
    words = _refusal(url.host, url.port or WEB_PORTS[url.scheme], allow_private)
    return Problem(f"config.{key}", words) if words else None


def barred(kind: ChannelKind, config: Mapping[str, Any], allow_private: bool) -> Problem | None:
    """Why the service can't send to a channel that works, but for where it may send: it was started with another
    setting when that was made."""
    return None if allow_private or check(kind, config) else unreachable(kind, config, allow_private)


def cut_off(
    enabled: Iterable[tuple[str, str, ChannelKind, Mapping[str, Any]]], allow_private: bool
) -> Iterator[tuple[str, str, ChannelKind, Problem]]:
    """Those of enabled channels (project id, name, kind, config) that are barred, and why."""
    for project_id, name, kind, config in enabled:
        if (problem := barred(kind, config, allow_private)) is not None:
            yield project_id, name, kind, problem


def _of_place(place: apprise.Place, allow_private: bool) -> Problem | None:
    """Without a port it is the one of the service, which may be any."""
    words = _refusal(place.host, place.port or WEB_PORTS["https"], allow_private) if place.host else None
    return Problem("config.url", words) if words else None


def _refusal(host: str, port: int, allow_private: bool) -> str | None:
    if not permits_port(port, allow_private):
        return REFUSED
    if is_address(host):
        return None if permits_address(_plain(host), allow_private) else REFUSED
    # RFC 6761: these names are loopback everywhere.
    is_local = host.rstrip(".").lower().rpartition(".")[2] == "localhost"
    return NAME_REFUSED if is_local and not allow_private else None


def _plain(host: str) -> str:
    """The usual spelling of an address ("0x7f.1" is 127.0.0.1)."""
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return host.strip("[]")
