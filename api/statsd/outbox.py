"""Requests on their way: a bounded queue, and a thread that repeats each until it is taken, in their order, those of
light series before others, also before one that is to be repeated.

By OTLP's rules (https://opentelemetry.io/docs/specs/otlp/#otlphttp-response) what is over in a while is tried again:
429, 502, 503, 504 and no answer at all, after Retry-After, else with growing pauses. Every other refusal is for good.
A request holds what several senders sent. Where it is refused for what it holds it is halved, and so on, so that what
can't be taken is dropped alone, as far as HALVED_MAX goes.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Literal

import msgspec

from api.statsd.encoding import Request, halves
from breaker_actors.clock import Clock

REQUESTS_MAX = 1200
"""Unsent requests; ten minutes of two a second. Beyond it the oldest of the heaviest is dropped, counted."""
BYTES_MAX = 64 << 20
"""Bytes of their bodies, likewise."""
PAUSE_S, PAUSE_MAX_S = 0.25, 10.0
HALVED_MAX = 64
"""Times that a request and its parts are halved, then its parts are dropped as they are. To find one metric among 8,192
takes 13."""
RETRY_AFTER_MAX_S = 60.0
"""A longer Retry-After counts as this."""
COMPLAINT_S = 60.0
"""A trouble of one kind is told once in so long."""

Outcome = Literal["taken", "again", "refused", "unfit"]
"""`refused`: whatever it holds; `unfit`: for what it holds."""


class Answer(msgspec.Struct, frozen=True):
    """What became of one attempt. `rejected`: points of a taken request that were not; `after_s`: when to come again,
    None where nobody said."""

    outcome: Outcome
    message: str = ""
    rejected: int = 0
    after_s: float | None = None


def _weight(place: tuple[int, Request]) -> int:
    return place[1].weight


class Outbox:
    """Unsent requests and their sender. Counters are in points."""

    def __init__(
        self,
        post: Callable[[bytes], Answer],
        clock: Clock,
        draw: Callable[[], float],
        tell: Callable[[str, str], None] = lambda event, message: None,
    ) -> None:
        """`draw`: a number from 0 to 1, for pauses that differ. `tell(event, message)`: hears of `unsent` when a
        request has to wait, `sent_again` when that is over, `rejected`, `refused` and `unmatched`."""
        self._post, self._clock, self._draw, self._tell = post, clock, draw, tell
        self._waiting: deque[Request] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._ends_s: float | None = None
        self._flying: Request | None = None
        self._halved = 0
        """How often the request that is on its way, or of which it is a part, was halved."""
        self.sent = self.rejected = 0
        self.dropped: Counter[str] = Counter()
        self.newest_trouble = ""
        self._complained_s: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)

    def start(self) -> None:
        """Begins to send."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Requests that are not taken yet."""
        return len(self._waiting) + (self._flying is not None)

    def put(self, request: Request) -> None:
        """Adds a request; drops the oldest of the heaviest where there is no room."""
        with self._changed:
            self._waiting.append(request)
            self._bytes += len(request.body)
            while self._waiting and (len(self._waiting) > REQUESTS_MAX or self._bytes > BYTES_MAX):
                self.dropped["unsent"] += self._pop(max(enumerate(self._waiting), key=_weight)[0]).points
            self._changed.notify()

    def close(self, within_s: float) -> None:
        """Sends what is there, for so long; the rest is dropped, counted."""
        with self._changed:
            self._ends_s = self._clock.monotonic() + within_s
            self._changed.notify()
        self._thread.join(within_s)
        with self._changed:
            if self._flying is not None:
                self.dropped["at_end"] += self._flying.points
            while self._waiting:
                self.dropped["at_end"] += self._pop().points

    def _pop(self, at: int = 0) -> Request:
        request = self._waiting[at]
        del self._waiting[at]
        self._bytes -= len(request.body)
        return request

    def _run(self) -> None:
        attempts = 0
        while (request := self._next()) is not None:
            answer = self._attempt(request)
            if answer.outcome == "again":
                self.newest_trouble = answer.message
                if attempts == 0:
                    self._tell("unsent", answer.message)
                if not self._pause(answer.after_s, attempts):
                    return
                self._put_back(request)
                attempts += 1
                continue
            self._settle(request, answer)
            if attempts and answer.outcome == "taken":
                self._tell("sent_again", f"after {attempts + 1} attempts")
            self._flying, attempts = None, 0

    def _next(self) -> Request | None:
        """Waits for a request; None at the end."""
        with self._changed:
            while not self._waiting:
                if self._ends_s is not None:
                    return None
                self._changed.wait()
            is_part = self._waiting[0].is_part  # of a request that is halved, which ends before others begin
            self._flying = self._pop(0 if is_part else min(enumerate(self._waiting), key=_weight)[0])
            if not self._flying.is_part:
                self._halved = 0
            return self._flying

    def _put_back(self, request: Request) -> None:
        """It waits again, as the oldest; lighter ones that came meanwhile go before it."""
        with self._changed:
            self._waiting.appendleft(request)
            self._bytes += len(request.body)
            self._flying = None

    def _settle(self, request: Request, answer: Answer) -> None:
        """What an answer for good means."""
        if answer.outcome in ("refused", "unfit"):
            if answer.outcome == "refused" or not self._halve(request):
                self.dropped["refused"] += request.points
            self._complain("refused", answer.message)
            return
        self.sent += request.points - answer.rejected
        self.rejected += answer.rejected
        if answer.rejected or answer.message:
            self._complain("rejected" if answer.rejected else "unmatched", answer.message)

    def _halve(self, request: Request) -> bool:
        """Puts the halves of a request in its place; False where it has none, or was halved often enough."""
        parts = halves(request) if self._halved < HALVED_MAX else []
        with self._changed:
            self._waiting.extendleft(reversed(parts))
            self._bytes += sum(len(part.body) for part in parts)
            if parts:
                self._halved += 1
                self._flying = None
        return bool(parts)

    def _attempt(self, request: Request) -> Answer:
        try:
            return self._post(request.body)
        except Exception as error:  # what nobody thought of must not end the sender
            return Answer("again", f"{type(error).__name__}: {error}")

    def _complain(self, event: str, message: str) -> None:
        """Tells of a trouble, not more often than every COMPLAINT_S."""
        self.newest_trouble = message
        now_s = self._clock.monotonic()
        if now_s - self._complained_s.get(event, -COMPLAINT_S) >= COMPLAINT_S:
            self._complained_s[event] = now_s
            self._tell(event, message)

    def _pause(self, after_s: float | None, attempts: int) -> bool:
        """Waits before the next attempt; False where the end comes first. When it comes near meanwhile, the attempt is
        made at once."""
        pause_s = min(PAUSE_MAX_S, PAUSE_S * 2 ** min(attempts, 10)) * (0.5 + self._draw() / 2)
        if after_s is not None:
            pause_s = min(after_s, RETRY_AFTER_MAX_S)
        until_s = self._clock.monotonic() + pause_s
        with self._changed:
            if self._ends_s is not None and until_s > self._ends_s:
                return False
            was_ending = self._ends_s is not None
            while (now_s := self._clock.monotonic()) < until_s and was_ending == (self._ends_s is not None):
                self._changed.wait(until_s - now_s)
        return True
