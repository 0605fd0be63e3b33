"""The app over a whole service, on a real port, in a thread of its own: for programs that speak HTTP to it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from api.app import create_app
from breaker_actors.clock import SystemClock
from tests.support.cluster import service
from tests.support.web_world import TIMING


@dataclass
class Served:
    """`keys` by kind; the others are ids of what there is: two more projects, to be changed and to be deleted."""

    url: str = ""
    project_id: str = ""
    workspace_id: str = ""
    router_id: str = ""
    breaker_id: str = ""
    changed_id: str = ""
    deleted_id: str = ""
    keys: dict[str, str] = field(default_factory=dict)


@contextmanager
def served(directory: Path) -> Iterator[Served]:
    """Runs until the block ends."""
    made, ready, loop = Served(), threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(_serve(directory, made, ready, stop)))
    thread.start()
    try:
        assert ready.wait(30)
        yield made
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


async def _serve(directory: Path, made: Served, ready: threading.Event, stop: asyncio.Event) -> None:
    unlimited: dict[str, int] = {"rate_events_per_s": 0, "rate_requests_per_s": 0, "rate_tests_per_minute": 0}
    unlimited["rate_reads_per_s"] = 0
    async with service(directory, **unlimited, mutes_per_project_max=100_000, mappings_per_project_max=100_000) as s:
        now = s.clock.now_ms()
        for kind in ("user", "admin"):
            made.keys[kind] = (await s.store.create_key(s.project.org_id, kind, kind, now))[1]
        made.project_id, made.workspace_id = s.project.id, s.project.workspace_id
        there = await s.breaker("there")
        made.breaker_id, made.router_id = there.id, there.router_ids[0]
        org = s.project.org_id
        made.changed_id = (await s.store.create_project(org, s.project.workspace_id, "changed", now)).id
        made.deleted_id = (await s.store.create_project(org, s.project.workspace_id, "deleted", now)).id
        app = create_app(s.gateway, s.cluster.settings, SystemClock(), TIMING, owns_gateway=False)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        made.url = f"http://127.0.0.1:{port}"
        serving = asyncio.create_task(app.run_task("127.0.0.1", port, shutdown_trigger=stop.wait))
        while not await _answers(port):
            await asyncio.sleep(0.02)
        ready.set()
        await serving


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
