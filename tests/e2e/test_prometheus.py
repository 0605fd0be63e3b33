"""A real Prometheus scrapes a real service with its token, and alerts on a real trip by the rules of `dashboards/`."""

from __future__ import annotations

import itertools
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from tests.support.live import LiveService, wait_for

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus"),
]
RULES = Path(__file__).parents[2] / "dashboards" / "breakers.rules.yaml"
BREAKERS = 200


@pytest.fixture(scope="module")
def prometheus(
    live: LiveService, metrics_token: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """Its API. The rules are ours, without the time that an alert has to wait."""
    folder = tmp_path_factory.mktemp("prometheus")
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    (folder / "token").write_text(metrics_token)
    job = {
        "job_name": "breakers",
        "static_configs": [{"targets": [urlsplit(live.base_url).netloc]}],
        "authorization": {"credentials_file": str(folder / "token")},
    }
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [job],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*free.getsockname())
    command = ["prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
        try:
            with httpx.Client(base_url=f"http://{address}", timeout=20, trust_env=False) as client:
                wait_for(lambda: is_ready(client) or process.poll() is not None, 60, 0.1)
                assert process.poll() is None, (folder / "log").read_text()
                yield client
        finally:
            process.terminate()
            process.wait(30)


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def asked(client: httpx.Client, query: str) -> list[dict[str, Any]]:
    answer = client.get("/api/v1/query", params={"query": query}).raise_for_status().json()
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def scraped(live: LiveService, token: str) -> str:
    with live.client(token) as client:
        answer = client.get("/metrics")
    assert answer.status_code == 200
    return answer.text


def firing(client: httpx.Client, breaker: str) -> set[str]:
    alerts = client.get("/api/v1/alerts").raise_for_status().json()["data"]["alerts"]
    return {
        alert["labels"]["alertname"]
        for alert in alerts
        if alert["state"] == "firing" and alert["labels"].get("breaker") == breaker
    }


def test_a_trip_is_alerted_and_its_end_too(live: LiveService, prometheus: httpx.Client) -> None:
    made = live.breaker(name="scraped", cooldown_ms=3_600_000)
    wait_for(lambda: asked(prometheus, 'breakers_breaker_state{breaker="scraped", state="closed"} == 1'), 60, 0.2)
    assert "BreakerStaysOpen" not in firing(prometheus, "scraped")
    live.trip(made)
    wait_for(lambda: "BreakerStaysOpen" in firing(prometheus, "scraped"), 60, 0.2)
    live.user.delete(f"{live.project_path}/breakers/{made['breaker']['id']}").raise_for_status()
    wait_for(lambda: not firing(prometheus, "scraped"), 60, 0.2)


def test_it_has_what_all_processes_count(live: LiveService, prometheus: httpx.Client) -> None:
    actors = "count by (actor) (breakers_log_lines_total)"
    wanted = {"router-0", "breaker-0", "journal-0", "directory", "notifier"}
    wait_for(lambda: wanted < {series["metric"]["actor"] for series in asked(prometheus, actors)}, 60, 0.2)
    (up,) = asked(prometheus, 'up{job="breakers"}')
    assert up["value"][1] == "1"
    late = "histogram_quantile(0.99, sum by (le) (rate(breakers_evaluation_lag_seconds_bucket[5m])))"
    wait_for(lambda: [series for series in asked(prometheus, late) if float(series["value"][1]) > 0], 60, 0.2)
    volatile = {"SessionName", "WorkerId", "Component", "NodeAddress", "pid"}
    everything = prometheus.get("/api/v1/labels").raise_for_status().json()["data"]
    assert not volatile & set(everything)


@pytest.fixture
def loaded(live: LiveService) -> Iterator[str]:
    """The path of a project with 200 breakers."""
    body = {"workspace_id": live.credentials["workspace_id"], "name": "loaded"}
    path = f"/v1/projects/{live.user.post('/v1/projects', json=body).raise_for_status().json()['project_id']}"
    rule = {"metric": "latency", "kind": "avg", "op": "gt", "threshold": 100, "window_ms": 30_000}
    breakers = [{**rule, "name": f"loaded-{i}", "eval_interval_ms": 100} for i in range(BREAKERS)]
    live.user.put(f"{path}/breakers", json={"breakers": breakers}, timeout=60).raise_for_status()
    yield path
    live.user.delete(path, timeout=60).raise_for_status()


def test_promtool_has_nothing_to_say_under_load(live: LiveService, metrics_token: str, loaded: str) -> None:
    """200 breakers, while samples come in."""
    listed = live.user.get(f"{loaded}/breakers").raise_for_status().json()["breakers"]
    routers, ended, taken = [one["router_id"] for one in listed], threading.Event(), 0

    def send() -> None:
        nonlocal taken
        with live.client(live.credentials["user_key"]) as client:
            for router_id in itertools.cycle(routers):
                if ended.is_set():
                    return
                now_ms = int(time.time() * 1000)
                sample = {"router_id": router_id, "metric": "latency", "ts_ms": now_ms, "value": 10.0}
                taken += client.post(f"{loaded}/ingest", json={"samples": [sample] * 20}).status_code == 202

    sender = threading.Thread(target=send)
    sender.start()
    try:
        # a look is shared for a second: the first one may be of before
        wait_for(lambda: scraped(live, metrics_token).count("\nbreakers_breaker_state{") >= 3 * BREAKERS, 20, 0.2)
        for _ in range(3):
            text = scraped(live, metrics_token)
            done = subprocess.run(
                ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    finally:
        ended.set()
        sender.join()
    assert taken > 10
