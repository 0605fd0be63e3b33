"""What came of a replay: time in each state, trips, and how they lie to labelled failures.

What counts is what the machine did, so that a rule is judged by itself: its hidden moves count, and those that an
operator made don't. `shown_in` and `shown_trips` tell what callers saw of it.

A trip is every move to open, as for notifications. An incident lasts from a trip out of closed until the breaker is
closed again; its further trips are re-trips. What is held against labelled windows is the incident, as one alarm:

- It belongs to a window that it began in, or at most `grace_ms` behind.
- It belongs to a window that began while it lasted, if it began at most the window's own length, and the grace, before:
  whoever looked would have found the breaker open. Where it belongs to an earlier window, that one's end counts for its
  beginning. One that goes on from long before was raised for something else; else a breaker that never closes would
  catch everything. (Benchmarks of detection, as NAB, see alarms the same way: one near the window counts once.)
- One that belongs to no window is a false trip, whatever its re-trips.

A window is caught by the first incident that belongs to it; its latency is how long after the window's start that
began, 0 where it was there already.
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
from pipelines.sources.files import time_forms

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
    """Incidents that belong to no window."""
    recoveries: int = 0
    first_trips: dict[int, int] = field(default_factory=dict)
    """Per number of a window that is caught: when the incident began; before the window, where it was open already."""
    time_in: dict[StateWord, int] = field(default_factory=no_time)
    state: StateWord = "closed"
    since_ms: int = 0
    began_ms: int | None = None
    """When the incident began that is not over."""
    course: list[tuple[int, StateWord]] = field(default_factory=list)
    """Where the machine went when; empty unless effects are kept."""
    controlled: bool = False
    """Whether there were modes or overrides."""
    shown_in: dict[StateWord, int] = field(default_factory=no_time)
    shown_trips: int = 0
    _shown: tuple[StateWord, int] = ("closed", 0)

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
            self.trips += 1
            if self.began_ms is None:
                self.incidents += 1
                self.began_ms = move.ts_ms
        elif move.curr == "closed":
            self._end(move.ts_ms)

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

    def finish(self, last_ms: int) -> None:
        """The samples end; what is not over is judged as far as it is known."""
        self.leave(last_ms)
        self._end(last_ms + 1)

    def _end(self, end_ms: int) -> None:
        """The incident was over before this time."""
        if self.began_ms is None:
            return
        hit = belonging(self.windows, self.grace_ms, self.began_ms, end_ms)
        self.false_trips += not hit
        for number in hit:
            self.first_trips.setdefault(number, self.began_ms)
        self.began_ms = None

    def reached(self, first_ms: int, last_ms: int) -> list[int]:
        """Numbers of the windows that begin by `last_ms` and, with the grace, don't end before `first_ms`."""
        found = enumerate(self.windows)
        return [i for i, w in found if w.start_ms <= last_ms and w.end_ms + self.grace_ms >= first_ms]

    def latencies(self) -> list[int]:
        """Of the windows that were caught, in their order."""
        return [self.latency_of(i) for i in range(len(self.windows)) if i in self.first_trips]

    def latency_of(self, number: int) -> int:
        """Of a window that was caught."""
        return max(0, self.first_trips[number] - self.windows[number].start_ms)


def belonging(windows: Sequence[Labelled], grace_ms: int, began_ms: int, end_ms: int) -> list[int]:
    """Numbers of the windows, which are in order of their starts, that an incident belongs to. `end_ms`: it was over
    by then, and not before."""
    found, since_ms = [], began_ms
    for number, window in enumerate(windows):
        if window.start_ms >= end_ms:
            break
        early_ms = window.end_ms - window.start_ms + grace_ms
        if began_ms <= window.end_ms + grace_ms and window.start_ms - since_ms <= early_ms:
            found.append(number)
            since_ms = max(since_ms, window.end_ms)
    return found


def labelled(given: Any, names: Sequence[str]) -> list[Labelled]:
    """Labelled windows from a file, or from what such a file holds: a list of [start, end], or an object with such a
    list per file name, of which those of `names` are taken. A window may be an object with start and end, too, and all
    of them a frame with these columns. Times are Unix milliseconds, ISO 8601, datetime, pandas Timestamp or numpy
    datetime64; UTC unless they say otherwise. Raises Invalid."""
    return labelled_files(given, names)[0]


def labelled_files(given: Any, names: Sequence[str]) -> tuple[list[Labelled], list[str]]:
    """The same, and the names of which there are labels."""
    where, taken = "windows", list[str]()
    if isinstance(given, str | Path):
        where = str(given)
        given = _read(Path(given))
    if hasattr(given, "columns"):
        given = _rows(given)
    if isinstance(given, Mapping) and set(given) == {"start", "end"}:
        given = [given]
    if isinstance(given, Mapping):
        taken = [name for name in names if name in given]
        found = [given[name] for name in names if name in given]
        if not found:
            raise Invalid(
                f"{where}: nothing for {', '.join(names)}; there is {', '.join(map(str, given)) or 'nothing'}; give the"
                " list of one alone where names differ"
            )
        given = [pair for pairs in found for pair in (pairs if isinstance(pairs, list) else [pairs])]
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise Invalid(f"{where}: expected a list of [start, end]")
    return sorted(_window(pair, f"{where}, window {i}") for i, pair in enumerate(given, 1)), taken


def _rows(frame: Any) -> list[Any]:
    """Start and end of each row of a polars or pandas frame."""
    if not {"start", "end"} <= set(frame.columns):
        raise Invalid(
            f"windows: a frame of them has columns start and end, this one {', '.join(map(str, frame.columns))}"
        )
    return list(zip(frame["start"].to_list(), frame["end"].to_list(), strict=True))


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise Invalid(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise Invalid(f"{path}: lists and objects are nested too deeply in it") from None
    except (OSError, ValueError) as error:  # ValueError: no text, or a number of thousands of digits
        raise Invalid(f"{path} can't be read: {getattr(error, 'strerror', None) or error}") from None


def _window(pair: Any, where: str) -> Labelled:
    if isinstance(pair, Labelled):
        return pair
    if isinstance(pair, Mapping) and {"start", "end"} <= set(pair):
        pair = [pair["start"], pair["end"]]
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
        raise Invalid(f"{where}: {json.dumps(value, default=str)[:60]} is not a time; {time_forms()}") from None
