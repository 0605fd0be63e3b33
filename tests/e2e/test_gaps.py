"""Silence while nothing could be heard is no evidence: a pessimistic breaker in half_open survives all kinds of outage,
and its log, replayed over the gap, tells the same events."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.launch import processes
from breaker_actors.core.log_entries import Gap
from breaker_actors.persistence import DATABASE
from tests.support.invariants import Evidence, Moved, assert_in_sequence
from tests.support.live import LiveService, tree_of, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

HEARD_S = 60.0
BUSY_MS = 3_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module", autouse=True)
def actors(live: LiveService) -> None:
    """One that is started for a patient would keep it from its samples for seconds."""
    live.use_all_actors()


class Patient:
    """A pessimistic breaker on its way back to closed, and good samples for it every 50 ms from a thread."""

    def __init__(self, live: LiveService, name: str, **rule: Any) -> None:
        self.live = live
        self.window_ms, self.interval_ms = rule["window_ms"], rule["eval_interval_ms"]
        made = live.breaker(name=name, half_open_indeterminate_policy="pessimistic", cooldown_ms=200, **rule)
        self.id, self.router_id = made["breaker"]["id"], made["router_id"]
        self.evidence = Evidence(live.data_dir)
        live.trip(made, "half_open")

    @contextmanager
    def fed(self, live: LiveService) -> Iterator[None]:
        """Whatever is not answered is sent again until it is, without the pauses of an SDK: seconds of waiting behind a
        door that is open again are silence."""
        over = threading.Event()
        thread = threading.Thread(target=self._feed, args=(live, over))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _feed(self, live: LiveService, over: threading.Event) -> None:
        while not over.wait(0.05):
            key = os.urandom(8).hex()
            while not over.is_set():
                with suppress(httpx.TransportError):
                    if live.send(self.router_id, [10.0], key=key, pauses=()).status_code == 202:
                        break
                over.wait(0.05)

    def closed_ms(self, until_ms: int) -> int | None:
        """When it came back to closed by then, as its log says."""
        moves = asyncio.run(self.evidence.replay(self.router_id, self.id, until_ms))
        return moves[-1].ts_ms if moves[-1].curr == "closed" else None

    def _closed(self) -> list[Moved]:
        events = self.evidence.history(self.id)
        return events if len(events) > 1 and events[-1].curr == "closed" else []

    def since_ms(self) -> int:
        """When it came to half_open."""
        return self.evidence.history(self.id)[1].ts_ms

    def outages(self) -> list[Gap]:
        """A busy machine adds short ones of its own."""
        return self.evidence.outages(self.router_id)

    def longest_gap(self) -> Gap:
        return max(self.outages(), key=lambda gap: gap.to_ms - gap.from_ms)

    def swallowed(self, gap: Gap) -> bool:
        """Whether a tick lay in the gap whose window would have been empty."""
        first = gap.from_ms + self.window_ms - self.since_ms()
        tick = self.since_ms() + -(-first // self.interval_ms) * self.interval_ms
        return tick < gap.to_ms

    def assert_recovered(self) -> None:
        """It closed without a second trip, as its log says it must."""
        events = wait_for(self._closed, HEARD_S)
        assert [event.curr for event in events] == ["open", "half_open", "closed"]
        assert_in_sequence(self.id, events)
        assert events == asyncio.run(self.evidence.replay(self.router_id, self.id, events[-1].ts_ms))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else can write to a SQLite file."""
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")


def test_a_router_that_was_stopped_for_seconds(live: LiveService) -> None:
    patient = Patient(live, "stopped", window_ms=1_000, eval_interval_ms=2_000, recovery_allow_rate_ramp_steps=1)
    (pid,) = live.pids("RouterActor")
    with patient.fed(live):
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(5.0)
        finally:
            os.kill(pid, signal.SIGCONT)
        patient.assert_recovered()
    assert patient.swallowed(patient.longest_gap())


def test_a_log_that_takes_no_writes_for_seconds(live: LiveService) -> None:
    """Longer than a writer waits for its turn."""
    patient = Patient(live, "unlogged", window_ms=1_000, eval_interval_ms=2_000, recovery_allow_rate_ramp_steps=1)
    slot = patient.evidence.slots()[patient.router_id]
    with patient.fed(live):
        with locked(live.data_dir / "log" / f"{slot}.sqlite"):
            time.sleep(6.5)
        patient.assert_recovered()
    assert patient.swallowed(patient.longest_gap())


def test_a_store_that_takes_no_writes_for_seconds(live: LiveService) -> None:
    """Samples are taken all the time, so there is no gap but short ones, BUSY_MS at most, of a busy machine; what the
    breaker did meanwhile is told afterwards. Each gap puts its closing off: the store is away until after that."""
    patient = Patient(live, "unstored", window_ms=1_000, eval_interval_ms=1_500, recovery_allow_rate_ramp_steps=2)
    with patient.fed(live):
        with locked(live.data_dir / DATABASE):
            began_ms = now_ms()
            time.sleep(6.5)
            wait_for(lambda: patient.closed_ms(now_ms() - BUSY_MS), HEARD_S, 0.2)
            ended_ms = now_ms()
            assert patient.evidence.history(patient.id)[-1].curr == "half_open"
        patient.assert_recovered()
    assert all(gap.to_ms - gap.from_ms < BUSY_MS for gap in patient.outages())
    assert began_ms < patient.evidence.history(patient.id)[-1].ts_ms < ended_ms


def test_a_router_that_is_killed_again_and_again(live: LiveService) -> None:
    patient = Patient(live, "killed", window_ms=1_500, eval_interval_ms=3_000, recovery_allow_rate_ramp_steps=1)
    with patient.fed(live):
        over = time.monotonic() + 5.0
        while time.monotonic() < over:
            live.kill("RouterActor")
            time.sleep(0.05)
        patient.assert_recovered()
    assert any(map(patient.swallowed, patient.outages()))


def test_an_api_that_was_away(live: LiveService) -> None:
    """The router was there all the time, but nobody could bring it anything."""
    patient = Patient(live, "unreached", window_ms=3_000, eval_interval_ms=2_500, recovery_allow_rate_ramp_steps=2)
    with patient.fed(live):
        over = time.monotonic() + 6.0
        while time.monotonic() < over:
            live.kill("ServeReplica")
            time.sleep(0.1)
        patient.assert_recovered()
    assert any(map(patient.swallowed, patient.outages()))


def test_a_service_that_was_killed_and_started_again(tmp_path: Path) -> None:
    live = LiveService(tmp_path / "data")
    patient = Patient(live, "restarted", window_ms=3_000, eval_interval_ms=3_000, recovery_allow_rate_ramp_steps=2)
    with patient.fed(live):
        time.sleep(4.0)
    live.crash()
    with first_door_killed() as killed:
        live = LiveService(tmp_path / "data")
    try:
        with patient.fed(live):
            patient.assert_recovered()
        assert any(map(patient.swallowed, patient.outages()))
        assert killed
        assert "a proxy of Ray Serve did not start at once, and is started again: HAProxy crashed" in "".join(
            live.output
        )
    finally:
        live.stop()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_shut_door_is_no_silence(live: LiveService, how: str) -> None:
    """HAProxy does not take what waits before it; everything behind it runs. Windows are longer than it takes to
    notice that."""
    patient = Patient(live, f"door {how}", window_ms=3_000, eval_interval_ms=2_500, recovery_allow_rate_ramp_steps=2)
    with patient.fed(live):
        if how == "stopped":
            pids = doors(live)
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(8.0)
            finally:
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
        else:
            over = time.monotonic() + 8.0
            while time.monotonic() < over:
                for pid in doors(live):
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.1)
        patient.assert_recovered()
    assert any(map(patient.swallowed, patient.outages()))


@contextmanager
def first_door_killed() -> Iterator[list[int]]:
    """Ends the first HAProxy that is started meanwhile before it listens: once, the next one is left alone."""
    killed: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not killed and not over.wait(0.005):
            for pid, line in tree_of(os.getpid()).items():
                if "haproxy.cfg" in line and "haproxy.py" in line:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                    break

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield killed
    finally:
        over.set()
        watcher.join()


def doors(live: LiveService) -> list[int]:
    return [pid for pid in processes.named(list(tree_of(live.process.pid)), "haproxy") if processes.alive(pid)]
