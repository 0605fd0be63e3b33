"""A start that fails while Ray starts: one line with the reason, and nothing left. No Ray here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import typer

from api.cli.errors import FAILED, one_line_errors
from api.launch import driver, processes, serve_proxies
from api.launch.log_lines import LogLines
from api.launch.ray_environment import NotStarted
from api.launch.supervisor import Service, run, stop_serve
from breaker_actors.clock import SystemClock
from breaker_actors.errors import Unavailable
from breaker_actors.settings import Settings

SLEEPS = "import time; time.sleep(60)"
FORKS = """
import os, sys, time
told, tell = os.pipe()
if not os.fork():
    os.read(told, 1)
    os._exit(0)
print("forked", flush=True)
time.sleep(1)
os.write(tell, b".")
os.wait()
print("gone", flush=True)
time.sleep(60)
"""
FAILS = """
import sys, time, types
sys.modules["ray"] = types.ModuleType("ray")
sys.excepthook = lambda *_: time.sleep(60)
from api.cli import main
def app(prog_name):
    raise RuntimeError("nobody thought of this")
main.app = app
main.main()
"""


class Starting(Service):
    """A start that hangs as Ray's does when its head dies: for a minute, without a word."""

    def __init__(self, folder: Path, program: str) -> None:
        super().__init__(Settings(data_dir=folder / "data"))
        self.program = folder / program
        self.program.symlink_to(sys.executable)
        self.left = folder / "of the service"
        self.started = threading.Event()

    def start(self) -> None:
        self.left.mkdir()
        self._folder = self.left
        self.child = subprocess.Popen([str(self.program), "-I", "-S", "-c", SLEEPS])
        self.started.set()
        threading.Event().wait(60)


@pytest.mark.parametrize("program", ["gcs_server", "raylet"])
def test_a_process_of_rays_that_ends_ends_the_start(
    tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "end_all", lambda clock, within_s: [])
    service, looked = Starting(tmp_path, program), threading.Event()
    watch_start = service.watch_start
    monkeypatch.setattr(service, "watch_start", lambda: (watch_start(), service._vital and looked.set()))

    def kill() -> None:
        looked.wait(20)
        service.child.kill()

    threading.Thread(target=kill, daemon=True).start()
    begun = time.monotonic()
    try:
        with pytest.raises(Unavailable, match="a process of Ray's has ended"):
            run(service, lambda *_: None)
    finally:
        service.child.kill()
        service.child.wait()
    assert time.monotonic() - begun < 20
    assert not service.left.exists()


def test_what_a_raylet_forks_is_not_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it becomes a worker it has the raylet's name; nobody misses it when it has gone."""
    monkeypatch.setattr(processes, "end_all", lambda clock, within_s: [])
    looks = threading.Semaphore(0)

    class Forking(Starting):
        def start(self) -> None:
            self.left.mkdir()
            self._folder = self.left
            self.child = subprocess.Popen([str(self.program), "-I", "-S", "-c", FORKS], stdout=subprocess.PIPE)
            assert self.child.stdout is not None
            for said in (b"forked\n", b"gone\n"):
                assert self.child.stdout.readline() == said
                for _ in range(4):  # one that is under way, and some more
                    assert looks.acquire(timeout=20)

        def watch_start(self) -> None:
            super().watch_start()
            looks.release()

        def stop(self) -> None:
            worked.append(self._vital)
            self.child.kill()
            self.child.communicate()

    worked: list[list[int]] = []
    service = Forking(tmp_path, "raylet")
    run(service, lambda *_: None)
    assert worked == [[service.child.pid]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("starting", [True, False])
def test_a_signal_is_named_where_it_stops_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, starting: bool
) -> None:
    """One line for whoever started it, and one for `breakers logs`."""
    monkeypatch.setattr(processes, "end_all", lambda clock, within_s: [])
    said: list[str] = []
    (tmp_path / "data" / "logs").mkdir(parents=True)

    class Quick(Service):
        def start(self) -> None:
            if starting:
                os.kill(os.getpid(), number)
                threading.Event().wait(60)

        def watch_start(self) -> None:
            pass

    def work(_: Service, stopped: Callable[[float], bool]) -> None:
        os.kill(os.getpid(), number)
        assert stopped(20)

    run(Quick(Settings(data_dir=tmp_path / "data"), warn=said.append), work)
    assert said == [f"stopping: {number.name}"]
    (line,) = LogLines(tmp_path / "data" / "logs").last()
    assert (line["event"], line["process"], line["signal"]) == ("stopping", "serve", number.name)


def test_a_start_looks_for_rays_processes_until_it_knows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look goes through all processes of the machine."""
    service, looks, there = Starting(tmp_path, "raylet"), 0, {"gcs_server": [1]}

    def children_of(pid: int) -> list[int]:
        nonlocal looks
        looks += 1
        return []

    monkeypatch.setattr(processes, "children_of", children_of)
    monkeypatch.setattr(processes, "named", lambda pids, name: there.get(name, []))
    monkeypatch.setattr(processes, "alive", lambda pid: True)
    service.watch_start()
    service.watch_start()
    there["raylet"] = [2]
    for _ in range(5):
        service.watch_start()
    assert (looks, service._vital) == (3, [1, 2])


@pytest.mark.parametrize("part", ["Ray", "Ray Serve"])
def test_what_ray_says_is_one_line(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray raises bare exceptions, some of pages."""
    said = "The current node timed out during startup.\nThis could happen" + " because" * 1_000

    def fail(*_: Any, **__: Any) -> None:
        raise Exception(said)

    monkeypatch.setattr(driver, "join", fail)
    with warnings.catch_warnings(action="ignore"):
        monkeypatch.setattr("ray.serve.start", fail)
    monkeypatch.setattr(serve_proxies, "controller_runs", lambda: False)
    service = Service(Settings(data_dir=tmp_path / "data"))
    service._folder = tmp_path
    start = service._start_ray if part == "Ray" else service._start_proxies
    with pytest.raises(typer.Exit) as ended, one_line_errors():
        start()
    assert ended.value.exit_code == FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"breakers: {part} did not start: The current node timed out during startup. This could")
    assert len(line) < 600
    with pytest.raises(NotStarted):
        start()


def test_a_command_that_fails_beside_ray_says_why_and_ends() -> None:
    """Ray's hook for what nobody caught waits a minute for a control service that was stopped, and aborts."""
    found = subprocess.run([sys.executable, "-c", FAILS], capture_output=True, text=True, timeout=40, check=False)
    assert found.returncode == FAILED
    assert found.stderr.splitlines()[-1] == "RuntimeError: nobody thought of this"


class FakeRay:
    """Ray and its Serve: what is called of them, and when, by the monotonic clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = SystemClock()
        self.called: list[tuple[str, float]] = []
        self.waited: list[Any] = []
        call = SimpleNamespace(remote=lambda *_: self._note("drain"))
        ray, serve = ModuleType("ray"), ModuleType("ray.serve")
        ray.get_actor = lambda *_, **__: SimpleNamespace(call=call)  # type: ignore[attr-defined]
        ray.wait = self._wait  # type: ignore[attr-defined]
        ray.serve = serve  # type: ignore[attr-defined]
        serve.delete = lambda *_, **__: self._note("delete")  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.setitem(sys.modules, "ray.serve", serve)

    def _note(self, name: str) -> str:
        self.called.append((name, self.clock.monotonic()))
        return name

    def _wait(self, drained: list[Any], timeout: float) -> None:
        self._note("wait")
        self.waited = drained
        assert self.clock.monotonic() + timeout <= self.until_s + 0.01

    def stop(self, within_s: float) -> list[str]:
        self.until_s = self.clock.monotonic() + within_s
        stop_serve(self.clock, self.until_s)
        assert all(at_s <= self.until_s for _, at_s in self.called)
        return [name for name, _ in self.called]


def test_replicas_that_do_not_close_are_not_asked_after_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray may be stopped by then: its calls would begin a cluster, or end this process."""
    ray = FakeRay(monkeypatch)
    monkeypatch.setattr(processes, "named", lambda pids, name: [1])
    assert ray.stop(0.2) == ["drain", "delete"]
    assert ray.clock.monotonic() >= ray.until_s


def test_a_stop_waits_for_what_is_being_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(monkeypatch)
    left = [[1], [1], []]
    monkeypatch.setattr(processes, "named", lambda pids, name: left.pop(0))
    assert ray.stop(30) == ["drain", "delete", "wait"]
    assert ray.waited == ["drain"]
    assert ray.clock.monotonic() < ray.until_s - 20
