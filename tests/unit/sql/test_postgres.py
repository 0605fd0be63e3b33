"""PostgreSQL's URLs, and that nothing of them shows in an error."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, make_url, text

from breaker_actors.errors import BreakersError, Invalid, TookTooLong, Unavailable
from breaker_actors.persistence import is_in_use, make_log, make_store
from breaker_actors.settings import Settings
from breaker_actors.sql import postgres
from breaker_actors.sql.database import Database
from breaker_actors.sql.durability import power_loss
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.sql_store import SqlStore
from breaker_actors.wal.postgres import PgLog
from tests.support.postgres import Postgres, Server

SECRET = "hushhush"


@pytest.mark.parametrize("scheme", postgres.SCHEMES)
def test_a_url_is_taken_apart(scheme: str) -> None:
    """Percent-encoding is undone, what the URL says of a connection wins over what we would say."""
    found = postgres.parameters(f"{scheme}me:p%40ss%2Fword@db.example:5433/shop?connect_timeout=7&sslmode=require")
    assert (found["user"], found["password"], found["host"]) == ("me", "p@ss/word", "db.example")
    assert (found["port"], found["dbname"], found["sslmode"]) == ("5433", "shop", "require")
    assert found["connect_timeout"] == "7"
    assert "-c statement_timeout=10000" in found["options"]


def test_options_of_the_url_come_last() -> None:
    """The server takes the last word on a setting; migrations wait for locks as long as it takes."""
    found = postgres.parameters("postgresql://h/x?options=-c%20lock_timeout%3D1s")
    assert found["options"].endswith(" -c lock_timeout=1s")
    assert "statement_timeout=0" in postgres.parameters("postgresql://h/x", patient=True)["options"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        SECRET,
        f"mysql://me:{SECRET}@h/x",
        f"sqlite:///{SECRET}",
        f"postgresql+asyncpg://me:{SECRET}@h/x",
        f"postgresql://me:{SECRET}%zz@h/x",
        f"postgresql://me:a@{SECRET}@h/x",
        f"postgresql://me:a/{SECRET}@h/x",
        f"postgresql://h:{SECRET}/x",
        f"postgresql://h/x?password={SECRET}&nonsense=1",
    ],
)
async def test_any_other_url_is_invalid_and_not_repeated(url: str, tmp_path: Path) -> None:
    """Also from those who open stores by the settings, before anything is connected."""
    settings = Settings(data_dir=tmp_path, database_url=url)  # type: ignore[arg-type]
    for attempt in (postgres.parameters, lambda _: make_store(settings), lambda _: make_log(settings)):
        with pytest.raises(Invalid, match="BREAKERS_DATABASE_URL") as caught:
            attempt(url)
        assert SECRET not in str(caught.value)
    with pytest.raises(Invalid):
        is_in_use(settings)
    assert SECRET not in repr(settings)


async def _errors(url: str) -> list[BreakersError]:
    """What each of our doors says of a database that can't be reached."""
    store, log = SqlStore(url, SecretBox(bytes(32))), PgLog(url)
    errors = []
    for attempt in (store.open, lambda: log.stock("r-0"), lambda: log.alive("r-0", "o", 1)):
        with pytest.raises(BreakersError) as caught:
            await attempt()
        errors.append(caught.value)
    await log.close()
    return errors


async def test_a_wrong_password_is_told_without_it(postgres_server: Server) -> None:
    if not isinstance(postgres_server, Postgres):
        pytest.skip("the existing server may know no passwords")
    for error in await _errors(postgres_server.url("postgres", password=SECRET)):
        assert isinstance(error, Unavailable)
        assert re.search('does not answer: .*password authentication failed for user "postgres"$', str(error))
        assert error.message.endswith("does not answer"), "answers tell no role"
        assert SECRET not in repr(error)
        assert error.__cause__ is None


async def test_an_unreachable_host_is_told_without_the_password() -> None:
    for error in await _errors(f"postgresql://me:{SECRET}@127.0.0.1:1/x"):
        assert isinstance(error, Unavailable)
        assert str(error).endswith('"127.0.0.1", port 1 failed: Connection refused')
        assert error.message.endswith("does not answer"), "answers tell no host"
        assert SECRET not in repr(error)


def test_an_error_text_is_one_line_without_values(postgres_url: str) -> None:
    """The server's details show rows and its context shows statements: neither is passed on."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for statement in ("SELECT hush, 1", "INSERT INTO orgs VALUES ('hush', NULL, 1)", "SELECT pg_sleep('hush')"):
            with pytest.raises(psycopg.Error) as caught:
                connection.execute(statement.encode())
            text = postgres.error_text(caught.value)
            assert "\n" not in text
            assert "INSERT" not in text
            assert "SELECT" not in text


async def test_a_driver_error_tells_no_values(postgres_url: str) -> None:
    """As on SQLite: the short text, not the statement nor what was to be written."""
    store = SqlStore(postgres_url, SecretBox(bytes(32)))
    await store.open()
    try:
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                " RAISE EXCEPTION SQLSTATE '53100' USING MESSAGE = 'no space left'; END $$"
            )
            admin.execute("CREATE TRIGGER full_disk BEFORE INSERT ON orgs EXECUTE FUNCTION refuse()")
        with pytest.raises(Unavailable) as caught:
            await store.create_org("very private name", 1)
        assert str(caught.value) == "the database takes no writes, its disk is full: no space left"
    finally:
        await store.close()


async def test_a_transaction_that_took_too_long_is_known_as_one(postgres_url: str) -> None:
    """The same again would take as long."""
    db = Database(make_url(postgres_url).update_query_dict({"options": LIMIT}).render_as_string(hide_password=False))
    db.open()

    def work(c: Connection) -> None:
        c.execute(text("CREATE TABLE left_behind (a int)"))
        time.sleep(0.5)
        c.execute(text("SELECT 1"))

    try:
        with pytest.raises(TookTooLong, match="idle-in-transaction timeout"):
            await db.write_rows(work)
        assert await db.read(lambda c: c.execute(text("SELECT to_regclass('left_behind')")).scalar()) is None
    finally:
        await db.close()


LIMIT = "-cidle_in_transaction_session_timeout=100"
SHORT = "-ctransaction_timeout=300"


def shown(url: str, patient: bool = False) -> str:
    """The limit of a whole transaction on a connection of ours."""
    with postgres.connect(postgres.parameters(url, patient), patient=patient) as connection:
        (found,) = connection.execute("SHOW transaction_timeout").fetchone() or ("",)
    return str(found)


def with_limit(url: str) -> str:
    return make_url(url).update_query_dict({"options": SHORT}).render_as_string(hide_password=False)


def test_a_whole_transaction_has_a_limit(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the server knows one, and nobody else has set it; migrations take as long as they take."""
    with psycopg.connect(postgres_url) as connection:
        if connection.info.server_version < postgres.KNOWS_TRANSACTIONS:
            pytest.skip("the server knows no limit of transactions")
    assert (shown(postgres_url), shown(with_limit(postgres_url))) == ("30s", "300ms")
    assert shown(postgres_url, patient=True) == "0"
    monkeypatch.setattr(postgres, "KNOWS_TRANSACTIONS", 1_000_000)
    assert shown(postgres_url) == "0"


async def test_a_transaction_of_many_statements_ends_too(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is short, and it never rests: what it holds is free for others all the same."""
    monkeypatch.setattr(postgres, "_BOUND", postgres._BOUND.replace(str(postgres.TRANSACTION_MS), "300"))
    with psycopg.connect(postgres_url) as connection:
        if connection.info.server_version < postgres.KNOWS_TRANSACTIONS:
            pytest.skip("the server knows no limit of transactions")
    db = Database(postgres_url)
    db.open()

    def work(c: Connection) -> None:
        c.execute(text("CREATE TABLE left_behind (a int)"))
        for _ in range(200):
            c.execute(text("SELECT pg_sleep(0.02)"))

    try:
        with pytest.raises(TookTooLong, match="transaction timeout"):
            await db.write(work)
        assert await db.write(lambda c: c.execute(text("SELECT to_regclass('left_behind')")).scalar()) is None
    finally:
        await db.close()


async def test_whether_the_server_keeps_what_it_answered(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        fsync = connection.execute("SHOW fsync").fetchone()
    store = SqlStore(postgres_url, SecretBox(bytes(32)))
    await store.open()
    try:
        assert await store.power_loss() == ("PostgreSQL runs with fsync=off" if fsync == ("off",) else "")
    finally:
        await store.close()


@pytest.mark.parametrize("level", ["on", "remote_apply", "remote_write", "local", "off"])
def test_a_server_that_answers_before_it_syncs(level: str) -> None:
    values = {"SHOW fsync": "on", "SHOW synchronous_commit": level}
    connection: Any = SimpleNamespace(
        dialect=SimpleNamespace(name="postgresql"),
        execute=lambda statement: SimpleNamespace(scalar_one=lambda: values[str(statement)]),
    )
    assert power_loss(connection) == ("PostgreSQL runs with synchronous_commit=off" if level == "off" else "")
