"""Every scenario of tests/timelines runs on the live breaker, on the oracle, and through replay."""

from __future__ import annotations

import numpy as np
import pytest

from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Batch, Effect
from breaker_actors.core.rules import parse_rule
from pipelines.replay.reference import by_timestamp, replay
from tests.support.oracle import Oracle
from tests.support.timelines import Timeline, all_timelines, ending, told

TIMELINES = all_timelines()


@pytest.fixture(params=TIMELINES, ids=lambda timeline: timeline.name)
def timeline(request: pytest.FixtureRequest) -> Timeline:
    scenario: Timeline = request.param
    return scenario


def live(timeline: Timeline) -> tuple[list[Effect], Breaker]:
    """Runs the scenario as a host would: configuration after the timers before it, restarts from record and log."""
    breaker, first = Breaker.create(parse_rule(timeline.rule), timeline.created_ms)
    effects, log = list(first), list[tuple[int, Batch]]()
    for word, at, *rest in timeline.steps:
        if word == "at":
            log.append((at, rest[0]))
            effects += breaker.ingest(rest[0], at)
        elif word == "gap":
            effects += breaker.gap(at, rest[0])
        elif word == "set":
            effects += breaker.advance(at - 1)
            if breaker.configure(parse_rule(rest[0], breaker.rule), at):
                breaker.unload()
                refill(breaker, log)
        elif word == "control":
            effects += breaker.advance(at - 1)
            effects += breaker.control(rest[0], at)
        else:
            effects += breaker.advance(at)
            breaker = Breaker.restore(breaker.rule, breaker.record())
            refill(breaker, log)
    effects += breaker.advance(timeline.until_ms)
    return effects, breaker


def refill(breaker: Breaker, log: list[tuple[int, Batch]]) -> None:
    for received, batch in log:
        breaker.load(batch, received)


def test_live(timeline: Timeline) -> None:
    """The breaker moves as told, at the told times."""
    effects, breaker = live(timeline)
    assert told(effects) == timeline.expect
    view = breaker.view(timeline.until_ms)
    assert ending(view) == timeline.end
    assert view.machine_state == (timeline.machine or timeline.end[0])


def test_oracle(timeline: Timeline) -> None:
    """The naive model reads the semantics the same way."""
    oracle = Oracle(parse_rule(timeline.rule), timeline.created_ms)
    for word, at, *rest in timeline.steps:
        if word == "at":
            oracle.ingest(rest[0], at)
        elif word == "gap":
            oracle.gap(at, rest[0])
        elif word == "set":
            oracle.advance(at - 1)
            oracle.configure(parse_rule(rest[0], oracle.rule), at)
        elif word == "control":
            oracle.advance(at - 1)
            oracle.control(rest[0], at)
    oracle.advance(timeline.until_ms)
    assert told(oracle.effects) == timeline.expect
    assert ending(oracle.view(timeline.until_ms)) == timeline.end


@pytest.mark.parametrize("scenario", [t for t in TIMELINES if t.plain], ids=lambda t: t.name)
def test_replay(scenario: Timeline) -> None:
    """Replay over the samples as columns gives the same moves."""
    batches = [step[2] for step in scenario.steps]
    columns = [np.concatenate([getattr(b, name) for b in batches]) for name in ("ts_ms", "value", "ok")]
    rule = parse_rule(scenario.rule)
    assert told(replay(rule, scenario.created_ms, by_timestamp(*columns), scenario.until_ms)) == scenario.expect


def test_scenarios_are_there() -> None:
    """The folder is found, and most scenarios also run as columns."""
    assert len(TIMELINES) >= 16
    assert sum(t.plain for t in TIMELINES) >= 10
