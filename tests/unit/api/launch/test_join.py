"""How a command finds the Ray cluster that serves a data directory, and that it believes nobody else about it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from api.launch import leftovers
from api.launch import ray_tls as raytls
from api.launch import ray_token as raytoken
from api.launch.join import ADDRESS_FILE, is_served_here, note_address, prepare_join, served_settings
from breaker_actors.errors import Invalid
from breaker_actors.settings import Settings

NOBODY = 65534
TLS = (raytls.USE, raytls.CERTIFICATE, raytls.KEY, raytls.AUTHORITY, "GRPC_VERBOSITY")
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set here is gone afterwards."""
    for name in ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", raytoken.MODE, raytoken.TOKEN, raytoken.TOKEN_PATH, *TLS):
        monkeypatch.setenv(name, "before")
        monkeypatch.delenv(name)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a service that runs, and in `tmp_path` its data directory."""
    folder = tmp_path / "brk-1"
    folder.mkdir(mode=0o700)
    raytoken.use_own_token(tmp_path)
    raytls.use_own_pair(folder)
    settings = Settings(smtp_host="mail.example", smtp_password=SecretStr("hidden"), tls_key=Path("key.pem"), port=4)
    note_address(folder, "127.0.0.1:4711", settings)
    for name in (raytoken.MODE, raytoken.TOKEN_PATH, *TLS):
        monkeypatch.delenv(name)
    with (tmp_path / "lock").open("w") as lock:
        leftovers.note(lock, folder)
    return folder


def test_the_noted_address_and_how_it_is_spoken_to(tmp_path: Path, folder: Path) -> None:
    """What the service's own environment says about addresses and authentication is said by its drivers, too; the
    token is the data directory's, the key of Ray's TLS that of the folder."""
    os.environ[raytoken.TOKEN] = "another"
    assert prepare_join(tmp_path) == "127.0.0.1:4711"
    assert os.environ[raytoken.MODE] == "token"
    assert os.environ[raytoken.TOKEN_PATH] == str(tmp_path / "ray.token")
    assert raytoken.TOKEN not in os.environ
    key, certificate = str(folder / "ray-key.pem"), str(folder / "ray.pem")
    assert [os.environ[name] for name in TLS] == ["1", certificate, key, certificate, "NONE"]
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in os.environ


def test_settings_that_a_service_noted(tmp_path: Path, folder: Path) -> None:
    """What it serves by, as far as it is judged, and no secret."""
    found = served_settings(tmp_path)
    assert found is not None
    assert (found.smtp_host, found.port, found.durability, found.database) == ("mail.example", 4, "power", None)
    assert found.tls_key == str(Path.cwd() / "key.pem")
    assert "hidden" not in (folder / ADDRESS_FILE).read_text()
    for noted in ({"address": "a", "environment": {}}, {"settings": {"host": 1}}, []):
        (folder / ADDRESS_FILE).write_text(json.dumps(noted))
        assert served_settings(tmp_path) is None
    assert served_settings(tmp_path / "absent") is None


@pytest.mark.parametrize("lock", [None, "", "1\n", "1\n/nowhere/brk-2\n"])
def test_where_nothing_is_noted_this_machines_cluster_is_taken(tmp_path: Path, lock: str | None) -> None:
    """No service ever, one that has ended, or one deployed on a cluster that others started."""
    if lock is not None:
        (tmp_path / "lock").write_text(lock)
    assert prepare_join(tmp_path) == "auto"


def test_a_lock_that_was_copied_leads_nowhere(tmp_path: Path, folder: Path) -> None:
    """As with a folder that was cloned or unpacked: whoever wrote the lock chose the address in the folder it names,
    which would get Ray's token and say what runs here. A service's folder answers to its own lock."""
    assert is_served_here(tmp_path)
    content = (tmp_path / "lock").read_bytes()
    (tmp_path / "lock").rename(tmp_path / "first")
    (tmp_path / "lock").write_bytes(content)
    assert prepare_join(tmp_path) == "auto"
    assert served_settings(tmp_path) is None
    for lock in (content, b"", b"1\n", b"damaged"):
        (tmp_path / "lock").write_bytes(lock)
        assert not is_served_here(tmp_path)
    (tmp_path / "lock").unlink()
    assert not is_served_here(tmp_path)


def test_a_note_that_is_half_written(tmp_path: Path, folder: Path) -> None:
    (folder / ADDRESS_FILE).write_text('{"address": ')
    assert prepare_join(tmp_path) == "auto"


def test_only_known_names_and_values_reach_the_environment(tmp_path: Path, folder: Path) -> None:
    told = {"PATH": "/mine", "LD_PRELOAD": "/mine.so", raytoken.MODE: "k8s", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    told |= {raytls.USE: "0", raytls.AUTHORITY: "/mine.pem"}
    (folder / ADDRESS_FILE).write_text(json.dumps({"address": "127.0.0.1:1", "environment": told}))
    before = dict(os.environ)
    assert prepare_join(tmp_path) == "127.0.0.1:1"
    assert dict(os.environ) == {**before, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def note_is_refused(data_dir: Path, why: str) -> None:
    before = dict(os.environ)
    with pytest.raises(Invalid, match=why) as refusal:
        prepare_join(data_dir)
    assert "\n" not in str(refusal.value)
    assert dict(os.environ) == before


@pytest.mark.parametrize("part", ["lock", "brk-1", f"brk-1/{ADDRESS_FILE}", "ray.token", "brk-1/ray-key.pem", "."])
def test_what_others_may_write_is_refused(tmp_path: Path, folder: Path, part: str) -> None:
    (tmp_path / part).chmod(0o777 if (tmp_path / part).is_dir() else 0o666)
    note_is_refused(tmp_path, "open to other users")


@only_root
@pytest.mark.parametrize("part", ["lock", "brk-1", f"brk-1/{ADDRESS_FILE}", "ray.token", "brk-1/ray-key.pem", "."])
def test_what_is_another_users_is_refused(tmp_path: Path, folder: Path, part: str) -> None:
    os.chown(tmp_path / part, NOBODY, NOBODY)
    note_is_refused(tmp_path, rf"belongs to another user \(uid {NOBODY}\)")


@pytest.mark.parametrize("part", ["lock", "brk-1", f"brk-1/{ADDRESS_FILE}", "ray.token", "brk-1/ray.pem"])
def test_a_symbolic_link_is_refused(tmp_path: Path, folder: Path, part: str) -> None:
    moved = (tmp_path / part).rename(tmp_path / "moved")
    (tmp_path / part).symlink_to(moved)
    note_is_refused(tmp_path, "symbolic link")


@pytest.mark.parametrize("content", ["", "short\n", "a" * 40 + "\nmore\n", "ä" * 40])
def test_a_file_without_a_token_is_refused(tmp_path: Path, folder: Path, content: str) -> None:
    (tmp_path / "ray.token").write_text(content)
    note_is_refused(tmp_path, "holds no token")


@pytest.mark.parametrize("part", ["ray.token", "brk-1/ray-key.pem"])
def test_a_token_or_key_that_is_missing_is_said(tmp_path: Path, folder: Path, part: str) -> None:
    (tmp_path / part).unlink()
    note_is_refused(tmp_path, "can't be read")
