"""Every command that takes --data-dir, beside a directory that another user made or has changed: one line, and nothing
is touched."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli.main import app
from tests.support.commands import commands_with

NOBODY = 65534
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")
ENDS_WITH_1 = ("plan", "apply", "adopt", "drift", "rules")
"""Commands on files of rules end with 2 where something would change."""


COMMANDS = list(commands_with("--data-dir"))


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """All there is about each file, but when it was read."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (folder, *folder.rglob("*")):
        s = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path)] = (s.st_mode, s.st_uid, s.st_ino, s.st_nlink, s.st_size, s.st_mtime_ns, content)
    return found


def database(path: Path) -> Path:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    return path


def foreign(data_dir: Path, victim: Path) -> str:
    for path in (data_dir, *data_dir.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    return f"uid {NOBODY}"


def foreign_file(data_dir: Path, victim: Path) -> str:
    os.chown(data_dir / "credentials.json", NOBODY, NOBODY)
    return f"credentials.json .*uid {NOBODY}"


def writable(data_dir: Path, victim: Path) -> str:
    data_dir.chmod(0o777)
    return "open to other users"


def replaceable(data_dir: Path, victim: Path) -> str:
    data_dir.parent.chmod(0o777)
    return "can be replaced by others"


def no_folder(data_dir: Path, victim: Path) -> str:
    data_dir.rename(data_dir.with_name("moved"))
    data_dir.touch()
    return "or no folder"


def foreign_link(data_dir: Path, victim: Path) -> str:
    data_dir.symlink_to(data_dir.rename(data_dir.with_name("moved")))
    os.chown(data_dir, NOBODY, NOBODY, follow_symlinks=False)
    return "symbolic link of another user"


def foreign_link_above(data_dir: Path, victim: Path) -> str:
    place = data_dir.parent
    place.symlink_to(place.rename(place.with_name("moved")))
    os.chown(place, NOBODY, NOBODY, follow_symlinks=False)
    return "symbolic link of another user"


def link_in_a_foreign_folder(data_dir: Path, victim: Path) -> str:
    place = data_dir.parent
    moved = place.rename(place.with_name("moved"))
    place.mkdir()
    data_dir.symlink_to(moved / "data")
    os.chown(place, NOBODY, NOBODY)
    return "can be replaced by others"


def planted(name: str, how: Callable[[Path, Path], object]) -> Callable[[Path, Path], str]:
    def plant(data_dir: Path, victim: Path) -> str:
        (data_dir / name).unlink(missing_ok=True)
        how(data_dir / name, victim)
        return name

    return plant


def link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def dangling(path: Path, victim: Path) -> None:
    path.symlink_to(victim.with_name("nothing"))


def hard_link(path: Path, victim: Path) -> None:
    path.hardlink_to(victim)


def pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path, 0o600)


CASES = [
    *(pytest.param(case, id=case.__name__, marks=ROOT_ONLY) for case in (foreign, foreign_file)),
    *(
        pytest.param(case, id=case.__name__, marks=ROOT_ONLY)
        for case in (foreign_link, foreign_link_above, link_in_a_foreign_folder)
    ),
    *(pytest.param(case, id=case.__name__) for case in (writable, replaceable, no_folder)),
    *(
        pytest.param(planted(name, how), id=f"{name}: {how.__name__}")
        for name, how in (
            ("breakers.sqlite", link),
            ("breakers.sqlite", hard_link),
            ("breakers.sqlite", pipe),
            ("breakers.sqlite-wal", link),
            ("credentials.json", pipe),
            ("credentials.json", link),
            ("secret.key", dangling),
            ("secret.key", pipe),
            ("lock", pipe),
            ("service.lock", pipe),
            ("log", link),
            ("history", link),
            ("ray.token", pipe),
        )
    ),
]


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def refused(command: tuple[str, ...], data_dir: Path, why: str) -> None:
    result = CliRunner().invoke(app, [*command, "--data-dir", str(data_dir)])
    assert isinstance(result.exception, SystemExit), (command, result.exception)
    assert result.exit_code == (1 if command[0] in ENDS_WITH_1 else 2), (command, result.output)
    (line,) = result.stderr.splitlines()
    with pytest.raises(ValueError, match=why):
        raise ValueError(line)
    assert result.stdout in ("", "false\n"), command


def test_the_walk_is_of_all_commands() -> None:
    """A look at the table itself: of each group and kind there is one."""
    names = {" ".join(command) for command in COMMANDS}
    assert {"serve", "deploy", "status", "rebalance", "node-env", "db upgrade", "keys create"} <= names
    assert len(COMMANDS) >= 18


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("case", CASES)
def test_a_directory_of_others_is_refused_by_every_command(tmp_path: Path, case: Callable[[Path, Path], str]) -> None:
    data_dir, victim = tmp_path / "place" / "data", database(tmp_path / "victim.sqlite")
    data_dir.mkdir(mode=0o700, parents=True)
    database(data_dir / "breakers.sqlite")
    for name in ("credentials.json", "lock"):
        (data_dir / name).touch(mode=0o600)
    why = case(data_dir, victim)
    before = snapshot(tmp_path)
    for command in COMMANDS:
        refused(command, data_dir, why)
        assert snapshot(tmp_path) == before, command


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("name", ["log/router-0.sqlite", "history/rows.parquet"])
def test_what_reads_logs_and_history_looks_at_each_file(tmp_path: Path, name: str) -> None:
    data_dir, victim = tmp_path / "data", database(tmp_path / "victim.sqlite")
    (data_dir / name).parent.mkdir(mode=0o700, parents=True)
    (data_dir / name).symlink_to(victim)
    before = snapshot(tmp_path)
    readers = [command for command in COMMANDS if command[0] in ("backtest", "backfill", "export")]
    assert len(readers) == 3
    for command in readers:
        refused(command, data_dir, name)
    assert snapshot(tmp_path) == before


@pytest.mark.usefixtures("umask")
def test_ones_own_directory_that_others_may_read_stays_as_it_is(tmp_path: Path) -> None:
    """A command beside a service changes no mode; that is for a start of the service."""
    tmp_path.chmod(0o755)
    (tmp_path / "ray.token").touch(mode=0o644)
    result = CliRunner().invoke(app, ["keys", "list", "--data-dir", str(tmp_path)])
    assert "there is no data" in result.stderr
    assert [path.stat().st_mode & 0o777 for path in (tmp_path, tmp_path / "ray.token")] == [0o755, 0o644]
