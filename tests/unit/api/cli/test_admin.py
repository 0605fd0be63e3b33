"""`breakers keys|orgs|projects`: on the store of a data directory, with one-line errors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from api.cli.main import app
from api.launch.bootstrap import FILE_NAME, Credentials, write
from breaker_actors.persistence import DATABASE, make_store
from breaker_actors.settings import Settings
from breaker_actors.store.rows import KeyRow


def breakers(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["--no-headers", *arguments, "--data-dir", str(folder)])


def lines(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.output
    return [line.split("\t") for line in result.stdout.splitlines()]


def refused(result: Result, words: str) -> None:
    assert result.exit_code == 2
    assert words in result.stderr
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)


def find(folder: Path, key: str) -> KeyRow | None:
    async def look() -> KeyRow | None:
        store = make_store(Settings(data_dir=folder))
        await store.open()
        try:
            return await store.find_key(key)
        finally:
            await store.close()

    return asyncio.run(look())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data directory with one organisation and one project."""

    async def make() -> None:
        store = make_store(Settings(data_dir=tmp_path))
        await store.open()
        org = await store.create_org("first", 1)
        workspace = await store.create_workspace(org, "w", "w", 1)
        await store.create_project(org, workspace.id, "shop", 1)
        await store.close()

    asyncio.run(make())
    return tmp_path


@pytest.mark.parametrize(
    "command", [["keys", "list"], ["keys", "create"], ["orgs", "create", "x"], ["projects", "list"]]
)
def test_a_directory_without_data_is_refused(tmp_path: Path, command: list[str]) -> None:
    """Nothing is made there: the first start makes the first organisation."""
    refused(breakers(tmp_path, *command), "there is no data in")
    assert list(tmp_path.iterdir()) == []


def test_a_database_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    """Nothing is made of it: a command that lists would say that there are no keys."""
    path = tmp_path / DATABASE
    path.touch()
    refused(breakers(tmp_path, "keys", "list"), f"{path} is empty; put a backup in its place")
    assert path.stat().st_size == 0


def test_a_key_is_made_listed_and_revoked(folder: Path) -> None:
    made = breakers(folder, "keys", "create", "--kind", "admin", "--name", "ops")
    ((key,),) = lines(made)
    row = find(folder, key)
    assert row is not None
    assert made.stderr.startswith(f"key {row.id}: it can't be shown again")
    assert (row.kind, row.name) == ("admin", "ops")
    assert lines(breakers(folder, "keys", "list")) == [[row.id, "admin", row.key_prefix, "-", "ops", "never"]]
    assert lines(breakers(folder, "keys", "revoke", row.id[:8])) == [[f"revoked {row.id}"]]
    assert find(folder, key) is None
    refused(breakers(folder, "keys", "revoke", row.id), f"there is no key {row.id}")


def test_a_project_key_names_its_project(folder: Path) -> None:
    ((project_id, _, name),) = lines(breakers(folder, "projects", "list"))
    assert name == "shop"
    ((key,),) = lines(breakers(folder, "keys", "create", "--kind", "project", "--project", project_id))
    row = find(folder, key)
    assert row is not None
    assert row.project_id == project_id
    refused(breakers(folder, "keys", "create", "--kind", "project"), "name the project with --project")
    known = dict.fromkeys(("admin_key", "user_key", "workspace_id", "project_key", "ingest_secret"), "")
    write(folder / FILE_NAME, Credentials(base_url="http://a", project_id=project_id, **known))
    ((own,),) = lines(breakers(folder, "keys", "create", "--kind", "ingest"))
    row = find(folder, own)
    assert row is not None
    assert row.project_id == project_id, "that of credentials.json, as elsewhere"
    ((token,),) = lines(breakers(folder, "keys", "create", "--kind", "ingest", "--project", "shop"))
    row = find(folder, token)
    assert row is not None
    assert (row.kind, row.project_id, row.key_prefix) == ("ingest", project_id, token[:14])
    ((reader,),) = lines(breakers(folder, "keys", "create", "--kind", "reader", "--project", "shop"))
    row = find(folder, reader)
    assert row is not None
    assert (row.kind, row.project_id, row.key_prefix) == ("reader", project_id, reader[:12])
    refused(breakers(folder, "keys", "create", "--project", project_id), "--project goes with")


def test_of_several_organisations_one_is_named(folder: Path) -> None:
    ((second,),) = lines(breakers(folder, "orgs", "create", "second"))
    assert [row[1] for row in lines(breakers(folder, "orgs", "list"))] == ["first", "second"]
    refused(breakers(folder, "keys", "create"), "--org")
    refused(breakers(folder, "keys", "create", "--org", "nobody"), "there is no organisation nobody")
    ((key,),) = lines(breakers(folder, "keys", "create", "--org", second))
    row = find(folder, key)
    assert row is not None
    assert row.org_id == second
    assert lines(breakers(folder, "projects", "list", "--org", second)) == []


def test_a_project_key_is_for_the_project_of_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other kinds of keys pass it by."""
    monkeypatch.setenv("BREAKERS_PROJECT", "shop")
    ((id_, _, _),) = lines(breakers(folder, "projects", "list"))
    ((key,),) = lines(breakers(folder, "keys", "create", "--kind", "project"))
    row = find(folder, key)
    assert row is not None
    assert row.project_id == id_
    assert breakers(folder, "keys", "create", "--kind", "user").exit_code == 0


def test_a_folder_with_keys_alone_is_no_place_to_start_a_service(tmp_path: Path) -> None:
    """Who has a copy of credentials.json works from elsewhere."""
    tmp_path.chmod(0o700)
    known = dict.fromkeys(("admin_key", "user_key", "workspace_id", "project_key", "ingest_secret", "project_id"), "p")
    write(tmp_path / FILE_NAME, Credentials(base_url="http://a.example", **known))
    result = breakers(tmp_path, "deliveries", "list")
    refused(result, "has the keys to http://a.example, not its data")
    assert "serve" not in result.stderr
