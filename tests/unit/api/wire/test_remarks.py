"""Rules and names that are allowed and hardly meant."""

from __future__ import annotations

import pytest

from api.wire.remarks import name_remarks, rule_remarks
from breaker_actors.core.rules import parse_rule


@pytest.mark.parametrize(
    ("op", "threshold", "word"),
    [
        ("gt", 5, "never"),
        ("gt", 1, "never"),
        ("gte", 1, ""),
        ("gte", 1.5, "never"),
        ("gt", 0.5, ""),
        ("gte", 0, "always"),
        ("lt", 0, "never"),
        ("lt", 50, "always"),
        ("lte", 1, "always"),
        ("lt", 0.5, ""),
    ],
)
def test_a_share_beyond_its_range(op: str, threshold: float, word: str) -> None:
    rule = parse_rule({"metric": "m", "kind": "error_rate", "op": op, "threshold": threshold})
    assert [word in told.message for told in rule_remarks(rule)] == ([True] if word else [])


def test_other_kinds_have_no_range() -> None:
    assert rule_remarks(parse_rule({"metric": "m", "kind": "avg", "op": "gt", "threshold": 5_000})) == []


def test_two_of_one_name() -> None:
    assert name_remarks("a", 1) == []
    assert "2 breakers" in name_remarks("a", 2)[0].message
