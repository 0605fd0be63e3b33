"""The only reader of time. Everything below takes integer milliseconds as an argument."""

from __future__ import annotations

import time
from typing import Protocol


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
