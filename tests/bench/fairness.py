"""How long a quiet project waits beside floods of others: its ingest and state reads, alone and beside each flood.

python -m tests.bench fairness [--json FILE] [--smoke] [--seconds 10] [--only NAME ...]

The quiet project sends and reads at fixed times, each request over a connection that is free (latency counts from when
it was due; one that waits holds up no other). Floods come over four connections from four other addresses, each as
fast as it is answered, in a process of their own. The aim: beside each, p99 stays within three times what it was
alone. Figures in ms, and as ratios to the median of the runs alone. All actors are up from the start: what a process
takes that starts, once in a service's life, is another matter. Flooders burn CPU of the same machine: beside
"a busy process" the service has nothing to do but the quiet project's requests, while one process computes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from api.launch import haproxy as ingress
from tests.support.bombs import bombs, packed
from tests.support.figures import options_of, show
from tests.support.live import LiveService, serving

SOURCES = ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
EVERY_S, ANSWER_S = 0.04, 30.0
SAMPLES, BULK = 1000, 300
SETTLE_S = 1.0
"""Between a flood and the next run alone."""
CONNECTIONS_MAX = 200
FIRST_ANSWER_S = 30.0


def main(argv: list[str]) -> None:
    parser = options_of("fairness")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args(argv)
    apart = {ingress.VARIABLE: json.dumps({"here": ["127.0.0.1"]})}  # floods are of other machines
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "data", **apart) as live:
        show(measure(live, 1.0 if options.smoke else options.seconds, options.only), options.json)


def measure(live: LiveService, seconds: float, only: Sequence[str] = ()) -> dict[str, float]:
    """`only`: the floods wanted, all by default."""
    live.use_all_actors()
    quiet, figures = Quiet(live), dict[str, float]()
    quiet.run(min(seconds, 3.0))  # warm
    alone = [quiet.run(seconds)]
    beside = {}
    for name, requests in floods(live, Noisy(live)).items():
        if only and name not in only:
            continue
        with flooding(live.base_url, requests) as answers:
            beside[name] = quiet.run(seconds)
        figures |= {f"{name}: answers {status}": float(count) for status, count in sorted(answers.items())}
        assert answers.total() or not requests, f"no answer to {name}"
        time.sleep(SETTLE_S)
        alone.append(quiet.run(seconds))
    before = {kind: statistics.median(run[kind] for run in alone) for kind in alone[0]}
    figures |= {f"alone: {kind}": value for kind, value in before.items()}
    for name, run in beside.items():
        figures |= {f"{name}: {kind}": value for kind, value in run.items()}
        figures |= {f"{name}: {kind} ratio": value / before[kind] for kind, value in run.items()}
    return figures


def head(method: str, path: str, body: bytes, **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: bench", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def samples_of(router_id: str, count: int, value: object) -> bytes:
    now_ms = int(time.time() * 1000)
    made = [{"router_id": router_id, "metric": "latency", "ts_ms": now_ms - n, "value": value} for n in range(count)]
    return json.dumps(made).encode()


class Quiet:
    """A project with one breaker, and one request of each kind every EVERY_S seconds."""

    def __init__(self, live: LiveService) -> None:
        made = live.breaker(threshold=1e9)
        self._live, self._router = live, made["router_id"]
        self._key = f"Bearer {live.credentials['user_key']}"
        self._state = f"{live.project_path}/breakers/{made['breaker']['id']}/state"

    def run(self, seconds: float) -> dict[str, float]:
        """p50 and p99 of each kind. Any answer but the right one fails."""
        return asyncio.run(self._run(seconds))

    async def _run(self, seconds: float) -> dict[str, float]:
        read = head("GET", self._state, b"", Authorization=self._key)
        ingest, reads = await asyncio.gather(
            self._paced(seconds, 202, lambda: self._sent()), self._paced(seconds, 200, lambda: read)
        )
        found = {"ingest": sorted(ingest), "reads": sorted(reads)}
        return {
            f"{kind} p{p}": ms[min(len(ms) - 1, len(ms) * p // 100)] for kind, ms in found.items() for p in (50, 99)
        }

    def _sent(self) -> bytes:
        return head("POST", f"{self._live.project_path}/ingest", samples_of(self._router, 10, 1.0))

    async def _paced(self, seconds: float, wanted: int, request: Callable[[], bytes]) -> list[float]:
        free, tasks = list[Client](), list[asyncio.Task[float]]()

        async def one(due: float) -> float:
            client = free.pop() if free else Client(self._live.base_url)
            status = await client.ask(request())
            assert status == wanted, status
            free.append(client)
            return (time.monotonic() - due) * 1000

        begun = time.monotonic()
        for n in range(int(seconds / EVERY_S)):
            due = begun + n * EVERY_S
            await asyncio.sleep(due - time.monotonic())
            assert sum(not task.done() for task in tasks) < CONNECTIONS_MAX, "the service does not answer"
            tasks.append(asyncio.create_task(one(due)))
        found = await asyncio.gather(*tasks)
        for client in free:
            client.close()
        return found


class Client:
    """One keep-alive connection from an address; it is made again when it was closed."""

    def __init__(self, base_url: str, address: str | None = None) -> None:
        self._url, self._address = urlsplit(base_url), address
        self._writer: asyncio.StreamWriter | None = None
        self.told = b""
        """The body of the last answer."""

    async def ask(self, request: bytes) -> int:
        """The status of the answer."""
        async with asyncio.timeout(ANSWER_S):
            if self._writer is not None and self._reader.at_eof():  # it was idle for too long
                self.close()
            if self._writer is None:
                local = (self._address, 0) if self._address else None
                streams = await asyncio.open_connection(self._url.hostname, self._url.port, local_addr=local)
                self._reader, self._writer = streams
            self._writer.write(request)
            with contextlib.suppress(ConnectionError):  # an answer may come before all was sent
                await self._writer.drain()
            lines = (await self._reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
            fields = dict(line.split(b": ", 1) for line in lines[1:] if line)
            self.told = await self._reader.readexactly(int(fields.get(b"content-length", b"0")))
        if fields.get(b"connection") == b"close":
            self.close()
        return int(lines[0].split()[1])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class Noisy:
    """Another project of the same service."""

    def __init__(self, live: LiveService) -> None:
        body = {"name": "noisy", "workspace_id": live.credentials["workspace_id"]}
        made = live.user.post("/v1/projects", json=body).json()
        self.path = f"/v1/projects/{made['project_id']}"
        assert live.user.patch(self.path, json={"enable_signed_ingest": False}).status_code == 200
        self.router = live.user.post(f"{self.path}/routers", json={"name": "r"}).json()["router"]["id"]


def floods(live: LiveService, noisy: Noisy) -> Mapping[str, list[bytes]]:
    """The requests of each flood, sent in turn."""
    ingest, key = f"{noisy.path}/ingest", f"Bearer {live.credentials['user_key']}"
    valid, invalid = (gzip.compress(samples_of(noisy.router, SAMPLES, value)) for value in (1.0, "x"))
    rule = {"metric": "m", "kind": "avg", "op": "gt", "window_ms": 60_000}

    def put(threshold: int = 1, name: str = "b", path: str = "breakers") -> bytes:
        wanted = [{**rule, "name": f"{name}{n}", "threshold": threshold} for n in range(BULK)]
        return head("PUT", f"{noisy.path}/{path}", json.dumps({"breakers": wanted}).encode(), Authorization=key)

    others = "breakers?allow_destructive=true"
    strange = [f"Bearer eb_{os.urandom(16).hex()}" for _ in range(1000)]
    return {
        "a busy process": [],
        "bombs": [head("POST", ingest, packed(body), Content_Encoding="gzip") for body in bombs().values()],
        "invalid samples": [head("POST", ingest, invalid, Content_Encoding="gzip")],
        "valid samples": [head("POST", ingest, valid, Content_Encoding="gzip")],
        "bodies of 8 MB": [head("POST", ingest, b"[" + b" " * ((8 << 20) - 2) + b"]")],
        "without a key": [head("GET", f"{noisy.path}/breakers", b"")],
        "with other keys": [head("GET", f"{noisy.path}/breakers", b"", Authorization=one) for one in strange],
        "bulk PUTs": [put(1), put(2)],
        "bulk PUTs of no change": [put(2)],
        "bulk PUTs of other breakers": [put(name="c", path=others), put(name="d", path=others)],
    }


@contextlib.contextmanager
def flooding(base_url: str, requests: list[bytes]) -> Iterator[Counter[int]]:
    """A flood as long as the block lasts; its answers by status afterwards (0: none came)."""
    answers, (ours, theirs) = Counter[int](), multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_flood, args=(base_url, requests, theirs))
    process.start()
    try:
        assert ours.recv() == "begun"
        yield answers
        ours.send("end")
        answers |= ours.recv()
    finally:
        process.kill()
        process.join()


def _flood(base_url: str, requests: list[bytes], pipe: Connection) -> None:
    asyncio.run(_flood_from_all(base_url, requests, pipe))


async def _flood_from_all(base_url: str, requests: list[bytes], pipe: Connection) -> None:
    answers = Counter[int]()
    if not requests:
        pipe.send("begun")
        while not pipe.poll():
            sum(range(10_000))
        pipe.send(answers)
        return
    tasks = [
        asyncio.create_task(_flood_from(base_url, at, address, requests, answers)) for at, address in enumerate(SOURCES)
    ]
    pipe.send("begun")
    await asyncio.to_thread(pipe.recv)
    with contextlib.suppress(TimeoutError):  # a bulk PUT may take longer than a short run
        async with asyncio.timeout(FIRST_ANSWER_S):
            while not answers:
                await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    pipe.send(answers)


async def _flood_from(base_url: str, at: int, address: str, requests: list[bytes], answers: Counter[int]) -> None:
    client = Client(base_url, address)
    for request in itertools.islice(itertools.cycle(requests), at, None):
        try:
            answers[await client.ask(request)] += 1
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            answers[0] += 1
            client.close()
