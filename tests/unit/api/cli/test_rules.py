"""`breakers plan`, `apply`, `adopt`, `drift` and `rules export` against a service that listens."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli.main import app
from api.cli.planning import plan
from breaker_actors.errors import BreakersError, Invalid
from pipelines.rules.model import SECTIONS
from tests.support.cluster import until
from tests.support.town import Town, refused, town

__all__ = ["town"]

FIELDS = "metric: latency, kind: avg, op: gt, window: 1s, min_count: 5, min_state_duration: 0s"


def rules(folder: Path, owner: str, threshold: int, *more: str) -> str:
    """A file with a breaker and its router, and with more of them of the threshold 300."""
    thresholds = {f"{owner}-errors": threshold, **dict.fromkeys(more, 300)}
    path = folder / f"{owner}.yaml"
    breakers = "".join(f"  {name}: {{{FIELDS}, threshold: {value}}}\n" for name, value in thresholds.items())
    routers = f"  {owner}-gateway: {{breakers: [{', '.join(thresholds)}]}}\n"
    path.write_text(f"owner: {owner}\nbreakers:\n{breakers}routers:\n{routers}")
    return str(path)


def words(town: Town, *arguments: str, code: int = 0) -> list[str]:
    done = town.run(*arguments)
    assert done.exit_code == code, done.output
    return done.stdout.splitlines()


def test_drift_takes_the_owner_of_the_files(town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that are given, or of those that a plan would read."""
    path = rules(tmp_path, "pier", 100)
    words(town, "apply", path, "--yes")
    assert words(town, "drift", path) == ["no changes"]
    refused(town.run("drift", path, "--owner", "pier"), "give files or --owner", 1)
    refused(town.run("drift", str(tmp_path / "none.yaml")), "none.yaml", 1)
    monkeypatch.chdir(tmp_path)
    refused(town.run("drift"), "the owner 'default' declares nothing here", 1)
    (tmp_path / "rules").mkdir()
    rules(tmp_path / "rules", "pier", 100)
    assert words(town, "drift") == ["no changes"]


def test_what_is_planned_is_applied_and_what_was_moved_by_hand_is_told(town: Town, tmp_path: Path) -> None:
    path = rules(tmp_path, "shop", 100)
    planned = words(town, "plan", path, "--detailed-exitcode", code=2)
    *told, version = [line for line in planned if line[0] != " "]
    assert told == ["+ breakers shop-errors", "+ routers shop-gateway", "2 to make"]
    assert version.startswith("version ")
    refused(town.run("apply", path, "--yes", "--if-plan", "0" * 32), "plan again", 1)
    refused(town.run("apply", path, "--yes", "--if-plan", "another"), "give the version that a plan prints", 1)
    assert "    threshold: 100.0" in planned
    assert town.run("apply", path, text="n\n").exit_code != 0, "asks, and hears no"
    words(town, "apply", path, "--yes", "--if-plan", version.removeprefix("version "))
    assert words(town, "plan", path, "--detailed-exitcode") == ["no changes"]
    assert words(town, "drift", "--owner", "shop") == ["no changes"]

    words(town, "edit", "shop-errors", "--threshold", "150")
    moved = words(town, "drift", "--owner", "shop", code=2)
    assert "~ breakers shop-errors" in moved[0]
    assert any("changed by hand (threshold) by u at 2" in line for line in moved)
    back = words(town, "plan", path)
    assert "    threshold: 150.0 -> 100.0" in back
    exported = tmp_path / "exported.yaml"
    exported.write_text("\n".join(words(town, "rules", "export", "--owner", "shop")))
    assert words(town, "plan", str(exported), "--detailed-exitcode") == ["no changes"], "as it is there: by hand"
    undone = words(town, "apply", path, "--yes")
    (line,) = [line for line in undone if "changed by hand" in line]
    assert line in back, "who and when, as the plan said"
    assert "by u at 2" in line
    assert words(town, "drift", "--owner", "shop") == ["no changes"]


def test_a_reader_key_plans_and_applies_nothing(town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CI of a pull request, which runs what nobody has reviewed."""
    path = rules(tmp_path, "mall", 100)
    words(town, "apply", path, "--yes")
    project = town.service.project
    _, key = town.wait(town.service.store.create_key(project.org_id, "reader", "ci", 1, project.id))
    monkeypatch.setenv("BREAKERS_URL", town.credentials.base_url)
    monkeypatch.setenv("BREAKERS_KEY", key)
    monkeypatch.setenv("BREAKERS_PROJECT", project.id)
    assert words(town, "plan", path, "--detailed-exitcode") == ["no changes"]
    assert words(town, "drift", "--owner", "mall") == ["no changes"]
    assert words(town, "plan", rules(tmp_path, "mall", 70), code=0)[:2] == [
        "~ breakers mall-errors",
        "    threshold: 100.0 -> 70.0",
    ]
    refused(town.run("apply", path, "--yes"), "403", 1)
    assert "mall-errors" in "\n".join(words(town, "rules", "export", "--owner", "mall"))


def test_nobody_is_said_to_have_changed_what_changed_by_another_thing(town: Town, tmp_path: Path) -> None:
    """A router whose breaker was renamed by hand."""
    words(town, "apply", rules(tmp_path, "yard", 100), "--yes")
    words(town, "edit", "yard-errors", "--rename", "yard-errs")
    told = words(town, "drift", "--owner", "yard", code=2)
    assert "~ routers yard-gateway" in told
    assert not any(" by u at " in line for line in told), told


def test_what_is_there_is_adopted(town: Town, tmp_path: Path) -> None:
    town.create("grown")
    path = tmp_path / "grown.yaml"
    path.write_text("owner: garden\nbreakers:\n  grown: {metric: latency, kind: avg, op: gt, threshold: 100}\n")
    assert any(line.startswith("! breakers grown") for line in words(town, "plan", str(path)))
    words(town, "adopt", str(path))
    assert words(town, "plan", str(path), "--detailed-exitcode") == ["no changes"]


def test_a_wrong_file_is_refused_with_its_line(town: Town, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("breakers:\n  a: {metric: latency, kind: avgg, op: gt, threshold: 1}\n")
    refused(town.run("plan", str(path)), "wrong.yaml:2: breakers.a.kind", 1)


def test_a_plan_is_tried_on_samples(town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a changed breaker before and after; of one that is to be made, on a router that is there, after alone."""
    words(town, "apply", rules(tmp_path, "tried", 100), "--yes")
    (row,) = [one for one in town.json("list")["breakers"] if one["name"] == "tried-errors"]
    (router,) = [
        one
        for one in town.wait(town.service.store.list_routers(town.service.project.id))
        if one.name == "tried-gateway"
    ]

    async def tripped() -> None:
        await town.service.send(router.id, [10.0] * 5)
        await town.service.send(router.id, [500.0] * 20)
        await until(lambda: town.service.events(row["id"]))
        await town.service.send(router.id, [500.0])

    town.wait(tripped())
    monkeypatch.setattr(town, "folder", town.folder.parent / "service")
    path = rules(tmp_path, "tried", 600, "tried-new")
    page = tmp_path / "plan.html"
    told = words(town, "plan", path, "--backtest", "1h", "--report", str(page))
    tried = [line for line in told if line.startswith("backtest ")]
    assert [line.partition(",")[0] for line in tried] == [
        "backtest tried-errors: tripped 1 -> 0 times",
        "backtest tried-new: would have tripped 1 time",
    ]
    assert {path.name for path in tmp_path.glob("plan*.html")} == {"plan-1.html", "plan-2.html"}
    frame = plan(path, data_dir=town.folder, backtest="1h").backtest
    assert frame is not None
    assert frame.select("breaker", "trips_before", "trips_after").rows() == [
        ("tried-errors", 1, 0),
        ("tried-new", None, 1),
    ]
    assert [f"backtest {name}: {words}" for name, words in frame.select("breaker", "told").rows()] == tried

    assert town.run("delete", "tried-errors", "--yes").exit_code == 0
    told = words(town, "plan", path, "--backtest", "1h")
    assert any(line.startswith("backtest tried-errors: would have tripped 0 times") for line in told), told


MUTES = """
owner: night
mutes:
  nights:
    all: true
    windows: [{weekdays: [mon, tue], from: "22:00", to: "06:00"}]
    comment: nobody awake
  since:
    all: true
    starts: 2026-01-01T00:00:00Z
    windows: [{weekdays: [sun], from: "00:00", to: "01:00"}]
    comment: old
"""


def test_a_mute_starts_when_it_is_applied(town: Town, tmp_path: Path) -> None:
    """Whenever that is after the plan; also one that was ended by hand."""
    path = tmp_path / "night.yaml"
    path.write_text(MUTES)
    assert not any("starts_ms" in line for line in words(town, "plan", str(path)))
    assert words(town, "apply", str(path), "--yes")[-1] == "applied: 2 changes"
    assert words(town, "plan", str(path), "--detailed-exitcode") == ["no changes"]
    mutes = town.json("mutes")["mutes"]
    (nights,) = [one["id"] for one in mutes if one["comment"] == "nobody awake"]
    words(town, "unmute", nights)
    assert words(town, "apply", str(path), "--yes")[-1] == "applied: 1 change"


def test_what_is_hardly_meant_is_told(town: Town, tmp_path: Path) -> None:
    """With its place, by every command that reads the files."""
    path = tmp_path / "never.yaml"
    path.write_text("owner: never\nbreakers:\n  a: {metric: m, kind: error_rate, op: gt, threshold: 30}\n")
    told = "never.yaml:3: breakers.a.threshold: An error rate lies between 0 and 1"
    for arguments in (("plan",), ("apply", "--yes")):
        done = town.run(*arguments, str(path))
        assert done.exit_code == 0, done.output
        assert told in done.stderr
    checked, strict = (CliRunner().invoke(app, ["rules", "check", str(path), *more]) for more in ((), ("--strict",)))
    assert told in checked.stderr
    assert (checked.exit_code, strict.exit_code) == (0, 1)
    assert checked.stdout == "1 breaker, 0 routers, 0 mappings, 0 channels, 0 mutes, owner never\n"


def test_a_secret_that_is_made_did_not_change(town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "https://hooks.invalid/x")
    path = tmp_path / "hook.yaml"
    path.write_text("owner: hook\nchannels:\n  hook: {channel: webhook, config: {url: {env: HOOK}}}\n")
    shown = town.run("plan", str(path)).stdout
    assert "    config: not shown\n" in shown
    assert "hooks.invalid" not in shown


def test_what_would_take_everything_away_is_refused(town: Town, tmp_path: Path) -> None:
    folder, path = tmp_path / "empty", tmp_path / "three.yaml"
    folder.mkdir()
    refused(town.run("apply", str(folder), "--yes"), f"{folder}: there is no file of rules in it", 1)
    refused(town.run("plan", str(tmp_path / "no")), f"{tmp_path}/no: there is no such file or directory", 1)
    rows = "".join(f"  three{n}: {{{FIELDS}, threshold: 1}}\n" for n in range(3))
    path.write_text(f"owner: three\nbreakers:\n{rows}")
    words(town, "apply", str(path), "--yes")
    path.write_text("owner: three\n")
    refused(town.run("apply", str(path), "--yes"), "too many breakers", 1)
    assert words(town, "apply", str(path), "--yes", "--allow-destructive")[-1] == "applied: 3 changes"


def test_who_declares_nothing_is_nobody_to_watch(town: Town, tmp_path: Path) -> None:
    words(town, "apply", rules(tmp_path, "watched", 100), "--yes")
    assert words(town, "drift", "--owner", "watched") == ["no changes"]
    for arguments in (("drift", "--owner", "watchd"), ("rules", "export", "--owner", "watchd")):
        refused(town.run(*arguments), "the owner 'watchd' declares nothing here", 1)


def test_conflicts_are_no_changes_to_be_applied(town: Town, tmp_path: Path) -> None:
    path = tmp_path / "theirs.yaml"
    town.create("somebody's")
    path.write_text(f"owner: me\nbreakers:\n  somebody's: {{{FIELDS}, threshold: 1}}\n")
    words(town, "plan", str(path), "--detailed-exitcode", code=1)


def test_a_backtest_is_where_the_data_is(town: Town, tmp_path: Path) -> None:
    """Nothing is made elsewhere, such as in a repository of rules."""
    path = rules(tmp_path, "elsewhere", 100)
    refused(town.run("plan", path, "--report", "x.html"), "give both", 1)
    refused(town.run("plan", path, "--backtest", "1h"), "a backtest reads what the service keeps", 1)
    assert not list(town.folder.glob("breakers.sqlite*"))


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("mappings: {m: {matchers: [{field: name, op: '=', value: x}], to: {router: label.r, metrc: x}}}", "to.metrc"),
        ("channels: {c: {channel: webhook, config: {url: {env: HOOK}, secrt: x}}}", "config.secrt"),
    ],
)
def test_files_are_strict_at_every_depth(
    town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str, told: str
) -> None:
    monkeypatch.setenv("HOOK", "https://hook.example/x")
    path = tmp_path / "slip.yaml"
    path.write_text(f"owner: slip\n{section}\n")
    done = town.run("plan", str(path))
    assert done.exit_code == 1
    assert told in done.stderr
    assert "did you mean" in done.stderr


def test_a_probable_rename_is_told_and_how_to_keep_what_it_costs(town: Town, tmp_path: Path) -> None:
    """A breaker and its router with other names; the way that is told keeps the id, so nothing is deleted."""
    path = Path(rules(tmp_path, "bakery", 100))
    words(town, "apply", str(path), "--yes")
    path.write_text(path.read_text().replace("bakery-errors", "oven-errors"))
    planned = words(town, "plan", str(path))
    assert (
        "+ breakers oven-errors: is probably bakery-errors by another name, and would be made anew with another id, "
        "and without its state, events and samples; to keep them `breakers edit bakery-errors --rename oven-errors` "
        "first"
    ) in planned
    assert "- breakers bakery-errors: is probably called oven-errors now" in planned
    words(town, "edit", "bakery-errors", "--rename", "oven-errors")
    assert not any(line[0] in "+-" for line in words(town, "plan", str(path)))
    words(town, "apply", str(path), "--yes")
    path.write_text(path.read_text().replace("bakery-gateway", "oven-gateway"))
    planned = words(town, "plan", str(path))
    assert any("+ routers oven-gateway: is probably bakery-gateway by another name" in line for line in planned)
    path.write_text(path.read_text().replace("threshold: 100", "threshold: 7").replace("oven-errors", "other"))
    assert not any("probably" in line for line in words(town, "plan", str(path))), "another rule is another breaker"


def test_a_breaker_that_is_open_is_told_before_it_is_deleted(town: Town, tmp_path: Path) -> None:
    path = Path(rules(tmp_path, "mill", 100, "mill-slow"))
    words(town, "apply", str(path), "--yes")
    words(town, "override", "mill-errors", "--open", "--reason", "drill", "--for", "1h")
    path.write_text(f"owner: mill\nbreakers:\n  mill-slow: {{{FIELDS}, threshold: 300}}\n")

    async def told() -> bool:
        return "- breakers mill-errors: is open now" in await asyncio.to_thread(words, town, "plan", str(path))

    asyncio.run(until(told))


def test_a_plan_goes_without_secrets_that_an_apply_needs(
    town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told, and taken to be as they are; new ones and other fields are planned."""
    path = tmp_path / "channels.yaml"
    text = (
        "owner: pager\nchannels:\n"
        "  pd: {channel: pagerduty, config: {routing_key: {env: PD_KEY}, severity: error}}\n"
        "  chat: {channel: slack, config: {webhook_url: {env: CHAT_URL}}}\n"
    )
    path.write_text(text)
    monkeypatch.delenv("PD_KEY", raising=False)
    monkeypatch.delenv("CHAT_URL", raising=False)
    done = town.run("plan", str(path))
    assert done.exit_code == 0, done.output
    assert (
        "channels.pd.config.routing_key: the environment has no PD_KEY: not looked at; an apply needs it" in done.stderr
    )
    assert {"+ channels pd", "+ channels chat"} <= set(done.stdout.splitlines())
    assert "not-looked-at" not in done.output
    assert town.run("apply", str(path), "--yes").exit_code == 1
    monkeypatch.setenv("PD_KEY", "k" * 32)
    monkeypatch.setenv("CHAT_URL", "https://hooks.slack.example/services/x")
    version = words(town, "plan", str(path))[-1].removeprefix("version ")
    words(town, "apply", str(path), "--yes", "--if-plan", version)
    monkeypatch.delenv("PD_KEY")
    monkeypatch.delenv("CHAT_URL")
    assert words(town, "plan", str(path)) == ["no changes"]
    path.write_text(text.replace("severity: error", "severity: info"))
    planned = words(town, "plan", str(path))
    assert planned[:2] == ["~ channels pd", '    config.severity: "error" -> "info"']
    monkeypatch.setenv("PD_KEY", "k" * 32)
    monkeypatch.setenv("CHAT_URL", "https://hooks.slack.example/services/x")
    assert words(town, "plan", str(path)) == planned, "to the version"
    monkeypatch.setenv("PD_KEY", "l" * 32)
    assert "    config.routing_key: changed" in words(town, "plan", str(path))


WRONG = """\
routers:
  gateway: {breakers: [made-in-the-console], mode: statc}
mappings:
  first: {matchers: [{field: name, op: is, value: x}], to: {router: of-another-owner}}
channels:
  hook: {channel: webhook, config: {url: {env: NOT_SET}, secrt: x}}
  slack: {channel: slack, config: {webhook_url: {env: NOT_SET}}}
mutes:
  night: {matchers: [{field: nme, value: x}], ends: 2100-01-01T00:00:00Z, comment: why}
  late: {all: true, windows: [{days: [mon], from: "25:00", to: "06:00"}], comment: why}
  endless: {all: true, comment: why}
  over: {all: true, ends: 2020-01-01T00:00:00Z, comment: it is past}
"""


def test_a_check_refuses_what_a_plan_refuses(town: Town, tmp_path: Path) -> None:
    """All of it at once and with its line, without a service; what only a project can tell is left to it."""
    path = tmp_path / "wrong.yaml"
    path.write_text(WRONG)
    done = CliRunner().invoke(app, ["rules", "check", str(path)])
    assert done.exit_code == 1
    told = [line.partition(f"{path}:")[2].split(": ", 1) for line in done.stderr.splitlines()]
    assert [place.replace(" ", "").split(":")[0] for place, _ in told] == ["6", "2", "4", "9", "10", "11"]
    for words_of, (_, told_words) in zip(
        ("config.secrt", "gateway.mode", "first.matchers[0].op", "night.matchers[0].field", "late.windows", "ends_ms"),
        told,
        strict=True,
    ):
        assert words_of in told_words
    for name in ("gateway: {breakers: [], mode: statc}", "endless: {all: true, comment: why}"):
        section = "routers" if name.startswith("gateway") else "mutes"
        path.write_text(f"{section}:\n  {name}\n")
        checked = CliRunner().invoke(app, ["rules", "check", str(path)])
        planned = town.run("plan", str(path))
        assert (checked.exit_code, checked.stderr) == (planned.exit_code, planned.stderr), "in the same words"


def test_the_schema_says_what_requests_are_held_against() -> None:
    """Enumerations, bounds and required fields of every section; each definition that it refers to is there."""
    text = CliRunner().invoke(app, ["rules", "schema"]).stdout
    schema = json.loads(text)
    things = {name: one["additionalProperties"] for name, one in schema["properties"].items() if name in SECTIONS}
    assert things["mutes"]["required"] == ["comment"]
    assert "channel" in things["channels"]["required"]
    assert {"matchers", "to"} <= set(things["mappings"]["required"])
    assert schema["$defs"]["Window"]["required"]
    assert "static" in json.dumps(things["routers"]["properties"]["mode"])
    assert set(re.findall(r"#/\$defs/(\w+)", text)) == set(schema["$defs"])
    assert "#/components" not in text


def test_a_plan_is_frames_from_python(town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of the command; what it applies is what it planned."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules").mkdir()
    path = rules(tmp_path / "rules", "kiosk", 100)
    found = plan(data_dir=town.folder)
    assert found.changes.select("act", "kind", "name").rows() == [
        ("create", "breakers", "kiosk-errors"),
        ("create", "routers", "kiosk-gateway"),
    ]
    assert found.apply()["changed"]
    assert plan(data_dir=town.folder).changes.height == 0
    assert plan(data_dir=town.folder).backtest is None

    rules(tmp_path / "rules", "kiosk", 70)
    words(town, "edit", "kiosk-errors", "--threshold", "150")
    found = plan(path, data_dir=town.folder)
    assert found.to_dict() == json.loads("\n".join(words(town, "plan", path, "--json")))
    assert found.fields.rows() == [("breakers", "kiosk-errors", "threshold", "150.0", "70.0", False)]
    ((hand, who),) = found.changes.select("by_hand", "who").rows()
    assert (hand, who) == (["threshold"], "u")
    assert sorted(found.to_pandas()) == ["changes", "fields"]
    words(town, "edit", "kiosk-errors", "--threshold", "160")
    with pytest.raises(BreakersError, match="plan again"):
        found.apply()
    with pytest.raises(Invalid, match="reads what the service keeps"):
        plan(path, data_dir=town.folder, backtest="1h")


def test_the_example_goes_from_parquet_to_an_applied_rule(
    town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BREAKERS_DATA_DIR", str(town.folder))
    made = runpy.run_path(str(Path(__file__).parents[4] / "examples" / "rules.py"))
    assert made["tested"].passed
    assert made["done"]["count"] == 2
    assert plan().changes.height == 0
    assert capsys.readouterr().out.endswith("applied: 2 changes\n0 left\n")
