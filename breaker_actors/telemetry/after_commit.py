"""What is said once a transaction is committed, and not at all when it is undone.

Code within a transaction does not know whether it will hold, nor which try of it this is; whoever runs it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_waiting: ContextVar[list[Callable[[], None]] | None] = ContextVar("after_commit", default=None)


def after_commit(say: Callable[[], None]) -> None:
    """Calls `say` when the transaction around this is committed; at once where there is none."""
    waiting = _waiting.get()
    if waiting is None:
        say()
    else:
        waiting.append(say)


@contextmanager
def said_at_the_end() -> Iterator[None]:
    """Around one try of a transaction: what was asked for within is said if it ends without an exception."""
    waiting: list[Callable[[], None]] = []
    token = _waiting.set(waiting)
    try:
        yield
    finally:
        _waiting.reset(token)
    for say in waiting:
        say()
