"""Whom a mute matches."""

from __future__ import annotations

import fnmatch
from time import perf_counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breaker_actors.store.mutes.matching import (
    CHARS_MAX,
    BreakerFacts,
    ChannelFacts,
    Matcher,
    matches_breaker,
    matches_channel,
    problem,
)
from breaker_actors.text.globs import STARS_MAX

BREAKER = BreakerFacts(
    id="id-1",
    name="checkout p95",
    metric="latency",
    kind="p95",
    metadata={"team": "payments", "": "empty"},
    routers=({"env": "prod", "weight:a": "1"}, {"env": "canary"}),
)
CHANNEL = ChannelFacts(id="c-1", name="on call", kind="slack")


def matcher(field: str, op: Any, value: str) -> Matcher:
    return Matcher(field=field, op=op, value=value)


@pytest.mark.parametrize(
    ("field", "op", "value", "holds"),
    [
        ("name", "=", "checkout p95", True),
        ("name", "=", "Checkout p95", False),
        ("name", "glob", "checkout*", True),
        ("name", "glob", "check", False),
        ("name", "!=", "x", True),
        ("id", "=", "id-1", True),
        ("metric", "=", "latency", True),
        ("kind", "glob", "p??", True),
        ("metadata.team", "=", "payments", True),
        ("metadata.team", "!=", "payments", False),
        ("metadata.none", "=", "", False),
        ("metadata.none", "!=", "x", True),
        ("metadata.none", "glob", "*", False),
        ("router.env", "=", "canary", True),
        ("router.env", "!=", "canary", False),
        ("router.env", "glob", "pro?", True),
        ("router.weight:a", "=", "1", True),
        ("router.none", "!=", "x", True),
    ],
)
def test_what_a_matcher_says_of_a_breaker(field: str, op: str, value: str, holds: bool) -> None:
    assert matches_breaker((matcher(field, op, value),), BREAKER) is holds
    assert matches_channel((matcher(field, op, value),), CHANNEL)


@pytest.mark.parametrize(
    ("op", "value", "holds"),
    [
        ("=", "c-1", True),
        ("=", "on call", True),
        ("=", "slack", True),
        ("=", "email", False),
        ("!=", "slack", False),
        ("!=", "email", True),
        ("glob", "on*", True),
        ("glob", "web*", False),
    ],
)
def test_what_a_matcher_says_of_a_channel(op: str, value: str, holds: bool) -> None:
    """Any of id, name and kind; for != none of them."""
    assert matches_channel((matcher("channel", op, value),), CHANNEL) is holds
    assert matches_breaker((matcher("channel", op, value),), BREAKER)


def test_all_have_to_match_and_none_at_all_match_everything() -> None:
    both = (matcher("metric", "=", "latency"), matcher("kind", "=", "avg"))
    assert not matches_breaker(both, BREAKER)
    assert matches_breaker((), BREAKER)
    assert matches_channel((), CHANNEL)


@settings(max_examples=500, deadline=None)
@given(st.text("ab*?[].\\\n", max_size=12), st.text("ab[].\\\n", max_size=12))
def test_a_glob_is_that_of_a_shell_without_brackets(glob: str, value: str) -> None:
    escaped = glob.replace("[", "[[]")
    expected = fnmatch.fnmatchcase(value, escaped)
    assert matches_breaker((matcher("name", "glob", glob),), msgspec.structs.replace(BREAKER, name=value)) is expected


def test_the_worst_glob_is_quick() -> None:
    glob = "*a?" * STARS_MAX + "b"
    long = msgspec.structs.replace(BREAKER, name="a" * CHARS_MAX)
    begun = perf_counter()
    for _ in range(100):
        assert not matches_breaker((matcher("name", "glob", glob),), long)
    assert perf_counter() - begun < 5
    assert problem(matcher("name", "glob", glob)) == ""
    assert problem(matcher("name", "glob", "*" + glob)) == "a glob has at most 8 stars"
    assert problem(matcher("name", "=", "*" * 20)) == ""


@pytest.mark.parametrize(
    "field", ["", "state", "metadata", "metadata.", "router.", "name ", "Name", "metadata." + "k" * 65]
)
def test_fields_that_are_none(field: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"field": field, "op": "=", "value": "x"}, Matcher)
