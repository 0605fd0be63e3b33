"""Why a connection did not come about or did not last, in a few words of our own. Pure.

Messages of exceptions are never passed on: they hold addresses, and some what was sent.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator


def network_words(error: BaseException) -> str:
    """What went wrong, from the exceptions behind this one."""
    behind = list(_chain(error))
    if any(isinstance(e, ssl.SSLCertVerificationError) for e in behind):
        return "its certificate could not be verified"
    if any(isinstance(e, ssl.SSLError) for e in behind):
        return "TLS failed"
    if any(isinstance(e, socket.gaierror | UnicodeError) for e in behind):
        return "its name could not be resolved"
    if any(isinstance(e, ConnectionRefusedError) for e in behind):
        return "the connection was refused"
    if any(isinstance(e, TimeoutError) for e in behind):
        return "no answer in time"
    return "the connection could not be made or broke"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, what caused it, and the members of groups."""
    waiting, seen = [error], set[int]()
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup):
            waiting.extend(current.exceptions)
        waiting.extend(e for e in (current.__cause__, current.__context__) if e is not None)
