"""A data directory whose service is deployed: its actors hold it together, everybody else is told who has it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli.main import app
from api.launch.ray_environment import take_data_dir
from breaker_actors.errors import Invalid, Unavailable
from breaker_actors.persistence import make_box, store_url
from breaker_actors.ray_runtime.presence import hold_data_dir
from breaker_actors.settings import Settings
from breaker_actors.store import holders, migrations
from breaker_actors.store.holders import Service

DEPLOYED = Service("session_1", "127.0.0.1:6379")
STOP = "breakers deploy --remove --address 127.0.0.1:6379"
ACTOR = """
import sys
from pathlib import Path
from breaker_actors.store.holders import Service, hold
held = hold(Path(sys.argv[1]), Service(sys.argv[2], sys.argv[3]))
print("held", flush=True)
sys.stdin.read()
"""

Start = Callable[[Service], subprocess.Popen[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def actor(folder: Path) -> Iterator[Start]:
    """Starts the process of an actor that holds the directory."""
    started = list[subprocess.Popen[str]]()

    def start(service: Service) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", ACTOR, str(folder), *service]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "GONE_S", 0.1)


def refused(*command: str) -> str:
    done = CliRunner().invoke(app, list(command))
    assert done.exit_code == 2, done.output
    return done.stderr.splitlines()[-1]


@pytest.mark.usefixtures("soon")
def test_actors_hold_it_together_and_nobody_else_has_it_meanwhile(folder: Path, actor: Start) -> None:
    """Until the last of them has ended, killed or not; a deployment to their own cluster goes on."""
    first, second = actor(DEPLOYED), actor(DEPLOYED)
    for ended in (first, second):
        with pytest.raises(Invalid, match=STOP):
            holders.check(folder)
        with pytest.raises(Invalid, match=STOP):
            take_data_dir(folder)
        with pytest.raises(Invalid, match=STOP):
            holders.check(folder, "session_2")
        holders.check(folder, DEPLOYED.session)
        take_data_dir(folder, deploys=True).close()
        ended.kill()
        ended.wait()
    holders.check(folder)
    take_data_dir(folder).close()


def test_what_is_about_to_end_is_waited_for(folder: Path, actor: Start) -> None:
    threading.Timer(0.3, actor(DEPLOYED).kill).start()
    take_data_dir(folder).close()


@pytest.mark.usefixtures("soon")
def test_an_actor_waits_for_who_has_it_alone(folder: Path) -> None:
    taken = take_data_dir(folder)
    with pytest.raises(Unavailable):
        holders.hold(folder, DEPLOYED)
    with pytest.raises(Invalid, match="by a command or service"):
        holders.check(folder)
    taken.close()
    holders.hold(folder, DEPLOYED).close()


@pytest.mark.usefixtures("soon")
def test_the_service_that_holds_it_is_named_not_the_one_before(folder: Path) -> None:
    holders.hold(folder, Service("a_session_of_before", "some-other-machine.example:16379")).close()
    with holders.hold(folder, DEPLOYED), pytest.raises(Invalid, match=STOP):
        holders.check(folder, "a_session_of_before")
    assert (folder / holders.FILE).read_text() == "session_1 127.0.0.1:6379\n"


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\n", b"one two three\n", b"a \x1b[2J\n", b"x" * 5_000])
def test_a_damaged_file_locks_all_the_same(folder: Path, content: bytes) -> None:
    with holders.hold(folder, DEPLOYED):
        (folder / holders.FILE).write_bytes(content)
        with pytest.raises(Invalid, match=r"in use by the service on the Ray cluster at \?"):
            holders.check(folder)


def test_to_look_makes_nothing(folder: Path, tmp_path: Path) -> None:
    holders.check(folder)
    holders.check(tmp_path / "nowhere")
    assert list(folder.iterdir()) == []


def test_who_holds_it_of_the_processes_of_a_service(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a database elsewhere nobody, below `serve` that itself; where it can't be held an actor goes on."""
    settings = Settings(data_dir=folder)
    elsewhere = settings.model_copy(update={"database_url": "postgresql://127.0.0.1/none"})
    assert hold_data_dir(elsewhere, *DEPLOYED) is None
    monkeypatch.setenv(holders.HELD, str(folder))
    assert hold_data_dir(settings, *DEPLOYED) is None
    assert list(folder.iterdir()) == []
    monkeypatch.setenv(holders.HELD, str(folder / "another"))
    held = hold_data_dir(settings, *DEPLOYED)
    assert held is not None
    held.close()
    (folder / holders.FILE).unlink()
    (folder / holders.FILE).symlink_to(folder / "elsewhere")
    assert hold_data_dir(settings, *DEPLOYED) is None
    assert not (folder / "elsewhere").exists()


def test_on_a_full_disk_an_actor_comes_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes nothing when the file says the same already."""
    holders.hold(folder, DEPLOYED).close()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(os, "ftruncate", full)
    holders.hold(folder, DEPLOYED).close()


@pytest.mark.usefixtures("soon")
def test_commands_on_the_directory_are_refused_in_words(
    folder: Path, actor: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BREAKERS_DATABASE_URL", raising=False)
    make_box(Settings(data_dir=folder))
    migrations.upgrade(store_url(Settings(data_dir=folder)))
    process = actor(DEPLOYED)
    place = ("--data-dir", str(folder))
    for command in (("serve", "--port", "0"), ("recover", "--all"), ("db", "upgrade"), ("channels", "disable-all")):
        line = refused(*command, *place)
        assert f"{folder} is in use" in line, command
        assert f"{STOP} --data-dir {folder}" in line, command
        assert line.endswith("or say --yes") == (command[0] in ("db", "channels"))
    upgraded = CliRunner().invoke(app, ["db", "upgrade", "--yes", *place])
    assert upgraded.exit_code == 0, upgraded.output
    process.kill()
    process.wait()
    for command in (("recover", "--all"), ("db", "upgrade"), ("channels", "disable-all")):
        done = CliRunner().invoke(app, [*command, *place])
        assert done.exit_code == 0, done.output
