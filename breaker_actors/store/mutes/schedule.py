"""When a mute is active: from a start to an end, or in recurring windows of the wall clock of a zone. Pure: times are
arguments, in Unix milliseconds.

A window belongs to the day on which it begins; one whose end is not later than its begin ends on the next day. Where
clocks are put forward, a time that is skipped counts as the first instant after the skip. Where they are put back, a
window begins at the first of two equal times and ends at the second.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Annotated, Literal, NamedTuple, get_args
from zoneinfo import ZoneInfo, available_timezones

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
_FIRST_WALL, _FIRST_WEEKDAY = _EPOCH.replace(tzinfo=None), 3
"""The wall's first minute, and which of WEEKDAYS that was."""
DAY_MINUTES, DAY_MS = 1_440, 86_400_000
FOREVER = 1 << 62
"""Later than anything, Unix milliseconds."""

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


@cache
def _zones() -> frozenset[str]:
    """The names of zones, read once; without those that machines have for themselves."""
    return frozenset(available_timezones()) - {"localtime", "posixrules", "Factory"}


@lru_cache(maxsize=256)
def zone_of(name: str) -> ZoneInfo | None:
    """The zone of an IANA name; None: it is not known here, or names what this machine has set."""
    if len(name) > ZONE_CHARS_MAX or not _ZONE.fullmatch(name) or name not in _zones():
        return None
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        return None


class Stretch(NamedTuple):
    """What holds at an instant, and for how long: `until_ms` is what `active_until` says of every instant from
    `from_ms` until before `to_ms`."""

    from_ms: int
    to_ms: int
    until_ms: int | None


def stretch(schedule: Schedule, at_ms: int) -> Stretch:
    """The stretch around an instant. Windows are merged as minutes of the wall clock, and only those around the instant
    become instants, up to the first gap: some tens of microseconds for any windows."""
    if at_ms < schedule.starts_ms:
        return Stretch(-FOREVER, schedule.starts_ms, None)
    ends_ms = FOREVER if schedule.ends_ms is None else schedule.ends_ms
    if at_ms >= ends_ms:
        return Stretch(ends_ms, FOREVER, None)
    if not schedule.windows:
        return Stretch(schedule.starts_ms, FOREVER if schedule.ends_ms is None else ends_ms, ends_ms)
    if (zone := zone_of(schedule.zone)) is None:
        return Stretch(schedule.starts_ms, ends_ms, None)
    first = next(_spans(schedule, at_ms), None)
    if first is None:  # nothing within the horizon, so nothing for a day more
        return Stretch(at_ms, min(at_ms + DAY_MS, ends_ms), None)
    begin, end = first
    if begin > at_ms:
        return Stretch(at_ms, begin, None)
    if end - at_ms < (HORIZON_DAYS - 3) * DAY_MS:
        return Stretch(begin, end, end)
    midnights = _minute_of(at_ms, zone) // DAY_MINUTES, _minute_of(at_ms, zone) // DAY_MINUTES + 1
    from_ms, to_ms = (_instant(day * DAY_MINUTES, zone, fold=0) for day in midnights)  # the horizon goes by days
    return Stretch(min(at_ms, max(from_ms, begin)), max(at_ms + 1, min(to_ms, end)), end)


def is_active(schedule: Schedule, at_ms: int) -> bool:
    """Whether people are muted at an instant."""
    return stretch(schedule, at_ms).until_ms is not None


def active_until(schedule: Schedule, at_ms: int) -> int | None:
    """When the activity of an instant ends: an instant HORIZON_DAYS ahead at most, where windows leave no gap, and a
    very late one for a mute without an end. None: it is not active."""
    return stretch(schedule, at_ms).until_ms


def next_change(schedule: Schedule, after_ms: int) -> int | None:
    """The first instant after one at which it begins or ends to be active; None: there is none within HORIZON_DAYS
    (or ever, without windows)."""
    if not schedule.windows:
        times = (schedule.starts_ms, schedule.ends_ms)
        return min((ms for ms in times if ms is not None and ms > after_ms), default=None)
    for begin, end in _spans(schedule, max(after_ms, schedule.starts_ms - 1)):
        if begin > after_ms:
            return begin
        if end > after_ms:
            return end
    return None


def _spans(schedule: Schedule, at_ms: int) -> Iterator[tuple[int, int]]:
    """The spans that end after an instant, those that meet as one, within the schedule's own bounds; made one after the
    other as they are asked for."""
    zone = zone_of(schedule.zone)
    if zone is None:
        return
    now: tuple[int, int] | None = None
    for begins, ends in _walls_from(schedule.windows, zone, at_ms):
        begin, end = _instant(begins, zone, fold=0), _instant(ends, zone, fold=1)
        begin = max(begin, schedule.starts_ms)
        end = end if schedule.ends_ms is None else min(end, schedule.ends_ms)
        if begin >= end:
            continue
        if now is None:
            now = begin, end
        elif begin <= now[1]:
            now = now[0], max(now[1], end)
        else:
            if now[1] > at_ms:
                yield now
            now = begin, end
    if now is not None and now[1] > at_ms:
        yield now


def _walls_from(windows: tuple[Window, ...], zone: ZoneInfo, at_ms: int) -> Iterator[tuple[int, int]]:
    """The spans of `_walls` around an instant: but for the last one that may meet them, those that are over by then are
    left out. A later time of the wall is never an earlier instant, so the first of them is found by halving."""
    today = _minute_of(at_ms, zone) // DAY_MINUTES
    walls, some = _walls(windows, today), list[tuple[int, int]]()
    for wall in walls:
        some.append(wall)
        if wall[0] >= (today + 2) * DAY_MINUTES:
            break
    over = bisect_right(some, at_ms, key=lambda wall: _instant(wall[1], zone, fold=1))
    yield from some[max(0, over - 1) :]
    yield from walls


def _walls(windows: tuple[Window, ...], today: int) -> Iterator[tuple[int, int]]:
    """Begin and end of the windows of the days around one, in minutes of the wall since 1970, merged."""
    week = _week(windows)
    now: tuple[int, int] | None = None
    for day in range(today - 2, today + HORIZON_DAYS + 1):
        for begin, end in week[(day + _FIRST_WEEKDAY) % 7]:
            begin, end = begin + day * DAY_MINUTES, end + day * DAY_MINUTES
            if now is None:
                now = begin, end
            elif begin <= now[1]:
                now = now[0], max(now[1], end)
            else:
                yield now
                now = begin, end
    if now is not None:
        yield now


@lru_cache(maxsize=1024)
def _week(windows: tuple[Window, ...]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """For each weekday begin and end of what begins on it, in minutes of its wall, those that meet as one."""
    days: list[list[tuple[int, int]]] = [[] for _ in WEEKDAYS]
    for window in windows:
        begin, end = _minutes(window.begins), _minutes(window.ends)
        span = begin, end if end > begin else end + DAY_MINUTES
        for weekday in window.weekdays:
            days[WEEKDAYS.index(weekday)].append(span)
    return tuple(tuple(_joined(day)) for day in days)


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], end)
        else:
            out.append((begin, end))
    return out


def _minute_of(at_ms: int, zone: ZoneInfo) -> int:
    """What the wall shows at an instant, in minutes since 1970."""
    wall = (_EPOCH + at_ms * _MS).astimezone(zone).replace(tzinfo=UTC)
    return (wall - _EPOCH) // timedelta(minutes=1)


def _minutes(clock: str) -> int:
    return int(clock[:2]) * 60 + int(clock[3:])


def _instant(minute: int, zone: ZoneInfo, fold: int) -> int:
    """The instant of a wall time in minutes since 1970; `fold` says which one of two."""
    wall = _FIRST_WALL + timedelta(minutes=minute)
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
