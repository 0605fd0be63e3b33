"""Every scenario of tests/timelines runs on the live breaker, on the oracle, and through replay."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from breaker_actors.core.log_entries import Gap
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Batch, Effect, Record
from breaker_actors.core.rules import parse_rule
from pipelines.columns import Samples
from pipelines.replay.reference import replay
from pipelines.replay.vectorized.engine import FastReplay, Walk
from tests.support.oracle import Oracle
from tests.support.timelines import Timeline, all_timelines, ending, told

TIMELINES = all_timelines()


@pytest.fixture(params=TIMELINES, ids=lambda timeline: timeline.name)
def timeline(request: pytest.FixtureRequest) -> Timeline:
    scenario: Timeline = request.param
    return scenario


def live(timeline: Timeline, *, restarts: bool = False) -> tuple[list[Effect], Breaker]:
    """Runs the scenario as a host would: configuration after the timers before it, restarts from record and log.
    `restarts`: one after each step."""
    breaker, first = Breaker.create(parse_rule(timeline.rule), timeline.created_ms)
    effects, log = list(first), list[tuple[str, int, Batch]]()
    for word, at, *rest in timeline.steps:
        if word == "at":
            log.append((breaker.rule.metric, at, rest[0]))
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
        if word == "restart" or restarts:
            stored = msgspec.msgpack.decode(msgspec.msgpack.encode(breaker.record()), type=Record)
            breaker = Breaker.restore(breaker.rule, stored)
            refill(breaker, log)
    effects += breaker.advance(timeline.until_ms)
    return effects, breaker


def refill(breaker: Breaker, log: list[tuple[str, int, Batch]]) -> None:
    after = breaker.reload_after_ms
    for metric, received, batch in log:
        if metric == breaker.rule.metric and received > after:
            breaker.load(batch, received)


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarts"])
def test_live(timeline: Timeline, restarts: bool) -> None:
    """The breaker moves as told, at the told times; a restart after each step changes nothing."""
    effects, breaker = live(timeline, restarts=restarts)
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


@pytest.mark.parametrize("scenario", [t for t in TIMELINES if t.logged], ids=lambda t: t.name)
def test_replay(scenario: Timeline) -> None:
    """Replay of the entries that a log has gives the same moves."""
    entries = [(at, Gap(at, rest[0]) if word == "gap" else rest[0]) for word, at, *rest in scenario.steps]
    effects = replay(parse_rule(scenario.rule), scenario.created_ms, entries, scenario.until_ms)
    assert told(effects) == scenario.expect


@pytest.mark.parametrize("scenario", [t for t in TIMELINES if t.logged], ids=lambda t: t.name)
def test_replay_of_columns(scenario: Timeline) -> None:
    """The fast path over the samples as columns gives the same moves."""
    effects: list[Effect] = []
    walk = Walk(parse_rule(scenario.rule), effects.extend)
    engine = FastReplay([walk])
    engine.create(scenario.created_ms)
    for number, (word, at, *rest) in enumerate(scenario.steps):
        if word == "gap":
            engine.gap(at, rest[0])
        elif word == "control":
            engine.control(rest[0], at)
        else:
            at_ms = np.full(len(rest[0]), at)
            record = np.full(len(rest[0]), number)
            engine.feed(Samples(at_ms, rest[0].ts_ms, rest[0].value, rest[0].ok, None, record))
    engine.finish()
    assert walk.walker is not None
    walk.walker.advance(scenario.until_ms)
    assert told(effects) == scenario.expect


def test_scenarios_are_there() -> None:
    """The folder is found; most scenarios are also replayed, and many are of overrides and modes."""
    assert len(TIMELINES) >= 60
    assert sum(t.logged for t in TIMELINES) >= 50
    assert sum(any(step[0] == "control" for step in t.steps) for t in TIMELINES) >= 40
