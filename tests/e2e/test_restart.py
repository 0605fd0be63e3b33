"""A thousand breakers, everything killed with SIGKILL at once, started again: each is as it was, and soon.

How soon is printed, not asserted. They are to add at most 10 s to the start of an empty service: 6 s on a machine with
two cores, but 18 s on one that has seven times as much to do, where the empty start takes 23 s instead of 11.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from breaker_actors.core.log_entries import Gap
from tests.support.invariants import Evidence, Moved, assert_in_sequence, assert_records_agree
from tests.support.live import LiveService, wait_for

CLOSED, OPEN, HALF_OPEN, DUE = 400, 250, 300, 50
NAMES = [
    *(f"closed-{i}" for i in range(CLOSED)),
    *(f"open-{i}" for i in range(OPEN)),
    *(f"half_open-{i}" for i in range(HALF_OPEN)),
    *(f"due-{i}" for i in range(DUE)),
]
RULE = {"metric": "latency", "kind": "avg", "op": "gt", "threshold": 100, "min_state_duration_ms": 0}
LONG = {"window_ms": 1_800_000, "eval_interval_ms": 1_000}
SHORT = {"window_ms": 2_000, "eval_interval_ms": 500}
RULES = {
    "closed": {**RULE, **LONG},
    "open": {**RULE, **LONG, "cooldown_ms": 3_600_000},
    "half_open": {**RULE, **SHORT, "cooldown_ms": 500},
    "due": {**RULE, **SHORT, "cooldown_ms": 8_000},
}
SHOWN = ("state", "state_since_ms", "allow_rate", "transition_seq", "sample_count", "passes")
BEAT_MS = 3_500
"""Heartbeats of a router, and pings of it, are at most so far apart: one every second, on a busy machine."""

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]


class World:
    """The breakers by name: id, router, and what is shown of them."""

    def __init__(self, live: LiveService) -> None:
        self.live = live
        self.ids: dict[str, str] = {}
        self.routers: dict[str, str] = {}

    def make(self) -> None:
        """One bulk PUT."""
        body = {"breakers": [{**RULES[name.split("-")[0]], "name": name} for name in NAMES]}
        answer = self.live.user.put(f"{self.live.project_path}/breakers", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        for breaker in answer.json()["breakers"]:
            self.ids[breaker["name"]], self.routers[breaker["name"]] = breaker["id"], breaker["router_id"]

    def send(self, values: dict[str, float]) -> None:
        """One sample to each of these breakers, in one request."""
        now = time.time_ns() // 1_000_000
        samples = [
            {"router_id": self.routers[name], "metric": "latency", "ts_ms": now, "value": value}
            for name, value in values.items()
        ]
        answer = self.live.user.post(f"{self.live.project_path}/ingest", json=samples, timeout=60)
        assert (answer.status_code, answer.json()) == (202, {"accepted": len(samples)})

    def shown(self) -> dict[str, dict[str, Any]]:
        body = {"breaker_ids": list(self.ids.values())}
        answer = self.live.user.post(f"{self.live.project_path}/breakers/state:batch", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return {state["name"]: state for state in answer.json()["states"]}

    def fresh(self) -> dict[str, dict[str, Any]] | None:
        """What is shown, once every owner answers for its breakers."""
        states = self.shown()
        return None if any(state.get("stale") for state in states.values()) else states

    def settled(self) -> bool:
        """Every breaker is in the state of its name, and nothing moves any more."""
        states = self.fresh() or {}
        return all(
            state["state"] == {"due": "open"}.get(kind := name.split("-")[0], kind)
            and not (kind == "half_open" and state["sample_count"])
            for name, state in states.items()
        )


def test_a_thousand_breakers_are_as_they_were(tmp_path: Path) -> None:
    began = time.monotonic()
    live = LiveService(tmp_path / "data", "--verbose")
    empty_s = time.monotonic() - began
    evidence = Evidence(live.data_dir)
    try:
        world = World(live)
        world.make()
        fill(world)
        before, events = crash(world, evidence)
        crashed_ms = time.time_ns() // 1_000_000
        began = time.monotonic()
        live = world.live = LiveService(tmp_path / "data", "--verbose")
        ready_s = time.monotonic() - began
        after = wait_for(world.fresh, 120)
        fresh_s = time.monotonic() - began
        restored_ms = time.time_ns() // 1_000_000
        print(report(live, empty_s, ready_s, fresh_s))
        gaps = check_gaps(world, evidence, crashed_ms, restored_ms)
        check_states(before, after)
        check_events(world, evidence, events, gaps)
    finally:
        live.stop()


def fill(world: World) -> None:
    """Windows, and the states that the names say. A third of the half_open ones gets some way back to closed."""
    wait_for(world.fresh, 120)
    world.send(dict.fromkeys(NAMES[:CLOSED], 10.0))
    world.send({name: 500.0 for name in NAMES[CLOSED:] if not name.startswith("due")})
    wait_for(lambda: world.shown()["half_open-0"]["state"] == "half_open", 30)
    world.send({f"half_open-{i}": 10.0 for i in range(0, HALF_OPEN, 3)})
    wait_for(lambda: len({state["allow_rate"] for state in world.shown().values()}) >= 4, 30)


def crash(world: World, evidence: Evidence) -> tuple[dict[str, dict[str, Any]], dict[str, list[Moved]]]:
    """Kills all in the moment in which it has just taken samples: what was shown before, and the events."""
    world.send({name: 500.0 for name in NAMES if name.startswith("due")})
    wait_for(world.settled, 60, every_s=0.2)
    before = world.shown()
    world.send(dict.fromkeys(NAMES[:CLOSED], 20.0))
    world.live.crash()
    for name in NAMES[:CLOSED]:
        before[name]["sample_count"] += 1
    return before, evidence.histories()


def report(live: LiveService, empty_s: float, ready_s: float, fresh_s: float) -> str:
    phases = [line.strip() for line in live.output if re.fullmatch(r"\w+: \d+\.\d+ s\s*", line)]
    return (
        f"an empty service was ready after {empty_s:.1f} s; this one after {ready_s:.1f} s, its {len(NAMES)} breakers"
        f" after {fresh_s:.1f} s: {fresh_s - empty_s:.1f} s are theirs ({', '.join(phases)})"
    )


def check_gaps(world: World, evidence: Evidence, crashed_ms: int, restored_ms: int) -> dict[str, Gap]:
    """Each router's log has a gap from about the crash to when somebody got through to its new owner. It may be told in
    pieces; what a busy machine adds before and behind it is not looked at. Answers the first pieces."""
    found = {}
    for name, router_id in world.routers.items():
        gap = next(gap for gap in evidence.outages(router_id) if gap.to_ms > crashed_ms)
        assert crashed_ms - BEAT_MS <= gap.from_ms <= crashed_ms, name
        assert gap.to_ms <= restored_ms + BEAT_MS, name
        found[name] = next(piece for piece in evidence.gaps(router_id) if piece.from_ms == gap.from_ms)
    return found


def check_states(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> None:
    for name in NAMES:
        if not name.startswith("due"):
            assert [after[name][k] for k in SHOWN] == [before[name][k] for k in SHOWN], name


def check_events(world: World, evidence: Evidence, before: dict[str, list[Moved]], gaps: dict[str, Gap]) -> None:
    """The only new events are of those whose time was over while nobody was there: at the end of the gap."""
    due = [name for name in NAMES if name.startswith("due")]
    wait_for(lambda: all(state["state"] == "half_open" for n, state in world.shown().items() if n in due), 30)
    for name, breaker_id in world.ids.items():
        history, known = evidence.history(breaker_id), before.get(breaker_id, [])
        assert history[: len(known)] == known, name
        new = [(event.prev, event.curr, event.ts_ms) for event in history[len(known) :]]
        assert new == ([("open", "half_open", gaps[name].to_ms)] if name in due else []), name
        assert_in_sequence(breaker_id, history)
    assert_records_agree(evidence)
    tripped = NAMES[:5]
    world.send(dict.fromkeys(tripped, 5_000.0))
    wait_for(lambda: all(world.shown()[name]["state"] == "open" for name in tripped), 30)
