"""A real Alertmanager (Debian's) hears of a real outage: firing while it stands, resolved when it ends, and firing
again after it lost its memory."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.live import LiveService, serving, wait_for

PROGRAM = "prometheus-alertmanager"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which(PROGRAM) is None, reason="there is no Alertmanager"),
]
RESOLVE_TIMEOUT_S = 3
RENEWAL_MS = 1_000
GOOD = [1.0] * 20


class Pager:
    """Whom the Alertmanager tells: all it said of alerts, in order."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.told += body["alerts"]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def words(self, breaker: str) -> list[str]:
        return [alert["status"] for alert in self.told if alert["labels"].get("breaker") == breaker]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Alertmanager:
    """Its process, which forgets everything when it is started again, and its API."""

    def __init__(self, folder: Path, pager: Pager) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = "{}:{}".format(*free.getsockname())
        self.url = f"http://{self.address}"
        config = {
            "global": {"resolve_timeout": f"{RESOLVE_TIMEOUT_S}s"},
            "route": {"receiver": "pager", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"},
            "receivers": [{"name": "pager", "webhook_configs": [{"url": pager.url}]}],
        }
        (folder / "alertmanager.yaml").write_text(yaml.safe_dump(config))
        self._api = httpx.Client(base_url=self.url, timeout=20, trust_env=False)
        self._starts = 0
        self.start()

    def start(self) -> None:
        self._starts += 1
        log = self._folder / f"log{self._starts}"
        command = [
            PROGRAM,
            f"--config.file={self._folder}/alertmanager.yaml",
            f"--storage.path={self._folder}/data{self._starts}",
            f"--web.listen-address={self.address}",
            "--cluster.listen-address=",
        ]
        with log.open("w") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        wait_for(lambda: self._is_ready() or self.process.poll() is not None, 60, 0.1)
        assert self.process.poll() is None, log.read_text()

    def _is_ready(self) -> bool:
        try:
            return self._api.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def close(self) -> None:
        self.kill()
        self._api.close()

    def alerts(self, breaker: str) -> list[dict[str, Any]]:
        """The alerts of a breaker that have not ended."""
        found: list[dict[str, Any]] = self._api.get("/api/v2/alerts").raise_for_status().json()
        return [alert for alert in found if alert["labels"].get("breaker") == breaker]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    environ = {"ALLOW_PRIVATE_DESTINATIONS": "true", "ALERT_RENEWAL_MS": str(RENEWAL_MS)}
    folder = tmp_path_factory.mktemp("alerted") / "data"
    with serving(folder, **{f"BREAKERS_{name}": value for name, value in environ.items()}) as service:
        yield service


@pytest.fixture
def pager() -> Iterator[Pager]:
    pager = Pager()
    yield pager
    pager.close()


@pytest.fixture
def far(tmp_path: Path, pager: Pager) -> Iterator[Alertmanager]:
    far = Alertmanager(tmp_path, pager)
    yield far
    far.close()


@pytest.fixture
def channel(live: LiveService, far: Alertmanager) -> Iterator[str]:
    config = {"url": f"{far.url}/", "labels": {"severity": "critical"}, "generator_url": live.base_url}
    path = f"{live.project_path}/notification-channels"
    body = {"channel": "alertmanager", "config": config}
    answer = live.user.post(path, params={"strict": "true"}, json=body)
    assert answer.status_code == 201, answer.text
    id_ = answer.json()["channel"]["id"]
    yield id_
    live.user.delete(f"{path}/{id_}").raise_for_status()


def recover(live: LiveService, made: dict[str, Any]) -> None:
    def closed() -> bool:
        live.send(made["router_id"], GOOD)
        return live.state(made["breaker"]["id"])["state"] == "closed"

    wait_for(closed, 60, 0.1)


def one(ask: Callable[[], list[dict[str, Any]]]) -> dict[str, Any]:
    """The alert, as soon as it is there and alone."""
    return dict(wait_for(lambda: alerts[0] if len(alerts := ask()) == 1 else None, 30, 0.1))


def test_an_outage_fires_as_long_as_it_stands_and_is_resolved(
    live: LiveService, far: Alertmanager, pager: Pager, channel: str
) -> None:
    """Longer than the resolve timeout and the alert's own end, over failed probes, a rename, and a Notifier's death."""
    metadata = {"team": "payments", "cost-center": "7", "kind": "gateway", "runbook_url": "https://wiki.example/pay"}
    made = live.breaker(name="paying", cooldown_ms=1_500, window_ms=1_000, metadata=metadata)
    id_ = made["breaker"]["id"]
    live.trip(made)
    first = one(lambda: far.alerts("paying"))
    labels = first["labels"]
    assert (labels["alertname"], labels["severity"], labels["breaker_id"]) == ("BreakerOpen", "critical", id_)
    assert (labels["team"], labels["cost_center"], labels["meta_kind"]) == ("payments", "7", "gateway")
    assert first["annotations"]["runbook_url"] == "https://wiki.example/pay"
    assert "paying is open" in first["annotations"]["summary"]
    assert first["generatorURL"] == f"{live.base_url}/console/p/{live.project_id}/b/{id_}"
    live.user.patch(f"{live.project_path}/breakers/{id_}", json={"name": "renamed"}).raise_for_status()
    live.kill("Notifier")
    until = datetime.fromisoformat(first["endsAt"]).timestamp() + RESOLVE_TIMEOUT_S
    while time.time() < until:
        (alert,) = far.alerts("paying")
        assert (alert["fingerprint"], alert["startsAt"]) == (first["fingerprint"], first["startsAt"])
        time.sleep(0.2)
    assert pager.words("paying") == ["firing"]
    recover(live, made)
    wait_for(lambda: not far.alerts("paying"), 30, 0.1)
    wait_for(lambda: pager.words("paying") == ["firing", "resolved"], 30, 0.1)
    time.sleep(2 * RENEWAL_MS / 1000)
    assert far.alerts("paying") == far.alerts("renamed") == []
    kinds = {row["kind"] for row in deliveries(live, channel)}
    assert kinds == {"trip", "recover"}


def deliveries(live: LiveService, channel: str) -> list[dict[str, Any]]:
    answer = live.user.get(f"{live.project_path}/notification-channels/{channel}/deliveries").raise_for_status()
    return list(answer.json()["deliveries"])


def test_one_that_lost_its_memory_hears_of_what_stands(
    live: LiveService, far: Alertmanager, pager: Pager, channel: str
) -> None:
    stands, ends = (live.breaker(name=name, cooldown_ms=3_600_000) for name in ("stands", "ends"))
    for made in (stands, ends):
        live.trip(made)
        one(lambda name=made["breaker"]["name"]: far.alerts(name))  # type: ignore[misc]
    before = len(deliveries(live, channel))
    far.kill()
    live.user.delete(f"{live.project_path}/breakers/{ends['breaker']['id']}").raise_for_status()
    time.sleep(2 * RENEWAL_MS / 1000)
    far.start()
    one(lambda: far.alerts("stands"))
    wait_for(lambda: {row["state"] for row in deliveries(live, channel)} == {"sent"}, 60, 0.2)
    assert far.alerts("ends") == []
    assert len(deliveries(live, channel)) == before + 1
    live.user.delete(f"{live.project_path}/breakers/{stands['breaker']['id']}").raise_for_status()
    wait_for(lambda: not far.alerts("stands"), 30, 0.1)


def test_a_test_is_an_alert_that_ends_by_itself(
    live: LiveService, far: Alertmanager, pager: Pager, channel: str
) -> None:
    answer = live.user.post(f"{live.project_path}/notification-channels/{channel}/test")
    assert answer.status_code == 200, answer.text
    wait_for(lambda: pager.words("test") == ["firing", "resolved"], 30, 0.1)


def test_what_it_refuses_is_told_in_its_words(live: LiveService, far: Alertmanager, channel: str) -> None:
    path = f"{live.project_path}/notification-channels/{channel}"
    live.user.patch(path, json={"config": {"url": f"{far.url}/nowhere"}}).raise_for_status()
    answer = live.user.post(f"{path}/test")
    assert answer.status_code == 422
    assert "404" in answer.text
