"""The only reader of time, and how its integer milliseconds are shown. Everything below takes them as an argument."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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


def moment(ts_ms: int) -> datetime:
    """A Unix time in milliseconds as an exact UTC datetime."""
    return EPOCH + timedelta(milliseconds=ts_ms)


def rfc3339(ts_ms: int) -> str:
    """The same as text, with milliseconds."""
    return moment(ts_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def unix_ms(instant: datetime) -> int:
    """The Unix time in milliseconds of a datetime that names its zone, rounded down."""
    return (instant - EPOCH) // timedelta(milliseconds=1)
