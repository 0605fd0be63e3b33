"""Scenario files (tests/timelines/*.txt): what happens at which instant, and what a breaker is to make of it.

    error_rate gt 0.5                              the rule: kind, op, threshold; then its other fields
      window_ms=5000 min_count=5
    created 0
    at 100       10x1 fail                         ten samples of value 1, not ok, as one batch
    at 2500      4x1 fail, 1x1 ok, 2x7@1900 ok     @1900: their own time
    at 3000..9000 every 500    10x1 ok
    gap 10000 20000
    set 21000    threshold=0.7
    restart 22000
    override 23000  force_open until=25000 then=half_open   or: throttle rate=0.2 until=25000; force_closed ...
    override 24000  none                                     ends the one in force
    mode 24500      observe                                  or: enforce
    until 30000
    expect 100   closed -> open
    expect 2100  open -> half_open 0.2
    expect 3100  ramp 0.4                          or: ramp reset 0.2
    expect 3500  hidden closed -> open             a move of the machine that callers don't see
    expect 3600  closed -> open by hand forced_open
    end closed                                     or: end open threshold_exceeded
    machine open                                   where it is not what callers see

What happens is sorted by time; of one instant it stays as written. Lines that start with # are remarks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from breaker_actors.core.model import BY_HAND, Batch, Control, Effect, Override, Transition, View

FOLDER = Path(__file__).parent.parent / "timelines"
GROUP = re.compile(r"(\d+)x(\S+?)(?:@(\d+))?\s+(ok|fail)$")


@dataclass
class Timeline:
    """One scenario, parsed. `steps` are ("at", t, batch), ("gap", from, to), ("set", t, fields), ("restart", t),
    ("control", t, control)."""

    name: str
    rule: dict[str, Any] = field(default_factory=dict)
    created_ms: int = 0
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    until_ms: int = 0
    expect: list[tuple[int, str, float | None]] = field(default_factory=list)
    end: tuple[str, str | None] = ("closed", None)
    machine: str | None = None
    control: Control = field(default_factory=Control)

    @property
    def logged(self) -> bool:
        """Only what a service's log tells one rule: samples, gaps, mode and override."""
        return bool(self.steps) and all(step[0] in ("at", "gap", "control") for step in self.steps)


def all_timelines() -> list[Timeline]:
    return [parse(path.stem, path.read_text()) for path in sorted(FOLDER.glob("*.txt"))]


def parse(name: str, text: str) -> Timeline:
    timeline = Timeline(name)
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    for line in filter(None, lines):
        word, _, rest = line.partition(" ")
        reader = READERS.get(word, _read_rule)
        reader(timeline, line if reader is _read_rule else rest.strip())
    timeline.steps.sort(key=lambda step: step[1])
    return timeline


def _read_rule(timeline: Timeline, line: str) -> None:
    if "=" in line:
        timeline.rule |= fields(line)
    else:
        kind, op, threshold = line.split()
        timeline.rule |= {"metric": "m", "kind": kind, "op": op, "threshold": msgspec.json.decode(threshold)}


def fields(text: str) -> dict[str, Any]:
    """name=value pairs; a value is JSON, or a bare word."""
    pairs = (pair.split("=", 1) for pair in text.split())
    return {name: _value(value) for name, value in pairs}


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _read_at(timeline: Timeline, rest: str) -> None:
    when, _, samples = rest.partition(" ")
    if ".." not in when:
        instants: list[int] = [int(when)]
    else:
        first, last = map(int, when.split(".."))
        _, every, samples = samples.strip().split(" ", 2)
        instants = list(range(first, last + 1, int(every)))
    timeline.steps += [("at", at, batch(at, samples)) for at in instants]


def batch(at: int, text: str) -> Batch:
    """`4x1 fail, 1x2.5@900 ok` as columns."""
    return Batch.of([row for group in text.split(",") for row in _rows(at, group.strip())])


def _rows(at: int, group: str) -> Iterator[tuple[int, float, bool]]:
    match = GROUP.match(group)
    assert match, f"not a group of samples: {group!r}"
    times, value, own_time, word = match.groups()
    for _ in range(int(times)):
        yield int(own_time or at), float(value), word == "ok"


def _read_created(timeline: Timeline, rest: str) -> None:
    timeline.created_ms = int(rest)


def _read_gap(timeline: Timeline, rest: str) -> None:
    start, end = map(int, rest.split())
    timeline.steps.append(("gap", start, end))


def _read_set(timeline: Timeline, rest: str) -> None:
    when, _, changes = rest.partition(" ")
    timeline.steps.append(("set", int(when), fields(changes)))


def _read_restart(timeline: Timeline, rest: str) -> None:
    timeline.steps.append(("restart", int(rest)))


def _read_override(timeline: Timeline, rest: str) -> None:
    when, kind, *more = rest.split()
    override = None
    if kind != "none":
        found = fields(" ".join(more))
        override = Override(
            kind=kind,  # type: ignore[arg-type]
            reason=f"why at {when}",
            by="sam",
            since_ms=int(when),
            until_ms=found["until"],
            version=len(timeline.steps),
            allow_rate=found.get("rate"),
            then=found.get("then"),
        )
    told = None if override is not None else "robin"
    _set_control(timeline, int(when), msgspec.structs.replace(timeline.control, override=override, by=told))


def _read_mode(timeline: Timeline, rest: str) -> None:
    when, mode = rest.split()
    _set_control(timeline, int(when), msgspec.structs.replace(timeline.control, mode=mode, by="robin"))


def _set_control(timeline: Timeline, when: int, control: Control) -> None:
    timeline.control = control
    timeline.steps.append(("control", when, control))


def _read_machine(timeline: Timeline, rest: str) -> None:
    timeline.machine = rest


def _read_until(timeline: Timeline, rest: str) -> None:
    timeline.until_ms = int(rest)


def _read_expect(timeline: Timeline, rest: str) -> None:
    match = re.match(r"(\d+)\s+((?:hidden )?\w+ -> \w+|ramp reset|ramp)\s*([\d.]+)?\s*(by hand \w+)?$", rest)
    assert match, f"not an expectation: {rest!r}"
    when, change, rate, hand = match.groups()
    timeline.expect.append((int(when), f"{change} {hand}" if hand else change, float(rate) if rate else None))


def _read_end(timeline: Timeline, rest: str) -> None:
    state, _, reason = rest.partition(" ")
    timeline.end = (state, reason or None)


READERS = {
    "at": _read_at,
    "created": _read_created,
    "gap": _read_gap,
    "set": _read_set,
    "restart": _read_restart,
    "until": _read_until,
    "expect": _read_expect,
    "end": _read_end,
    "override": _read_override,
    "mode": _read_mode,
    "machine": _read_machine,
}


def told(effects: list[Effect]) -> list[tuple[int, str, float | None]]:
    """Effects in the words of a scenario; the rate is told where a gate lets some through."""
    out: list[tuple[int, str, float | None]] = []
    rate = 1.0
    for effect in effects:
        if isinstance(effect, Transition):
            half_open = effect.curr == "half_open"
            words = f"{'hidden ' if effect.hidden_by else ''}{effect.prev} -> {effect.curr}"
            if effect.reason in BY_HAND:
                words += f" by hand {effect.reason}"
            out.append((effect.ts_ms, words, effect.allow_rate if half_open else None))
            if effect.hidden_by:
                continue
        else:
            out.append((effect.ts_ms, "ramp" if effect.allow_rate > rate else "ramp reset", effect.allow_rate))
        rate = effect.allow_rate
    return out


def ending(view: View) -> tuple[str, str | None]:
    """State and reason_code of a state read (semantics.md section 5)."""
    if view.state == "open":
        return view.state, view.open_cause
    if view.verdict == "indeterminate":
        return view.state, "insufficient_samples"
    return view.state, "threshold_exceeded" if view.held_back else None
