"""When a mute is active: from a start to an end, or in recurring windows of the wall clock of a zone. Pure: times are
arguments, in Unix milliseconds.

A window belongs to the day on which it begins; one whose end is not later than its begin ends on the next day. Where
clocks are put forward, a time that is skipped counts as the first instant after the skip. Where they are put back, a
window begins at the first of two equal times and ends at the second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Annotated, Literal, get_args
from zoneinfo import ZoneInfo

import msgspec

Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WEEKDAYS: tuple[Weekday, ...] = get_args(Weekday)
WINDOWS_MAX = 20
HORIZON_DAYS = 15
"""So far ahead a change is looked for: a weekly window comes again within it, even where a whole day is skipped."""
BEGIN, END = r"([01][0-9]|2[0-3]):[0-5][0-9]", r"(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)"
ZONE_CHARS_MAX = 64
ZONE = r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*"
_ZONE = re.compile(ZONE)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

Begin = Annotated[str, msgspec.Meta(pattern=rf"\A{BEGIN}\Z", examples=["22:00"])]
End = Annotated[str, msgspec.Meta(pattern=rf"\A{END}\Z", examples=["06:00"])]


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A part of certain days. `to` not later than `from`: it ends on the next day; "24:00" is the end of the day."""

    weekdays: Annotated[tuple[Weekday, ...], msgspec.Meta(min_length=1, max_length=7)]
    begins: Begin = msgspec.field(name="from")
    ends: End = msgspec.field(name="to")


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """From `starts_ms` until before `ends_ms` (None: for ever), and within that only in the windows, if there are
    any. A zone that is not known makes it inactive: then people hear what happens."""

    starts_ms: int
    ends_ms: int | None
    windows: tuple[Window, ...] = ()
    zone: str = "UTC"


@lru_cache(maxsize=256)
def zone_of(name: str) -> ZoneInfo | None:
    """The zone of an IANA name; None: it is not known here."""
    if len(name) > ZONE_CHARS_MAX or not _ZONE.fullmatch(name):
        return None
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        return None


def is_active(schedule: Schedule, at_ms: int) -> bool:
    """Whether people are muted at an instant."""
    if at_ms < schedule.starts_ms or (schedule.ends_ms is not None and at_ms >= schedule.ends_ms):
        return False
    return not schedule.windows or any(begin <= at_ms < end for begin, end in _spans(schedule, at_ms, 1))


def active_until(schedule: Schedule, at_ms: int) -> int | None:
    """When the activity of an instant ends: an instant HORIZON_DAYS ahead at most, where windows leave no gap, and a
    very late one for a mute without an end. None: it is not active."""
    if not is_active(schedule, at_ms):
        return None
    if not schedule.windows:
        return FOREVER if schedule.ends_ms is None else schedule.ends_ms
    for begin, end in _merged(schedule, at_ms):
        if begin <= at_ms < end:
            return end
    return None


def next_change(schedule: Schedule, after_ms: int) -> int | None:
    """The first instant after one at which it begins or ends to be active; None: there is none within HORIZON_DAYS
    (or ever, without windows)."""
    if not schedule.windows:
        times = (schedule.starts_ms, schedule.ends_ms)
        return min((ms for ms in times if ms is not None and ms > after_ms), default=None)
    start_ms = max(after_ms, schedule.starts_ms - 1)
    for begin, end in _merged(schedule, start_ms):
        if begin > after_ms:
            return begin
        if end > after_ms:
            return end
    return None


FOREVER = 1 << 62


def _merged(schedule: Schedule, at_ms: int) -> list[tuple[int, int]]:
    """The spans around an instant and after it, those that meet as one, within the schedule's own bounds."""
    out: list[tuple[int, int]] = []
    for begin, end in sorted(_spans(schedule, at_ms, HORIZON_DAYS)):
        begin = max(begin, schedule.starts_ms)
        end = end if schedule.ends_ms is None else min(end, schedule.ends_ms)
        if begin >= end:
            continue
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out


def _spans(schedule: Schedule, at_ms: int, days: int) -> Iterator[tuple[int, int]]:
    """Each window of the days around an instant, and of so many after it."""
    zone = zone_of(schedule.zone)
    if zone is None:
        return
    today = (_EPOCH + at_ms * _MS).astimezone(zone).date()
    for ahead in range(-2, days + 1):
        day = today + timedelta(days=ahead)
        for window in schedule.windows:
            if WEEKDAYS[day.weekday()] in window.weekdays:
                yield _span(window, schedule.zone, day)


@lru_cache(maxsize=8192)
def _span(window: Window, zone_name: str, day: date) -> tuple[int, int]:
    """Begin and end of the window that begins on a day."""
    zone = zone_of(zone_name)
    assert zone is not None
    begin, end = _minutes(window.begins), _minutes(window.ends)
    last = day if end > begin else day + timedelta(days=1)
    return _instant(day, begin, zone, fold=0), _instant(last, end, zone, fold=1)


def _minutes(clock: str) -> int:
    return int(clock[:2]) * 60 + int(clock[3:])


def _instant(day: date, minutes: int, zone: ZoneInfo, fold: int) -> int:
    """The instant of a wall time; `fold` says which one of two."""
    wall = datetime.combine(day, time.min) + timedelta(minutes=minutes)
    found = wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
    if found.astimezone(zone).replace(tzinfo=None) == wall:
        return (found - _EPOCH) // _MS
    return _skip_end(wall, zone)


def _skip_end(wall: datetime, zone: ZoneInfo) -> int:
    """The first instant after the skip that swallows a wall time, by halving."""
    before, after = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (1, 0))
    old = before.astimezone(zone).utcoffset()
    low, high = 0, int((after - before).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if (before + timedelta(seconds=middle)).astimezone(zone).utcoffset() == old:
            low = middle
        else:
            high = middle
    return (before + timedelta(seconds=high) - _EPOCH) // _MS


def problems(windows: Sequence[Window], zone: str) -> dict[str, str]:
    """What is wrong with windows and their zone, by field; their form has been checked."""
    found: dict[str, str] = {}
    if len(windows) > WINDOWS_MAX:
        found["windows"] = f"at most {WINDOWS_MAX}"
    if zone_of(zone) is None:
        found["zone"] = "is not the name of a zone of the IANA database, as Europe/Berlin"
    return found
