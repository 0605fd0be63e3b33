"""Two services on one PostgreSQL database: the second is told of the first, as long as that shows a sign of life."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from pydantic import SecretStr
from sqlalchemy import make_url

from api.launch import neighbours
from breaker_actors.errors import Invalid
from breaker_actors.settings import Settings
from breaker_actors.sql import postgres, presence
from breaker_actors.sql.presence import NAME, Alive, Presence, look, others, sessions, token_of
from tests.support.live import wait_for

BEAT_S = 0.05
LOOK_S = 1.0


@contextmanager
def service(url: str, token: str, beat_s: float = BEAT_S) -> Iterator[Presence]:
    shown = Presence(url, token, beat_s)
    before = len(look(url))
    shown.start()
    wait_for(lambda: len(look(url)) > before)
    yield shown
    shown.stop()


def settings_of(url: str, folder: Path) -> Settings:
    return Settings(data_dir=folder, database_url=SecretStr(url))


def test_who_is_alive_is_named(postgres_url: str, tmp_path: Path) -> None:
    with service(postgres_url, "first"):
        (found,) = others(postgres_url, "second", time.sleep, LOOK_S)
        assert (found.token, found.pid, found.host) == ("first", str(os.getpid()), presence.host_name())
        settings = settings_of(postgres_url, tmp_path)
        with pytest.raises(Invalid) as caught:
            neighbours.refuse(settings, "second", take_over=False)
        said = str(caught.value)
        assert f"pid {os.getpid()} on {presence.host_name()}" in said
        assert ", since 20" in said
        assert "--take-over" in said
        assert "\n" not in said
        neighbours.refuse(settings, "second", take_over=True)


def test_ones_own_service_is_no_other(postgres_url: str, tmp_path: Path) -> None:
    """A deployment over a running one, and a start while the last one's processes end."""
    with service(postgres_url, "first"):
        neighbours.refuse(settings_of(postgres_url, tmp_path), "first", take_over=False)


def test_after_its_end_nothing_is_waited_for(postgres_url: str) -> None:
    with service(postgres_url, "first"):
        pass
    wait_for(lambda: look(postgres_url) == [])
    assert others(postgres_url, "second", never) == []


def never(_: float) -> None:
    raise AssertionError("it waits")


def test_a_session_that_does_not_go_on_is_of_a_machine_that_is_gone(postgres_url: str) -> None:
    with service(postgres_url, "first", beat_s=600.0):
        assert others(postgres_url, "second", time.sleep, LOOK_S) == []


def test_the_server_ends_a_session_that_does_not_go_on(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "GONE_MS", 200)
    with service(postgres_url, "first", beat_s=600.0):
        wait_for(lambda: look(postgres_url) == [])


def test_it_comes_back_when_the_session_was_cut(postgres_url: str) -> None:
    with service(postgres_url, "first"):
        (one,) = look(postgres_url)
        with postgres.connect(postgres.parameters(postgres_url), autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", [one.session])
        wait_for(lambda: [found.session for found in look(postgres_url)] not in ([], [one.session]))
        assert others(postgres_url, "second", time.sleep, LOOK_S)


def test_names_that_nobody_of_ours_wrote() -> None:
    assert sessions([(1, f"{NAME} x", "r", None, None, None)]) == [Alive(1, "x", "?", "?", "r", None, None, None)]


def test_a_session_of_another_role_counts_while_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not show when it beat last."""
    hidden = Alive(1, "first", "7", "host", "app", None, None, None)
    monkeypatch.setattr(presence, "look", lambda url: [hidden])
    assert others("", "second", lambda s: None) == [hidden]
    assert neighbours.described(hidden) == "pid 7 on host, as app"


@pytest.fixture
def role(postgres_url: str) -> Iterator[str]:
    """A plain role that may connect, and no more."""
    name = f"r_{uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'".encode())
        yield name
        owner.execute(f"DROP OWNED BY {name}".encode())
        owner.execute(f"DROP ROLE {name}".encode())


def url_of(url: str, role: str) -> str:
    return make_url(url).set(username=role, password="x").render_as_string(hide_password=False)


@pytest.mark.parametrize("may_write", [False, True])
def test_a_session_of_a_role_that_may_not_write_does_not_count(postgres_url: str, role: str, may_write: bool) -> None:
    """A service that runs as a plain role does not see how such a session goes on: whoever may connect could keep it
    from starting."""
    ours = f"r_{uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {ours} LOGIN PASSWORD 'x'".encode())
        if may_write:
            owner.execute(f"GRANT UPDATE ON {presence.TABLE} TO {role}".encode())
        try:
            with psycopg.connect(url_of(postgres_url, role), application_name=f"{NAME} deadbeef 1 nowhere"):
                found = others(url_of(postgres_url, ours), "mine", lambda s: None)
                assert [(one.token, one.role) for one in found] == ([("deadbeef", role)] if may_write else [])
                if found:
                    assert f"as {role}" in neighbours.described(found[0])
        finally:
            owner.execute(f"DROP ROLE {ours}".encode())


def test_a_database_that_does_not_answer_is_for_others_to_tell(tmp_path: Path) -> None:
    settings = settings_of("postgresql://nobody@127.0.0.1:1/none", tmp_path)
    assert neighbours.found(settings, "first") is None
    assert neighbours.found(Settings(data_dir=tmp_path), "first") is None


def test_tokens() -> None:
    """A data directory of a machine has one; names of hosts can't make a name of two words."""
    at: Callable[[str], str] = lambda path: neighbours.token_of_data_dir(Path(path))  # noqa: E731
    assert at("/a") == at("/a") != at("/b")
    assert len(token_of("x")) == 8


@pytest.mark.parametrize(("host", "told"), [("a b", "a?b"), ("h\u00e9", "h?"), ("", "?")])
def test_a_hosts_name_is_one_word(host: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "_host", lambda: host)
    assert presence.host_name() == told
