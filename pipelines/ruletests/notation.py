"""The notation of samples in a test: `0.2x30 0.9x10 _x5` is thirty samples of 0.2, ten of 0.9 and five of none.

    0.2        a sample of this value, ok
    0.2!       one that is not ok
    ok, fail   a sample of value 1, ok or not
    100+10     the first of rising values, 100-10 of falling ones; repeated they are 100, 110, 120...
    0.2*7      one sample that stands for seven observations
    (a b c)    samples that arrive together, in one batch
    _          nothing
    @90s       go to this time since the start of the series, also as milliseconds
    ...x30     thirty times what stands before it

Each thing takes one interval; those within brackets share it. Numbers are decimal: 0.1+0.1x3 is 0.1, 0.2, 0.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np

from breaker_actors.core.model import COUNT_MAX, Flags, Float64, Int64
from breaker_actors.errors import Invalid
from pipelines.ruletests.times import span_ms

SAMPLES_MAX = 1_000_000
"""Samples and pauses that one series expands to."""
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_THING = re.compile(
    rf"(?:(?P<open>\()|(?:(?P<value>-?{_NUMBER})(?P<step>[-+]{_NUMBER})?|(?P<word>ok|fail|_)|@(?P<at>[0-9.a-z]+)|(?P<close>\)))"
    r"(?P<failed>!)?(?:\*(?P<count>\d+))?(?:\s*x\s*(?P<times>\d+))?(?=[\s()]|\Z))\s*"
)


@dataclass(slots=True)
class Expanded:
    """Samples as columns. `offset_ms`: since the start of the series, never going back; `batch`: a number that changes
    from one batch to the next."""

    offset_ms: Int64
    value: Float64
    ok: Flags
    count: Int64
    batch: Int64


def expand(text: str, interval_ms: int) -> Expanded:
    """The samples of a series, one thing each `interval_ms`. Raises Invalid that quotes what can't be read."""
    series = _Series(interval_ms)
    inside: list[_Thing] | None = None
    for thing in _things(text):
        if thing.bracket == "(":
            if inside is not None:
                raise Invalid(f"{text!r}: brackets don't nest")
            inside = []
        elif thing.bracket == ")":
            if not inside:
                raise Invalid(f"{text!r}: a closing bracket stands behind samples and an opening one")
            series.add_batches(inside, thing.times)
            inside = None
        elif inside is not None:
            if not thing.is_sample:
                raise Invalid(f"{text!r}: within brackets there are samples only, not {thing.text!r}")
            inside.append(thing)
        else:
            series.add(thing)
    if inside is not None:
        raise Invalid(f"{text!r}: a bracket is not closed")
    return series.columns()


@dataclass(frozen=True, slots=True)
class _Thing:
    text: str
    bracket: str | None
    at_ms: int | None
    value: Decimal | None
    step: Decimal
    ok: bool
    count: int
    times: int

    @property
    def is_sample(self) -> bool:
        return self.value is not None

    def values(self) -> Float64:
        """The values of its repetitions."""
        value = self.value or Decimal(0)
        if not self.step:
            return np.full(self.times, float(value))
        return np.array([float(value + i * self.step) for i in range(self.times)])


def _things(text: str) -> Iterator[_Thing]:
    text, at = text.strip(), 0
    while at < len(text):
        match = _THING.match(text, at)
        if match is None:
            raise Invalid(f"{text[at:].split()[0]!r} is no sample: see the notation in docs/guides/rule-tests.md")
        yield _thing(match)
        at = match.end()


def _thing(match: re.Match[str]) -> _Thing:
    text, word, at = match.group().strip(), match["word"], match["at"]
    times = int(match["times"] or 1)
    is_sample = match["value"] is not None or word in ("ok", "fail")
    if (match["failed"] and match["value"] is None) or (match["count"] and not is_sample):
        raise Invalid(f"{text!r} is no sample: see the notation in docs/guides/rule-tests.md")
    if not 1 <= times <= SAMPLES_MAX:
        raise Invalid(f"{text!r}: something is repeated 1 to {SAMPLES_MAX} times")
    if at is not None and match["times"]:
        raise Invalid(f"{text!r}: a time is not repeated")
    count = int(match["count"] or 1)
    if not 1 <= count <= COUNT_MAX:
        raise Invalid(f"{text!r}: a sample stands for 1 to {COUNT_MAX} observations")
    value = Decimal(match["value"] or 1) if is_sample else None
    at_ms = None if at is None else span_ms(at)
    ok = not match["failed"] and word != "fail"
    return _Thing(text, match["open"] or match["close"], at_ms, value, Decimal(match["step"] or 0), ok, count, times)


@dataclass(slots=True)
class _Series:
    """Columns that grow, and the time of the next thing."""

    interval_ms: int
    now_ms: int = 0
    last_ms: int = 0
    """When the last thing came."""
    size: int = 0
    batches: int = 0
    parts: list[tuple[Int64, Float64, Flags, Int64, Int64]] = field(default_factory=list)

    def add(self, thing: _Thing) -> None:
        """The next thing outside of brackets."""
        if thing.at_ms is not None:
            if thing.at_ms < self.last_ms:
                raise Invalid(f"{thing.text!r}: time doesn't go back; the last thing came later")
            self.now_ms = thing.at_ms
            return
        if thing.is_sample:
            self._put(thing.values(), np.arange(thing.times), [thing.ok] * thing.times, [thing.count] * thing.times)
        else:
            self._grow(thing.times)
        self._go_on(thing.times)

    def add_batches(self, things: list[_Thing], times: int) -> None:
        """What stands in brackets, so many times."""
        if sum(thing.times for thing in things) * times > SAMPLES_MAX:
            raise Invalid(f"a series expands to {SAMPLES_MAX} samples at most")
        values = np.concatenate([thing.values() for thing in things])
        ok = [thing.ok for thing in things for _ in range(thing.times)]
        count = [thing.count for thing in things for _ in range(thing.times)]
        self._put(np.tile(values, times), np.repeat(np.arange(times), len(values)), ok * times, count * times)
        self._go_on(times)

    def _go_on(self, times: int) -> None:
        self.batches += times
        self.now_ms += times * self.interval_ms
        self.last_ms = self.now_ms - self.interval_ms

    def _put(self, values: Float64, places: Int64, ok: list[bool], count: list[int]) -> None:
        """Samples at some places of the intervals from now on."""
        self._grow(len(values))
        at = self.now_ms + places * self.interval_ms
        self.parts.append((at, values, np.array(ok), np.array(count, np.int64), places + self.batches))

    def _grow(self, size: int) -> None:
        self.size += size
        if self.size > SAMPLES_MAX:
            raise Invalid(f"a series expands to {SAMPLES_MAX} samples at most")

    def columns(self) -> Expanded:
        """All of it."""
        if not self.parts:
            none = np.empty(0, np.int64)
            return Expanded(none, np.empty(0), np.empty(0, np.bool_), none, none)
        at, value, ok, count, batch = (np.concatenate(column) for column in zip(*self.parts, strict=True))
        if not np.isfinite(value).all():
            raise Invalid("a value is too large")
        return Expanded(at, value, ok, count, batch)
