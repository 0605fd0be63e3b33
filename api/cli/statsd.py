"""`breakers statsd`: a process of its own that takes StatsD and DogStatsD and sends OTLP to a running service."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer

from api.cli.admin_client import read_or_ask
from api.cli.breaker_client import DataDir, Insecure, Project, Url, open_client
from api.cli.errors import one_line_errors
from api.cli.named import is_id
from api.cli.output import note, put_json
from api.cli.statsd_client import MetricsClient
from api.statsd.aggregation import Aggregate
from api.statsd.outbox import Answer, Outbox
from api.statsd.process import Process
from api.statsd.sockets import open_udp, open_unix, receive_bytes_of
from breaker_actors.clock import SystemClock, share_finely
from breaker_actors.errors import Invalid
from breaker_actors.settings import read_secret, secret_of_file
from breaker_actors.telemetry import logs

TOKEN = "BREAKERS_INGEST_TOKEN"  # nosec B105 # the name of a variable
OFF = "off"
WARNINGS = ("unsent", "rejected", "refused", "unmatched")

_log = structlog.get_logger()


def statsd(
    listen: Annotated[
        str, typer.Option(help="HOST:PORT of the UDP socket; off: none.", metavar="HOST:PORT")
    ] = "127.0.0.1:8125",
    unix: Annotated[Path | None, typer.Option(help="Path of a Unix datagram socket, beside or instead.")] = None,
    url: Url = None,
    project: Project = None,
    token_file: Annotated[
        Path | None, typer.Option(help=f"File with the ingest token; default: {TOKEN} or {TOKEN}_FILE.")
    ] = None,
    flush_ms: Annotated[int, typer.Option(min=100, max=60_000, help="How often is sent on.")] = 1000,
    absolute_gauges: Annotated[
        bool, typer.Option("--absolute-gauges", help="A gauge's sign belongs to its value, as DogStatsD has it.")
    ] = False,
    status_s: Annotated[int, typer.Option(min=1, max=86_400, help="Seconds between lines of status.")] = 60,
    insecure_http: Insecure = False,
    json: Annotated[bool, typer.Option("--json", help="Print each status as one JSON object on stdout.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Take StatsD and DogStatsD datagrams, and send what they come to on to a running service as OTLP, until Ctrl-C.

    What is sent becomes samples by the project's mappings, as all OTLP does. While the service is away requests wait;
    what finds no room is counted. A status on stderr says how many lines came and what became of them."""
    clock = SystemClock()
    with one_line_errors(), ExitStack() as opened:
        base_url, project_id = _where(url, project, data_dir, insecure_http)
        token = _token(token_file)
        client = opened.enter_context(MetricsClient(base_url, project_id, token, clock, insecure_http))
        _try(client.post(b""))
        sockets = []
        if listen != OFF:
            sockets.append(opened.enter_context(closing(open_udp(listen))))
        if unix is not None:
            sockets.append(opened.enter_context(closing(open_unix(unix))))
            opened.callback(unix.unlink, missing_ok=True)
        if not sockets:
            raise Invalid("--listen off needs --unix")
        logs.configure("statsd", level=logging.INFO)
        share_finely()
        draw = secrets.SystemRandom().random
        outbox = Outbox(client.post, clock, draw, _tell_trouble)
        told = _tell_json if json else _tell_status
        process = Process(sockets, Aggregate(absolute_gauges), outbox, clock, draw, flush_ms, status_s, told)
        stop = opened.enter_context(_stop_signals())
        for sock in sockets:
            _log.info("listening", at=_listens_at(sock), receive_bytes=receive_bytes_of(sock))
        process.run(stop)


def _listens_at(sock: socket.socket) -> str:
    """Where it listens, as --listen and --unix say it."""
    name = sock.getsockname()
    if isinstance(name, str):
        return name
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"{host}:{name[1]}"


def _token(file: Path | None) -> str:
    if file is not None:
        return read_secret(str(file), "--token-file")
    token = secret_of_file(TOKEN) or os.environ.get(TOKEN)
    if not token:
        raise Invalid(f"set {TOKEN}, or name a file with --token-file: `breakers keys create --kind ingest` makes one")
    return token


def _where(url: str | None, project: str | None, data_dir: Path | None, insecure: bool) -> tuple[str, str]:
    """URL of the service and id of the project: what is given, and for the rest credentials.json."""
    if not (url and project):
        known = read_or_ask(data_dir, {"BREAKERS_URL": url, "BREAKERS_PROJECT": project}, with_secret=True)
        url, project = url or known.base_url, project or known.project_id
    if is_id(project):
        return url, project.lower()
    with open_client(url, project, data_dir, insecure) as client:
        return url, client.project_id()


def _try(answer: Answer) -> None:
    """Ends the start where an empty request is refused for good. A service that is away may come later."""
    if answer.outcome in ("refused", "unfit"):
        raise Invalid(answer.message)
    if answer.outcome == "again":
        note(f"breakers: {answer.message}; what comes in waits")


@contextmanager
def _stop_signals() -> Iterator[int]:
    """A file descriptor that can be read once SIGINT or SIGTERM has come."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wanted = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda one, _: os.write(writer, b".")) for number in wanted}
    try:
        yield reader
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def _tell_trouble(event: str, message: str) -> None:
    (_log.warning if event in WARNINGS else _log.info)(event, message=message)


def _tell_status(status: dict[str, Any]) -> None:
    _log.info("status", **status)


def _tell_json(status: dict[str, Any]) -> None:
    put_json({name: logs.clean(value) if isinstance(value, str) else value for name, value in status.items()})
    sys.stdout.flush()
