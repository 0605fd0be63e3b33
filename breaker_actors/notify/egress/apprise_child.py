"""The process in which apprise runs: it makes requests of notifications, and reaches nothing itself.

A program of its own, run by path with nothing of this project imported and no variable of the service. It loads apprise
once and then forks a process for each notification, whose connection to the service arrives on the standard input.
There, requests go out as lines and answers come back: the service makes them, under its policy. All else is refused by
an audit hook, which nothing can take off again: sockets, names, other programs, files but those of Python itself.

Lines are JSON. From the service: a notice, then an answer for each request. To it: requests, then the outcome. Notices
without a body are addresses to look at: any number of them, each with its outcome.
"""

from __future__ import annotations

import base64
import email.message
import gc
import io
import json
import logging
import os
import resource
import signal
import socket
import sys
import sysconfig
import types
from collections.abc import Mapping
from typing import Any, BinaryIO, cast

import apprise
import apprise.plugins
import requests
import urllib3
from apprise.url import URLBase

CPU_S, FILES_MAX, NICE = 5, 64, 10
MORE_BYTES = 128 << 20
"""Of memory, beyond what is loaded."""
CODED = ("content-encoding", "transfer-encoding")
LINE_BYTES_MAX = 1 << 20
TARGETS_MAX = 1
PROBLEM_MAX = 300
SEVERAL = "it has several receivers; make a channel for each"
UNREADABLE = "it can't read the address; see how its documentation writes those of the service"
_REFUSED = ("socket.", "subprocess.", "shutil.", "ctypes.", "sqlite3.", "syslog.", "tempfile.", "pty.", "fcntl.", "os.")
"""Beginnings of the names of Python's audit events that are refused, less those below."""
_HARMLESS = frozenset(
    ("socket.__new__", "socket.gethostname", "os.listdir", "os.scandir", "os.walk", "os.putenv", "os.unsetenv")
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_READABLE = tuple(
    os.path.join(os.path.realpath(path), "")
    for path in (*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), "/usr/share/zoneinfo")
)


def guard(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook. Raises PermissionError of whatever leads out of this process."""
    if event == "open":
        path, _, flags = args
        if isinstance(path, int):
            return
        if flags & _WRITES or not os.path.realpath(os.fsdecode(path)).startswith(_READABLE):
            raise PermissionError("files are out of reach")
    elif event.startswith(_REFUSED) and event not in _HARMLESS:
        raise PermissionError(f"{event} is out of reach")


class Carrier(requests.adapters.BaseAdapter):
    """The only way of requests out of here: over the connection to the service."""

    def __init__(self, connection: BinaryIO) -> None:
        super().__init__()
        self._connection = connection

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        """Raises requests.ConnectionError where there is no answer. Time limits and certificates are the service's."""
        body = _whole(request.body)
        asked = {
            "method": request.method,
            "url": requests.utils.urldefragauth(request.url or ""),
            "headers": [[_text(name), _text(value)] for name, value in request.headers.items()],
            "body": base64.b64encode(body).decode(),
        }
        _write(self._connection, asked)
        answer = _read(self._connection)
        if not answer["status"]:
            raise requests.ConnectionError("no answer")
        return requests.adapters.HTTPAdapter().build_response(request, _response(answer))

    def close(self) -> None:
        pass


def _whole(body: Any) -> bytes:
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes | bytearray):
        return bytes(body)
    return body.read() if hasattr(body, "read") else b"".join(body)


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _response(answer: Mapping[str, Any]) -> urllib3.HTTPResponse:
    """As it came: nobody asked for another encoding, and a few bytes inflate to any number."""
    headers = email.message.Message()
    kept: Any = [(name, value) for name, value in answer["headers"] if name.lower() not in CODED]
    for name, value in kept:
        headers[name] = value
    answered: Any = types.SimpleNamespace(msg=headers, isclosed=lambda: True, close=lambda: None)
    return urllib3.HTTPResponse(
        body=io.BytesIO(base64.b64decode(answer["body"])),
        headers=kept,
        status=answer["status"],
        preload_content=False,
        original_response=answered,
    )


def _read(connection: BinaryIO) -> dict[str, Any]:
    """Ends this process where the service has nothing more to say to it."""
    line = connection.readline(LINE_BYTES_MAX)
    if not line.endswith(b"\n"):
        os._exit(0)
    found: dict[str, Any] = json.loads(line)
    return found


def _write(connection: BinaryIO, value: Mapping[str, Any]) -> None:
    connection.write(json.dumps(value).encode() + b"\n")
    connection.flush()


class Words(logging.Handler):
    """The last that apprise said of a trouble."""

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        Words.last = record.getMessage()[:PROBLEM_MAX]


def tell(notice: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether apprise takes the notice for delivered, and else what it says. Of one without a body: whether it can read
    the address."""
    asset = apprise.AppriseAsset(
        secure_logging=True, storage_mode="memory", plugin_paths=[], allow_templates=False, app_id="breaker-actors"
    )
    plugin = apprise.Apprise.instantiate(notice["url"], asset=asset)
    if plugin is None:
        return False, UNREADABLE
    plugin.retry = 0
    if len(plugin) > TARGETS_MAX:
        return False, SEVERAL
    if "body" not in notice:
        return True, ""
    sent = plugin.notify(title=notice["title"], body=notice["body"], notify_type=notice["type"], body_format="text")
    return bool(sent), Words.last


def deliver(connection: BinaryIO) -> None:
    """One notification, from the notice to the outcome; or addresses that are looked at, one after the other."""
    notice = _read(connection)
    signal.alarm(notice["seconds"])
    requests.Session.get_adapter = lambda self, url: Carrier(connection)  # type: ignore[method-assign]
    # as for all kinds of channels; a page behind a redirect would pass for a delivery
    requests.Session.get_redirect_target = lambda self, resp: None  # type: ignore[method-assign]
    requests.sessions.get_netrc_auth = lambda *_: None  # type: ignore[attr-defined]
    # the service paces by itself, and a pause would outlast the attempt
    URLBase.throttle = lambda self, last_io=None, wait=None: None  # type: ignore[method-assign]
    logging.getLogger("apprise").addHandler(Words(logging.WARNING))
    while "body" not in notice:
        _write(connection, _outcome(notice))
        notice = _read(connection)
    _write(connection, _outcome(notice))


def _outcome(notice: Mapping[str, Any]) -> dict[str, Any]:
    try:
        sent, problem = tell(notice)
    except Exception as error:  # of a plugin
        sent, problem = False, f"it fails ({type(error).__name__})"
    return {"sent": sent, "problem": problem}


def _limit() -> None:
    """Bounds what a process may take; the kernel ends one that takes more time."""
    for kind, most in (
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_AS, _loaded_bytes() + MORE_BYTES),
        (resource.RLIMIT_NOFILE, FILES_MAX),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    os.nice(NICE)


def _loaded_bytes() -> int:
    """Addresses that are in use; as many as it may have, where the system does not tell."""
    try:
        with open("/proc/self/statm") as told:
            return int(told.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 30


def serve(control: socket.socket) -> None:
    """Forks a process for each connection, until the service is gone."""
    apprise.plugins.N_MGR.load_modules()  # type: ignore[no-untyped-call]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # a collection would copy the pages of all that is loaded into each fork
    gc.disable()
    gc.freeze()
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        if os.fork():
            os.close(descriptors[0])
            continue
        try:
            control.close()
            _limit()
            connection = socket.socket(fileno=descriptors[0]).makefile("rwb")
            sys.addaudithook(guard)
            deliver(cast(BinaryIO, connection))
        finally:
            os._exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=0))
