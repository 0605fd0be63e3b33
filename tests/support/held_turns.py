"""Waits for the store in a turn that a replica's callers share: one who waits in a line of his own, such as that of his
organisation's reads, would have everybody else wait there with him."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from traceback import format_stack
from typing import Any
from unittest.mock import patch

from quart import has_request_context

from api.admission.intake import Turn
from breaker_actors.sql.database import Database

DOORS = ("read", "look_up", "write", "write_rows")
"""What a turn is not held over. `read_in_turn` has a thread that only such turns use."""
_TAKEN: ContextVar[tuple[Turn, ...]] = ContextVar("taken", default=())
"""Turns of this request's task, and of those that began it; a test's own are none."""


@contextmanager
def waits_noted() -> Iterator[list[str]]:
    """Where the store was asked for something while its caller held a turn, from here on."""
    found: list[str] = []
    take = Turn.next

    async def next_(self: Turn) -> None:
        await take(self)
        if has_request_context():
            _TAKEN.set((*(turn for turn in _TAKEN.get() if turn.is_held and turn is not self), self))

    def noted(door: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def ask(self: Database, work: Callable[..., Any]) -> Any:
            if any(turn.is_held for turn in _TAKEN.get()):
                found.append("".join(format_stack(limit=6)))
            return await door(self, work)

        return ask

    with ExitStack() as stack:
        stack.enter_context(patch.object(Turn, "next", next_))
        for name in DOORS:
            stack.enter_context(patch.object(Database, name, noted(getattr(Database, name))))
        yield found
