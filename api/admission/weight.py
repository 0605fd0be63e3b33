"""What reading a JSON body will cost, told from its text before anything of it is read.

Values cost by their number, numbers with exponents of three digits some ten microseconds each (a hundred times as much
as others: they lie where the decoder has to calculate with hundreds of digits). Lists and objects, empty ones too, cost
some two hundred nanoseconds each and, by tens of thousands, several times that: all of them are looked through again
whenever memory is tidied up. All three are bounded here.
"""

from __future__ import annotations

import re

from breaker_actors.errors import PayloadTooLarge

VALUES_MAX = 100_000
"""Commas and quotes in one body: 20,000 ids have 60,000."""
SLOW_MAX = 1_000
"""Numbers with exponents of three digits in one body: about 15 ms."""
CONTAINERS_MAX = 10_000
"""Lists and objects in one body: 2 to 4 ms. Free values of a breaker or channel may hold 1000 of them."""
_SLOW = re.compile(rb"[eE][-+]?[0-9]{3,}[\s,\]}]")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, or the rest of a text whose last string does not end: each byte is looked at once."""


def weigh(text: bytes) -> int:
    """How many slow numbers the text holds. Raises PayloadTooLarge when it holds more than SLOW_MAX of them, more than
    VALUES_MAX commas and quotes, or more than CONTAINERS_MAX lists and objects."""
    if len(text) > VALUES_MAX and text.count(b",") + text.count(b'"') > VALUES_MAX:
        raise too_many()
    # Brackets within strings are text; only where there are many is it worth telling them apart.
    if _brackets(text) > CONTAINERS_MAX and _brackets(_STRING.sub(b"", text)) > CONTAINERS_MAX:
        raise too_many()
    slow = len(_SLOW.findall(text))
    if slow > SLOW_MAX:
        raise too_many()
    return slow


def _brackets(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def too_many() -> PayloadTooLarge:
    return PayloadTooLarge("The body holds too many values.")
