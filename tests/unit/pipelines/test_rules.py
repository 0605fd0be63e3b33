"""Rules from dicts and files, sweeps over their fields, and one line for what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import Invalid
from pipelines.candidates import candidates, checked_sweep, parse_sweep, variants

RULE = {"metric": "latency", "kind": "p95", "op": "gt", "threshold": 250}
FULL = RULE | {
    "name": "slow",
    "id": "1",
    "metadata": {},
    "actions": None,
    "router_id": "r1",
    "recovery_window_ms": 50_000,
}


def refused(given: Any) -> str:
    with pytest.raises(Invalid) as raised:
        candidates(given)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_what_a_rule_may_be(tmp_path: Path) -> None:
    """A Breaker object as the service shows it, a Rule, a file, or several; names are made unique."""
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"breakers": [FULL, FULL | {"threshold": 300, "colour": "red"}], "count": 2}))
    found = candidates([path, RULE, parse_rule(RULE)])
    assert [one.name for one in found] == ["slow", "slow (2)", (own := "latency: p95 > 250 over 60 s"), f"{own} (2)"]
    assert [one.rule.threshold for one in found] == [250, 300, 250, 250]
    assert [(one.router_ids, one.ignored) for one in found] == [
        (("r1",), ()),
        (("r1",), ("colour",)),
        ((), ()),
        ((), ()),
    ]
    assert candidates(FULL)[0].rule == parse_rule(RULE)


def test_names_are_unique_whatever_they_are() -> None:
    """A name that looks like one made up for another rule, too."""
    found = candidates([RULE | {"name": name} for name in ("a (2)", "a", "a", "a")])
    assert [one.name for one in found] == ["a (2)", "a", "a (3)", "a (4)"]


@pytest.mark.parametrize(
    ("fields", "routers"),
    [
        ({"router_ids": ["R1", "r2", "r1"], "router_id": "r1"}, ("r1", "r2")),
        ({"router_ids": ["r2"]}, ("r2",)),
        ({"router_ids": [], "router_id": "R1"}, ("r1",)),
        ({"router_ids": None, "router_id": None}, ()),
        ({"router_id": 7}, ("7",)),
    ],
)
def test_routers_of_a_breaker(fields: dict[str, Any], routers: tuple[str, ...]) -> None:
    """All that it names, in small letters."""
    (one,) = candidates(RULE | fields)
    assert one.router_ids == routers


def test_routers_that_are_no_list() -> None:
    assert refused(RULE | {"router_ids": "r1"}) == "rule 1: router_ids must be a list"


def test_yaml(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("- {name: a, metric: m, kind: avg, op: gt, threshold: 1}\n- name: b\n  metric: m\n  kind: sum\n"
                    "  op: lt\n  threshold: 2.5\n")  # fmt: skip
    pytest.importorskip("yaml")
    assert [(one.name, one.rule.kind, one.rule.threshold) for one in candidates(path)] == [
        ("a", "avg", 1),
        ("b", "sum", 2.5),
    ]
    path.write_text("a: [1\nb: 2")
    assert "rules.yaml, line 2: not YAML" in refused(path)


def test_a_file_of_rules(tmp_path: Path) -> None:
    """What `suggest --out` writes and `apply` takes: breakers by their names, durations with units."""
    pytest.importorskip("yaml")
    path = tmp_path / "latency.yaml"
    path.write_text(
        "owner: shop\nbreakers:\n"
        "  slow: {metric: latency, kind: p95, op: gt, threshold: 250, window: 5m, cooldown_ms: 10s,"
        " eval_interval: 5s}\n"
        "  rare: {metric: latency, kind: count, op: lt, threshold: 5, colour: red}\n"
        "routers:\n  front: {breakers: [slow, rare]}\n"
    )
    slow, rare = candidates(path)
    assert (slow.name, rare.name) == ("slow", "rare")
    assert (slow.rule.window_ms, slow.rule.cooldown_ms, slow.rule.eval_interval_ms) == (300_000, 10_000, 5_000)
    assert (slow.ignored, rare.ignored) == ((), ("colour",))
    path.write_text("breakers:\n  slow: {metric: latency, kind: p95, op: gt, window: 5 minutes}\n")
    assert f"{path}: slow: threshold is required; window is no field: did you mean window_ms?" in refused(path)
    path.write_text("breakers: {slow: 5}\n")
    assert "a rule is an object, not 5" in refused(path)


@pytest.mark.parametrize("kind", ["dict", "json", "list.json"])
def test_durations_have_units_wherever_a_rule_is_given(tmp_path: Path, kind: str) -> None:
    """As files of rules have them, and by the same reading."""
    given: Any = RULE | {"window": "1m30s", "cooldown_ms": "500ms", "eval_interval_ms": 5_000}
    if kind != "dict":
        (tmp_path / kind).write_text(json.dumps([given] if kind == "list.json" else given))
        given = tmp_path / kind
    (one,) = candidates(given)
    assert (one.rule.window_ms, one.rule.cooldown_ms, one.rule.eval_interval_ms) == (90_000, 500, 5_000)
    assert one.ignored == ()


def test_a_duration_is_there_once_and_has_a_unit() -> None:
    assert refused(RULE | {"window": "1m", "window_ms": 5}) == "window_ms is there twice"
    (one,) = candidates(RULE | {"window": 60})
    assert one.ignored == ("window",)
    assert "window_ms must be" in refused(RULE | {"window_ms": "10 s"})


def test_yaml_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "r.yml").write_text("a: 1")
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert "YAML needs the package pyyaml" in refused(tmp_path / "r.yml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "r.json, line 1: not JSON"),
        ("[]", "there is no rule in it"),
        ("[3]", "a rule is an object, not 3"),
        ('{"breakers": []}', "there is no rule in it"),
        ('{"name": "x", "metric": "m"}', "x: kind is required; op is required; threshold is required"),
        (json.dumps(RULE | {"threshold": "high"}), "rule 1: threshold must be a finite number"),
        (json.dumps(RULE | {"kind": "percentile"}), "rule 1: kind_params.percentile is required"),
        ('{"threshold": NaN}', "threshold must be a finite number"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    assert words in refused(path)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("rule.json", "[" * 100_000, "nested too deeply"),
        ("rule.json", '{"a":' * 100_000, "nested too deeply"),
        ("rule.json", '{"threshold": ' + "1" * 5_000 + "}", "digits"),
        ("rule.yaml", "[" * 5_000, "nested too deeply"),
        ("rule.yaml", "[" * 200_000, "nested too deeply"),
        ("rule.yaml", "day: 2026-99-99", "month"),
    ],
)
def test_a_file_that_breaks_its_reader_is_one_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    if name.endswith(".yaml"):
        pytest.importorskip("yaml")
    path = tmp_path / name
    path.write_text(text)
    said = refused(path)
    assert said.startswith(str(path))
    assert words in said
    assert len(said) < len(str(path)) + 200


def test_no_rule(tmp_path: Path) -> None:
    assert refused([]) == "there is no rule"
    assert "none.json can't be read: No such file" in refused(tmp_path / "none.json")
    (tmp_path / "r.json").write_bytes(b"\xff\xfe")
    assert "can't be read" in refused(tmp_path / "r.json")


def test_parse_sweep() -> None:
    """Ranges with their last value, lists, words; decimals as written."""
    assert parse_sweep("threshold=100:500:100,window_ms=60000") == {
        "threshold": [100, 200, 300, 400, 500],
        "window_ms": [60000],
    }
    assert parse_sweep("threshold=0.1:0.35:0.1,op=gt,gte,min_count=1,5") == {
        "threshold": [0.1, 0.2, 0.3],
        "op": ["gt", "gte"],
        "min_count": [1, 5],
    }


def test_a_sweep_of_durations() -> None:
    """With units, also in ranges, or as plain milliseconds under the whole name."""
    assert parse_sweep("window=500ms,1m30s,cooldown_ms=10s,30000") == {
        "window_ms": [500, 90_000],
        "cooldown_ms": [10_000, 30_000],
    }
    assert parse_sweep("window=30s:2m:30s") == {"window_ms": [30_000, 60_000, 90_000, 120_000]}
    assert checked_sweep({"window": ["1m"], "cooldown_ms": ["5s", 7]}) == {
        "window_ms": [60_000],
        "cooldown_ms": [5_000, 7],
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("window=60", "the sweep of window: 60 is no duration, such as 500ms, 30s, 5m, 1h30m"),
        ("window=30s:120:30s", "a range is first:last:step"),
        ("window=2m:30s:30s", "a range goes up"),
        ("window=1m,window_ms=60000", "the sweep names window_ms twice"),
        ("threshold=1s", "'1s' is no number"),
        ("100:500", "expected field=first:last:step"),
        ("threshold=1:2", "a range is first:last:step"),
        ("threshold=2..6", "'2..6' is no number; a range is first:last:step"),
        ("threshold=5:1:1", "a range goes up"),
        ("threshold=1:2:0", "a range goes up"),
        ("threshold=1:nan:1", "a range goes up"),
        ("threshold=0:1:0.00001", "are more than 10000"),
        ("threshold=1:200:1,window_ms=1:200:1", "the sweep has 40000 settings"),
        ("threshold=", "a value is missing"),
        ("threshold=1,threshold=2", "names threshold twice"),
        ("treshold=1", "'treshold' can't be swept; did you mean threshold?"),
        ("metric=a,b", "'metric' can't be swept; there is op, threshold, window_ms"),
    ],
)
def test_a_wrong_sweep_is_refused(text: str, words: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_sweep(text)
    assert words in str(raised.value)


def test_variants() -> None:
    """Every combination, each a checked rule; parameters of the kind may be swept too."""
    (one,) = candidates(FULL)
    made = variants(one, {"threshold": [1, 2], "op": ["lt"]})
    assert [(setting, v.name, v.rule.threshold, v.rule.op, v.router_ids) for setting, v in made] == [
        ({"threshold": 1, "op": "lt"}, "slow (threshold=1, op=lt)", 1, "lt", ("r1",)),
        ({"threshold": 2, "op": "lt"}, "slow (threshold=2, op=lt)", 2, "lt", ("r1",)),
    ]
    (delta,) = candidates(RULE | {"kind": "delta", "kind_params": {"delta_of": "p95"}})
    assert [v.rule.kind_params for _, v in variants(delta, {"alpha": [0.5]})] == [{"delta_of": "p95", "alpha": 0.5}]
    with pytest.raises(Invalid, match=r"slow \(window_ms=0\): window_ms must be at least 1"):
        variants(one, {"window_ms": [0]})
    with pytest.raises(Invalid, match="slow: only kind delta has a alpha to sweep"):
        variants(one, {"alpha": [0.5]})
    with pytest.raises(Invalid, match="the sweep has no value for threshold"):
        checked_sweep({"threshold": []})
