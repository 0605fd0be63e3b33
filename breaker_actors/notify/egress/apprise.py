"""Notifications by apprise: it makes the requests, in a process of its own, and the Poster sends them.

So each passes the same policy, time limit and bounds as those of other kinds, whatever a service's code in apprise
does, and the answers are seen here.
"""

from __future__ import annotations

import asyncio
import math
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

import msgspec

from breaker_actors.errors import Overloaded
from breaker_actors.notify.channels.apprise import NOT_INSTALLED, Notice, installed
from breaker_actors.notify.channels.config import parse_address
from breaker_actors.notify.channels.webhook import HOP_BY_HOP
from breaker_actors.notify.egress.apprise_process import EXAMINING_MAX, PROCESSES_MAX, AppriseProcess
from breaker_actors.notify.egress.excerpt import shown_of
from breaker_actors.notify.egress.guarded_backend import time_limit
from breaker_actors.notify.egress.http import Poster
from breaker_actors.notify.egress.http_outcome import Answer, disliked, judge
from breaker_actors.notify.model import Attempt, Destination
from breaker_actors.notify.org_places import Places

REQUESTS_MAX = 10
"""Of one notification: a login, a look-up and a message are three."""
ANSWER_MAX = 60_000
"""Bytes of an answer's body that apprise gets."""
EXAMINING = "addresses looked at"
ENDED = Attempt(result="retry", error="apprise ended before the notification was sent")
_OURS = HOP_BY_HOP | {"host", "content-length", "accept-encoding"}


class _Asked(msgspec.Struct):
    """A line of the process: a request, or the outcome where `sent` is there. `body`: in base64."""

    sent: bool | None = None
    problem: str = ""
    method: str = ""
    url: str = ""
    headers: list[tuple[str, str]] = []
    body: str = ""


_decode = msgspec.json.Decoder(_Asked).decode


class _Seen:
    """What was answered to the requests of one notification: the last, and the last that was no success."""

    def __init__(self) -> None:
        self.requests = 0
        self.last: Answer | Attempt | None = None
        self.failed: Answer | Attempt | None = None

    def note(self, answer: Answer | Attempt) -> None:
        self.last = answer
        if isinstance(answer, Attempt) or not 200 <= answer.status < 300:
            self.failed = answer


class Courier:
    """The way of notifications through apprise. `timeout_ms`: of one, all its requests together."""

    def __init__(self, poster: Poster, timeout_ms: int) -> None:
        self._poster = poster
        self._timeout_s = timeout_ms / 1_000
        self._process = AppriseProcess()
        self._places = Places(PROCESSES_MAX)
        self._examining = Places(EXAMINING_MAX)

    async def send(self, to: Destination, notice: Notice, now_ms: int) -> Attempt:
        """The outcome. Bounded in time, and never a reason to start more than one process."""
        if not installed():
            return Attempt(result="retry", error=NOT_INSTALLED)
        seen = _Seen()
        try:
            async with asyncio.timeout(self._timeout_s) as limit, self._places.place(to.org_id):
                job = {"url": to.config["url"], "seconds": math.ceil(self._timeout_s) + 1}
                async with self._process.connection() as (reader, writer):
                    writer.write(_line(job | msgspec.to_builtins(notice)))
                    told = await self._converse(to, reader, writer, seen, limit)
        except TimeoutError:
            return _late(seen, self._timeout_s)
        except (OSError, ValueError):  # it broke off, or sent a line without end
            return ENDED
        return ENDED if told is None else _judged(to, told, seen, now_ms)

    async def examine(self, org_id: str, many: Sequence[Destination]) -> list[str | None]:
        """Why apprise can never send to these addresses of an organisation, in one process; "" where it may, None where
        that could not be found out in time. Raises Overloaded where others of the organisation take too long."""
        found = list[str | None]()
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await stack.enter_async_context(self._examining.place(org_id))
            except TimeoutError:
                words = f"This organisation has addresses looked at already, {EXAMINING_MAX} requests of all at a time."
                raise Overloaded(words, {"limit": EXAMINING, "retry_after_s": 1}) from None
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._look(many, found)
            except (OSError, ValueError):  # TimeoutError, too
                pass
        return found + [None] * (len(many) - len(found))

    async def _look(self, many: Sequence[Destination], found: list[str | None]) -> None:
        """Adds what the process says of each, as far as it gets."""
        async with self._process.connection() as (reader, writer):
            for to in many:
                writer.write(_line({"url": to.config["url"], "seconds": math.ceil(self._timeout_s) + 1}))
            while len(found) < len(many) and (line := await reader.readline()):
                told = _decode(line)
                found.append(f"is no address for apprise: {told.problem}" if told.sent is False else "")

    async def _converse(
        self,
        to: Destination,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        seen: _Seen,
        limit: asyncio.Timeout,
    ) -> _Asked | None:
        """Sends what is asked for until the outcome is told. None: it never was."""
        ends = limit.when() or 0.0
        while line := await reader.readline():
            told = _decode(line)
            if told.sent is not None:
                return told
            seen.requests += 1
            # the time of an exchange is kept inside it: one that is cancelled would keep its connection
            limit.reschedule(None)
            answer = await self._carry(to, told, seen, ends - asyncio.get_running_loop().time())
            limit.reschedule(ends)
            seen.note(answer)
            writer.write(_line(_answer(answer)))
            await writer.drain()
        return None

    async def _carry(self, to: Destination, asked: _Asked, seen: _Seen, left_s: float) -> Answer | Attempt:
        """One request, under the policy; the answer, or why there is none."""
        if seen.requests > REQUESTS_MAX:
            return Attempt(result="refused", error=f"apprise makes more than {REQUESTS_MAX} requests of it")
        try:
            url = parse_address(asked.url)
            headers = {name: value for name, value in asked.headers if name.lower() not in _OURS}
        except ValueError as error:
            return Attempt(result="refused", error=f"its address {error}")
        with time_limit(max(0.0, left_s)):
            return await self._poster.request(
                asked.method,
                url,
                headers | {"Accept-Encoding": "identity"},
                b64decode(asked.body),
                to.org_id,
                body_max=ANSWER_MAX,
            )

    async def close(self) -> None:
        self._process.stop()


def _line(value: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _answer(answer: Answer | Attempt) -> dict[str, object]:
    """What apprise gets to see: of a request that was not answered no reason."""
    if isinstance(answer, Attempt):
        return {"status": 0}
    return {"status": answer.status, "headers": answer.headers, "body": b64encode(answer.body).decode()}


def _late(seen: _Seen, timeout_s: float) -> Attempt:
    """The reason of the receiver that took the time, where there is one."""
    late = Attempt(result="retry", error=f"not sent within {timeout_s:g} s")
    return seen.failed if isinstance(seen.failed, Attempt) else late


def _judged(to: Destination, told: _Asked, seen: _Seen, now_ms: int) -> Attempt:
    """The outcome: what apprise takes for sent is sent; else what the receiver answered last that was no success."""
    if told.sent:
        return Attempt(result="sent", status=seen.last.status if seen.last is not None else None)
    if isinstance(seen.failed, Attempt):
        return seen.failed
    if seen.failed is not None:
        return judge(to, seen.failed, now_ms)
    if isinstance(seen.last, Answer):
        return disliked(to, seen.last)
    words = shown_of(told.problem, to.config)
    return Attempt(result="refused", error="apprise can't send to it" + (f": {words}" if words else ""))
