"""Secrets come from files, too: each setting that holds one, and the key of clients."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from breaker_actors.errors import Invalid
from breaker_actors.settings import (
    CLIENT_SECRETS,
    CLIENT_VARIABLES,
    FILE,
    PREFIX,
    SECRET_BYTES_MAX,
    Settings,
    load_settings,
    secret_of_file,
    variables,
)

HUSH = "hush-4f1c-and-so-on"
VARIABLES = [*(PREFIX + name.upper() for name in Settings.secrets()), *CLIENT_SECRETS]


def plain(value: object) -> object:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def test_what_is_secret_is_known() -> None:
    """By name, so that a new one is not forgotten: whatever sounds like a secret is one."""
    words = ("password", "token", "secret_key", "database_url", "_key")
    sounds = {name for name in Settings.model_fields if name.endswith(words)} - {"tls_key"}
    assert set(Settings.secrets()) == sounds


def test_nothing_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, HUSH)
    settings = load_settings()
    assert {plain(getattr(settings, name)) for name in Settings.secrets()} == {HUSH}
    assert HUSH not in f"{settings!r} {settings!s}"


@pytest.mark.parametrize("name", Settings.secrets())
def test_a_file_holds_each_secret(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{HUSH}\n")
    monkeypatch.setenv(PREFIX + name.upper() + FILE, str(path))
    assert plain(getattr(load_settings(), name)) == HUSH


@given(text=st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1), end=st.sampled_from(["", "\n", "\r\n"]))
def test_the_line_end_alone_is_left_out(text: str, end: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("secrets") / "secret"
    path.write_bytes(f" {text} {end}".encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BREAKERS_KEY_FILE", str(path))
        assert secret_of_file("BREAKERS_KEY") == f" {text} "


@pytest.mark.parametrize("variable", VARIABLES)
def test_both_are_refused(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_text("of-the-file")
    monkeypatch.setenv(variable, HUSH)
    monkeypatch.setenv(variable + FILE, str(path))
    with pytest.raises(Invalid, match=f"^{variable} and {variable}_FILE are both set: set one of them$"):
        secret_of_file(variable)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "can't be read: No such file or directory"),
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"hush\nhush\n", "has more than one line"),
        (b"hush\x00", "what can't be printed"),
        (b"hush\xff", "is not UTF-8 text"),
        (b"h" * (SECRET_BYTES_MAX + 1), "has more than 65536 bytes"),
    ],
)
def test_a_file_that_is_no_secret_is_told_without_its_content(
    content: bytes | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("BREAKERS_SMTP_PASSWORD_FILE", str(path))
    with pytest.raises(Invalid, match=why) as caught:
        load_settings()
    told = str(caught.value)
    assert told.startswith(f"BREAKERS_SMTP_PASSWORD_FILE: {path} ")
    assert caught.value.__cause__ is None
    assert "hush" not in told


def test_what_of_a_file_is_refused_names_the_variable_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    path.write_text("short")
    monkeypatch.setenv("BREAKERS_METRICS_TOKEN_FILE", str(path))
    with pytest.raises(Invalid, match=r"^BREAKERS_METRICS_TOKEN_FILE: String should have at least 16 characters$"):
        load_settings()


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_refused_at_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    monkeypatch.setenv("BREAKERS_SMTP_PASSWORD_FILE", str(path))
    with pytest.raises(Invalid, match=r"can't be read: (Is a directory|no regular file)"):
        load_settings()


def test_other_settings_take_no_file() -> None:
    with pytest.raises(Invalid, match="unknown setting BREAKERS_PORT_FILE: did you mean BREAKERS_PORT"):
        load_settings({"BREAKERS_PORT_FILE": "x"})
    assert CLIENT_VARIABLES.keys() < variables()


@pytest.mark.parametrize(("values", "synced"), [({}, True), ({"durability": "process"}, False)])
def test_what_answers_survive(values: dict[str, str], synced: bool) -> None:
    assert load_settings({}, **values).synced is synced


def test_the_earlier_name_of_durability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREAKERS_LOG_SYNCHRONOUS", "false")
    assert not load_settings().synced
    monkeypatch.setenv("BREAKERS_LOG_SYNCHRONOUS", "true")
    assert load_settings().synced
    monkeypatch.setenv("BREAKERS_DURABILITY", "power")
    with pytest.raises(Invalid, match="BREAKERS_DURABILITY and its earlier name BREAKERS_LOG_SYNCHRONOUS are both set"):
        load_settings()


@pytest.mark.parametrize("value", ["", "x" * 15])
def test_a_token_of_metrics_that_can_be_guessed(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused in one line that does not show it; from a file, too."""
    monkeypatch.setenv("BREAKERS_METRICS_TOKEN", value)
    with pytest.raises(Invalid, match=r"BREAKERS_METRICS_TOKEN: .* 16 characters") as caught:
        load_settings()
    assert not value or value not in str(caught.value)
    monkeypatch.delenv("BREAKERS_METRICS_TOKEN")
    (tmp_path / "token").write_text(f"{value}\n")
    monkeypatch.setenv("BREAKERS_METRICS_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(Invalid, match="BREAKERS_METRICS_TOKEN"):
        load_settings()
    (tmp_path / "token").write_text("x" * 16)
    assert load_settings().metrics_token == "x" * 16


@pytest.mark.parametrize("name", ["BREAKERS_HEALTH_TOKEN", "BREAKERS_METRICS_TOKEN"])
@pytest.mark.parametrize("value", ["a-token-of-some-length\n", " a-token-of-some-length", "a-token-of-l\u00e4ngth"])
def test_a_token_that_no_header_can_have(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client that fails to send it would show it whole."""
    monkeypatch.setenv(name, value)
    with pytest.raises(Invalid, match=f"{name}: .*line end") as caught:
        load_settings()
    assert "a-token" not in str(caught.value)


def test_a_time_says_in_which_unit_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREAKERS_LOG_RETENTION_MS", "24h")
    monkeypatch.setenv("BREAKERS_HISTORY_RETENTION_DAYS", "x")
    monkeypatch.setenv("BREAKERS_PORT", "http")
    with pytest.raises(Invalid) as caught:
        load_settings()
    told = dict(part.split(": ", 1) for part in str(caught.value).split("; "))
    assert told["BREAKERS_LOG_RETENTION_MS"].endswith(": it is a number of milliseconds")
    assert told["BREAKERS_HISTORY_RETENTION_DAYS"].endswith(": it is a number of days")
    assert "it is a number" not in told["BREAKERS_PORT"]
