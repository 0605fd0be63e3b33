"""Globs: patterns with * (any characters) and ? (one), matched in bounded work. Pure.

Nothing is compiled: who asks more globs than a cache holds, one after the other, would pay for that each time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

STARS_MAX = 8
"""Stars of a glob, each of which is looked for once."""
BEGIN, STEP = 500, 150
"""What a match takes beside its characters, and what each character of both sides takes where the glob has a `?`: about
nanoseconds."""


def matches(glob: str, value: str) -> bool:
    """Whether all of `value` is what the glob says."""
    return _walks(_steps(glob), value) if "?" in glob else _follow(glob.split("*"), value)


def cost(glob: str, value: str) -> int:
    """About nanoseconds that matching takes at most: it looks for the parts between stars in what is left of the value,
    or with a `?` takes one step for each character."""
    if "?" in glob:
        return BEGIN + STEP * (len(glob) + len(value))
    return BEGIN + len(glob) * len(value) // 2


def problem(glob: str) -> str:
    """Why a glob can't be taken; "" when it can."""
    return f"a glob has at most {STARS_MAX} stars" if glob.count("*") > STARS_MAX else ""


def _follow(parts: list[str], value: str) -> bool:
    """Whether the value is the parts one after the other, with anything between two: each at its first place, since a
    later one leaves less for those behind it."""
    if len(parts) == 1:
        return value == parts[0]
    first, *middle, last = parts
    at, end = len(first), len(value) - len(last)
    if at > end or not value.startswith(first) or not value.endswith(last):
        return False
    for part in middle:
        at = value.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


class _Steps(NamedTuple):
    """Places of a glob as bits: place n is behind its first n characters, stars left out. `by`: from which places each
    character leads on; `by_any`: from which any does; `stays`: where any may be passed over; `last`: the end."""

    by: dict[str, int]
    by_any: int
    stays: int
    last: int


@lru_cache(maxsize=256)
def _steps(glob: str) -> _Steps:
    by: dict[str, int] = {}
    by_any, stays, place = 0, 0, 1
    for sign in glob:
        if sign == "*":
            stays |= place
            continue
        if sign == "?":
            by_any |= place
        else:
            by[sign] = by.get(sign, 0) | place
        place <<= 1
    return _Steps(by, by_any, stays, place)


def _walks(steps: _Steps, value: str) -> bool:
    """All places that what was read so far may have led to, at once (Baeza-Yates and Gonnet, A new approach to text
    searching, 1992)."""
    by, by_any, stays, last = steps
    places = 1
    for sign in value:
        places = ((places & (by.get(sign, 0) | by_any)) << 1) | (places & stays)
        if not places:
            return False
    return bool(places & last)
