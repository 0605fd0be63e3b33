"""What a BreakerActor has its Journal tell streams: moves that callers see, and other allow_rates."""

from __future__ import annotations

import pytest

from breaker_actors.breaker.hosted import HostedBreaker
from breaker_actors.core.log_entries import BreakerSet
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Batch, Control, Override
from breaker_actors.core.rules import parse_rule
from breaker_actors.messages import BreakerAssignment, Commit

RULE = parse_rule(
    {
        "metric": "m",
        "kind": "error_rate",
        "op": "gt",
        "threshold": 0.5,
        "window_ms": 5000,
        "eval_interval_ms": 1000,
        "min_state_duration_ms": 0,
        "cooldown_ms": 2000,
    }
)


def throttled(until_ms: int) -> HostedBreaker:
    """Open since 100 by its own window, and seen half_open at 0.25 from 200 on."""
    hosted = HostedBreaker(BreakerAssignment(breaker_id="b", project_id="p", shard=0, epoch=1, name="b", routers=()))
    hosted.settings = BreakerSet(breaker_id="b", version=1, name="b", rule=RULE, created=True)
    hosted.breaker, _ = Breaker.create(RULE, 0)
    hosted.breaker.ingest(Batch.of([(100, 1.0, False)] * 5), 100)
    over = Override(
        kind="throttle", reason="slowly", by="ann", since_ms=200, until_ms=until_ms, version=2, allow_rate=0.25
    )
    hosted.breaker.control(Control(override=over), 200)
    return hosted


def after(hosted: HostedBreaker, now_ms: int) -> Commit:
    assert hosted.breaker is not None
    return hosted.commit(hosted.breaker.advance(now_ms))


@pytest.mark.parametrize("looks", [(3050,), (2500, 3050), (2999, 3050)])
def test_a_rate_is_told_with_moves_that_are_hidden(looks: tuple[int, ...]) -> None:
    """The machine goes half_open at 2100 behind the throttle, which expires at 3000: whether both come in one commit,
    as after a stop, or in two, callers hear of the ramp's rate."""
    hosted = throttled(3000)
    commits = [after(hosted, now) for now in looks]
    last = commits[-1]
    assert [[e.hidden_by for e in c.events] for c in commits if c.events] == [["override"]]
    assert (last.state, last.allow_rate) == ("half_open", hosted.breaker and hosted.breaker.allow_rate)
    assert last.allow_rate != 0.25
    assert [c.seen() for c in commits] == [False] * (len(commits) - 1) + [True]


def test_a_hidden_move_alone_is_not_told() -> None:
    commit = after(throttled(60_000), 2500)
    assert [e.hidden_by for e in commit.events] == ["override"]
    assert not commit.seen()
