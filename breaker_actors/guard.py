"""Loops that must never end: a round that fails is logged, and the next one comes."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable

import structlog

log = structlog.get_logger()


async def one_round(loop: str, work: Awaitable[None]) -> None:
    """Awaits one round of a loop. A bug in it must not stop timers, checkpoints or heartbeats for good."""
    try:
        await work
    except Exception as error:
        # the trace as text: a renderer that shows local variables could show a secret
        log.error("round_failed", loop=loop, error=str(error), trace=traceback.format_exc(limit=8))
