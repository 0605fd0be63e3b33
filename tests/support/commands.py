"""Commands run in this process: one of its own takes a second of CPU, most of it imports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog
import typer
from typer.testing import CliRunner, Result

from api.cli.main import app

# What makes a command read the data directory, beyond what it has to be given.
RULES = Path(__file__).parents[1] / "data/rules/nothing.yaml"
MORE = {"backtest": ["--from-service"], **{name: [str(RULES)] for name in ("plan", "apply", "adopt")}}


def commands_with(option: str) -> Iterator[tuple[str, ...]]:
    """The words of each command that has the option, then what it has to be given."""
    yield from _commands_of(typer.main.get_command(app), option, ())


def _commands_of(group: Any, option: str, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands_of(command, option, (*words, name))
        elif any(option in given.opts for given in command.params):
            needed = [
                word
                for given in command.params
                if given.required
                for word in (("x",) if given.param_type_name == "argument" else (given.opts[0], "x"))
            ]
            yield (*words, name, *needed, *MORE.get(name, []))


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
