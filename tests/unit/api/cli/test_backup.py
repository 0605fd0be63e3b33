"""`breakers backup`: where it writes, what it copies, and what it leaves when it can't."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from breaker_actors.persistence import DATABASE
from tests.support.commands import command
from tests.support.fresh import migrated
from tests.support.full_disk import full_disk

SECRET = "ab" * 32


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "data"
    (folder / "log").mkdir(parents=True)
    migrated(folder / DATABASE)
    for name in ("router-0", "router-1"):
        with closing(sqlite3.connect(folder / "log" / f"{name}.sqlite")) as connection:
            connection.execute("CREATE TABLE t (n)")
    (folder / "secret.key").write_bytes(bytes(range(224, 256)))
    (folder / "credentials.json").write_text('{"user_key": "k"}')
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    before = os.umask(0o022)
    yield folder
    os.umask(before)


@pytest.mark.parametrize("there", [False, True])
def test_all_of_a_data_directory_for_its_user_alone(data_dir: Path, there: bool) -> None:
    target = data_dir.parent / "copy"
    if there:
        target.mkdir(mode=0o755)
    done = command("backup", str(target), "--data-dir", str(data_dir))
    assert done.exit_code == 0, done.stderr
    assert re.fullmatch(rf"{target}: the database and 2 log files, 0\.\d MB\n", done.stdout)
    names = {str(path.relative_to(target)) for path in target.rglob("*")}
    assert names == {DATABASE, "secret.key", "credentials.json", "log", "log/router-0.sqlite", "log/router-1.sqlite"}
    for path in (target, *target.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    for name in ("secret.key", "credentials.json"):
        assert (target / name).read_bytes() == (data_dir / name).read_bytes()
    assert {path.name for path in data_dir.parent.iterdir()} == {"data", "copy"}
    looked = command("verify", "--data-dir", str(target))
    assert looked.exit_code == 0, looked.stdout + looked.stderr


def test_it_says_what_it_made_as_json(data_dir: Path) -> None:
    done = command("backup", str(data_dir.parent / "copy"), "--json", "--data-dir", str(data_dir))
    told = json.loads(done.stdout)
    assert (told["folder"], told["logs"]) == (str(data_dir.parent / "copy"), 2)
    assert told["size"] == sum(path.stat().st_size for path in (data_dir.parent / "copy").rglob("*.sqlite"))
    assert 0 <= told["held_ms"] < 5_000


def test_a_key_of_the_environment_is_not_in_it(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data_dir / "secret.key").unlink()
    monkeypatch.setenv("BREAKERS_SECRET_KEY", SECRET)
    done = command("backup", str(data_dir.parent / "copy"), "--data-dir", str(data_dir))
    assert (done.exit_code, "BREAKERS_SECRET_KEY, which is not in it" in done.stderr) == (0, True)
    assert not (data_dir.parent / "copy" / "secret.key").exists()


def test_it_writes_over_nothing(data_dir: Path) -> None:
    place = data_dir.parent
    (place / "full").mkdir()
    (place / "full" / "mine").touch()
    (place / "file").touch()
    (place / "link").symlink_to(place / "full")
    before = sorted(place.rglob("*"))
    for name in ("full", "file", "link", "data", "/proc"):
        done = command("backup", str(place / name), "--data-dir", str(data_dir))
        assert (done.exit_code, "is no empty folder" in done.stderr) == (2, True), name
    done = command("backup", str(place / "none" / "copy"), "--data-dir", str(data_dir))
    assert (done.exit_code, "there is no directory" in done.stderr) == (2, True)
    place.chmod(0o777)
    done = command("backup", str(place / "copy"), "--data-dir", str(data_dir))
    assert (done.exit_code, "can be replaced by others" in done.stderr) == (2, True)
    assert sorted(place.rglob("*")) == before


def test_there_is_none_of_nothing_nor_of_postgresql(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = command("backup", str(data_dir.parent / "copy"), "--data-dir", str(data_dir.parent / "other"))
    assert (done.exit_code, "there is no data in" in done.stderr) == (2, True)
    monkeypatch.setenv("BREAKERS_DATABASE_URL", "postgresql://u@127.0.0.1:1/none")
    done = command("backup", str(data_dir.parent / "copy"), "--data-dir", str(data_dir))
    assert (done.exit_code, "pg_dump" in done.stderr) == (2, True)


def test_what_fails_leaves_nothing(data_dir: Path) -> None:
    place = data_dir.parent
    (place / "copy").mkdir()
    with full_disk(64 << 10):
        done = command("backup", str(place / "copy"), "--data-dir", str(data_dir))
    assert done.exit_code == 1, done.stderr
    assert re.fullmatch(r"breakers: .*/copy\.\w{8}\.part/breakers\.sqlite: .*\n", done.stderr)
    (data_dir / "log" / "router-2.sqlite").write_bytes(b"nothing of SQLite" * 500)
    (data_dir / "log" / "router-2.sqlite").chmod(0o600)
    done = command("backup", str(place / "copy"), "--data-dir", str(data_dir))
    assert (done.exit_code, "router-2.sqlite: file is not a database" in done.stderr) == (1, True)
    assert {path.name for path in place.iterdir()} == {"data", "copy"}
    assert list((place / "copy").iterdir()) == []
