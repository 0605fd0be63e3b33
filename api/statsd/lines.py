"""One line of StatsD, `name:value|type[|@rate][|#tags]`, with what DogStatsD 1.0 to 1.3 adds. Pure.

https://github.com/statsd/statsd (metric types), https://docs.datadoghq.com/extend/dogstatsd/datagram_shell . A line is
cut into its name, its value and its rest (`type|...`): the same name and rest come again and again, and mean the same
Form.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from api.protocols.bounds import LABELS_MAX, NAME_BYTES_MAX, VALUE_BYTES_MAX

Kind = Literal["counter", "gauge", "timing", "set"]
KINDS: dict[bytes, Kind] = {
    b"c": "counter",
    b"g": "gauge",
    b"ms": "timing",
    b"h": "timing",
    b"d": "timing",
    b"s": "set",
}
TAGS_BYTES_MAX = 4096
"""Bytes of a line's tags."""
NUMBER_BYTES_MAX = 64
WEIGHT_MAX = 10_000_000
"""Observations that one line may stand for: a rate below a ten millionth is malformed."""
COUNT_MAX = 2.0**53
"""A counter's rise in one line at most; beyond it a double does not count one by one."""
TIME_MAX_S = 10**10
_NUMBER = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?").fullmatch
_EVENTS = (b"_e{", b"_sc")

Reason = Literal[
    "event",
    "invalid_name",
    "invalid_rate",
    "invalid_tags",
    "invalid_time",
    "invalid_value",
    "negative_count",
    "no_value",
    "unknown_type",
]
WORDS: dict[Reason, str] = {
    "event": "events and service checks of DogStatsD are no metrics",
    "invalid_name": f"a name is UTF-8 text of 1 to {NAME_BYTES_MAX} bytes",
    "invalid_rate": "a rate is a number above 0, at most 1, at least a ten millionth",
    "invalid_tags": f"tags are UTF-8 text, at most {LABELS_MAX} and {TAGS_BYTES_MAX} bytes, each with a name",
    "invalid_time": "a time is whole seconds since 1970, and no gauge is relative to one",
    "invalid_value": "a value is a finite decimal number",
    "negative_count": "a counter only rises: what falls is a gauge",
    "no_value": "a line is name:value|type",
    "unknown_type": f"a type is one of {', '.join(kind.decode() for kind in KINDS)}",
}
"""Why a line is malformed: machine word and message."""


class Malformed(Exception):
    """A line can't be read. `reason` is a word of WORDS."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class Form(msgspec.Struct, frozen=True):
    """What a line says beside its value.

    `tags`: sorted by name; of a name that comes twice the last value. `weight`: how many observations it stands for, 1
    / rate. `time_s`: the time it names, of a counter or gauge; None: now.
    """

    kind: Kind
    name: str
    tags: tuple[tuple[str, str], ...]
    weight: float
    time_s: int | None


def cut(line: bytes) -> tuple[bytes, bytes, bytes]:
    """Name, value and rest of a line."""
    head, _, rest = line.partition(b"|")
    name, _, value = head.partition(b":")
    return name, value, rest


def form_of(name: bytes, rest: bytes) -> Form:
    """What a name and a rest mean. Fields that are unknown are passed over. Raises Malformed."""
    if name.startswith(_EVENTS):
        raise Malformed("event")
    if not rest:
        raise Malformed("no_value")
    if not 0 < len(name) <= NAME_BYTES_MAX:
        raise Malformed("invalid_name")
    fields = rest.rstrip(b"\r").split(b"|")
    kind = KINDS.get(fields[0])
    if kind is None:
        raise Malformed("unknown_type")
    weight, tags, time_s = 1.0, b"", None
    for field in fields[1:]:
        mark = field[:1]
        if mark == b"@":
            weight = _weight(field[1:])
        elif mark == b"#":
            tags = field[1:]
        elif mark == b"T" and kind in ("counter", "gauge"):
            time_s = _time(field[1:])
    return Form(kind, _text(name, "invalid_name"), _tags(tags), weight, time_s)


def numbers_of(text: bytes) -> list[float]:
    """The values of a line: one, or several between colons. Raises Malformed."""
    return [number_of(part) for part in text.split(b":")]


def number_of(text: bytes) -> float:
    """A finite number. Raises Malformed."""
    if len(text) > NUMBER_BYTES_MAX or _NUMBER(text) is None:
        raise Malformed("invalid_value")
    value = float(text)
    if value - value != 0:  # infinite: too large for a double
        raise Malformed("invalid_value")
    return value


def _weight(text: bytes) -> float:
    try:
        rate = number_of(text)
    except Malformed:
        raise Malformed("invalid_rate") from None
    if not 1 / WEIGHT_MAX <= rate <= 1:
        raise Malformed("invalid_rate")
    return 1 / rate


def _time(text: bytes) -> int:
    if not text.isdigit() or len(text) > NUMBER_BYTES_MAX or not 0 < (seconds := int(text)) < TIME_MAX_S:
        raise Malformed("invalid_time")
    return seconds


def _tags(text: bytes) -> tuple[tuple[str, str], ...]:
    if len(text) > TAGS_BYTES_MAX:
        raise Malformed("invalid_tags")
    found = dict[str, str]()
    for tag in _text(text, "invalid_tags").split(","):
        name, colon, value = tag.partition(":")
        if name:
            found[name] = value if colon else "true"
        elif colon:
            raise Malformed("invalid_tags")
    sizes = ((len(name.encode()), len(value.encode())) for name, value in found.items())
    if len(found) > LABELS_MAX or any(name > NAME_BYTES_MAX or value > VALUE_BYTES_MAX for name, value in sizes):
        raise Malformed("invalid_tags")
    return tuple(sorted(found.items()))


def _text(text: bytes, reason: Reason) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise Malformed(reason) from None
