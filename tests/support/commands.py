"""Commands run in this process: one of its own takes a second of CPU, most of it imports."""

from __future__ import annotations

import asyncio
import logging

import structlog
from typer.testing import CliRunner, Result

from api.cli.main import app


def command(*arguments: str) -> Result:
    """What `breakers` answers. It sets up logs of its own: they are as before when it has ended."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        return CliRunner().invoke(app, arguments)
    finally:
        structlog.configure(**before)
        root.handlers[:] = handlers
        root.setLevel(level)


async def command_beside(*arguments: str) -> Result:
    """The same in a thread, for tests with a loop: commands have loops of their own."""
    return await asyncio.to_thread(command, *arguments)
