"""Directories of rules: what is read, and every problem with its place."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from breaker_actors.errors import Invalid
from pipelines.candidates import duration_ms
from pipelines.rules.files import read, read_text
from pipelines.rules.secrets import resolved
from pipelines.rules.writing import text_of
from pipelines.rules.yaml_text import parse

GOOD = """\
owner: payments
labels: {team: payments}
breakers:
  checkout-errors:
    metric: http_errors
    kind: error_rate
    op: gt
    threshold: 0.05
    window: 1m
    cooldown_ms: 5m
    mode: observe
  "no": &no {metric: m, kind: avg, op: lt, threshold: 1}
  later: {<<: *no, threshold: 2}
routers:
  gateway: {mode: static, breakers: [checkout-errors, "no"]}
"""


def problems_of(text: str) -> list[dict[str, Any]]:
    with pytest.raises(Invalid) as caught:
        read_text(text, "r.yaml")
    found: list[dict[str, Any]] = caught.value.details["problems"]
    return found


def test_a_file_is_read_in_the_words_of_the_interface() -> None:
    found = read_text(GOOD)
    assert (found.owner, found.labels) == ("payments", {"team": "payments"})
    breaker = found.breakers["checkout-errors"]
    assert breaker.fields["window_ms"] == 60_000
    assert breaker.fields["cooldown_ms"] == 300_000
    assert breaker.fields["mode"] == "observe"
    assert breaker.rule is not None
    assert breaker.rule.window_ms == 60_000
    assert (breaker.place.line, breaker.place_of("threshold").line, breaker.place_of("nothing").line) == (4, 8, 4)
    assert found.breakers["later"].fields == {"metric": "m", "kind": "avg", "op": "lt", "threshold": 2}
    assert found.routers["gateway"].fields["breakers"] == ["checkout-errors", "no"]
    assert [one.name for one in found.candidates()] == ["checkout-errors", "no", "later"]


RULE = "metric: m, kind: avg, op: gt, threshold: 1"


@pytest.mark.parametrize(
    ("text", "line", "path", "word"),
    [
        ("breakers:\n  a: {" + RULE + "}\n  a: {" + RULE + "}\n", 3, "breakers.a", "twice"),
        ("breakers:\n  a: {" + RULE + ",\n    windw: 5m}\n", 3, "breakers.a.windw", "unknown_field"),
        ("breakers:\n  a: {" + RULE + ",\n    window: soon}\n", 3, "breakers.a.window", "invalid_value"),
        ("breakers:\n  a: {" + RULE + ",\n    window: 0s}\n", 3, "breakers.a.window_ms", "invalid_value"),
        ("breakers:\n  a: {kind: avg,\n    op: above, metric: m, threshold: 1}\n", 3, "breakers.a.op", "invalid_value"),
        ("breakers:\n  a: {kind: avg, op: gt, metric: m}\n", 2, "breakers.a.threshold", "invalid_value"),
        ("breakers:\n  a: {" + RULE + ",\n    window: 5m, window_ms: 1}\n", 3, "breakers.a.window_ms", "twice"),
        (
            "channels:\n  c:\n    channel: slack\n    config:\n      webhook_url: https://x.example/y\n",
            5,
            "channels.c.config.webhook_url",
            "plain_secret",
        ),
        ("\nbreaker: {}\n", 2, "breaker", "unknown_field"),
        ("owner: a b\n", 1, "owner", "invalid_value"),
        ("breakers: [1]\n", 1, "breakers", "not_an_object"),
        ("breakers:\n  a: 3\n", 2, "breakers.a", "not_an_object"),
        ("breakers:\n  a: {\n", 3, "", "not_yaml"),
        ("- 1\n", 1, "", "not_an_object"),
        ("a: !!python/object:os.system {}\n", 1, "a", "unknown_field"),
    ],
)
def test_a_problem_is_told_with_its_line_and_a_word(text: str, line: int, path: str, word: str) -> None:
    first = problems_of(text)[0]
    assert (first["file"], first["line"], first["path"], first["word"]) == ("r.yaml", line, path, word)


def test_all_problems_are_told_at_once() -> None:
    found = problems_of("breakers:\n  a: {" + RULE + ", op2: 1}\n  b: {" + RULE + ", windw: 1}\nx: 1\n")
    assert [one["line"] for one in found] == [2, 3, 4]


def test_a_directory_is_one_set(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "a.yaml").write_text(f"owner: x\nbreakers:\n  a: {{{RULE}}}\n")
    (tmp_path / "sub" / "b.yml").write_text(f"owner: x\nbreakers:\n  b: {{{RULE}}}\n")
    (tmp_path / "a.test.yaml").write_text("anything: here\n")
    (tmp_path / ".git" / "c.yaml").write_text("anything: here\n")
    assert list(read(tmp_path).breakers) == ["a", "b"]

    (tmp_path / "sub" / "c.yaml").write_text(f"owner: y\nbreakers:\n  a: {{{RULE}}}\n")
    with pytest.raises(Invalid) as caught:
        read([tmp_path])
    text = str(caught.value)
    assert f"{tmp_path}/sub/c.yaml:3: breakers.a: is there twice, first at {tmp_path}/a.yaml:3" in text
    assert "a directory has one owner" in text


def test_what_can_not_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff")
    for path in (tmp_path, tmp_path / "none.yaml"):
        with pytest.raises(Invalid) as caught:
            read(path)
        assert caught.value.details["problems"][0]["word"] == "unreadable"


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500ms", 500), ("1.5s", 1_500), ("1h30m", 5_400_000), ("7d", 604_800_000), ("5", None), ("0.5ms", None)],
)
def test_durations(text: str, ms: int | None) -> None:
    assert duration_ms(text) == ms


def test_secrets_come_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "key.txt").write_text("s3cret\n")
    (tmp_path / "a.yaml").write_text(
        "channels:\n  c: {channel: pagerduty, config: {routing_key: {env: PD}, more: {auth: {file: key.txt}}}}\n"
    )
    rules = read(tmp_path)
    found = resolved(rules, {"PD": "abc"})["channels"]["c"]
    assert found["config"] == {"routing_key": "abc", "more": {"auth": "s3cret"}}
    assert found["references"] == {"routing_key": {"env": "PD"}, "more.auth": {"file": "key.txt"}}
    with pytest.raises(Invalid, match=r"a\.yaml:2: channels\.c\.config\.routing_key: the environment has no PD"):
        resolved(rules, {})


def test_a_secret_of_a_path_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text('channels: {c: {channel: slack, config: {webhook_url: {file: "a\\0b"}}}}')
    with pytest.raises(Invalid, match=r"config\.webhook_url: .* can't be read"):
        resolved(read(tmp_path), {})


@pytest.mark.parametrize(
    "text",
    [
        "breakers: " + "[" * 100_000,
        "breakers: " + "{a: " * 100_000,
        "breakers:\n" + "- " * 100_000,
        "breakers: &a [*a]",
        "breakers: &a {<<: *a}",
    ],
)
def test_depth_without_an_end_is_told(text: str) -> None:
    """libyaml ended the process by a signal, after minutes."""
    ((line, word),) = [(one["line"], one["word"]) for one in problems_of(text)]
    assert (line, word) == (1, "not_yaml")


def test_many_merges_cost_what_they_add() -> None:
    """A copy of all that was merged before made hours of a megabyte."""
    many = ", ".join(f"k{n}: 1" for n in range(5_000))
    merges = ", ".join(["*small"] * 100_000)
    begun = time.process_time()
    problems_of(f"labels: &many {{{many}}}\nowner: &small {{z: 1}}\nbreakers: {{<<: [*many, {merges}]}}")
    assert time.process_time() - begun < 20


def test_the_first_merge_that_has_a_key_counts() -> None:
    text = f"""\
breakers:
  a: &a {{{RULE}, mode: observe}}
  b: &b {{{RULE}, cooldown: 5s, mode: enforce}}
  c: {{<<: [*a, *b], threshold: 2}}
"""
    rule = {"metric": "m", "kind": "avg", "op": "gt", "threshold": 2, "mode": "observe", "cooldown_ms": 5_000}
    assert read_text(text).breakers["c"].fields == rule


@pytest.mark.parametrize("value", ["!!timestamp abc", "!!bool maybe", "!!float ''"])
def test_a_tag_that_its_text_is_not_is_told(value: str) -> None:
    (problem,) = problems_of(f"labels:\n  a: {value}\n")
    assert (problem["line"], problem["path"], problem["word"]) == (2, "labels.a", "not_yaml")


def test_what_is_written_is_read_as_the_same() -> None:
    rules = read_text(GOOD)
    assert read_text(text_of(rules.document())).document() == rules.document()


@pytest.mark.parametrize(
    "text",
    [
        "1e5",
        "7e12345",
        "yes",
        "22:30",
        "~",
        "<<",
        "2026-12-24",
        "a\x85b",
        "a\u202eb",
        "\u2066",
        "a\u200bb",
        "größe \u2028",
        "a\nb",
        " a",
        "a\tb",
    ],
)
def test_any_text_is_written_as_itself(text: str) -> None:
    """And so that a terminal shows all of it."""
    labels = {"team": text}
    written = text_of({"labels": labels, "breakers": {text: {"metric": text}}})
    assert parse("f", written).content == {"labels": labels, "breakers": {text: {"metric": text}}}
    assert all(line.isprintable() for line in written.split("\n"))


def test_a_duration_of_any_length_costs_nothing() -> None:
    assert (duration_ms("9" * 250_000 + "w"), duration_ms("1h30m")) == (None, 5_400_000)


def test_times_of_mutes() -> None:
    text = "mutes:\n  m: {all: true, comment: c, starts: 2026-12-24T00:00:00Z, ends_ms: 2026-12-25T00:00:00+01:00}\n"
    assert read_text(text).mutes["m"].fields["starts_ms"] == 1_798_070_400_000
    assert read_text(text).mutes["m"].fields["ends_ms"] == 1_798_153_200_000
