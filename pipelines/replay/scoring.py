"""What came of a replay: time in each state, trips, and how they lie to labelled failures.

What counts is what the machine did, so that a rule is judged by itself: its hidden moves count, and those that an
operator made don't. `shown_in` and `shown_trips` tell what callers saw of it.

A trip is every move to open, as for notifications. It belongs to each labelled window that it lies in, its two ends and
a grace behind it included; one that belongs to none is false. A window is caught by the first trip that belongs to it;
how long after the window's start that is, is its latency.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from breaker_actors.core.model import BY_HAND, Effect, StateWord, Transition
from breaker_actors.errors import Invalid

EFFECTS_MAX = 400_000
"""Transitions and changes of rate that are kept, unless another number is given."""


@dataclass(frozen=True, slots=True, order=True)
class Labelled:
    """A labelled failure, in milliseconds; both ends belong to it."""

    start_ms: int
    end_ms: int


class EffectBudget:
    """Upper bound on the effects kept by all runs that share it."""

    def __init__(self, most: int = EFFECTS_MAX) -> None:
        self._most, self._spent = most, 0

    def spend(self) -> None:
        """Counts one more effect that is kept. Raises Invalid beyond the bound."""
        if self._spent == self._most:
            told = f"what is tried moves more than {self._most} times"
            raise Invalid(f"{told}; give the rules minimum durations, or allow more memory")
        self._spent += 1


def no_time() -> dict[StateWord, int]:
    return {"closed": 0, "half_open": 0, "open": 0}


@dataclass(slots=True)
class Tally:
    """Follows one breaker. `kept`: whether its effects are wanted, not only what they come to; `budget`: for these."""

    windows: Sequence[Labelled] = ()
    grace_ms: int = 0
    kept: bool = True
    budget: EffectBudget = field(default_factory=EffectBudget)
    effects: list[Effect] = field(default_factory=list)
    transitions: int = 0
    trips: int = 0
    incidents: int = 0
    """First trips since it was closed; the others are re-trips of theirs."""
    false_trips: int = 0
    recoveries: int = 0
    first_trips: dict[int, int] = field(default_factory=dict)
    """Per number of a window: when its first trip came."""
    time_in: dict[StateWord, int] = field(default_factory=no_time)
    state: StateWord = "closed"
    since_ms: int = 0
    course: list[tuple[int, StateWord]] = field(default_factory=list)
    """Where the machine went when; empty unless effects are kept."""
    controlled: bool = False
    """Whether there were modes or overrides."""
    shown_in: dict[StateWord, int] = field(default_factory=no_time)
    shown_trips: int = 0
    _shown: tuple[StateWord, int] = ("closed", 0)
    _tripped: bool = False

    def tell(self, effects: Iterable[Effect]) -> None:
        """What the breaker did next."""
        for effect in effects:
            if self.kept:
                self.budget.spend()
                self.effects.append(effect)
            if isinstance(effect, Transition):
                self._move(effect)

    def steer(self, at_ms: int) -> None:
        """The end of an override puts the machine into half_open."""
        if self.state != "half_open":
            self._go("half_open", at_ms)

    def _move(self, move: Transition) -> None:
        self.transitions += 1
        if move.hidden_by is None:
            self._show(move)
        if move.reason in BY_HAND:
            return
        self._go(move.curr, move.ts_ms)
        self.recoveries += move.curr == "closed"
        if move.curr == "open":
            self.incidents += not self._tripped
            self._trip(move.ts_ms)
        self._tripped = move.curr == "open" or (self._tripped and move.curr != "closed")

    def _go(self, curr: StateWord, at_ms: int) -> None:
        self._spend(at_ms)
        self.state = curr
        if self.kept:
            self.course.append((at_ms, curr))

    def _spend(self, now_ms: int) -> None:
        self.time_in[self.state] += now_ms - self.since_ms
        self.since_ms = now_ms

    def _show(self, move: Transition) -> None:
        self._spend_shown(move.ts_ms)
        self._shown = move.curr, move.ts_ms
        self.shown_trips += move.curr == "open"

    def _spend_shown(self, now_ms: int) -> None:
        state, since_ms = self._shown
        self.shown_in[state] += now_ms - since_ms
        self._shown = state, now_ms

    def begin(self, first_ms: int) -> None:
        """The breaker is created then."""
        self.since_ms, self._shown = first_ms, ("closed", first_ms)

    def leave(self, now_ms: int) -> None:
        """The time up to now belongs to the states it is in."""
        self._spend(now_ms)
        self._spend_shown(now_ms)

    def _trip(self, at_ms: int) -> None:
        self.trips += 1
        hit = [i for i, w in enumerate(self.windows) if w.start_ms <= at_ms <= w.end_ms + self.grace_ms]
        self.false_trips += not hit
        for number in hit:
            self.first_trips.setdefault(number, at_ms)

    def reached(self, first_ms: int, last_ms: int) -> list[int]:
        """Numbers of the windows that begin by `last_ms` and, with the grace, don't end before `first_ms`."""
        found = enumerate(self.windows)
        return [i for i, w in found if w.start_ms <= last_ms and w.end_ms + self.grace_ms >= first_ms]

    def latencies(self) -> list[int]:
        """Of the windows that were caught, in their order."""
        return [self.first_trips[i] - w.start_ms for i, w in enumerate(self.windows) if i in self.first_trips]


def labelled(given: Any, names: Sequence[str]) -> list[Labelled]:
    """Labelled windows from a file, or from what such a file holds: a list of [start, end], or an object with such a
    list per file name, of which those of `names` are taken. Times are Unix milliseconds, ISO 8601, datetime, pandas
    Timestamp or numpy datetime64; UTC unless they say otherwise. Raises Invalid."""
    where = "windows"
    if isinstance(given, str | Path):
        where = str(given)
        given = _read(Path(given))
    if isinstance(given, Mapping):
        found = [given[name] for name in names if name in given]
        if not found:
            raise Invalid(
                f"{where}: nothing for {', '.join(names)}; there is {', '.join(map(str, given)) or 'nothing'}"
            )
        given = [pair for pairs in found for pair in (pairs if isinstance(pairs, list) else [pairs])]
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise Invalid(f"{where}: expected a list of [start, end]")
    return sorted(_window(pair, f"{where}, window {i}") for i, pair in enumerate(given, 1))


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise Invalid(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{path} can't be read: {getattr(error, 'strerror', None) or error}") from None


def _window(pair: Any, where: str) -> Labelled:
    if isinstance(pair, Labelled):
        return pair
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise Invalid(f"{where}: expected [start, end]")
    start_ms, end_ms = (_time(one, where) for one in pair)
    if end_ms < start_ms:
        raise Invalid(f"{where}: it ends before it starts")
    return Labelled(start_ms, end_ms)


def _time(value: Any, where: str) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    try:
        if isinstance(value, np.datetime64):
            value = value.astype("datetime64[ms]").item()  # None for not-a-time
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (TypeError, ValueError):
        raise Invalid(f"{where}: {json.dumps(value, default=str)[:60]} is not a time") from None
