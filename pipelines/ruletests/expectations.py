"""What a test expects: lines in the style of tests/timelines, each with its time.

    31s    closed -> open value=0.33 count=30 reason=threshold_exceeded
    1m1s   open -> half_open 0.2 within=500ms
    1m2s   ramp 0.4                        (ramp reset 0.2 where it goes back)
    2m     hidden closed -> open           a move of the machine that callers don't see
    3m     closed -> open by hand forced_open
    90s    half_open count=12              the state that callers see then, after all of that instant
    end    closed                          the same when the test ends

Moves are complete: one that no line tells fails the test, unless all lines tell states. Steps of the ramp are looked at
where a line tells of one. A figure holds when it is what was got, rounded to as many places as it is written with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from breaker_actors.core.model import BY_HAND, Effect, Transition
from breaker_actors.errors import Invalid
from pipelines.ruletests.times import offset, span_ms, time_ms

FIGURES = ("value", "count", "error_count", "avg", "p95", "reason")
"""That a move may name; `reason` is a word."""
STATE_FIGURES = ("value", "count", "rate", "verdict", "machine")
"""That a state may name; the last two are words."""
WORDS = ("reason", "verdict", "machine")
RATE_SLACK = 0.00005
"""Rates are rounded to four places."""
_STATE = "closed|open|half_open"
_LINE = re.compile(
    rf"(?P<time>\S+)\s+(?:(?P<hidden>hidden\s+)?(?P<prev>{_STATE})\s*->\s*(?P<curr>{_STATE})(?:\s+(?P<rate>[0-9.]+))?"
    rf"(?:\s+by\s+hand\s+(?P<hand>\w+))?|(?P<ramp>ramp(?:\s+reset)?)\s+(?P<step>[0-9.]+)|(?P<state>{_STATE}))"
    r"(?P<figures>(?:\s+\w+=\S+)*)"
)
_NUMBER = re.compile(r"-?\d+(?:\.(?P<places>\d+))?(?:[eE](?P<power>[-+]?\d+))?")


@dataclass(frozen=True, slots=True)
class Expected:
    """One line. `words`: what is to happen, without time and figures; `rate`: None where it names none."""

    at_ms: int
    kind: Literal["move", "ramp", "state"]
    words: str
    rate: float | None = None
    figures: Mapping[str, str] = field(default_factory=dict)
    within_ms: int = 0
    line: int = 0


@dataclass(frozen=True, slots=True)
class Got:
    """What a breaker did or how it stood, in the same words. `figures`: value, count, ... as far as they are known."""

    at_ms: int
    words: str
    rate: float | None
    figures: Mapping[str, float | int | str | None]


def expected(text: str, start_ms: int, end_ms: int | None, within_ms: int, line: int = 0) -> Expected:
    """A line as a value. `end_ms`: when the test ends; None: not known yet, `end` then stands for the start."""
    match = _LINE.fullmatch(text.strip())
    if match is None:
        raise Invalid(f"{text!r} is no expectation: TIME closed -> open, TIME ramp 0.4, TIME open, end closed")
    figures = dict(pair.split("=", 1) for pair in match["figures"].split())
    within = figures.pop("within", None)
    if within is not None and match["state"]:
        raise Invalid(f"{text!r}: a state is looked at in one instant, within= is for moves")
    at_ms = (start_ms if end_ms is None else end_ms) if match["time"] == "end" else time_ms(match["time"], start_ms)
    if match["time"] == "end" and not match["state"]:
        raise Invalid(f"{text!r}: the end has a state, not a move")
    check_figures(text, figures, STATE_FIGURES if match["state"] else () if match["ramp"] else FIGURES)
    kind: Literal["move", "ramp", "state"] = "state" if match["state"] else "ramp" if match["ramp"] else "move"
    slack = within_ms if within is None else span_ms(within)
    return Expected(at_ms, kind, _words(match), _rate(text, match), figures, 0 if kind == "state" else slack, line)


def _words(match: re.Match[str]) -> str:
    if match["state"]:
        return str(match["state"])
    if match["ramp"]:
        return " ".join(match["ramp"].split())
    hand = f" by hand {match['hand']}" if match["hand"] else ""
    return f"{'hidden ' if match['hidden'] else ''}{match['prev']} -> {match['curr']}{hand}"


def _rate(text: str, match: re.Match[str]) -> float | None:
    written = match["rate"] or match["step"]
    try:
        return None if written is None else float(written)
    except ValueError:
        raise Invalid(f"{text!r}: {written} is no rate") from None


def check_figures(text: str, figures: Mapping[str, str], known: Iterable[str]) -> None:
    """Raises Invalid for a figure that is none, or has no number."""
    for name, value in figures.items():
        if name not in known:
            there = ", ".join((*known, "within"))
            raise Invalid(f"{text!r}: {name} is no figure here; there is {there}")
        if name not in WORDS and not _NUMBER.fullmatch(value):
            raise Invalid(f"{text!r}: {value!r} is no number")


def holds(written: str, got: float | int | str | None) -> bool:
    """Whether a figure as written stands for what was got: the same word, or what that is, rounded to these places."""
    match = _NUMBER.fullmatch(written)
    if match is None or got is None or isinstance(got, str):
        return written == got
    unit = 10.0 ** (int(match["power"] or 0) - len(match["places"] or ""))
    return abs(float(written) - got) <= unit * 0.5 + 1e-9 * abs(got)


def wrong_in(line: Expected, got: Got) -> list[str]:
    """What of a line does not hold where its words do: its time, rate and figures."""
    told = []
    late_ms = got.at_ms - line.at_ms
    if abs(late_ms) > line.within_ms:
        told.append(f"{offset(abs(late_ms))} {'late' if late_ms > 0 else 'early'}")
    if line.rate is not None and (got.rate is None or abs(line.rate - got.rate) > RATE_SLACK):
        told.append(f"rate {got.rate}, not {line.rate}")
    for name, value in line.figures.items():
        if not holds(value, got.figures.get(name)):
            told.append(f"{name} {shown(got.figures.get(name))}, not {value}")
    return told


def shown(value: float | int | str | None) -> str:
    """A figure for eyes, to six digits."""
    return "-" if value is None else value if isinstance(value, str) else f"{value:.6g}"


def told(effects: Iterable[Effect]) -> list[Got]:
    """What a breaker did, in the words of a timeline."""
    out, rate = list[Got](), 1.0
    for effect in effects:
        if not isinstance(effect, Transition):
            out.append(Got(effect.ts_ms, "ramp" if effect.allow_rate > rate else "ramp reset", effect.allow_rate, {}))
            rate = effect.allow_rate
            continue
        hand = f" by hand {effect.reason}" if effect.reason in BY_HAND else ""
        words = f"{'hidden ' if effect.hidden_by else ''}{effect.prev} -> {effect.curr}{hand}"
        out.append(Got(effect.ts_ms, words, effect.allow_rate, figures_of(effect)))
        rate = rate if effect.hidden_by else effect.allow_rate
    return out


def figures_of(move: Transition) -> dict[str, float | int | str | None]:
    """The figures of a move that a line may name."""
    agg = move.agg
    numbers = {"value": move.value, "count": agg.count, "error_count": agg.error_count, "avg": agg.avg, "p95": agg.p95}
    return {**numbers, "reason": move.reason}
