"""Every command that asks a service, in a folder whose `.breakers` somebody else has made, as of a repository that was
cloned: nothing goes to the address that it names, no key, no token, and no secret that rule files refer to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from api.cli.main import app
from api.cli.store_access import is_named
from api.launch import leftovers
from api.launch.bootstrap import FILE_NAME, Credentials, write
from tests.support.commands import commands_with
from tests.support.town import Town, refused, town

__all__ = ["town"]

ELSEWHERE = "https://breakers.example"
PROJECT = "2f6d0a52-0f3e-4d0e-9a52-7a1f3f6e5b11"
COMMANDS = list(commands_with("--url"))
LEFT_OPEN, NOT_HERE = "as no service leaves it", "which is not known to be this machine"
SECRETS = {"BREAKERS_KEY": "eb_user_" + "1" * 64, "BREAKERS_INGEST_TOKEN": "eb_ingest_" + "2" * 64}
RULES = """
owner: theirs
channels:
  hook: {channel: webhook, config: {url: {env: MINE}, secret: {file: mine.txt}}}
"""


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[httpx.Request]:
    """All that goes out."""
    found: list[httpx.Request] = []

    def send(client: httpx.Client, request: httpx.Request, **more: Any) -> httpx.Response:
        found.append(request)
        raise httpx.ConnectError("nobody")

    monkeypatch.setattr(httpx.Client, "send", send)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data directory of the folder that commands run in, which names a service elsewhere."""
    for name in ("BREAKERS_DATA_DIR", "BREAKERS_URL", *SECRETS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MINE", "https://hooks.example/mine")
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/theirs.yaml").write_text(RULES)
    known = dict.fromkeys(Credentials.__struct_fields__, "x") | {"base_url": ELSEWHERE, "project_id": PROJECT}
    write(tmp_path / ".breakers" / FILE_NAME, Credentials(**known))
    (tmp_path / ".breakers").chmod(0o700)
    monkeypatch.chdir(tmp_path)
    return tmp_path / ".breakers"


def check_out(folder: Path) -> None:
    """As git does, under the usual umask."""
    folder.chmod(0o755)
    (folder / FILE_NAME).chmod(0o644)


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(app, arguments, env=environ)


def test_the_walk_is_of_all_commands_that_ask() -> None:
    names = {words[0] for words in COMMANDS}
    assert {"list", "watch", "plan", "apply", "adopt", "drift", "statsd", "status", "rebalance", "console"} <= names
    assert len(COMMANDS) >= 40


@pytest.mark.parametrize("secrets", [{}, SECRETS], ids=["nothing set", "secrets set"])
@pytest.mark.parametrize("closed", [False, True], ids=["cloned", "unpacked"])
def test_nothing_goes_where_a_found_folder_says(
    folder: Path, sent: list[httpx.Request], closed: bool, secrets: dict[str, str]
) -> None:
    """An archive, and git under umask 077, can have the very modes of a service's files."""
    if not closed:
        check_out(folder)
    for words in COMMANDS:
        result = run(*words, **secrets)
        assert isinstance(result.exception, SystemExit), (words, result.exception)
        assert result.exit_code in (1, 2), (words, result.output)
        (line,) = result.stderr.splitlines()
        assert (NOT_HERE if closed else LEFT_OPEN) in line, words
        assert sent == [], words


@pytest.mark.parametrize("name", ["credentials.json", "lock", "ray.token", "secret.key", "breakers.sqlite"])
def test_a_found_folder_is_closed_as_a_service_leaves_it(folder: Path, name: str) -> None:
    """For all commands, `serve` included: whoever put it there knows what is in it."""
    (folder / name).touch(mode=0o600)
    (folder / name).chmod(0o640)
    for words in (("serve",), ("keys", "list"), ("node-env",)):
        result = run(*words)
        assert f"{folder / name} is open to other users (mode 640), {LEFT_OPEN}: if {folder} came" in result.stderr
        assert "move it away" in result.stderr
        assert f"chmod -R go-rwx {folder}" in result.stderr
        assert result.exit_code == 2
    (folder / name).chmod(0o600)
    folder.chmod(0o750)
    assert f"{folder} is open to other users (mode 750)" in run("keys", "list").stderr
    assert LEFT_OPEN not in run("keys", "list", "--data-dir", str(folder)).stderr


def test_an_empty_folder_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".breakers").mkdir(mode=0o755)
    assert LEFT_OPEN not in run("keys", "list").stderr


def test_what_names_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of the environment that depends on the folder a command runs in does not."""
    for told, named in (("", False), (".breakers", False), ("/var/lib/breakers", True)):
        monkeypatch.setenv("BREAKERS_DATA_DIR", told)
        assert is_named(None) == named
        assert is_named(Path(".breakers"))
    monkeypatch.delenv("BREAKERS_DATA_DIR")
    assert not is_named(None)


def test_a_named_folder_is_believed_with_its_own_key_alone(folder: Path, sent: list[httpx.Request]) -> None:
    """A key or token of elsewhere goes to an address of elsewhere."""
    for words in (("list",), ("status",)):
        told = ["--data-dir", str(folder)]
        assert "no answer from" in run(*words, *told).stderr
        assert sent.pop().headers["Authorization"] == "Bearer x"
        refused(run(*words, *told, **SECRETS), "goes nowhere on the word of a file; set BREAKERS_URL")
        assert sent == []
        assert "no answer from" in run(*words, *told, **SECRETS, BREAKERS_URL=ELSEWHERE).stderr
        assert sent.pop().headers["Authorization"] == f"Bearer {SECRETS['BREAKERS_KEY']}"
    refused(run("statsd", "--data-dir", str(folder), **SECRETS), "goes nowhere on the word of a file")
    assert sent == []


def test_the_folder_of_a_service_that_runs_here_is_believed(folder: Path, sent: list[httpx.Request]) -> None:
    """Under whatever name; a copy of it is not."""
    place = folder.parent / "brk-1"
    place.mkdir(mode=0o700)
    (folder / "lock").touch(mode=0o600)
    with (folder / "lock").open("w") as lock:
        leftovers.note(lock, place)
    assert "no answer from" in run("list", **SECRETS).stderr
    assert sent.pop().headers["Authorization"] == f"Bearer {SECRETS['BREAKERS_KEY']}"
    copy = (folder / "lock").read_bytes()
    (folder / "lock").rename(folder.parent / "lock")
    (folder / "lock").touch(mode=0o600)
    (folder / "lock").write_bytes(copy)
    refused(run("list", **SECRETS), NOT_HERE)
    assert sent == []


def test_a_service_of_this_machine_needs_no_name(town: Town, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As where `serve` was started, also with another key; where the rules' secrets go is told before they do."""
    town.folder.chmod(0o700)
    known = town.credentials
    other = tmp_path / ".breakers"
    write(other / FILE_NAME, known)
    other.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINE", "https://hooks.example/mine")
    (tmp_path / "mine.txt").write_text("mine" * 8)
    (tmp_path / "rules.yaml").write_text(RULES)
    assert run("list", BREAKERS_KEY=known.user_key).exit_code == 0
    for command in (("plan",), ("apply", "--yes"), ("adopt",)):
        result = run(command[0], "rules.yaml", *command[1:], "--json")
        assert result.exit_code == 0, result.output
        assert f"what env: and file: of these rules refer to goes to {known.base_url}" in result.stderr
        assert json.loads(result.stdout)["address"] == known.base_url
