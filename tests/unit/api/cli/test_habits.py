"""What people expect of any command: -h, completion, help that reads well, guesses at what was meant, headers, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from api.cli import output
from api.cli.breaker_edit import _meaning
from api.cli.main import app
from breaker_actors.core.rule_fields import FIELDS, PARAMS
from breaker_actors.errors import Invalid
from breaker_actors.settings import load_settings


def every_command(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, command in getattr(group, "commands", {}).items():
        yield from every_command(command, (*words, name))


@pytest.mark.parametrize("words", list(every_command(typer.main.get_command(app))), ids=" ".join)
def test_h_is_help_everywhere_and_flags_take_no_value(words: tuple[str, ...]) -> None:
    short, long = (CliRunner().invoke(app, [*words, option]) for option in ("-h", "--help"))
    assert (short.exit_code, short.stdout) == (0, long.stdout)
    assert "<bool>" not in short.stdout
    assert "-h, --help" in short.stdout


def test_paragraphs_of_help_are_wrapped_anew() -> None:
    shown = CliRunner().invoke(app, ["backfill", "-h"]).stdout
    assert "shows them with source=backfill or all. Samples that" in shown


def test_the_command_alone_shows_its_help() -> None:
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0
    assert "Commands:" in result.stdout
    assert "--install-completion" in result.stdout


def test_an_unknown_command_is_told_with_a_guess() -> None:
    result = CliRunner().invoke(app, ["doktor"])
    assert result.exit_code == 2
    assert "Did you mean 'doctor'?" in result.stderr


def test_all_wrong_variables_are_told_with_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"BREAKERS_PROT": "1", "BREAKERS_XXXXXXXX": "2"}
    with pytest.raises(Invalid, match=r"BREAKERS_PROT: did you mean BREAKERS_PORT\?; unknown setting BREAKERS_X+$"):
        load_settings(names)
    monkeypatch.setenv("BREAKERS_PORT", "a")
    monkeypatch.setenv("BREAKERS_REPLICAS", "0")
    with pytest.raises(Invalid, match=r"BREAKERS_PORT: .*; BREAKERS_REPLICAS: "):
        load_settings()


def test_titles_stand_on_a_terminal_and_off_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("1", "\x1b[2J[red]", None)]
    output.put_records("keys", ("id", "name", "last_used_at"), rows, as_json=False)
    assert capsys.readouterr().out == "id\tname\tlast used at\n1\t\\x1b[2J[red]\tnever\n"
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    output.put_records("keys", ("id", "name", "last_used_at"), rows, as_json=False)
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["id", "name", "last", "used", "at"]
    assert row.split() == ["1", "\\x1b[2J[red]", "never"]
    output.put_records("keys", ("id", "name", "last_used_at"), rows, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"keys": [{"id": "1", "name": "\x1b[2J[red]", "last_used_at": None}]}


def test_create_asks_for_a_percentile_for_its_kind_alone() -> None:
    meanings = {field.name: _meaning(field) for field in (*FIELDS, *PARAMS)}
    assert meanings["percentile"].startswith("Kind percentile: ")
    assert meanings["percentile"].endswith("Needed for that kind.")
    assert meanings["threshold"].endswith("Needed by create.")


def test_scripts_leave_titles_out(tmp_path: Path) -> None:
    place = ["doctor", "--data-dir", str(tmp_path)]
    given = ([], ["--no-headers"])
    headed, bare = (CliRunner().invoke(app, [*more, *place]).stdout.splitlines() for more in given)
    assert headed[0] == "result\tcheck\tfinding\tremedy"
    assert [line.split("\t")[1] for line in headed[1:]] == [line.split("\t")[1] for line in bare]
    behind = CliRunner().invoke(app, [*place, "--no-headers"])
    assert behind.exit_code == CliRunner().invoke(app, place).exit_code
    assert [line.split("\t")[1] for line in behind.stdout.splitlines()] == [line.split("\t")[1] for line in bare]
    name = CliRunner().invoke(app, ["explain", "--", "--no-headers"])
    assert "there is no kind or field --no-headers" in name.stderr
