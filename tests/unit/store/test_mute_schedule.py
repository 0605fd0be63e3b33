"""When a mute is active, against an oracle that walks whole years minute by minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breaker_actors.store.mutes.schedule import (
    FOREVER,
    WEEKDAYS,
    Schedule,
    Window,
    active_until,
    is_active,
    next_change,
    problems,
)

MINUTE_MS, DAY = 60_000, 1_440
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEARS = [
    ("Europe/Berlin", 2026),
    ("America/New_York", 2026),
    ("America/Sao_Paulo", 2018),  # clocks leave out midnight
    ("Africa/Cairo", 2023),  # midnight comes twice
    ("Australia/Lord_Howe", 2026),  # half an hour
    ("Africa/Casablanca", 2026),  # four changes
    ("Pacific/Apia", 2011),  # a whole day is left out
    ("Asia/Kathmandu", 2026),
]


class Year:
    """The wall clock of a zone at every minute of a year, and of ten days around it: minutes since 1970 as the wall
    shows them."""

    def __init__(self, zone: str, year: int) -> None:
        first = datetime(year, 1, 1, tzinfo=UTC) - timedelta(days=10)
        self.start = int((first - EPOCH).total_seconds()) // 60
        minutes, place = range(386 * DAY), ZoneInfo(zone)
        offsets = np.array([_offset(first + timedelta(minutes=m), place) for m in minutes[::5]]).repeat(5)
        self.wall = self.start + np.arange(len(offsets)) + offsets
        self.first = {int(w): i for i, w in reversed(list(enumerate(self.wall)))}
        self.last = {int(w): i for i, w in enumerate(self.wall)}
        steps = np.diff(self.wall)
        self.skips = [(int(self.wall[i]), int(self.wall[i + 1]), int(i + 1)) for i in np.flatnonzero(steps > 1)]
        self.changes = [int(i) for i in np.flatnonzero(steps != 1)]

    def at(self, wall: int, known: dict[int, int]) -> int | None:
        """The minute at which the wall shows a time; where it never does the first one after the skip."""
        if wall in known:
            return known[wall]
        return next((i for before, after, i in self.skips if before < wall < after), None)

    def active(self, window: Window) -> np.ndarray:
        found = np.zeros(len(self.wall), dtype=bool)
        for day in range(int(self.wall[0]) // DAY, int(self.wall[-1]) // DAY + 1):
            if WEEKDAYS[(day + 3) % 7] not in window.weekdays:
                continue
            begin, end = (int(clock[:2]) * 60 + int(clock[3:]) for clock in (window.begins, window.ends))
            from_ = self.at(day * DAY + begin, self.first)
            to = self.at((day if end > begin else day + 1) * DAY + end, self.last)
            if from_ is not None and to is not None:
                found[from_:to] = True
        return found


def _offset(at: datetime, zone: ZoneInfo) -> int:
    offset = at.astimezone(zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds()) // 60


@lru_cache
def year_of(zone: str, year: int) -> Year:
    return Year(zone, year)


CLOCKS = st.builds(lambda m: f"{m // 60:02}:{m % 60:02}", st.integers(0, DAY - 1))
EDGES = st.sampled_from(["00:00", "00:30", "01:00", "01:30", "02:00", "02:15", "02:30", "03:00", "23:00", "23:59"])
WINDOWS = st.builds(
    lambda days, begins, ends: Window(weekdays=tuple(sorted(days, key=WEEKDAYS.index)), begins=begins, ends=ends),
    st.sets(st.sampled_from(WEEKDAYS), min_size=1),
    CLOCKS | EDGES,
    CLOCKS | EDGES | st.just("24:00"),
)


def hold_against_oracle(zone: str, year: int, windows: tuple[Window, ...], days: range = range(5, 381)) -> None:
    """Walks from change to change, and looks around each of them."""
    known = year_of(zone, year)
    expected = np.logical_or.reduce([known.active(window) for window in windows])
    begin, end = known.start + days[0] * DAY, known.start + (days[-1] + 1) * DAY
    schedule = Schedule(starts_ms=0, ends_ms=None, windows=windows, zone=zone)
    found = np.zeros(len(expected), dtype=bool)
    at_ms = begin * MINUTE_MS
    while at_ms < end * MINUTE_MS:
        change = next_change(schedule, at_ms)
        assert change is None or change > at_ms
        until = end if change is None else min(end, change // MINUTE_MS)
        active = is_active(schedule, at_ms)
        assert is_active(schedule, until * MINUTE_MS - 1) == active
        assert active_until(schedule, at_ms) == (change if active else None)
        found[at_ms // MINUTE_MS - known.start : until - known.start] = active
        at_ms = until * MINUTE_MS
    part = slice(begin - known.start, end - known.start)
    wrong = np.flatnonzero(found[part] != expected[part])
    assert wrong.size == 0, (zone, windows, EPOCH + timedelta(minutes=int(begin + wrong[0])))


@pytest.mark.parametrize(("zone", "year"), YEARS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(windows=st.lists(WINDOWS, min_size=1, max_size=3).map(tuple))
def test_windows_of_a_whole_year(zone: str, year: int, windows: tuple[Window, ...]) -> None:
    hold_against_oracle(zone, year, windows)


@pytest.mark.parametrize(("zone", "year"), YEARS)
def test_windows_at_every_edge_of_a_change(zone: str, year: int) -> None:
    """Days around each change of the clocks, from and to each half hour of the night."""
    changes = year_of(zone, year).changes or [100 * DAY]
    for change in changes:
        _hold_around(zone, year, change // DAY)


def _hold_around(zone: str, year: int, day: int) -> None:
    days = range(max(5, day - 4), min(381, day + 5))
    for begins in ("23:30", "00:00", "01:00", "01:30", "02:00", "02:30"):
        for ends in ("00:30", "01:00", "01:30", "02:30", "24:00"):
            hold_against_oracle(zone, year, (Window(weekdays=WEEKDAYS, begins=begins, ends=ends),), days)


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def spans(window: Window, zone: str, *texts: str) -> list[bool]:
    schedule = Schedule(starts_ms=0, ends_ms=None, windows=(window,), zone=zone)
    return [is_active(schedule, ms(text)) for text in texts]


def test_a_window_across_midnight_belongs_to_the_day_it_begins_on() -> None:
    night = Window(weekdays=("fri",), begins="22:00", ends="06:00")
    times = ("2026-06-05T21:59+02:00", "2026-06-05T22:00+02:00", "2026-06-06T05:59+02:00", "2026-06-06T06:00+02:00")
    assert spans(night, "Europe/Berlin", *times) == [False, True, True, False]
    assert spans(night, "Europe/Berlin", "2026-06-05T03:00+02:00", "2026-06-06T23:00+02:00") == [False, False]


def test_a_skipped_begin_is_the_first_instant_after_the_skip() -> None:
    window = Window(weekdays=("sun",), begins="02:30", ends="04:00")
    times = ("2026-03-29T01:59:59+01:00", "2026-03-29T03:00+02:00", "2026-03-29T03:59+02:00", "2026-03-29T04:00+02:00")
    assert spans(window, "Europe/Berlin", *times) == [False, True, True, False]


def test_a_repeated_end_is_the_second_of_two() -> None:
    window = Window(weekdays=("sun",), begins="02:30", ends="02:45")
    times = ("2026-10-25T02:29+02:00", "2026-10-25T02:30+02:00", "2026-10-25T02:44+01:00", "2026-10-25T02:45+01:00")
    assert spans(window, "Europe/Berlin", *times) == [False, True, True, False]


def test_equal_times_are_a_whole_day_and_24_00_the_end_of_one() -> None:
    whole = Window(weekdays=("mon",), begins="09:00", ends="09:00")
    assert spans(whole, "UTC", "2026-06-01T09:00Z", "2026-06-02T08:59Z", "2026-06-02T09:00Z") == [True, True, False]
    late = Window(weekdays=("mon",), begins="20:00", ends="24:00")
    assert spans(late, "UTC", "2026-06-01T23:59Z", "2026-06-02T00:00Z") == [True, False]


def test_bounds_of_its_own_count_beside_the_windows() -> None:
    start, end = ms("2026-06-01T12:00Z"), ms("2026-06-02T12:00Z")
    day = Window(weekdays=WEEKDAYS, begins="00:00", ends="24:00")
    schedule = Schedule(starts_ms=start, ends_ms=end, windows=(day,))
    assert [is_active(schedule, at) for at in (start - 1, start, end - 1, end)] == [False, True, True, False]
    assert next_change(schedule, start - 7 * 86_400_000) == start
    assert (active_until(schedule, start), next_change(schedule, start)) == (end, end)
    assert next_change(schedule, end) is None


def test_a_plain_mute_is_active_from_start_to_end() -> None:
    plain = Schedule(starts_ms=10, ends_ms=20)
    assert [is_active(plain, at) for at in (9, 10, 19, 20)] == [False, True, True, False]
    assert [next_change(plain, at) for at in (9, 10, 20)] == [10, 20, None]
    assert (active_until(plain, 10), active_until(plain, 20)) == (20, None)
    assert active_until(Schedule(starts_ms=10, ends_ms=None), 10) == FOREVER


OF_THE_MACHINE = ("localtime", "posixrules", "Factory", "right/UTC", "posix/UTC", "posix/Europe/Berlin")


def test_a_zone_that_nobody_knows_mutes_nothing() -> None:
    day = Window(weekdays=WEEKDAYS, begins="00:00", ends="24:00")
    for zone in ("Mars/Olympus", "../../etc/passwd", "", "Europe", "x" * 999, "/etc/localtime", *OF_THE_MACHINE):
        assert not is_active(Schedule(starts_ms=0, ends_ms=None, windows=(day,), zone=zone), 1)
        assert "zone" in problems((day,), zone)
    assert problems((day,), "Europe/Berlin") == {}
    assert problems((day,) * 21, "UTC") == {"windows": "at most 20"}


@pytest.mark.parametrize(
    "text",
    [
        '{"weekdays": ["mon"], "from": "24:00", "to": "06:00"}',
        '{"weekdays": ["mon"], "from": "9:00", "to": "10:00"}',
        '{"weekdays": ["mon"], "from": "09:60", "to": "10:00"}',
        '{"weekdays": ["mon"], "from": "09:00", "to": "24:01"}',
        '{"weekdays": [], "from": "09:00", "to": "10:00"}',
        '{"weekdays": ["monday"], "from": "09:00", "to": "10:00"}',
        '{"weekdays": ["mon"], "from": "09:00\\n", "to": "10:00"}',
        '{"from": "09:00", "to": "10:00"}',
    ],
)
def test_windows_that_are_none(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Window)
