"""The picture of a timeline: a lane for each breaker, whose bands show when it was open, half_open and closed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from breaker_actors.core.model import StateWord
from breaker_actors.store.rows import EventRow

SPANS = {"hour": 3_600_000, "day": 86_400_000, "week": 7 * 86_400_000}
YOUNG_MS = 60_000
"""So much is shown at least, also of what is younger."""
SHADE_MIN = 2
"""A shade is so wide at least, or nobody sees it."""
LANES_MAX, COLUMNS = 30, 600
"""Lanes of a picture, and how finely time is drawn: within a column the state that lets the fewest calls through."""
RANK: dict[StateWord, int] = {"closed": 0, "half_open": 1, "open": 2}
HEIGHTS: dict[StateWord, int] = {"closed": 3, "half_open": 11, "open": 20}
NOTHING = -1
"""Of a column in which there was no breaker, as far as is known."""
WORDS: tuple[StateWord, ...] = ("closed", "half_open", "open")


class Band(NamedTuple):
    """A rectangle of a lane, in columns from its left edge."""

    state: StateWord
    x: int
    width: int
    height: int


class Lane(NamedTuple):
    """One breaker. `open_ms`: how long it was open; `trips`: how often it became so; `last`: its state at the end."""

    breaker_id: str
    name: str
    moves: int
    trips: int
    open_ms: int
    last: StateWord
    bands: list[Band]


class Shade(NamedTuple):
    """Where a picture is covered, in columns: nobody knows what was then."""

    x: int
    width: int


class Picture(NamedTuple):
    """`there`: breakers that moved; `cut`: there were more moves than could be looked at, so it begins later."""

    since_ms: int
    until_ms: int
    lanes: list[Lane]
    there: int
    cut: bool

    @property
    def middle_ms(self) -> int:
        return (self.since_ms + self.until_ms) // 2


def drawn(
    rows: Sequence[EventRow], since_ms: int, until_ms: int, cut: bool, made: Mapping[str, int] | None = None
) -> Picture:
    """The picture of moves that come newest first; those that are `cut` off begin with the oldest one there is.

    `made`: when each breaker that is there was made; before that its lane is empty, and so is that of one that is not
    there any more outside of its moves."""
    if cut and rows:
        since_ms = min(rows[-1].ts_ms, until_ms - 1)
    of: dict[str, list[EventRow]] = {}
    for row in reversed(rows):
        of.setdefault(row.breaker_id, []).append(row)
    busiest = sorted(of.values(), key=lambda moves: (-len(moves), moves[-1].name, moves[-1].breaker_id))
    shown = [(moves, *_known(moves, since_ms, until_ms, made)) for moves in busiest[:LANES_MAX]]
    # Where none was there at first, the picture begins later; a minute is shown at least.
    since_ms = max(since_ms, min(until_ms - YOUNG_MS, *(begin_ms for _, begin_ms, _ in shown))) if shown else since_ms
    lanes = [_lane(moves, begin_ms, end_ms, (since_ms, until_ms)) for moves, begin_ms, end_ms in shown]
    return Picture(since_ms, until_ms, lanes, len(of), cut)


def shades(picture: Picture, stretches: Iterable[tuple[int, int]]) -> list[Shade]:
    """Those of stretches of time that touch the picture. Pure."""
    found = list[Shade]()
    for from_ms, to_ms in stretches:
        if from_ms < picture.until_ms and to_ms > picture.since_ms:
            first, last = (_column(ms, picture.since_ms, picture.until_ms) for ms in (from_ms, to_ms))
            x = min(max(first, 0), COLUMNS - SHADE_MIN)
            found.append(Shade(x, max(SHADE_MIN, last - x)))
    return found


def _known(moves: Sequence[EventRow], since_ms: int, until_ms: int, made: Mapping[str, int] | None) -> tuple[int, int]:
    """From when to when the state of one breaker is known."""
    if made is None:
        return since_ms, until_ms
    created_ms = made.get(moves[0].breaker_id)
    if created_ms is None:
        return max(since_ms, moves[0].ts_ms), min(until_ms, moves[-1].ts_ms)
    return max(since_ms, created_ms), until_ms


def _lane(moves: Sequence[EventRow], begin_ms: int, end_ms: int, ends: tuple[int, int]) -> Lane:
    """One breaker's, oldest first, from `begin_ms` to `end_ms` of a picture with these ends."""
    columns = [NOTHING] * COLUMNS
    open_ms, at_ms, state = 0, begin_ms, moves[0].prev
    for ts_ms, following in [*((row.ts_ms, row.curr) for row in moves), (end_ms, moves[-1].curr)]:
        ts_ms = min(max(ts_ms, at_ms), end_ms)
        if state == "open":
            open_ms += ts_ms - at_ms
        first, last = (_column(ms, *ends) for ms in (at_ms, ts_ms))
        if ts_ms > at_ms:
            for column in range(first, last + 1):
                columns[column] = max(columns[column], RANK.get(state, 0))
        at_ms, state = ts_ms, following
    trips = sum(row.curr == "open" and row.prev != "open" for row in moves)
    newest = moves[-1]
    return Lane(newest.breaker_id, newest.name, len(moves), trips, open_ms, newest.curr, _bands(columns))


def _column(ms: int, since_ms: int, until_ms: int) -> int:
    return min(COLUMNS - 1, (ms - since_ms) * COLUMNS // max(1, until_ms - since_ms))


def _bands(columns: Sequence[int]) -> list[Band]:
    found, start = list[Band](), 0
    for x in range(1, len(columns) + 1):
        if x == len(columns) or columns[x] != columns[start]:
            if columns[start] != NOTHING:
                word = WORDS[columns[start]]
                found.append(Band(word, start, x - start, HEIGHTS[word]))
            start = x
    return found
