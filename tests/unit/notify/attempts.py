"""How the tests of notifications make an attempt: a sender under settings of their own, and certificates."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trustme

from breaker_actors.clock import SystemClock
from breaker_actors.notify.egress.http import trusted
from breaker_actors.notify.model import Attempt, Destination, Message
from breaker_actors.notify.sender import ChannelSender, open_sender
from breaker_actors.settings import load_settings
from tests.unit.notify.messages import NOW, TRIP

AMPLE_S = 20.0
GROWING_MS = (150, 600, 2_400, 9_600)
"""Time limits for attempts that must run into theirs, but only after a loaded machine has got them that far."""
ROUTING_KEY = "0123456789abcdef0123456789ABCDEF"


class StoppedClock(SystemClock):
    def now_ms(self) -> int:
        return NOW


@asynccontextmanager
async def sender(tls: ssl.SSLContext | None = None, resolve: Any = None, **fields: Any) -> AsyncIterator[ChannelSender]:
    settings = load_settings({}, **{"allow_private_destinations": True} | fields)
    opened = open_sender(settings, StoppedClock(), tls=tls or _usual_trust(), resolve=resolve)
    try:
        yield opened
    finally:
        await opened.close()


@functools.cache
def _usual_trust() -> ssl.SSLContext:
    """Loading a hundred authorities takes longer than most of these tests."""
    return trusted()


def to(kind: Any, **config: Any) -> Destination:
    return Destination(channel_id="c-1", kind=kind, config=config)


async def send(opened: ChannelSender, destination: Destination, message: Message = TRIP) -> Attempt:
    return await asyncio.wait_for(opened.send(destination, message), AMPLE_S)


def serving(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context
