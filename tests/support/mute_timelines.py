"""Scenario files of mutes (tests/timelines_mutes/*.txt): what happens at which instant, and what people are to hear.

    poll 60000                                     how often the Notifier looks unasked; 1000 unless told
    warning 10000                                  so long before a mute ends it is warned of; 0 unless told: never
    breaker checkout team=payments                 the first one is meant where none is named; then its metadata
    channel hook trip recover                      a webhook, and what it takes; or: channel pager pagerduty trip
    mute M name=checkout until=5000 by=sam "deploy"       as from=0; name~check*, metadata.team!=x, channel=hook
    mute N window=sat,sun/22:00-06:00 zone=Europe/Berlin by=sam "nights"
    at 1000 trip                                   or: trip search; half_open; recover, through half_open where needed
    at 1000 hidden trip                            a move of the machine while its breaker observes; enforce: it counts
    at 1000 force_open                             an override begins; override_ends: callers see the machine again
    at 1000 rename checkout basket
    at 1000 delete
    at 1000 mute O until=9000 by=kim "late"
    at 2000 edit M until=2000                      any word of the line of a mute
    at 2000 unmute M
    at 2000 channel hook off                       or: on
    until 9000
    expect 5000 sent trip muted_by sam since 1000  since: when its outage began
    expect 6000 sent recover of search on pager    where they are not the first ones
    expect none sent
    expect end delivery trip suppressed M          each that was not sent, as it is at the end

Times are milliseconds, or 2026-03-29T01:30+01:00. Lines that start with # are remarks, the first one says what it is
about.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from breaker_actors.store.mutes.matching import Matcher, Op
from breaker_actors.store.mutes.schedule import Weekday, Window

FOLDER = Path(__file__).parent.parent / "timelines_mutes"
TIME = re.compile(r"(?<!\S)(\d{4}-\d\d-\d\dT\d\d:\d\d\S*)")
OPS: dict[str, Op] = {"=": "=", "~": "glob", "!=": "!="}
PAIR = re.compile(r"([a-z_.]+)(!=|=|~)(.*)", re.DOTALL)
WORDS = frozenset(
    "trip half_open recover hidden enforce force_open override_ends rename delete mute edit unmute channel".split()
)


@dataclass
class MuteTimeline:
    """One scenario, parsed. `steps`: (time, word, its other words), in order; `sent` and `left` are lines to expect."""

    name: str
    poll_ms: int = 1_000
    warning_ms: int = 0
    breakers: dict[str, dict[str, str]] = field(default_factory=dict)
    channels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    steps: list[tuple[int, str, tuple[str, ...]]] = field(default_factory=list)
    until_ms: int = 0
    sent: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def begin_ms(self) -> int:
        """A little before anything happens."""
        return max(0, min(when for when, *_ in self.steps) - 1_000) // 1_000 * 1_000


def all_timelines() -> list[MuteTimeline]:
    return [parse(path.stem, path.read_text()) for path in sorted(FOLDER.glob("*.txt"))]


def parse(name: str, text: str) -> MuteTimeline:
    timeline, early = MuteTimeline(name), list[tuple[str, tuple[str, ...]]]()
    for line in text.splitlines():
        words = tuple(shlex.split(TIME.sub(lambda found: str(instant(found[1])), line), comments=True))
        if not words:
            continue
        word, *rest = words
        if word in ("poll", "warning", "until"):
            setattr(timeline, f"{word}_ms", int(rest[0]))
        elif word == "breaker":
            timeline.breakers[rest[0]] = dict(pair.split("=", 1) for pair in rest[1:])
        elif word == "channel":
            timeline.channels[rest[0]] = tuple(rest[1:])
        elif word == "mute":
            early.append((word, tuple(rest)))
        elif word == "at":
            assert rest[1] in WORDS, f"{name}: nothing is called {rest[1]}"
            timeline.steps.append((int(rest[0]), rest[1], tuple(rest[2:])))
        else:
            assert word == "expect", f"{name}: no line begins with {word}"
            _read_expect(timeline, rest)
    timeline.steps.sort(key=lambda step: step[0])
    begin_ms = timeline.begin_ms
    timeline.steps[:0] = [(begin_ms, *step) for step in early]
    return timeline


def _read_expect(timeline: MuteTimeline, words: list[str]) -> None:
    if words[0] == "end":
        timeline.left.append(" ".join(words[2:]))
    elif words != ["none", "sent"]:
        timeline.sent.append(" ".join(words))


def instant(text: str) -> int:
    """Milliseconds; or an ISO time with its offset."""
    if text.isdigit():
        return int(text)
    when = datetime.fromisoformat(text)
    assert when.tzinfo is not None, f"{text} says no offset"
    return round(when.timestamp() * 1000)


def mute_words(words: tuple[str, ...]) -> dict[str, Any]:
    """The line of a mute as fields of a draft, only those that are said; and `by`."""
    found: dict[str, Any] = {}
    for word in words:
        match = PAIR.fullmatch(word)
        if match is None:
            found["comment"] = word
            continue
        key, op, value = match.groups()
        if key == "until":
            found["ends_ms"] = instant(value)
        elif key == "from":
            found["starts_ms"] = instant(value)
        elif key in ("by", "zone"):
            found[key] = value
        elif key == "window":
            found["windows"] = (*found.get("windows", ()), _window(value))
        else:
            found["matchers"] = (*found.get("matchers", ()), Matcher(field=key, op=OPS[op], value=value))
    return found


def _window(text: str) -> Window:
    days, _, hours = text.partition("/")
    begins, _, ends = hours.partition("-")
    return Window(weekdays=cast(tuple[Weekday, ...], tuple(days.split(","))), begins=begins, ends=ends)
