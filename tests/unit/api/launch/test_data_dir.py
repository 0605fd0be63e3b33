"""The data directory and the service's folder: made for one user alone, refused where others may come in."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.launch import leftovers
from api.launch import private_files as private
from api.launch import ray_environment as environment
from api.launch import ray_token as raytoken
from api.launch.ray_environment import make_folder, take_data_dir
from breaker_actors.errors import Invalid
from breaker_actors.settings import Settings

NOBODY = 65534


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """As a shell has it; what is set here is gone afterwards."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_made_for_its_user_alone(tmp_path: Path) -> None:
    """And so is everything that the process makes from then on."""
    take_data_dir(tmp_path / "data").close()
    (tmp_path / "data" / "later").write_text("")
    assert mode(tmp_path / "data") == 0o700
    assert {path.name: mode(path) for path in (tmp_path / "data").iterdir()} == {
        name: 0o600 for name in ("lock", "service.lock", "later")
    }


@pytest.mark.parametrize("known", [None, "lock", "ray.token", "breakers.sqlite"])
def test_one_that_is_empty_or_known_is_closed_to_others(tmp_path: Path, known: str | None) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o755)
    if known is not None:
        (data_dir / known).write_text("")
    take_data_dir(data_dir).close()
    assert mode(data_dir) == 0o700


def refused(data_dir: Path, why: str) -> None:
    with pytest.raises(Invalid, match=why) as refusal:
        take_data_dir(data_dir)
    assert "\n" not in str(refusal.value)


def test_one_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    """Its mode is somebody's decision."""
    data_dir = tmp_path / "www"
    data_dir.mkdir(mode=0o755)
    (data_dir / "index.html").write_text("")
    refused(data_dir, "chmod 700")
    assert mode(data_dir) == 0o755


@pytest.mark.parametrize("bits", [0o777, 0o770, 0o1777])
def test_one_that_others_may_write_is_refused(tmp_path: Path, bits: int) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    data_dir.chmod(bits)
    refused(data_dir, "open to other users")


def test_one_that_others_may_replace_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(0o777)
    refused(place / "data", "can be replaced by others")
    place.chmod(0o1777)  # as /tmp
    take_data_dir(place / "data").close()


def test_one_behind_a_link_that_was_made_since_is_refused(tmp_path: Path) -> None:
    """Whose link it is does not count: settings have none."""
    data_dir = Settings(data_dir=tmp_path / "place" / "data").data_dir
    (tmp_path / "moved").mkdir()
    (tmp_path / "place").symlink_to(tmp_path / "moved")
    refused(data_dir, "leads through a symbolic link")
    with pytest.raises(Invalid, match="leads through a symbolic link"):
        environment.check_data_dir(data_dir)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of other users")
@pytest.mark.parametrize("which", ["data", "data/lock"])
def test_one_of_another_user_is_refused(tmp_path: Path, which: str) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    (data_dir / "lock").touch()
    os.chown(tmp_path / which, NOBODY, NOBODY)
    refused(data_dir, f"uid {NOBODY}")


@pytest.mark.parametrize("content", [b"\xff\xfe\0", b"1\n/tmp/brk-\0\n", b"1\nbrk-1\n", b"1\n/brk-1\nmore"])
def test_a_damaged_lock_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lock").write_bytes(content)
    refused(tmp_path, "`lock` of the data directory is damaged")


def test_a_damaged_lock_is_one_line_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"\xff\xfe\x00garbage")
    command = [sys.executable, "-m", "api.cli.main", "serve", "--port", "0", "--data-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "remove it" in done.stderr


def test_a_lock_that_is_in_use_names_the_service(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("4711\n/tmp/brk-x\n")
    descriptor = private.open_own(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    refused(tmp_path, r"in use by a service \(pid 4711\); stop it first")
    os.close(descriptor)


PLANTED = ("secret.key", "breakers.sqlite", "credentials.json", "ray.token", "log/router-0.sqlite", "history")


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("how", ["symbolic link", "hard link", "uid", "mode 666"])
def test_what_others_put_there_before_they_were_shut_out_is_refused(tmp_path: Path, name: str, how: str) -> None:
    """By name, and nothing of it is changed."""
    data_dir, victim = tmp_path / "data", tmp_path / "victim"
    (data_dir / "log").mkdir(parents=True, mode=0o700)
    data_dir.chmod(0o700)
    planted = data_dir / name
    victim.write_text("mine")
    match how:
        case "symbolic link":
            planted.symlink_to(victim)
        case "hard link":
            planted.hardlink_to(victim)
        case "mode 666":
            planted.touch()
            planted.chmod(0o666)
        case _:
            if os.geteuid() != 0:
                pytest.skip("only root can make files of other users")
            planted.touch()
            os.chown(planted, NOBODY, NOBODY)
    refused(data_dir, f"{name} .*{how}")
    assert (victim.read_text(), mode(victim)) == ("mine", 0o644)


def test_what_others_could_only_read_is_closed_to_them(tmp_path: Path) -> None:
    """As `cp` of a backup leaves it; other things in the folder are somebody's."""
    for name in ("secret.key", "notes", "log/router-0.sqlite"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "cert.pem").symlink_to("/etc/hostname")
    take_data_dir(tmp_path).close()
    modes = {name: mode(tmp_path / name) for name in ("secret.key", "notes", "log", "log/router-0.sqlite")}
    assert modes == {"secret.key": 0o600, "notes": 0o644, "log": 0o700, "log/router-0.sqlite": 0o600}


def test_a_folder_in_the_place_of_the_link_to_logs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    refused(tmp_path, "logs is not the link")
    (tmp_path / "logs").rmdir()
    (tmp_path / "logs").symlink_to("/nowhere")
    take_data_dir(tmp_path).close()


@pytest.fixture
def services_make_folders_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


class Killed:
    """What a service leaves that was killed: the lock, and a folder with a process of its own and a log."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder, self.data_dir = tmp_path / "brk-1", tmp_path / "data"
        logs = self.folder / environment.RAY_LOGS
        logs.mkdir(parents=True)
        (logs / "worker.err").write_text("last words")
        self.folder.chmod(0o700)
        with contextlib.closing(take_data_dir(self.data_dir)) as taken:
            leftovers.note(taken.lock, self.folder)
        marked = {**os.environ, environment.FOLDER_VARIABLE: str(self.folder)}
        self.agent = subprocess.Popen(["sleep", "60"], env=marked)

    def ended(self) -> bool:
        """Whether all of it is gone."""
        return not self.folder.exists() and self.agent.wait(10) != 0

    def whole(self) -> bool:
        """Whether nothing was touched."""
        return (self.folder / environment.RAY_LOGS / "worker.err").exists() and self.agent.poll() is None


@pytest.fixture
def killed(tmp_path: Path, services_make_folders_here: None) -> Iterator[Killed]:
    found = Killed(tmp_path)
    yield found
    found.agent.kill()
    found.agent.wait()


def test_what_a_killed_service_left_is_removed_and_its_logs_kept(killed: Killed) -> None:
    take_data_dir(killed.data_dir).close()
    assert killed.ended()
    assert (killed.data_dir / "logs-last" / "worker.err").read_text() == "last words"


def test_a_copied_data_directory_ends_nothing_of_the_service_it_was_copied_from(killed: Killed) -> None:
    copy = killed.data_dir.with_name("copy")
    subprocess.run(["cp", "-a", str(killed.data_dir), str(copy)], check=True)
    take_data_dir(copy).close()
    assert killed.whole()
    assert not (copy / "logs-last").exists()


@pytest.mark.parametrize("bond", [None, "1:1 0\n"])
def test_a_lock_that_names_another_folder_removes_nothing(killed: Killed, bond: str | None) -> None:
    """A backup that somebody else made up; the folder of the same name is somebody's."""
    if bond is None:
        (killed.folder / leftovers.OWNER_FILE).unlink()
    else:
        (killed.folder / leftovers.OWNER_FILE).write_text(bond)
    for lock in (f"1\n{killed.folder}\n", f"1\n{killed.folder}\n{'0' * 32}\n"):
        (killed.data_dir / "lock").write_text(lock)
        take_data_dir(killed.data_dir).close()
        assert killed.whole()


def test_a_folder_elsewhere_through_a_link_or_open_to_others_is_left_alone(
    killed: Killed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killed.folder.chmod(0o777)
    take_data_dir(killed.data_dir).close()
    assert killed.whole()
    killed.folder.chmod(0o700)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("tempfile.tempdir", str(tmp_path / "other"))
        take_data_dir(killed.data_dir).close()
    assert killed.whole()
    moved = killed.folder.rename(tmp_path / "moved")
    killed.folder.symlink_to(moved)
    take_data_dir(killed.data_dir).close()
    assert killed.whole()


def test_the_folder_of_sockets_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder()
    assert mode(folder) == 0o700
    folder.rmdir()
    tmp_path.chmod(0o777)  # without the sticky bit of /tmp
    monkeypatch.setattr("api.launch.ray_environment.tempfile.mkdtemp", lambda **_: str(tmp_path / "brk-1"))
    with pytest.raises(Invalid, match="can be replaced"):
        make_folder()


def test_a_token_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (raytoken.MODE, raytoken.TOKEN, raytoken.TOKEN_PATH):
        monkeypatch.setenv(name, "somebody else's")
    raytoken.use_own_token(tmp_path)
    made = (tmp_path / "ray.token").read_text()
    raytoken.use_own_token(tmp_path)
    assert (tmp_path / "ray.token").read_text() == made
    assert mode(tmp_path / "ray.token") == 0o600
    assert len(made.strip()) == 64
    assert (os.environ[raytoken.MODE], os.environ[raytoken.TOKEN_PATH]) == ("token", str(tmp_path / "ray.token"))
    assert raytoken.TOKEN not in os.environ
    assert [path.name for path in tmp_path.iterdir()] == ["ray.token"]
