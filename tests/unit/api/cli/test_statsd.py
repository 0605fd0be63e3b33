"""`breakers statsd`: how it finds service, project and token, and what it says where it can't start."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from api.cli import statsd
from api.cli.main import app
from api.cli.statsd import _listens_at, _try, _where
from api.statsd.outbox import Answer
from api.statsd.sockets import open_udp, open_unix
from breaker_actors.errors import Invalid

PROJECT = "0000000a-0000-0000-0000-00000000000A"
TOKEN = "eb_ingest_" + "5" * 64
NOBODY = "http://127.0.0.1:9"
"""The port of `discard`, where nobody listens."""


def run(*words: str, **environ: str) -> Result:
    return CliRunner().invoke(app, ["statsd", *words], env=environ)


def test_without_a_token_it_says_how_to_get_one(tmp_path: Path) -> None:
    there, missing_file = ("--url", NOBODY, "--project", PROJECT), str(tmp_path / "token")
    found = run(*there)
    assert found.exit_code == 2
    assert "`breakers keys create --kind ingest` makes one" in found.stderr
    both = run(*there, BREAKERS_INGEST_TOKEN=TOKEN, BREAKERS_INGEST_TOKEN_FILE=missing_file)
    assert "are both set" in both.stderr
    missing = run(*there, "--token-file", missing_file)
    assert (missing.exit_code, "--token-file" in missing.stderr) == (2, True)
    assert "--token " not in run("--help").stdout  # others on the machine see a command line


def test_a_token_may_stand_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    assert statsd._token(path) == TOKEN
    monkeypatch.setenv("BREAKERS_INGEST_TOKEN_FILE", str(path))
    assert statsd._token(None) == TOKEN


def test_an_address_and_an_id_need_no_credentials(tmp_path: Path) -> None:
    assert _where(NOBODY, PROJECT, tmp_path / "nothing", False) == (NOBODY, PROJECT.lower())
    with pytest.raises(Invalid, match="set BREAKERS_PROJECT"):
        _where(NOBODY, None, tmp_path / "nothing", False)
    with pytest.raises(Invalid, match="set BREAKERS_"):
        _where(NOBODY, "shop", tmp_path / "nothing", False)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--listen", "off"), "--listen off needs --unix"),
        (("--listen", "8125"), "say HOST:PORT"),
        (("--url", "127.0.0.1:7117"), "did you mean http://127.0.0.1:7117?"),
        (("--unix", "/nowhere/statsd.sock"), "--unix /nowhere/statsd.sock: No such file or directory"),
    ],
)
def test_wrong_use_is_told(words: tuple[str, ...], told: str) -> None:
    found = run("--url", NOBODY, "--project", PROJECT, "--listen", "127.0.0.1:0", *words, BREAKERS_INGEST_TOKEN=TOKEN)
    assert found.exit_code == 2
    assert told in found.stderr
    assert TOKEN not in found.output


def test_a_refusal_ends_the_start_and_an_absence_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Invalid, match="401"):
        _try(Answer("refused", "http://x/ answers 401: no key"))
    _try(Answer("again", "nobody listens at http://x"))
    _try(Answer("taken"))
    assert capsys.readouterr().err == "breakers: nobody listens at http://x; what comes in waits\n"


def test_it_listens_where_it_was_told(tmp_path: Path) -> None:
    """The line names it as --listen and --unix do, not as Python does."""
    with open_udp("127.0.0.1:0") as udp, open_unix(tmp_path / "s.sock") as unix:
        assert _listens_at(udp) == f"127.0.0.1:{udp.getsockname()[1]}"
        assert _listens_at(unix) == str(tmp_path / "s.sock")
