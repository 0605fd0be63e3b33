"""From the POST of the tripping batch to its state message at a stream client and its webhook at a receiver, idle.

python -m tests.bench push [--json FILE] [--smoke]

The calibration in the same run: a request that does nothing over the same way, and the write that a trip waits for (a
commit of a row with fsync as the store's) on the same disk.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from tests.support.figures import options_of, show
from tests.support.live import LiveService, serving
from tests.support.receivers import Reply, Request, WebReceiver

PAUSE_S = 0.05
WITHIN_S = 10.0


class Hook(WebReceiver):
    """Notes when each breaker's notification came."""

    def __init__(self) -> None:
        super().__init__()
        self.came: dict[str, asyncio.Future[float]] = {}

    def answer(self, request: Request) -> Reply:
        at, breaker_id = time.perf_counter(), request.json["breaker_id"]
        if breaker_id in self.came and not self.came[breaker_id].done():
            self.came[breaker_id].set_result(at)
        return self.usual


class Stream:
    """One client of the state stream; notes when each breaker was shown open."""

    def __init__(self) -> None:
        self.came: dict[str, asyncio.Future[float]] = {}
        self.opened = asyncio.Event()

    async def follow(self, http: httpx.AsyncClient, path: str, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        async with http.stream("GET", path, headers=headers, timeout=None) as answer:
            self.opened.set()
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    at, message = time.perf_counter(), json.loads(line[6:])
                    waiting = self.came.get(message["breaker"])
                    if message["state"] == "open" and waiting is not None and not waiting.done():
                        waiting.set_result(at)


def main(argv: list[str]) -> None:
    options = options_of("push").parse_args(argv)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder) / "data", BREAKERS_ALLOW_PRIVATE_DESTINATIONS="true") as live,
    ):
        commit_ms = committing_ms(Path(folder) / "calibration.sqlite")
        figures = asyncio.run(measure(live, 10 if options.smoke else 300, commit_ms))
    show(figures, options.json)


def committing_ms(path: Path) -> float:
    """Median of one small transaction with the store's pragmas."""
    times = []
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, body BLOB)")
        for _ in range(100):
            start = time.perf_counter()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO rows (body) VALUES (?)", (b"x" * 500,))
            connection.execute("COMMIT")
            times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


async def measure(live: LiveService, count: int, commit_ms: float) -> dict[str, float]:
    made = [live.breaker(name=f"push-{i}", cooldown_ms=3_600_000) for i in range(count)]
    stream = Stream()
    async with Hook() as hook, httpx.AsyncClient(base_url=live.base_url, trust_env=False) as http:
        config = {"url": hook.url("/"), "secret": "for the bench"}
        body = {"name": "hook", "channel": "webhook", "config": config, "events": ["trip"]}
        answer = live.user.post(f"{live.project_path}/notification-channels", json=body)
        assert answer.status_code == 201, answer.text
        path = f"{live.project_path}/breakers/state:stream"
        following = asyncio.create_task(stream.follow(http, path, live.credentials["project_key"]))
        await stream.opened.wait()
        for one in made:  # as in use: who owns its router is known
            assert (await post(live, http, one["router_id"], 1.0)).status_code == 202
        calibration = [await no_op_ms(http) for _ in range(50)]
        rounds = [await trip(live, http, one, stream, hook) for one in made]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert len(hook.by_key()) == count, "every trip is told once"
    figures = {"trips": float(count), "no_op_ms_median": statistics.median(calibration), "commit_ms_median": commit_ms}
    for name, times in zip(("answered", "stream", "webhook"), zip(*rounds, strict=True), strict=True):
        ordered = sorted(times)
        figures[f"{name}_ms_median"] = statistics.median(ordered)
        figures[f"{name}_ms_p99"] = ordered[max(0, int(len(ordered) * 0.99) - 1)]
    return figures


async def no_op_ms(http: httpx.AsyncClient) -> float:
    start = time.perf_counter()
    await http.get("/api/healthz")
    return (time.perf_counter() - start) * 1000


async def post(live: LiveService, http: httpx.AsyncClient, router_id: str, value: float) -> httpx.Response:
    sample = {"router_id": router_id, "metric": "latency", "ts_ms": int(time.time() * 1000), "value": value}
    return await http.post(f"{live.project_path}/ingest", json={"samples": [sample] * 10})


async def trip(
    live: LiveService, http: httpx.AsyncClient, made: dict[str, Any], stream: Stream, hook: Hook
) -> tuple[float, float, float]:
    """Milliseconds from the POST of a bad batch to its answer, its message and its notification."""
    await asyncio.sleep(PAUSE_S)
    loop = asyncio.get_running_loop()
    shown = stream.came[made["breaker"]["name"]] = loop.create_future()
    told = hook.came[made["breaker"]["id"]] = loop.create_future()
    start = time.perf_counter()
    answer = await post(live, http, made["router_id"], 500.0)
    answered = time.perf_counter()
    assert answer.status_code == 202, answer.text
    async with asyncio.timeout(WITHIN_S):
        came = await asyncio.gather(shown, told)
    return (answered - start) * 1000, (came[0] - start) * 1000, (came[1] - start) * 1000
