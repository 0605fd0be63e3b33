"""Names to addresses, by the system's resolver, which also reads numbers in all their spellings.

A look-up that hangs can't be stopped, and keeps its thread for as long as name servers say nothing. So a caller may
have as many under way as there are threads free: one alone half of them, and whoever comes finds one. Callers are
organisations; none waits for the names of another.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar

RESOLVERS = 128
"""Threads."""
KNOWN_S, KNOWN_MAX = 30.0, 4_096
"""How long an answer with a permitted address is remembered for who asked, and how many are. All others are asked for
each time, so that memory does not tell names inside from unknown ones. What is remembered is judged at each connection
like a new answer, and those very addresses are dialled."""

_CALLER: ContextVar[str] = ContextVar("caller", default="")


@contextmanager
def asked_by(caller: str) -> Iterator[None]:
    """Look-ups of this task are this caller's."""
    token = _CALLER.set(caller)
    try:
        yield
    finally:
        _CALLER.reset(token)


class _Question:
    """One look-up, for all of a caller's who ask for the host; `askers`: how many wait for it."""

    def __init__(self, caller: str, host: str) -> None:
        self.caller = caller
        self.host = host
        self.askers = 0
        self.answer: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()


class Resolver:
    """The look-ups of a process. Those that wait have no bound of their own: they end with who waits for them.
    `permits`: whether an address may be connected to."""

    def __init__(self, permits: Callable[[str], bool]) -> None:
        self._permits = permits
        self._threads = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="notify-dns")
        self._waiting: OrderedDict[str, dict[str, _Question]] = OrderedDict()
        self._begun: dict[tuple[str, str], _Question] = {}
        self._busy: Counter[str] = Counter()
        self._known: OrderedDict[tuple[str, str], tuple[float, list[str]]] = OrderedDict()

    async def __call__(self, host: str, port: int) -> list[str]:
        """Raises OSError when the name is unknown. Who gives up a look-up that has begun leaves it to the next; one
        that nobody waits for any more does not begin."""
        caller = _CALLER.get()
        if known := self._remembered(caller, host):
            return list(known)
        question = self._begun.get((caller, host)) or self._waiting.get(caller, {}).get(host)
        if question is None:
            question = self._waiting.setdefault(caller, {})[host] = _Question(caller, host)
            self._begin_some()
        question.askers += 1
        try:
            return list(await asyncio.shield(question.answer))
        finally:
            question.askers -= 1
            if not question.askers:
                self._drop(question)

    def _remembered(self, caller: str, host: str) -> list[str] | None:
        now = asyncio.get_running_loop().time()
        while self._known and next(iter(self._known.values()))[0] <= now:
            self._known.popitem(last=False)
        return self._known.get((caller, host), (0.0, None))[1]

    def _begin_some(self) -> None:
        """Free threads go to callers in turn: who has fewest comes first, of several who was served longest ago."""
        while self._waiting:
            caller = min(self._waiting, key=lambda waiting: self._busy[waiting])
            if self._busy[caller] >= RESOLVERS - len(self._begun):
                return
            questions = self._waiting[caller]
            self._begin(questions.pop(next(iter(questions))))
            self._waiting.move_to_end(caller)
            if not questions:
                del self._waiting[caller]

    def _begin(self, question: _Question) -> None:
        self._begun[question.caller, question.host] = question
        self._busy[question.caller] += 1
        found = asyncio.wrap_future(self._threads.submit(_look_up, question.host))
        found.add_done_callback(lambda done: self._end(question, done))

    def _end(self, question: _Question, done: asyncio.Future[list[str]]) -> None:
        del self._begun[question.caller, question.host]
        self._busy -= Counter({question.caller: 1})  # keeps what is above 0 alone
        if done.cancelled():
            question.answer.cancel()
            return
        if (error := done.exception()) is not None:
            question.answer.set_exception(error)
            question.answer.exception()  # nobody may be left to be told
        else:
            question.answer.set_result(done.result())
            self._remember(question, done.result())
        self._begin_some()

    def _remember(self, question: _Question, addresses: list[str]) -> None:
        if not any(map(self._permits, addresses)):
            return
        until = asyncio.get_running_loop().time() + KNOWN_S
        self._known[question.caller, question.host] = until, addresses
        self._known.move_to_end((question.caller, question.host))
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def _drop(self, question: _Question) -> None:
        """Takes a look-up that has not begun away."""
        questions = self._waiting.get(question.caller, {})
        if questions.get(question.host) is question:
            del questions[question.host]
            if not questions:
                del self._waiting[question.caller]
            question.answer.cancel()

    def close(self) -> None:
        for questions in self._waiting.values():
            for question in questions.values():
                question.answer.cancel()
        self._waiting.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
