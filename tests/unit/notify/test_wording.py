"""Figures, spans and rules as people read them."""

from __future__ import annotations

from typing import Any

import pytest

from breaker_actors.core.rule_fields import KINDS
from breaker_actors.notify.channels import wording
from breaker_actors.text import escaping
from tests.unit.notify.messages import AGAIN, RECOVER, RESOLVE, TRIP, changed


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"), (-0.0, "0"), (7.000000000000001, "7"), (63.15789, "63.16"), (843.25142, "843.3"), (1204.0, "1,204"),
        (1234567.0, "1,234,567"), (12345.678, "12,346"), (0.000123456, "0.0001235"), (-2.5, "-2.5"), (1e-9, "1e-09"),
        (1.5e20, "1.5e+20"), (99.99999, "100"), (float("nan"), "nan"), (float("-inf"), "-inf"), (2**63, "9.223e+18"),
    ],
)  # fmt: skip
def test_figures(value: float, shown: str) -> None:
    assert wording.figure(value) == shown


def test_a_value_just_over_its_threshold_does_not_look_like_it() -> None:
    assert wording.told_apart(500.0004, 500.0) == ("500.0004", "500")
    assert wording.told_apart(0.1 + 0.2, 0.3) == ("0.30000000000000004", "0.3")
    assert wording.told_apart(1 / 3, 1 / 3) == ("0.3333", "0.3333")


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (-5, "0 milliseconds"), (1, "1 millisecond"), (850, "850 milliseconds"), (1_000, "1 second"),
        (1_500, "1.5 seconds"), (59_999, "60 seconds"), (60_000, "1 minute"), (252_000, "4 minutes 12 seconds"),
        (3_600_000, "1 hour"), (3_605_000, "1 hour"), (7_500_000, "2 hours 5 minutes"),
        (90_000_000, "1 day 1 hour"), (1_234 * 86_400_000, "1,234 days"),
    ],
)  # fmt: skip
def test_spans(ms: int, words: str) -> None:
    assert wording.duration(ms) == words


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"kind": "error_rate", "op": "gt", "threshold": 0.5}, "error rate of m above 50 % over 1 minute"),
        ({"kind": "avg", "op": "lte", "threshold": 2.5}, "average of m at or below 2.5 over 1 minute"),
        ({"kind": "p95", "op": "gte", "threshold": 1200}, "95th percentile of m at or above 1,200 over 1 minute"),
        ({"kind": "percentile", "kind_params": {"percentile": 99.9}}, "99.9th percentile of m over 1 minute"),
        ({"kind": "percentile", "kind_params": {"percentile": 2}}, "2nd percentile of m over 1 minute"),
        ({"kind": "percentile", "kind_params": {"percentile": 11}}, "11th percentile of m over 1 minute"),
        ({"kind": "percentile"}, "percentile of m over 1 minute"),
        ({"kind": "consecutive_failures", "op": "gte", "threshold": 5}, "consecutive failures of m at or above 5"),
        ({"kind": "count", "op": "lt", "threshold": 1}, "number of samples of m below 1 over 1 minute"),
        (
            {"kind": "delta", "op": "gt", "threshold": 30, "min_count": 5},
            "change of the average of m against its baseline above 30 over 1 minute, from 5 samples on",
        ),
        (
            {"kind": "delta", "op": "gt", "threshold": 0.1, "kind_params": {"delta_of": "error_rate"}},
            "change of the error rate of m against its baseline above 10 percentage points over 1 minute",
        ),
        ({"kind": "max", "threshold": 9}, "maximum of m against 9 over 1 minute"),
    ],
)
def test_rules(rule: dict[str, Any], words: str) -> None:
    assert wording.rule_words({"metric": "m", "window_ms": 60_000} | rule) == words


def test_every_kind_has_words() -> None:
    assert set(KINDS) == set(wording.MEASURES) | {"delta", "percentile"}


def test_the_longest_run_of_failures_is_not_called_their_number() -> None:
    message = changed(rule={"kind": "consecutive_failures", "metric": "m"}, agg={"count": 9, "error_count": 5})
    assert wording.samples_words(message) == "9, 5 failures in a row"


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (TRIP, "checkout is open: error rate of latency is 63.16 % (threshold: above 50 %)"),
        (AGAIN, "checkout is open again: too few samples (error rate of latency)"),
        (RECOVER, "checkout has recovered after 4 minutes 12 seconds"),
        (changed(RECOVER, outage_ms=None), "checkout has recovered"),
        (RESOLVE, "checkout was deleted while open"),
        (changed(RESOLVE, prev="half_open", name=""), f"{RESOLVE.breaker_id} was deleted while half open"),
    ],
)
def test_summaries(message: Any, sentence: str) -> None:
    assert wording.summary(message) == sentence


@pytest.mark.parametrize(
    ("url", "is_link"),
    [
        ("https://traces.example.com/t/1?a=b&c=%20#x", True), ("HTTP://h", True), (None, False), ("https://", False),
        ("javascript:alert(1)", False), ("https:///path", False), ("https://h/a b", False), ("https://h/|x", False),
        ('https://h/">', False), ("https://h/\n", False), ("https://h/" + "a" * 3000, False),
    ],
)  # fmt: skip
def test_only_plain_web_addresses_become_links(url: str | None, is_link: bool) -> None:
    assert escaping.link(url) == (url if is_link else None)


def test_one_line_has_no_control_characters_and_no_turned_direction() -> None:
    assert escaping.for_line("a\r\nb\x00c\u2028d\u202ee\ud800 f", 20) == "a b c de f"
    assert escaping.for_line("x" * 30, 10) == "x" * 9 + "…"
