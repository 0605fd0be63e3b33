"""From the POST of the tripping batch to its state message at a stream client and its webhook at a receiver.

python -m tests.bench push [--json FILE] [--smoke] [--trips 300] [--beside 0]

The service is idle otherwise, or takes `--beside` samples a second for 1,000 other breakers. Afterwards every accepted
sample is in the log, and each breaker, those beside among them, is where the core comes to with its log.

The calibration in the same run, between the trips: a request that does nothing over the same way, and a chain of
actors that do nothing but the same hops and commits (a call that commits a row, from there a call, from there a call
that commits a row and ends a long poll).
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.support import load
from tests.support.driver import Driver
from tests.support.figures import options_of, show
from tests.support.fleet import CONNECTIONS, Fleet, check_counts, check_fleet, check_replays
from tests.support.invariants import Evidence
from tests.support.live import LiveService, serving
from tests.support.receivers import Reply, Request, WebReceiver

PAUSE_S, SLOWEST_S = 0.05, 0.5
SAMPLES = 500
WITHIN_S = 10.0
CHAIN = """
import asyncio, sqlite3, time
from concurrent.futures import ThreadPoolExecutor

@ray.remote(num_cpus=0, max_concurrency=1000)
class Link:
    def __init__(self, path, after):
        self.path, self.after, self.news, self.told = path, after, asyncio.Event(), set()
        self.thread = ThreadPoolExecutor(1)

    def connect(self):
        self.rows = sqlite3.connect(self.path, isolation_level=None)
        self.rows.execute("PRAGMA journal_mode=WAL")
        self.rows.execute("PRAGMA synchronous=NORMAL")
        self.rows.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, body BLOB)")

    def store(self):
        if not hasattr(self, "rows"):
            self.connect()
        self.rows.execute("BEGIN IMMEDIATE")
        self.rows.execute("INSERT INTO rows (body) VALUES (?)", (b"x" * 500,))
        self.rows.execute("COMMIT")

    async def call(self, payload):
        if self.path is not None:
            await asyncio.get_running_loop().run_in_executor(self.thread, self.store)
        if self.after is None:
            self.news.set()
        else:
            task = asyncio.ensure_future(self.after.call.remote(payload))
            self.told.add(task)
            task.add_done_callback(self.told.discard)

    async def poll(self):
        await self.news.wait()
        self.news.clear()

async def once(first, last):
    polling = asyncio.ensure_future(last.poll.remote())
    await asyncio.sleep(0.05)
    start = time.perf_counter()
    called = asyncio.ensure_future(first.call.remote(b"x" * 500))
    await polling
    took = time.perf_counter() - start
    await called
    return took * 1000

folder = sys.stdin.readline().strip()
last = Link.remote(folder + "/last.sqlite", None)
first = Link.remote(folder + "/first.sqlite", Link.remote(None, last))
loop = asyncio.new_event_loop()
loop.run_until_complete(once(first, last))
answer(None)
for _ in sys.stdin:
    answer(loop.run_until_complete(once(first, last)))
"""


@dataclass(frozen=True)
class Beside:
    """A load beside the trips: routers and metrics of its breakers, how long it runs, how much of that before the
    first trip. `outlasts`: whether it has to run for as long as there are trips."""

    samples_per_s: float
    routers: int
    metrics: int
    seconds: float
    settle_s: float
    outlasts: bool = True


@dataclass
class Trips:
    """Breakers that trip, each with the router that was made with it, and how many samples each router took."""

    homes: dict[str, str]
    accepted: Counter[str]


SMOKE_TRIPS, SMOKE_BESIDE = 10, Beside(1_000, 2, 4, 3.0, 0.5, outlasts=False)


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
    parser = options_of("push")
    parser.add_argument("--trips", type=int, default=300)
    parser.add_argument("--beside", type=float, default=0.0)
    options = parser.parse_args(argv)
    count = SMOKE_TRIPS if options.smoke else options.trips
    beside = Beside(options.beside, 50, 20, count * SLOWEST_S, 3.0) if options.beside else None
    if options.smoke:
        beside = SMOKE_BESIDE
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder) / "data", BREAKERS_ALLOW_PRIVATE_DESTINATIONS="true") as live,
    ):
        chain = Driver(live, CHAIN)
        try:
            chain.ask(folder)
            with busy(live, beside) as figures:
                found, trips = asyncio.run(measure(live, count, chain))
                figures |= found
        finally:
            chain.close()
        check(Evidence(live.data_dir), trips)
    show(figures, options.json)


@contextmanager
def busy(live: LiveService, beside: Beside | None) -> Iterator[dict[str, float]]:
    """If it is to, the service takes samples of others as long as the block runs, and answers all of them."""
    figures: dict[str, float] = {}
    if beside is None:
        yield figures
        return
    fleet = Fleet(live, beside.routers, beside.metrics)
    per_s = beside.samples_per_s / SAMPLES
    bodies = fleet.bodies(SAMPLES, 1, per_s, beside.seconds)
    with ThreadPoolExecutor(1) as thread:
        loading = thread.submit(load.run, fleet.target(), bodies, CONNECTIONS, beside.seconds, per_s)
        time.sleep(beside.settle_s)
        yield figures
        assert not (beside.outlasts and loading.done()), "the load ended before the trips did"
        report = loading.result()
    assert set(report.statuses) == {202}, dict(report.statuses)
    check_fleet(fleet, Evidence(live.data_dir), report.accepted)
    figures |= {"beside_samples_per_s": report.accepted / report.seconds}


async def measure(live: LiveService, count: int, chain: Driver) -> tuple[dict[str, float], Trips]:
    made = [live.breaker(name=f"push-{i}", cooldown_ms=3_600_000) for i in range(count)]
    stream, trips = Stream(), Trips({one["breaker"]["id"]: one["router_id"] for one in made}, Counter())
    async with Hook() as hook, httpx.AsyncClient(base_url=live.base_url, trust_env=False) as http:
        config = {"url": hook.url("/"), "secret": "for the bench"}
        body = {"name": "hook", "channel": "webhook", "config": config, "events": ["trip"]}
        answer = live.user.post(f"{live.project_path}/notification-channels", json=body)
        assert answer.status_code == 201, answer.text
        path = f"{live.project_path}/breakers/state:stream"
        following = asyncio.create_task(stream.follow(http, path, live.credentials["project_key"]))
        await stream.opened.wait()
        for one in made:  # as in use: who owns its router is known
            trips.accepted[one["router_id"]] += taken(await post(live, http, one["router_id"], 1.0))
        rounds, no_ops, chains = [], list[float](), list[float]()
        for one in made:
            rounds.append(await trip(live, http, one, stream, hook, trips))
            no_ops.append(await no_op_ms(http))
            chains.append(await asyncio.to_thread(chain.ask))
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert len(hook.by_key()) == count, "every trip is told once"
    no_op, hops = statistics.median(no_ops), statistics.median(chains)
    figures = {"trips": float(count), "no_op_request_ms_median": no_op, "no_op_chain_ms_median": hops}
    for name, times in zip(("answered", "stream", "webhook"), zip(*rounds, strict=True), strict=True):
        ordered = sorted(times)
        figures[f"{name}_ms_median"] = statistics.median(ordered)
        figures[f"{name}_ms_p99"] = ordered[max(0, int(len(ordered) * 0.99) - 1)]
    figures["stream_per_no_op"] = figures["stream_ms_median"] / (no_op + hops)
    return figures, trips


async def no_op_ms(http: httpx.AsyncClient) -> float:
    start = time.perf_counter()
    await http.get("/api/healthz")
    return (time.perf_counter() - start) * 1000


async def post(live: LiveService, http: httpx.AsyncClient, router_id: str, value: float) -> httpx.Response:
    sample = {"router_id": router_id, "metric": "latency", "ts_ms": int(time.time() * 1000), "value": value}
    return await http.post(f"{live.project_path}/ingest", json={"samples": [sample] * 10})


def taken(answer: httpx.Response) -> int:
    """How many samples a request brought in."""
    assert answer.status_code == 202, answer.text
    return int(answer.json()["accepted"])


async def trip(
    live: LiveService, http: httpx.AsyncClient, made: dict[str, Any], stream: Stream, hook: Hook, trips: Trips
) -> tuple[float, float, float]:
    """Milliseconds from the POST of a bad batch to its answer, its message and its notification."""
    await asyncio.sleep(PAUSE_S)
    loop = asyncio.get_running_loop()
    shown = stream.came[made["breaker"]["name"]] = loop.create_future()
    told = hook.came[made["breaker"]["id"]] = loop.create_future()
    start = time.perf_counter()
    answer = await post(live, http, made["router_id"], 500.0)
    answered = time.perf_counter()
    trips.accepted[made["router_id"]] += taken(answer)
    async with asyncio.timeout(WITHIN_S):
        came = await asyncio.gather(shown, told)
    return (answered - start) * 1000, (came[0] - start) * 1000, (came[1] - start) * 1000


def check(evidence: Evidence, trips: Trips) -> None:
    """A wrong run fails: a sample more or less in the log, a history that is not its log's, or not one trip."""
    check_counts(evidence, trips.accepted)
    check_replays(evidence, trips.homes)
    for breaker_id in trips.homes:
        events = evidence.history(breaker_id)
        assert [event.curr for event in events] == ["open"], events
