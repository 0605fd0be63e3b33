"""What many breakers have alike is held once, and an idle one stays small."""

from __future__ import annotations

import gc
import sys
from types import FunctionType, ModuleType
from typing import Any

import pytest

from breaker_actors.breaker.hosted import HostedBreaker, Item
from breaker_actors.breaker.sharing import same_rule
from breaker_actors.breaker.wakeups import Timers
from breaker_actors.clock import SystemClock
from breaker_actors.core.log_entries import BREAKER, BreakerSet, encode_entry
from breaker_actors.core.model import Control, Override
from breaker_actors.core.rules import parse_rule
from breaker_actors.messages import BreakerAssignment, RouterRef

BYTES_MAX = 2_600
SOME = 200


def words(text: str) -> str:
    """A string of its own, as each message brings it."""
    return "".join(list(text))


def held(n: int, metric: str = "load", **rule: Any) -> HostedBreaker:
    """A breaker with a router of its own and one that all have, made by its log."""
    mine, ours = words(f"router-{n:029}"), words(f"router-{'all':0>29}")
    hosted = HostedBreaker(
        BreakerAssignment(
            breaker_id=words(f"breaker-{n:028}"),
            project_id=words(f"project-{'one':0>28}"),
            shard=0,
            epoch=10_000_000_000 + n,
            name="b",
            routers=tuple(RouterRef(i, words("router-0"), words("router-0"), 1) for i in (mine, ours)),
            applied_offsets={mine: 1, ours: 1},
        )
    )
    fields = {"metric": metric, "kind": "avg", "op": "gt", "threshold": 100, **rule}
    settings = BreakerSet(breaker_id=hosted.id, version=1, name=f"b{n}", rule=parse_rule(fields), created=True)
    hosted.apply(Item(mine, 1, 2, 10_000_000_000 + n, BREAKER, encode_entry(settings), -1, -1), 1_000)
    hosted.show()
    return hosted


def sizes(roots: list[Any]) -> int:
    """Bytes of all that can be reached, classes and functions left out."""
    seen: dict[int, Any] = {}
    left = list(roots)
    while left:
        one = left.pop()
        if id(one) not in seen and not isinstance(one, type | FunctionType | ModuleType):
            seen[id(one)] = one
            left += gc.get_referents(one)
    return sum(map(sys.getsizeof, seen.values()))


def test_equal_parts_are_one() -> None:
    """Rule, link to the common router, project and the breaker's own id."""
    one, other = held(1), held(2)
    assert one.settings is not None
    assert other.settings is not None
    assert one.settings.rule is other.settings.rule
    common = f"router-{'all':0>29}"
    assert one.routers[common] is other.routers[common]
    assert one.project_id is other.project_id
    assert one.settings.breaker_id is one.id


def test_rules_with_another_metric_have_numbers_in_common() -> None:
    one, other = held(1, window_ms=61_000).settings, held(2, "errors", window_ms=61_000).settings
    assert one is not None
    assert other is not None
    assert one.rule is not None
    assert other.rule is not None
    assert (one.rule.metric, other.rule.metric) == ("load", "errors")
    assert one.rule.window_ms is other.rule.window_ms


@pytest.mark.parametrize(("threshold", "other"), [(0.0, -0.0), (1.0, 1.5)])
def test_what_differs_stays_apart(threshold: float, other: float) -> None:
    """To the bit: an event tells the threshold as it was written."""
    rules = [parse_rule({"metric": "m", "kind": "max", "op": "gt", "threshold": t}) for t in (threshold, other)]
    assert [repr(same_rule(rule).threshold) for rule in rules] == [repr(threshold), repr(other)]


def test_an_idle_breaker_is_small() -> None:
    """With its timer; what all have alike is counted once."""
    before = sizes([held(0)])
    fleet = [held(n) for n in range(SOME)]
    timers = Timers(SystemClock())
    for hosted in fleet:
        timers.schedule(hosted)
    each = (sizes([fleet, timers]) - before) / (SOME - 1)
    assert each <= BYTES_MAX, f"{each:.0f} bytes"


def test_readers_see_what_is_stored_until_the_next_is() -> None:
    """What a breaker shows stays while an override is on its way into the journal."""
    hosted = held(1)
    assert hosted.breaker is not None
    now = hosted.breaker.now_ms
    before = hosted.view(now)
    over = Override(kind="force_open", reason="r", by="me", since_ms=now, until_ms=now + 1_000, version=1)
    assert hosted.breaker.control(Control(override=over), now)
    assert hosted.view(now).state == before.state == "closed"
    hosted.note_committed()
    assert (hosted.view(now).state, hosted.committed and hosted.committed.override) == ("open", over)
