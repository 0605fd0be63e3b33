"""The only reader of time, how its integer milliseconds are shown, and how long threads keep a loop waiting. Everything
below takes times as an argument."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STEP_LASTS_S = 60.0
"""A step of the wall clock that has lasted so long is no mistake."""
SWITCH_S = 0.0005
"""A loop asks for the interpreter anew after each system call, several times a request. While a thread beside it
computes rows it waits this long each time; Python's 5 ms made 30 to 80 of a request beside large sets."""


class Clock(Protocol):
    """Wall clock in Unix milliseconds and a monotonic one in seconds."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


def real_time() -> float:
    """Seconds that pass while the machine is suspended, too, where the system counts them: what it slept is no step of
    its wall clock."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class SteadyClock:
    """A wall clock whose steps ahead are believed late (semantics.md section 2): one of more than `step_max_ms` once it
    has lasted STEP_LASTS_S; until then time goes on as real time does. A step back is believed at once, and so is its
    end within that time. What a clock shows at first is believed.

    `tell(event, step_ms)` hears of `clock_step_doubted`, `clock_step_believed` and `clock_step_over`."""

    def __init__(
        self,
        clock: Clock,
        step_max_ms: int,
        elapsed: Callable[[], float] | None = None,
        tell: Callable[[str, int], None] = lambda event, step_ms: None,
    ) -> None:
        self._clock = clock
        self._step_max_ms = step_max_ms
        self._elapsed = elapsed or clock.monotonic
        self._tell = tell
        self._offset_ms = self._high_ms = clock.now_ms() - round(self._elapsed() * 1000)
        self._high_s = self._elapsed()
        self._doubted: tuple[int, float] | None = None  # the offset of a step, and since when
        self.ahead_ms = 0
        """By how much the wall clock is ahead of what is believed; 0 while it is believed."""

    def now_ms(self) -> int:
        at_s = self._elapsed()
        real_ms = round(at_s * 1000)
        offset_ms = self._clock.now_ms() - real_ms
        if offset_ms >= self._high_ms:
            if offset_ms - self._high_ms > self._step_max_ms and not self._lasts(offset_ms, at_s):
                self.ahead_ms = offset_ms - self._offset_ms
                return real_ms + self._offset_ms
        elif at_s - self._high_s < STEP_LASTS_S:
            self._believe(offset_ms)
            return real_ms + offset_ms
        self._believe(offset_ms)
        self._high_ms, self._high_s = offset_ms, at_s
        return real_ms + offset_ms

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def _lasts(self, offset_ms: int, at_s: float) -> bool:
        """Whether a step is there long enough; one that goes on stepping begins anew."""
        if self._doubted is None or abs(offset_ms - self._doubted[0]) > self._step_max_ms:
            if self._doubted is None:
                self._tell("clock_step_doubted", offset_ms - self._offset_ms)
            self._doubted = offset_ms, at_s
        return at_s - self._doubted[1] >= STEP_LASTS_S

    def _believe(self, offset_ms: int) -> None:
        if self._doubted is not None:
            step_ms = self._doubted[0] - self._offset_ms
            is_there = abs(offset_ms - self._doubted[0]) <= self._step_max_ms
            self._doubted = None
            self._tell("clock_step_believed" if is_there else "clock_step_over", step_ms)
        self._offset_ms, self.ahead_ms = offset_ms, 0


def doubted_ms(clock: Clock) -> int:
    """By how much the wall clock is ahead of what is believed of it."""
    return clock.ahead_ms if isinstance(clock, SteadyClock) else 0


def moment(ts_ms: int) -> datetime:
    """A Unix time in milliseconds as an exact UTC datetime."""
    return EPOCH + timedelta(milliseconds=ts_ms)


def rfc3339(ts_ms: int) -> str:
    """The same as text, with milliseconds."""
    return moment(ts_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def unix_ms(instant: datetime) -> int:
    """The Unix time in milliseconds of a datetime that names its zone, rounded down."""
    return (instant - EPOCH) // timedelta(milliseconds=1)


def share_finely() -> None:
    """Threads that compute keep the loop of this process waiting for SWITCH_S at a time."""
    sys.setswitchinterval(SWITCH_S)
