"""Globs: what they match, by a reading of their own, and at what cost."""

from __future__ import annotations

import re
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breaker_actors.text.globs import BEGIN, STARS_MAX, STEP, cost, matches, problem


def read(glob: str, value: str) -> bool:
    """Sign by sign, by what each means."""

    @cache
    def at(g: int, v: int) -> bool:
        if g == len(glob):
            return v == len(value)
        if glob[g] == "*":
            return at(g + 1, v) or (v < len(value) and at(g, v + 1))
        return v < len(value) and glob[g] in ("?", value[v]) and at(g + 1, v + 1)

    return at(0, 0)


@settings(max_examples=1_000)
@given(st.text("ab?*", max_size=9), st.text("ab", max_size=12))
def test_a_glob_says_what_its_signs_say(glob: str, value: str) -> None:
    assert matches(glob, value) is read(glob, value)


@pytest.mark.parametrize(
    ("glob", "value", "expected"),
    [
        ("", "", True),
        ("", "a", False),
        ("*", "", True),
        ("**", "a\nb", True),
        ("a?b", "a\nb", True),
        ("?", "", False),
        ("?", "𝄞", True),
        ("a*a", "a", False),
        ("ab*ba", "aba", False),
        ("[a].+", "[a].+", True),
        ("[a]", "a", False),
        ("pay*", "payments", True),
        ("*a*b", "xaxxb", True),
    ],
)
def test_edges(glob: str, value: str, expected: bool) -> None:
    assert matches(glob, value) is expected


@pytest.mark.parametrize("sign", ["", "?"])
def test_globs_without_end_cost_no_more_than_is_counted(sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than any cache remembers: nothing is compiled, which none of them would be charged for."""
    monkeypatch.setattr(re, "compile", lambda *_: pytest.fail("a glob was compiled"))
    for n in range(4_000):
        assert matches(f"*{sign}{n}*", f"a{n}b")


def test_the_cost_goes_by_lengths() -> None:
    assert cost("a*b", "x" * 100) == BEGIN + 150
    assert cost("a*?", "x" * 100) == BEGIN + 103 * STEP
    assert cost("*" + "?a" * 127, "x" * 1_000) < 200_000


def test_stars_are_bounded() -> None:
    assert problem("*a" * STARS_MAX) == ""
    assert problem("*a" * (STARS_MAX + 1)) == f"a glob has at most {STARS_MAX} stars"
