"""A service of this process that listens, for tests of the commands that ask one over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypercorn.asyncio import serve
from hypercorn.config import Config
from typer.testing import CliRunner, Result

from api.app import create_app
from api.cli.main import app
from api.launch.bootstrap import FILE_NAME, Credentials, write
from breaker_actors.clock import SystemClock
from breaker_actors.telemetry import logs
from tests.support.cluster import Service, service
from tests.support.web_world import TIMING

RULE = ["--metric", "latency", "--kind", "avg", "--op", "gt", "--threshold", "100"]


@dataclass
class Town:
    """A service that listens, and the data directory that tells of it."""

    service: Service
    loop: asyncio.AbstractEventLoop
    folder: Path
    credentials: Credentials

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def run(self, *arguments: str, text: str | None = None, **more: Any) -> Result:
        """A command as a script calls it: lists have no titles."""
        return CliRunner().invoke(app, ["--no-headers", *arguments, "--data-dir", str(self.folder)], input=text, **more)

    def json(self, *arguments: str) -> Any:
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def create(self, name: str, *more: str) -> str:
        result = self.run("create", name, *more, *RULE)
        assert result.exit_code == 0, result.output
        return result.stdout.strip()


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with town_of(tmp_path_factory.mktemp("town")) as found:
        yield found


@contextmanager
def town_of(folder: Path, **settings: Any) -> Iterator[Town]:
    """One in a folder, with settings of its service."""
    ready, stop = threading.Event(), asyncio.Event()
    found: list[Town] = []

    async def run() -> None:
        async with service(folder / "service", **settings) as s:
            _, key = await s.store.create_key(s.project.org_id, "user", "u", 1)
            with socket.create_server(("127.0.0.1", 0)) as listening:
                port = listening.getsockname()[1]
                made = Credentials(
                    base_url=f"http://127.0.0.1:{port}",
                    admin_key="",
                    user_key=key,
                    workspace_id=s.project.workspace_id,
                    project_id=s.project.id,
                    project_key="",
                    ingest_secret="",
                )
                for place in ("cli", "service"):
                    write(folder / place / FILE_NAME, made)
                config = Config()
                config.errorlog = None  # its words would come among those of a command
                config.bind, config.graceful_timeout = [f"fd://{listening.fileno()}"], 0.1
                web = create_app(s.gateway, s.cluster.settings, SystemClock(), TIMING, owns_gateway=False)
                found.append(Town(s, asyncio.get_running_loop(), folder / "cli", made))
                serving = asyncio.create_task(serve(web, config, shutdown_trigger=stop.wait))
                ready.set()
                await serving
                listening.detach()

    logs.configure("test", level=logging.WARNING)  # the service shares the output of the commands
    thread = threading.Thread(target=lambda: asyncio.run(run()))
    (folder / "service").mkdir()
    thread.start()
    assert ready.wait(30)
    yield found[0]
    found[0].loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    structlog.reset_defaults()
    assert not thread.is_alive()


def refused(result: Result, words: str, code: int = 2) -> None:
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1), result.output
    assert words in result.stderr
