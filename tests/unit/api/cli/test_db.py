"""`breakers db`, and the other commands on PostgreSQL: where the store is, the settings say."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner, Result

from api.cli.main import app
from api.launch import bootstrap as credentials
from breaker_actors.clock import SystemClock
from breaker_actors.errors import Invalid, SchemaMismatch
from breaker_actors.persistence import is_in_use, make_store, resolved
from breaker_actors.settings import Settings, load_settings
from breaker_actors.store import migrations

BASE_URL = "http://127.0.0.1:7117"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_postgres_url: str) -> Path:
    """A data directory next to an empty PostgreSQL database."""
    monkeypatch.setenv("BREAKERS_DATABASE_URL", empty_postgres_url)
    return tmp_path / "data"


def breakers(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["--no-headers", *arguments, "--data-dir", str(folder)])


def output(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def status(folder: Path) -> dict[str, str | None]:
    found: dict[str, str | None] = json.loads(output(breakers(folder, "db", "status", "--json")))
    return found


def first_start(folder: Path) -> Settings:
    settings = load_settings(data_dir=folder)
    folder.mkdir(exist_ok=True)
    warned: list[str] = []
    credentials.prepare(settings, BASE_URL, SystemClock(), warned.append)
    assert [line for line in warned if "unsigned" not in line] == []
    return settings


def test_status_and_upgrade(folder: Path, empty_postgres_url: str) -> None:
    """From an empty database to the current schema, once."""
    known = migrations.HEAD
    assert status(folder) == {"database": "postgresql", "current": None, "known": known, "word": "empty"}
    assert output(breakers(folder, "db", "upgrade")) == f"upgraded to schema {known}\n"
    assert output(breakers(folder, "db", "upgrade")) == f"is up to date: schema {known}\n"
    assert status(folder)["word"] == "current"
    assert output(breakers(folder, "db", "status")).splitlines()[1] == f"current\t{known}"
    with psycopg.connect(empty_postgres_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    assert status(folder) == {"database": "postgresql", "current": "9999", "known": known, "word": "newer"}
    refused = breakers(folder, "db", "upgrade")
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)


def test_on_sqlite(tmp_path: Path) -> None:
    """A store that is not there is not made by asking for it."""
    assert breakers(tmp_path, "db", "upgrade").exit_code == 2
    assert breakers(tmp_path, "db", "status").exit_code == 2
    assert list(tmp_path.iterdir()) == []
    first_start(tmp_path)
    assert status(tmp_path) == {
        "database": "sqlite",
        "current": migrations.HEAD,
        "known": migrations.HEAD,
        "word": "current",
    }
    assert output(breakers(tmp_path, "db", "upgrade")).startswith("is up to date")


def test_commands_on_postgresql(folder: Path) -> None:
    """The first start makes the schema and the credentials; then keys, organisations and projects are managed."""
    assert "there is no data in the database" in breakers(folder, "keys", "list").stderr
    settings = first_start(folder)
    assert is_in_use(settings)
    known = credentials.read(folder / credentials.FILE_NAME)
    assert known is not None
    first_start(folder)
    key = output(breakers(folder, "keys", "create", "--name", "ci")).strip()
    rows = [line.split("\t") for line in output(breakers(folder, "keys", "list")).splitlines()]
    (key_id,) = [row[0] for row in rows if key.startswith(row[2]) and row[4] == "ci"]
    assert output(breakers(folder, "keys", "revoke", key_id)) == f"revoked {key_id}\n"
    assert len(output(breakers(folder, "orgs", "create", "other")).strip()) == 36
    assert known.project_id in output(breakers(folder, "projects", "list"))
    assert {path.name for path in folder.iterdir()} == {"credentials.json", "secret.key"}


def test_doctor_asks_the_server(folder: Path) -> None:
    """For its schema and its clock; and nothing is made in an empty database."""

    def found() -> dict[str, tuple[str, str]]:
        findings = json.loads(breakers(folder, "doctor", "--json").stdout)["findings"]
        return {finding["check"]: (finding["level"], finding["message"]) for finding in findings}

    for _ in range(2):
        empty = found()
        assert (empty["database"][0], "is empty" in empty["database"][1]) == ("ok", True)
        assert empty["database clock"][0] == "ok"
        assert "signed ingest" not in empty
    first_start(folder)
    assert found()["database"][1].endswith(f"answers, schema {migrations.HEAD}")
    assert found()["signed ingest"][0] == "warning"


def test_a_start_does_not_change_an_older_schema(folder: Path, empty_postgres_url: str) -> None:
    first_start(folder)
    with psycopg.connect(empty_postgres_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    with pytest.raises(SchemaMismatch, match="breakers db upgrade"):
        first_start(folder)
    refused = breakers(folder, "projects", "list")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)


async def test_settings_for_other_nodes_bring_the_key(folder: Path, tmp_path: Path) -> None:
    """Whoever gets them opens the same secrets without the data directory; with another key nobody does."""
    settings = load_settings(data_dir=folder)
    folder.mkdir()
    store = make_store(settings)
    await store.open()
    org = await store.create_org("acme", 1)
    workspace = await store.create_workspace(org, "w", "w", 1)
    project = await store.create_project(org, workspace.id, "shop", 1)
    await store.close()
    elsewhere = resolved(settings).model_copy(update={"data_dir": tmp_path / "elsewhere"})
    assert resolved(elsewhere) == elsewhere
    beside = make_store(elsewhere)
    await beside.open()
    assert await beside.get_project(project.id) == project
    await beside.close()
    assert not elsewhere.data_dir.exists()
    stranger = make_store(elsewhere.model_copy(update={"secret_key": None}))
    with pytest.raises(Invalid, match="sealing key is not the one"):
        await stranger.open()


@pytest.mark.parametrize("key", ["", "short", "g" * 64, "0" * 63])
def test_a_key_that_is_none_is_refused_without_it(tmp_path: Path, key: str) -> None:
    settings = Settings(data_dir=tmp_path, secret_key=key)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="64 hex digits") as caught:
        make_store(settings)
    assert not key or key not in str(caught.value)


def test_a_file_under_a_running_service_is_left_alone(tmp_path: Path) -> None:
    """The lock names its process; --yes goes on all the same."""
    folder = tmp_path / "data"
    first_start(folder)
    folder.chmod(0o700)
    (folder / "lock").write_text(f"{os.getpid()}\n")
    (folder / "lock").chmod(0o600)
    refused = breakers(folder, "db", "upgrade")
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1)
    assert f"(pid {os.getpid()})" in refused.stderr
    assert "is up to date" in output(breakers(folder, "db", "upgrade", "--yes"))
    (folder / "lock").unlink()
    assert "is up to date" in output(breakers(folder, "db", "upgrade"))
