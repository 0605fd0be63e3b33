"""A deployment refuses another database than that of the service which runs, before it makes anything."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from api.launch import cluster, deployed
from breaker_actors import persistence
from breaker_actors.errors import Invalid
from breaker_actors.persistence import DATABASE, store_url
from breaker_actors.settings import Settings
from breaker_actors.store import migrations

RUNS = deployed.Note("1111", "PostgreSQL shop on db:5432")
PASSWORD = "hunter2"


class ControlService:
    """What Ray keeps for a cluster, in a dict."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], bytes] = {}

    def put(self, key: str, value: bytes, overwrite: bool, namespace: str) -> None:
        assert overwrite
        self.kept[namespace, key] = value

    def get(self, key: str, namespace: str) -> bytes | None:
        return self.kept.get((namespace, key))

    def delete(self, key: str, namespace: str) -> None:
        self.kept.pop((namespace, key), None)


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> ControlService:
    from ray.experimental import internal_kv

    found = ControlService()
    for name, call in (("put", found.put), ("get", found.get), ("del", found.delete)):
        monkeypatch.setattr(internal_kv, f"_internal_kv_{name}", call)
    return found


def made(tmp_path: Path, name: str) -> Settings:
    settings = Settings(data_dir=tmp_path / name)
    migrations.upgrade(store_url(settings))
    return settings


@pytest.mark.parametrize(("database_id", "replaces"), [("1111", None), ("2222", "1111"), (None, "1111")])
def test_the_same_database_or_one_that_is_named_as_left(database_id: str | None, replaces: str | None) -> None:
    deployed.judge(RUNS, database_id, "SQLite in /data", replaces)


@pytest.mark.parametrize(
    ("database_id", "replaces", "words"),
    [(None, None, "(which is empty)"), ("2222", None, "(database 2222)"), ("2222", "2222", "(database 2222)")],
)
def test_another_database_is_refused_by_name(database_id: str | None, replaces: str | None, words: str) -> None:
    with pytest.raises(Invalid) as caught:
        deployed.judge(RUNS, database_id, "SQLite in /data", replaces)
    for part in (RUNS.place, "SQLite in /data", words, "--replace-database 1111", "BREAKERS_DATABASE_URL"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_database_is_known_wherever_it_lies(tmp_path: Path, control: ControlService) -> None:
    """A copy is the same one, another one is not, and one that is not there is made by nobody who asks."""
    one, two, none = made(tmp_path, "one"), made(tmp_path, "two"), Settings(data_dir=tmp_path / "none")
    copy = Settings(data_dir=tmp_path / "copy")
    copy.data_dir.mkdir()
    places = (one.data_dir / DATABASE, copy.data_dir / DATABASE)
    with closing(sqlite3.connect(places[0])) as source, closing(sqlite3.connect(places[1])) as target:
        source.backup(target)
    for settings in (one, two, none):
        deployed.check(settings, None)
    deployed.note(one)
    deployed.check(one, None)
    deployed.check(copy, None)
    for settings in (two, none):
        with pytest.raises(Invalid, match="would replace it"):
            deployed.check(settings, None)
        deployed.check(settings, persistence.database_id(one))
    assert not none.data_dir.exists()
    deployed.forget()
    deployed.check(two, None)


def test_on_postgresql_no_password_is_shown_or_kept(empty_postgres_url: str, tmp_path: Path, control: Any) -> None:
    url = SecretStr(f"postgresql://someone:{PASSWORD}@db.example:5433/shop")
    assert (
        persistence.place_of_store(Settings(data_dir=tmp_path, database_url=url))
        == "PostgreSQL shop on db.example:5433"
    )
    settings = Settings(data_dir=tmp_path, database_url=SecretStr(empty_postgres_url))
    assert persistence.database_id(settings) is None
    migrations.upgrade(empty_postgres_url)
    deployed.note(settings)
    deployed.check(settings, None)
    with pytest.raises(Invalid, match="works with PostgreSQL"):
        deployed.check(Settings(data_dir=tmp_path), None)
    assert b"postgresql://" not in b"".join(control.kept.values())


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_the_builder_for_serve_asks_first(
    tmp_path: Path, control: ControlService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for KubeRay: nothing is made or started for a database that is refused."""
    deployed.note(made(tmp_path, "one"))
    monkeypatch.setenv("BREAKERS_DATA_DIR", str(tmp_path / "empty"))
    with pytest.raises(Invalid, match="--replace-database"):
        cluster.app({"replicas_min": "1"})
    assert not (tmp_path / "empty").exists()
