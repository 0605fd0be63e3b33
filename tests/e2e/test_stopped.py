"""Each process of a running service is stopped (SIGSTOP) for a while, with samples waiting in front: nothing that was
answered is lost, nothing is counted twice, and the standstill is no evidence of silence.

STOPPED_SECONDS says for how long; twenty were tried by hand.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest

from api.cli.verify import verified
from breaker_actors.settings import Settings
from tests.support.live import LiveService, tree_of, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

STOPPED_S = float(os.environ.get("STOPPED_SECONDS", "6"))
HEARD_S = 90.0
SILENCE_MS = 4_000
KINDS = {
    "door": "haproxy",
    "replicas": "ray::ServeReplica",
    "routers": "ray::RouterActor",
    "breakers": "ray::BreakerActor",
    "journal": "ray::JournalActor",
    "directory": "ray::DirectoryActor",
    "notifier": "ray::NotifierActor",
    "controller": "ray::ServeController",
    "raylet": "raylet",
    "gcs": "gcs_server",
}
"""What the command line of each kind of process begins with, or its program's name."""


class Fed:
    """A breaker that opens on silence, one that counts, and samples for both every 50 ms from a thread."""

    def __init__(self, live: LiveService) -> None:
        self.live = live
        silent = {"kind": "count", "op": "lt", "threshold": 1, "window_ms": SILENCE_MS, "eval_interval_ms": 1_000}
        made = live.breaker(name="silence", metric="latency", **silent)
        self.id, self.router_id = made["breaker"]["id"], made["router_id"]
        counts = {"kind": "count", "op": "gt", "threshold": 1e9, "window_ms": 86_400_000}
        self.counting = live.breaker(name="counting", metric="latency", **counts)["breaker"]["id"]
        path = f"{live.project_path}/routers/{self.router_id}/breakers"
        assert live.user.post(path, json={"breaker_ids": [self.counting]}).status_code == 200
        self.answered = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._feed)

    def __enter__(self) -> Fed:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _feed(self) -> None:
        """Whatever is not answered is sent again until it is."""
        while not self._over.wait(0.05):
            key = os.urandom(8).hex()
            while True:
                try:
                    if self.live.send(self.router_id, [1.0], key=key).status_code == 202:
                        break
                except httpx.TransportError:
                    continue
            self.answered += 1

    def goes_on(self) -> None:
        """Waits until samples are taken again, and counted."""
        begun = self.answered
        wait_for(lambda: self.answered > begun + 3, HEARD_S)
        wait_for(lambda: self._counted() > begun, HEARD_S)

    def _counted(self) -> int:
        answer = self.live.user.get(f"{self.live.project_path}/breakers/{self.counting}/state")
        return int(answer.json()["sample_count"] or 0) if answer.status_code == 200 else -1

    def all_counted(self) -> None:
        found = wait_for(lambda: self._counted() == self.answered, HEARD_S)
        assert found, (self._counted(), self.answered)


@pytest.fixture(scope="module")
def fed(live: LiveService) -> Iterator[Fed]:
    with Fed(live) as found:
        found.goes_on()
        yield found


def of_kind(live: LiveService, kind: str) -> list[int]:
    begin = KINDS[kind]
    lines = tree_of(live.process.pid)
    return [
        pid for pid, line in lines.items() if line.startswith(begin) or os.path.basename(line.split(" ")[0]) == begin
    ]


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):  # who is stopped for too long is replaced
                os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_is_stopped_is_no_evidence(live: LiveService, fed: Fed, kind: str) -> None:
    pids = of_kind(live, kind)
    assert pids, f"no process is a {kind}"
    with stopped(pids):
        time.sleep(STOPPED_S)
    fed.goes_on()
    assert live.events(fed.id) == []


def test_everything_that_was_answered_is_counted_once(live: LiveService, fed: Fed) -> None:
    fed.end()
    fed.all_counted()
    assert asyncio.run(verified(Settings(data_dir=live.data_dir))).faults == []
