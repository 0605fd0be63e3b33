"""Tests of rules: what they say, how they fail, what they cover, which mutants they notice."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from api.cli.main import app
from breaker_actors.errors import Invalid
from pipelines.ruletests import run
from pipelines.ruletests.files import read_tests
from pipelines.ruletests.mutation import mutants_of, mutated
from pipelines.ruletests.run import TestRun
from pipelines.ruletests.words import lines_of
from tests.support.timelines import FOLDER

RULES = """
breakers:
  checkout:
    metric: calls
    kind: error_rate
    op: gt
    threshold: 0.3
    window: 1m
    eval_interval: 1s
    min_count: 10
    min_state_duration: 0s
    cooldown: 30s
  slow:
    metric: latency
    kind: p95
    op: gt
    threshold: 400
    min_count: 5
    min_state_duration: 0s
    cooldown: 10s
"""
OPENS = """
  - name: opens
    breaker: checkout
    samples: "ok x30 fail x30 ok x100"
    expect:
      - 42s closed -> open value=0.302 count=43 reason=threshold_exceeded
      - 72s open -> half_open 0.2
      - 86s half_open -> closed
      - 100s closed count=29
      - end closed verdict=healthy
"""


def ran(folder: Path, text: str, rules: str = RULES, **options: Any) -> TestRun:
    """The run of a file of tests beside a file of rules."""
    (folder / "rules.yaml").write_text(rules)
    path = folder / "some.test.yaml"
    path.write_text(
        text
        if "tests:" in text or text == "[]"
        else f"tests:\n{textwrap.dedent(text).replace(chr(10), chr(10) + '  ')}"
    )
    return run.test(path, **options)


def one(folder: Path, **fields: Any) -> TestRun:
    """The run of a single test of the rule `checkout`, fields as JSON."""
    fields = {"name": "t", "breaker": "checkout", "samples": "ok x30 fail x30 ok x100"} | fields
    return ran(folder, f"tests:\n  - {json.dumps(fields)}\n")


def problems(done: TestRun) -> list[str]:
    return [row.problem for outcome in done.outcomes for row in outcome.rows if row.problem]


def test_a_test_passes(tmp_path: Path) -> None:
    done = ran(tmp_path, "tests:" + OPENS)
    assert done.passed
    (row,) = done.tests.rows(named=True)
    assert (row["test"], row["breaker"], row["samples"], row["line"]) == ("opens", "checkout", 160, 2)
    assert done.to_pandas()["rows"].shape[0] == 5


@pytest.mark.parametrize(
    ("expect", "told"),
    [
        (["42s closed -> open", "72s open -> half_open", "86s half_open -> closed"], []),
        (["43s closed -> open within=1s", "72s open -> half_open", "86s half_open -> closed"], []),
        (["43s closed -> open", "72s open -> half_open", "86s half_open -> closed"], ["1s early"]),
        (["42s closed -> open", "72s open -> half_open 0.5", "86s half_open -> closed"], ["rate 0.2, not 0.5"]),
        (["42s closed -> open count=44", "72s open -> half_open", "86s half_open -> closed"], ["count 43, not 44"]),
        (["42s closed -> open", "72s open -> half_open"], ["unexpected"]),
        (
            ["1s closed -> open", "42s closed -> open", "72s open -> half_open", "86s half_open -> closed"],
            ["missing"],
        ),
        ([], ["unexpected"] * 3),
        (["41s closed", "42s open", "80s half_open rate=0.2 count=9 machine=half_open"], []),
        (["42s closed"], ["is open"]),
        ("42s closed -> open # comment\n\n72s open -> half_open\n86s half_open -> closed\nend closed", []),
    ],
)
def test_what_is_expected(tmp_path: Path, expect: Any, told: list[str]) -> None:
    """Moves are complete, unless there are states alone."""
    assert sorted(problems(one(tmp_path, expect=expect))) == sorted(told)


def test_steps_of_the_ramp_are_looked_at_where_one_is_told(tmp_path: Path) -> None:
    moves = ["42s closed -> open", "72s open -> half_open 0.2", "86s half_open -> closed"]
    ramp = ["82s ramp 0.4", "83s ramp 0.6", "84s ramp 0.8", "85s ramp 1"]
    lines = one(tmp_path, expect=[*moves, "82s ramp 0.4"])
    assert len(problems(lines)) >= 1
    got = [move for move in lines.outcomes[0].moves if move.words == "ramp"]
    assert [f"{(move.at_ms - lines.outcomes[0].case.start_ms) // 1000}s ramp {move.rate:g}" for move in got]
    exact = [f"{(move.at_ms - lines.outcomes[0].case.start_ms) // 1000}s ramp {move.rate:g}" for move in got]
    assert len(exact) == len(ramp)
    assert not problems(one(tmp_path, expect=[*moves, *exact]))


def test_a_failure_shows_both_sides_and_the_figures(tmp_path: Path) -> None:
    """Also where a move is missing: what the rule's value was at that instant."""
    done = one(tmp_path, expect=["42s closed -> open", "50s open -> half_open 0.2", "1m closed"])
    (outcome,) = done.failures
    lines = [re.sub(r" {2,}", " | ", line) for line in lines_of(outcome)]
    assert lines == [
        "expected | got | value | samples | threshold",
        "42s | closed -> open | 42s | closed -> open | 0.302326 | 43 | > 0.3",
        "50s | open -> half_open 0.2 | 1m12s | open -> half_open 0.2 | 0.5 | 60 | > 0.3 | 22s late",
        "1m | closed | 1m | open | 0.5 | 60 | > 0.3 | is open",
        "- | 1m26s | half_open -> closed | 0 | 15 | > 0.3 | unexpected",
    ]
    (missing,) = one(tmp_path, samples="ok x60", expect=["42s closed -> open"]).failures[0].rows
    assert (missing.value, missing.count, missing.problem) == (0.0, 43, "missing")


def test_nothing_comes_and_nothing_is_expected(tmp_path: Path) -> None:
    """That is a test, too, which ends as it begins."""
    done = one(tmp_path, name="silence", breaker="checkout", samples="", expect=[])
    assert not problems(done)


def test_happenings(tmp_path: Path) -> None:
    """Outages, overrides, modes and edits of the rule, in the words of the interface."""
    meanwhile = [
        {"at": "10s", "override": {"kind": "force_open", "until": "20s", "by": "sam"}},
        {"at": "30s", "mode": "observe", "by": "robin"},
        {"at": "50s", "mode": "enforce"},
        {"at": "50s", "rule": {"threshold": 0.9}},
    ]
    expect = [
        "10s closed -> open by hand forced_open",
        "20s open -> closed by hand override_expired",
        "42s hidden closed -> open",
        "50s closed -> open by hand mode_enforce",
        "72s open -> half_open",
        "86s half_open -> closed",
    ]
    done = one(tmp_path, meanwhile=meanwhile, expect=expect)
    assert not problems(done), lines_of(done.outcomes[0])
    gap = {"at": "40s", "gap_until": "70s"}
    quiet = one(tmp_path, samples="ok x30 fail x5 @70s ok x10", meanwhile=[gap], expect=[])
    assert quiet.passed


def test_how_a_breaker_stands_at_the_start(tmp_path: Path) -> None:
    expect = ["30s open -> half_open 0.2", "36s half_open -> closed"]
    done = one(tmp_path, begin="open", samples="ok x60", until="35s", expect=["30s open -> half_open 0.2"])
    assert done.passed
    rows = one(tmp_path, begin={"state": "open", "failed_recoveries": 1}, samples="ok x60", expect=expect).rows
    assert rows["problem"][0] == "missing", "it waits twice as long"


def test_a_file_of_samples(tmp_path: Path) -> None:
    """Its first sample is the start unless the test says one; what comes before that only fills the window."""
    rows = "".join(f"2026-03-01T00:{i // 60:02}:{i % 60:02}Z,1,{i < 30}\n".lower() for i in range(60))
    (tmp_path / "s.csv").write_text("time,v,ok\n" + rows.upper().replace("TRUE", "true").replace("FALSE", "false"))
    samples = {"file": "s.csv", "columns": {"ts_ms": "time", "value": "v"}}
    assert one(tmp_path, samples=samples, expect=["42s closed -> open count=43"]).passed
    later = {"start": "2026-03-01T00:00:20Z", "samples": samples}
    done = one(tmp_path, **later, expect=["2026-03-01T00:00:42Z closed -> open count=43"])
    assert done.passed
    assert "2026-03-01T00:00:42.000Z" in lines_of(one(tmp_path, **later, expect=[]).outcomes[0])[1]


def test_several_breakers_and_metrics(tmp_path: Path) -> None:
    """A series with a metric goes to breakers of it; expectations by breaker, or the same for all."""
    samples = [
        {"series": "fail x20", "metric": "calls"},
        {"series": "100 x5 900 x9", "metric": "latency", "from": "5s"},
    ]
    expect = {"checkout": ["9s closed -> open"], "slow": ["10s closed -> open", "20s open -> half_open"]}
    done = one(tmp_path, breaker=["checkout", "slow"], samples=samples, until="20s", expect=expect)
    assert done.passed, [lines_of(failure) for failure in done.failures]
    assert len(done.tests) == 2
    same = one(tmp_path, breaker=["checkout", "slow"], samples="ok x30", expect="end closed")
    assert same.passed


@pytest.mark.parametrize("how", ["a path", "a link", "a link in a folder"])
def test_samples_lie_with_their_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """An error tells names of columns: who wrote the test and reads the log would see the first line of any file."""
    secret, folder = tmp_path / "npmrc.csv", tmp_path / "tests"
    secret.write_text("token=secret,b\n1,2\n")
    (folder / "data").mkdir(parents=True)
    (folder / "x.csv").symlink_to(secret)
    (folder / "data" / "x.csv").symlink_to(secret)
    name = {"a path": "../npmrc.csv", "a link": "x.csv", "a link in a folder": "data"}[how]
    monkeypatch.chdir(folder)
    with pytest.raises(Invalid) as caught:
        one(folder, samples={"file": name}, expect="end closed")
    assert "lies neither in the folder of its test nor in the current one" in str(caught.value.details)
    assert "secret" not in str(caught.value.details)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Invalid, match=r"token=secret"):
        one(folder, samples={"file": name}, expect="end closed")


def test_what_is_wrong_with_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    path = tmp_path / "bad.test.yaml"
    path.write_text(
        textwrap.dedent("""\
            interval: 1s
            tests:
              - name: a
                breaker: chekout
                samples: ok
                expect: []
              - name: b
                breaker: checkout
                samples: "0.2 yy"
                expect:
                  - 1s closed
                  - 1s closed -> ajar
                  - 1s closed -> open cuont=3
              - name: b
                samples: ok
              - name: c
                breaker: checkout
                sample: ok
                expect: []
              - name: d
                breaker: checkout
                samples: {file: none.csv}
                tolerance: soon
                meanwhile: [{at: 5s, mode: watch}]
                expect: []
            """)
    )
    with pytest.raises(Invalid) as caught:
        read_tests(path)
    told = [(one["line"], one["word"], one["message"][:33]) for one in caught.value.details["problems"]]
    assert told == [
        (4, "invalid_value", "there is no breaker 'chekout'; did "[:33]),
        (9, "invalid_value", "'yy' is no sample: see the notation"[:33]),
        (12, "invalid_value", "'1s closed -> ajar' is no expectation"[:33]),
        (13, "invalid_value", "'1s closed -> open cuont=3': cuont"[:33]),
        (14, "twice", "is there twice, first at " + str(path)[:8]),
        (18, "unknown_field", "is no field: did you mean samples?"[:33]),
        (22, "invalid_value", f"{tmp_path}/none.csv"[:33]),
        (23, "invalid_value", "'soon' is no duration: 1500, 500m"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "a file of tests is an object"),
        ("tests: []", "must be a list of tests"),
        ("tests: [1]", "a test is an object"),
        ("rules: nowhere.yaml\ntests: [{name: a}]", "there is no such file or directory"),
        ("breakers: {a: {metric: m}}\ntests: [{name: a}]", "is required"),
        ("tests: [{name: a, breaker: checkout, samples: ok}]", "a test expects something"),
        ("tests: [{name: a, breaker: checkout, expect: []}]", "a test has samples"),
        ("tests: [{name: a, breaker: checkout, samples: ok, begin: ajar, expect: []}]", "Invalid enum value 'ajar'"),
        ("tests: [{name: a, breaker: checkout, samples: ok, expect: {slow: []}}]", "names checkout, slow"),
        ("tests: [{name: a, breaker: checkout, samples: ok, meanwhile: [{at: 1s}], expect: []}]", "has neither"),
        (
            "tests: [{name: a, breaker: checkout, samples: ok, meanwhile: [{at: 1s, rule: {op: x}}], expect: []}]",
            "op must be one of",
        ),
        ("tests: [", "not YAML"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(Invalid, match=re.escape(words)):
        ran(tmp_path, text)


def test_coverage(tmp_path: Path) -> None:
    """Every edge of every rule, taken or not."""
    edges = ran(tmp_path, "tests:" + OPENS).coverage
    taken = {row["edge"]: row["times"] for row in edges.filter(breaker="checkout").iter_rows(named=True)}
    expected = {"closed -> open": 1, "open -> half_open": 1, "half_open -> open": 0, "half_open -> closed": 1}
    assert taken == expected
    assert edges.filter(breaker="slow")["tests"].sum() == 0
    pessimistic = RULES.replace(
        "    metric: latency", "    half_open_indeterminate_policy: pessimistic\n    metric: latency"
    )
    edges = ran(tmp_path, "tests:" + OPENS, pessimistic).coverage.filter(breaker="slow")
    assert ("half_open -> open", "insufficient_samples") in edges.select("edge", "reason").rows()


def test_mutants(tmp_path: Path) -> None:
    """Each number of a rule is moved both ways; those that no test notices are told, and fail the run."""
    done = ran(tmp_path, "tests:" + OPENS, mutate=True)
    mutants = done.mutants
    assert mutants is not None
    checkout = mutants.filter(breaker="checkout")
    assert set(checkout["field"]) == {
        "threshold", "window_ms", "eval_interval_ms", "min_count", "cooldown_ms", "half_open_backoff_cap_ms",
        "recovery_allow_rate_ramp_steps",
    }  # fmt: skip
    killed = dict(zip(checkout["field"], checkout["killed_by"], strict=True))
    assert killed["threshold"] == killed["cooldown_ms"] == "opens"
    assert killed["half_open_backoff_cap_ms"] is None, "no recovery fails"
    assert not mutants.filter(breaker="slow")["tested"].any()
    assert not done.passed
    assert not done.failures


def test_mutants_are_rules_that_differ(tmp_path: Path) -> None:
    """What a rule can't have, and what does the same, is no mutant."""
    (breaker,) = [one for one in ran(tmp_path, "tests:" + OPENS).breakers if one.name == "checkout"]
    assert breaker.rule is not None
    assert mutated(breaker.rule, "min_state_duration_ms", 0.1) is None, "a tenth of nothing"
    assert mutated(breaker.rule, "recovery_allow_rate_ramp_steps", 0.1) is not None
    for mutant, _ in mutants_of(breaker):
        assert mutant.moved != mutant.value


def test_rules_that_change_on_the_way_are_mutated_throughout(tmp_path: Path) -> None:
    done = ran(
        tmp_path,
        """
        - name: edited
          breaker: checkout
          samples: "ok x30 (ok x2 fail)x60"
          meanwhile: [{at: 20s, rule: {threshold: 0.2}}]
          until: 60s
          expect: [55s closed -> open]
        """,
    )
    at = [move.at_ms - done.outcomes[0].case.start_ms for move in done.outcomes[0].moves]
    text = f"""
        - name: edited
          breaker: checkout
          samples: "ok x30 (ok x2 fail)x60"
          meanwhile: [{{at: 20s, rule: {{threshold: 0.2}}}}]
          until: {at[0] + 1}
          expect: [{at[0]} closed -> open]
        """
    mutants = ran(tmp_path, text, mutate=True).mutants
    assert mutants is not None
    assert set(mutants.filter(breaker="checkout", field="threshold")["killed_by"]) == {"edited"}


def test_the_command(tmp_path: Path) -> None:
    """Exit codes, plain text, JSON and JUnit XML."""
    (tmp_path / "rules.yaml").write_text(RULES)
    path = tmp_path / "some.test.yaml"
    path.write_text("tests:" + OPENS)

    def command(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["test", str(tmp_path), *arguments])

    done = command("-v", "--coverage")
    assert done.exit_code == 0, done.output
    assert "1 test: 1 passed, 0 failed" in done.output
    assert "coverage: 3 of 8 moves (38%), 1 of 2 rules" in done.output
    assert "without a test: slow" in done.output
    assert "\x1b" not in done.output
    path.write_text("tests:" + OPENS.replace("86s", "87s").replace("opens", "opens & <more>\\u0007"))
    failed = command("--junit", str(tmp_path / "junit.xml"))
    assert failed.exit_code == 1
    assert re.search(r"1m27s +half_open -> closed +1m26s +half_open -> closed .* 1s early", failed.output)
    (suite,) = ElementTree.fromstring((tmp_path / "junit.xml").read_text())
    assert suite.attrib["failures"] == "1"
    assert "1s early" in suite[0][0].attrib["message"]
    assert json.loads(command("--json").output)["failed"] == 1
    assert command("--match", "nothing").exit_code == 2
    path.write_text("tests: [{name: 1}]")
    refused = command()
    assert refused.exit_code == 2
    assert "some.test.yaml:1: tests[0].name: a test has a name" in refused.output


def test_the_notation_says_what_timelines_say(tmp_path: Path) -> None:
    """A timeline of the house, in the words of a test."""
    assert (FOLDER / "healthy_recovery.txt").exists()
    rule = """
breakers:
  b: {metric: m, kind: error_rate, op: gt, threshold: 0.5, min_count: 5, window_ms: 10000, eval_interval_ms: 1000,
      min_state_duration_ms: 0, cooldown_ms: 3000}
"""
    text = """
tests:
  - name: the first rule of the page
    samples: "@1000 (12!x10) @2000 (12 x10)x20"
    interval: 500ms
    until: 12s
    expect: |
      1000   closed -> open
      4000   open -> half_open 0.2
      5000   ramp 0.4
      6000   ramp 0.6
      7000   ramp 0.8
      8000   ramp 1.0
      10000  half_open -> closed
      end closed
"""
    done = ran(tmp_path, text, rule)
    assert done.passed, lines_of(done.outcomes[0])


def test_the_guide(tmp_path: Path) -> None:
    """Its commands do what it says."""
    page = (Path(__file__).parents[3] / "docs" / "guides" / "rule-tests.md").read_text()
    first, _ = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    for name, text in re.findall(r"cat > (\S+) <<'END'\n(.*?)END\n", first, re.DOTALL):
        (tmp_path / name).write_text(text)
    for line in re.findall(r"^uv run breakers (test .*?)(?: \|\||$)", page, re.MULTILINE):
        arguments = [str(tmp_path / word) if word.endswith((".yaml", ".xml")) else word for word in line.split()]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == ("--mutate" in arguments), done.output
        assert "1 test: 1 passed, 0 failed" in done.output
    (meanwhile,) = re.findall(r"```yaml\nmeanwhile:\n(.*?)```", page, re.DOTALL)
    test = f"tests:\n  - name: t\n    samples: ok x90\n    expect: end closed\n    meanwhile:\n{meanwhile}"
    (tmp_path / "m.test.yaml").write_text("rules: checkout.yaml\n" + test.replace("  - {", "      - {"))
    assert run.test(tmp_path / "m.test.yaml").outcomes


@pytest.mark.slow
def test_a_thousand_tests_take_five_seconds(tmp_path: Path) -> None:
    """Of CPU, and 120 samples each."""
    from time import process_time

    (tmp_path / "rules.yaml").write_text(RULES)
    for file in range(100):
        lines = ["tests:"]
        for number in range(10):
            lines += [f"  - name: test {number}", "    breaker: checkout"]
            lines += [f'    samples: "ok x{30 + number} fail x30 ok x60"', "    expect: [12s closed, 20s closed]"]
        (tmp_path / f"t{file}.test.yaml").write_text("\n".join(lines))
    begun = process_time()
    done = run.test(tmp_path)
    took = process_time() - begun
    assert (len(done.outcomes), done.passed) == (1000, True)
    assert took < 5, took
