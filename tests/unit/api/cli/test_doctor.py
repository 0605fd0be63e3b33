"""`breakers doctor`: each check finds what is wrong and says what helps, and what is fine is said to be."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import socket
import sqlite3
import stat
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from api.cli.main import app
from api.launch import doctor, doctor_database, leftovers
from api.launch.bootstrap import Credentials, prepare, write
from api.launch.join import note_address
from breaker_actors.clock import SystemClock
from breaker_actors.persistence import make_store
from breaker_actors.settings import Settings
from breaker_actors.sql.presence import Presence
from breaker_actors.store import migrations
from breaker_actors.store.rows import ChannelDraft
from tests.support.live import wait_for

CHECKS = ("python", "ray", "haproxy", "port", "files", "disk", "ray folder", "ray token", "clock", "names", "database")


def levels(found: Iterable[doctor.Finding]) -> list[tuple[str, str]]:
    """Check and level of each; what is not fine has a remedy, what is fine has none."""
    found = list(found)
    assert all((finding.remedy is None) is (finding.level == "ok") for finding in found)
    return [(finding.check, finding.level) for finding in found]


def run(folder: Path, *options: str) -> Any:
    return CliRunner().invoke(app, ["--no-headers", "doctor", "--data-dir", str(folder), *options])


def made(folder: Path) -> Settings:
    settings = Settings(data_dir=folder)
    folder.mkdir(mode=0o700, exist_ok=True)
    prepare(settings, "http://127.0.0.1:7117", SystemClock(), print)
    return settings


def test_every_check_is_made_and_nothing_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREAKERS_PORT", "0")
    result = run(tmp_path / "data", "--json")
    told = json.loads(result.stdout)
    assert tuple(finding["check"] for finding in told["findings"]) == CHECKS
    assert (told["ok"], result.exit_code) == (True, 0), told
    assert list(tmp_path.iterdir()) == []
    rows = [line.split("\t") for line in run(tmp_path / "data").stdout.splitlines()]
    assert [row[1] for row in rows] == list(CHECKS)


def test_an_error_ends_with_1_and_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("BREAKERS_PORT", str(listener.getsockname()[1]))
        result = run(tmp_path / "data")
        asked = json.loads(run(tmp_path / "data", "--json").stdout)
    assert result.exit_code == 1
    (row,) = [line for line in result.stdout.splitlines() if line.startswith("error")]
    assert "is in use" in row
    assert "set BREAKERS_PORT" in row
    assert asked["ok"] is False


def test_versions() -> None:
    assert levels(doctor.versions()) == [("python", "ok"), ("ray", "ok")]
    assert levels(doctor.versions((3, 10, 1))) == [("python", "error"), ("ray", "ok")]
    assert levels(doctor.versions(version=lambda _: "2.61.0"))[1] == ("ray", "error")

    def missing(_: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    assert levels(doctor.versions(version=missing))[1] == ("ray", "error")


def port(host: str, number: int, data_dir: Path) -> list[doctor.Finding]:
    return list(doctor.port(Settings(host=host, port=number), data_dir))


def test_haproxy(tmp_path: Path) -> None:
    (found,) = doctor.haproxy()
    assert (found.level, found.message.startswith("HAProxy 2.8.")) == ("ok", True)
    assert levels(doctor.haproxy(lambda: None)) == [("haproxy", "error")]
    (tmp_path / "haproxy").write_text("no program")
    assert levels(doctor.haproxy(lambda: str(tmp_path / "haproxy"))) == [("haproxy", "error")]


def test_a_port_that_the_own_service_has_is_fine(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        assert levels(port("127.0.0.1", taken, tmp_path)) == [("port", "error")]
        (tmp_path / "lock").write_text(f"{os.getpid()}\n")
        assert levels(port("127.0.0.1", taken, tmp_path)) == [("port", "ok")]
        (found,) = port("127.0.0.1", 1, tmp_path)
        assert str(os.getpid()) in found.message, "whatever port it was given"
        (tmp_path / "lock").write_text("not a lock\n")
        assert levels(port("127.0.0.1", taken, tmp_path)) == [("port", "error")]
    assert levels(port("127.0.0.1", taken, tmp_path)) == [("port", "ok")]
    assert levels(port("192.0.2.1", 7117, tmp_path)) == [("port", "error")]
    assert levels(port("no such host.invalid", 7117, tmp_path)) == [("port", "error")]


class Answers(BaseHTTPRequestHandler):
    """A service, as far as everybody may see it, or another program."""

    code, blanks = "unauthorized", ""

    def do_GET(self) -> None:
        assert "Authorization" not in self.headers
        assert self.headers["Accept-Encoding"] == "identity", "nothing is unpacked"
        told = {"error": "e", "code": self.code, "message": "m", "request_id": "r"}
        body = (json.dumps(told) + self.blanks).encode()
        self.send_response(401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_the_port_of_the_own_deployment_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`deploy` leaves no process that a lock names: credentials.json says where it is, and it answers there."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        taken = server.server_address[1]
        assert levels(port("127.0.0.1", taken, tmp_path)) == [("port", "error")]
        names = ("admin_key", "user_key", "workspace_id", "project_id", "project_key", "ingest_secret")
        known = Credentials(base_url=f"http://127.0.0.1:{taken}", **dict.fromkeys(names, "x"))
        write(tmp_path / "credentials.json", known)
        (found,) = port("127.0.0.1", taken, tmp_path)
        assert (found.level, known.base_url in found.message) == ("ok", True)
        for name, value in (("code", "another"), ("blanks", " " * doctor.REFUSAL_BYTES_MAX)):
            with monkeypatch.context() as changed:
                changed.setattr(Answers, name, value)
                assert levels(port("127.0.0.1", taken, tmp_path)) == [("port", "error")]
        server.shutdown()


def test_services_on_one_database(postgres_url: str) -> None:
    """One is fine, two are not."""
    settings = Settings(database_url=SecretStr(postgres_url))

    def said() -> list[tuple[str, str]]:
        found = doctor_database.database(settings, SystemClock())
        return levels(finding for finding in found if finding.check == "services")

    shown = [Presence(postgres_url, token, 0.05) for token in ("first", "second")]
    assert said() == []
    for one, level in zip(shown, ("ok", "error"), strict=True):
        one.start()
        wait_for(lambda level=level: said() == [("services", level)])
    for one in shown:
        one.stop()


def test_a_certificate_without_its_key(tmp_path: Path) -> None:
    assert levels(doctor.certificate(Settings(), 0)) == []
    assert levels(doctor.certificate(Settings(tls_cert=tmp_path / "a.pem"), 0)) == [("certificate", "error")]


def test_modes_of_files(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert levels(doctor.files(data)) == [("files", "ok")]
    made(data)
    assert levels(doctor.files(data)) == [("files", "ok")]
    (data / "credentials.json").chmod(0o644)
    (found,) = doctor.files(data)
    assert (found.level, "credentials.json can be read" in found.message) == ("warning", True)
    assert stat.S_IMODE((data / "credentials.json").stat().st_mode) == 0o644
    (data / "log").mkdir(mode=0o700)
    (data / "log" / "router-0.sqlite").symlink_to(data / "credentials.json")
    assert levels(doctor.files(data)) == [("files", "error")]


def test_room(tmp_path: Path) -> None:
    data = tmp_path / "not" / "there"
    for free, level in ((100 << 30, "ok"), (1 << 30, "warning"), (100 << 20, "error")):
        assert levels(doctor.room(data, tmp_path, lambda path, free=free: max(free, 1 << 28)))[0] == (  # type: ignore[misc]
            "disk",
            level,
        )
    full = doctor.room(data, Path("/"), lambda path: 0 if path == Path("/") else 100 << 30)
    assert levels(full) == [("disk", "ok"), ("disk", "error")]


def test_the_folder_of_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert levels(doctor.ray_folder(Path("/tmp"))) == [("ray folder", "ok")]
    assert levels(doctor.ray_folder(Path("/a/long/parent"))) == [("ray folder", "error")]
    assert levels(doctor.ray_folder(Path("/absent"))) == [("ray folder", "error")]
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    assert levels(doctor.ray_folder(Path("/tmp"))) == [("ray folder", "error")]


def test_rays_token(tmp_path: Path) -> None:
    path = tmp_path / "ray.token"
    assert levels(doctor.token(tmp_path)) == [("ray token", "ok")]
    path.write_text("a" * 64)
    path.chmod(0o600)
    assert levels(doctor.token(tmp_path)) == [("ray token", "ok")]
    path.chmod(0o644)
    assert levels(doctor.token(tmp_path)) == [("ray token", "error")]
    path.chmod(0o600)
    path.write_text("short")
    (found,) = doctor.token(tmp_path)
    assert (found.level, "short" in found.message) == ("error", False)


def test_keys_that_settings_give() -> None:
    def said(**given: str) -> list[tuple[str, str]]:
        return levels(doctor.keys(Settings(**{name: SecretStr(value) for name, value in given.items()})))

    assert said() == []
    assert said(secret_key="ab" * 32) == [("keys", "ok")]
    assert said(secret_key="zz", bootstrap_admin_key="foo") == [("keys", "error"), ("keys", "error")]
    assert said(bootstrap_admin_key="eb_admin_" + "ab" * 32) == [("keys", "ok")]


def test_an_address_that_is_none_of_this_machine(tmp_path: Path) -> None:
    for host, words in (("300.1.1.1", "has no address"), ("192.0.2.1", "is no address of this machine")):
        (found,) = port(host, 7_117, tmp_path)
        assert (found.level, words in found.message, "BREAKERS_HOST" in (found.remedy or "")) == ("error", True, True)


class Odd:
    """A wall clock that goes a hundred times too fast, from a given time on."""

    def __init__(self, at_ms: int) -> None:
        self._at_ms, self._real = at_ms, SystemClock()
        self._begun = self._real.monotonic()

    def now_ms(self) -> int:
        return self._at_ms + int((self._real.monotonic() - self._begun) * 100_000)

    def monotonic(self) -> float:
        return self._real.monotonic()


def test_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    assert levels(doctor.wall_clock(SystemClock())) == [("clock", "ok")]
    assert levels(doctor.wall_clock(Odd(0))) == [("clock", "error")]
    assert levels(doctor.wall_clock(Odd(doctor.YEAR_2024_MS))) == [("clock", "warning")]
    assert [doctor_database.skew(apart).level for apart in (0.0, 400.0, -501.0)] == ["ok", "ok", "warning"]


def test_names() -> None:
    def look_up(name: str, _: None) -> None:
        if name == "mail.invalid":
            raise socket.gaierror

    def nothing(name: str, _: None) -> None:
        raise UnicodeError

    assert levels(doctor.names(None, look_up)) == [("names", "ok")]
    assert levels(doctor.names("mail.invalid", look_up)) == [("names", "error")]
    assert levels(doctor.names(None, nothing)) == [("names", "error"), ("names", "warning")]


def test_a_database_and_who_may_send_samples(tmp_path: Path) -> None:
    settings, clock = made(tmp_path / "data"), SystemClock()
    found = list(doctor_database.database(settings, clock))
    assert levels(found) == [("database", "ok"), ("durability", "ok"), ("signed ingest", "warning")]
    assert found[2].message.startswith("the project takes unsigned samples")
    lax = settings.model_copy(update={"durability": "process"})
    weak = next(finding for finding in doctor_database.database(lax, clock) if finding.check == "durability")
    assert (weak.level, "BREAKERS_DURABILITY=process" in weak.message) == ("warning", True)
    two = settings.model_copy(update={"journals": 2})
    useless = next(finding for finding in doctor_database.database(two, clock) if finding.check == "journals")
    assert (useless.level, useless.message[:10]) == ("warning", "2 Journals")

    async def sign() -> None:
        store = make_store(settings)
        await store.open()
        (project,) = [row for org in await store.list_orgs() for row in await store.list_projects(org.id)]
        await store.update_project(project.id, {"enable_signed_ingest": True}, clock.now_ms())
        draft = ChannelDraft(name="n", channel="email", config={"to": ["a@b.example"]}, enabled=True, events=("trip",))
        await store.create_channel(project.id, draft, clock.now_ms())
        await store.close()

    async def spoil() -> None:
        store = make_store(settings)
        await store.open()
        (project,) = [row for org in await store.list_orgs() for row in await store.list_projects(org.id)]
        draft = ChannelDraft(
            name="n", channel="pagerduty", config={"integration_key": "hidden"}, enabled=True, events=("trip",)
        )
        await store.create_channel(project.id, draft, clock.now_ms())
        await store.close()

    asyncio.run(sign())
    signed = [("database", "ok"), ("durability", "ok"), ("signed ingest", "ok")]
    assert levels(doctor_database.database(settings, clock)) == [*signed, ("mail server", "warning")]
    mailing = settings.model_copy(update={"smtp_host": "127.0.0.1"})
    assert levels(doctor_database.database(mailing, clock)) == signed
    asyncio.run(spoil())
    found = list(doctor_database.database(mailing, clock))
    assert levels(found) == [*signed, ("channel", "warning")]
    assert "config.integration_key" in found[-1].message
    assert "did you mean routing_key?" in found[-1].message
    assert "hidden" not in str(found)
    (settings.data_dir / "secret.key").unlink()
    assert levels(doctor_database.database(mailing, clock)) == signed
    assert not (settings.data_dir / "secret.key").exists()
    (settings.data_dir / "breakers.sqlite").write_bytes(b"no database" * 1_000)
    assert levels(doctor_database.database(settings, clock)) == [("database", "error")]


@pytest.mark.parametrize("shell", [None, "here.invalid"])
def test_a_service_that_runs_is_judged_by_its_own_settings(
    tmp_path: Path, shell: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever this shell has; where it noted none, the shell is named."""
    settings, folder = made(tmp_path / "data").model_copy(update={"smtp_host": shell}), tmp_path / "brk-1"
    make_mail_channel(settings)
    folder.mkdir(mode=0o700)
    with (settings.data_dir / "lock").open("w") as lock:
        leftovers.note(lock, folder)
    monkeypatch.setattr(doctor, "APART_S", 0)

    def said(check: str) -> str:
        return " ".join(found.message for found in doctor.examine(settings, SystemClock()) if found.check == check)

    note_address(folder, "a", settings.model_copy(update={"smtp_host": "localhost"}))
    assert said("mail server") == ""
    assert "here.invalid" not in said("names")
    note_address(folder, "a", settings.model_copy(update={"smtp_host": None}))
    assert "the running service has no mail server" in said("mail server")
    elsewhere = SecretStr("postgresql://somebody:s3cret@db.example/name")
    note_address(folder, "a", settings.model_copy(update={"database_url": elsewhere}))
    assert "keeps it in PostgreSQL name on db.example" in said("database")
    (folder / "address.json").unlink()
    assert ("this shell" in said("mail server")) is (shell is None)


@pytest.mark.parametrize("channels", [1, 12])
def test_channels_to_where_the_service_may_not_send(
    tmp_path: Path, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were made when it might: a start and the doctor say so, and what helps, in a few lines."""
    settings, folder = made(tmp_path / "data"), tmp_path / "brk-1"
    make_hooks(settings, channels)
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(doctor, "APART_S", 0)

    def said() -> list[doctor.Finding]:
        return [found for found in doctor.examine(settings, SystemClock()) if found.check == "channel"]

    def start(allowed: bool) -> list[str]:
        told = list[str]()
        given = settings.model_copy(update={"allow_private_destinations": allowed})
        prepare(given, "http://127.0.0.1:7117", SystemClock(), told.append)
        return [line for line in told if "hidden" in line or "channel" in line]

    lines = start(allowed=False)
    assert len(lines) == (1 if channels == 1 else 4)
    assert lines[0].startswith("channel hook-0 (webhook, project ")
    assert "BREAKERS_ALLOW_PRIVATE_DESTINATIONS=true" in lines[0]
    assert lines[-1].startswith("9 more channels") is (channels > 1)
    assert start(allowed=True) == []
    found = said()
    assert len(found) == (1 if channels == 1 else 11)
    assert "webhook channel hook-0 can't be sent to by this shell's settings" in found[0].message
    assert "BREAKERS_ALLOW_PRIVATE_DESTINATIONS=true" in str(found[0].remedy)
    with (settings.data_dir / "lock").open("w") as lock:
        leftovers.note(lock, folder)
    note_address(folder, "a", settings)
    assert "this shell" not in said()[0].message
    note_address(folder, "a", settings.model_copy(update={"allow_private_destinations": True}))
    assert said() == []
    assert "hidden" not in str(found) + str(lines)


def make_hooks(settings: Settings, count: int) -> None:
    async def make() -> None:
        store = make_store(settings)
        await store.open()
        (project,) = [row for org in await store.list_orgs() for row in await store.list_projects(org.id)]
        for n in range(count):
            draft = ChannelDraft(
                name=f"hook-{n}", channel="webhook", config={"url": "http://127.0.0.1:9/hidden"}, enabled=True
            )
            await store.create_channel(project.id, draft, SystemClock().now_ms())
        await store.close()

    asyncio.run(make())


def make_mail_channel(settings: Settings) -> None:
    async def make() -> None:
        store = make_store(settings)
        await store.open()
        (project,) = [row for org in await store.list_orgs() for row in await store.list_projects(org.id)]
        draft = ChannelDraft(name="n", channel="email", config={"to": ["a@b.example"]}, enabled=True, events=("trip",))
        await store.create_channel(project.id, draft, SystemClock().now_ms())
        await store.close()

    asyncio.run(make())


def test_keys_without_their_data(tmp_path: Path) -> None:
    """As where a service was deployed from, in a shell that does not know its database."""
    settings, clock = Settings(data_dir=tmp_path / "keys"), SystemClock()
    assert levels(doctor_database.database(settings, clock)) == [("database", "ok")]
    other = made(tmp_path / "other")
    settings.data_dir.mkdir(mode=0o700)
    (other.data_dir / "credentials.json").rename(settings.data_dir / "credentials.json")
    (found,) = doctor_database.database(settings, clock)
    assert (found.level, "has the keys to http://127.0.0.1:7117, not its data" in found.message) == ("warning", True)
    (settings.data_dir / "credentials.json").write_text("{")
    assert levels(doctor_database.database(settings, clock)) == [("database", "error")]


def test_schemas(tmp_path: Path) -> None:
    def level(found: str | None, own_file: bool) -> str:
        return doctor_database.schema(found, "here", own_file).level

    assert [level(found, True) for found in (None, migrations.HEAD, "0001", "9999")] == ["ok", "ok", "ok", "error"]
    assert [level(found, False) for found in (None, migrations.HEAD, "0001", "9999")] == ["ok", "ok", "error", "error"]
    settings = made(tmp_path / "data")
    with sqlite3.connect(settings.data_dir / "breakers.sqlite") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    connection.close()
    (found,) = doctor_database.database(settings, SystemClock())
    assert "the next start upgrades it" in found.message
    assert migrations.current(f"sqlite:///{settings.data_dir / 'breakers.sqlite'}") == "0001"


def test_a_server_that_is_away_and_an_url_that_is_none() -> None:
    for url in ("postgresql://somebody:s3cret@127.0.0.1:1/name", "mysql://somebody:s3cret@host/name"):
        settings = Settings(database_url=SecretStr(url))
        found = list(doctor_database.database(settings, SystemClock()))
        assert levels(found) == [("database", "error")]
        assert "s3cret" not in str(found)
