"""A real service for end-to-end tests: `breakers serve` as a process of its own, and clients that speak HTTP to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx

READY_S = 180.0
SDK_PAUSES_S = (0.1, 0.4, 1.0, 2.0, 4.0)


def wait_for(check: Callable[[], Any], timeout_s: float = 20.0, every_s: float = 0.02) -> Any:
    """The first true answer of `check`, polled until the deadline."""
    deadline = time.monotonic() + timeout_s
    while not (answer := check()):
        assert time.monotonic() < deadline, f"not true within {timeout_s} s: {check}"
        time.sleep(every_s)
    return answer


def tree_of(pid: int) -> dict[int, str]:
    """Process ids below `pid` with their command lines; Ray names its workers there ("ray::RouterActor...")."""
    children: dict[int, list[int]] = {}
    lines: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                children.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(entry.name))
                lines[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found[child] = lines.get(child, "")
            waiting.append(child)
    return found


def is_running(pid: int) -> bool:
    """Whether the process is there and has not ended; one that nobody has waited for yet has."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class LiveService:
    """One running `breakers serve` and its credentials. `options`: more of its command line; `cwd`: where it
    is started."""

    def __init__(self, data_dir: Path, *options: str, cwd: Path | None = None, **environ: str) -> None:
        self.data_dir = data_dir
        program = str(Path(sys.executable).with_name("breakers"))
        self._command = [program, "serve", "--data-dir", str(data_dir), *options]
        self._environ, self._cwd = {**os.environ, **environ}, cwd
        self.output: list[str] = []
        self._run("0")
        self.credentials: dict[str, str] = json.loads((data_dir / "credentials.json").read_text())
        self.base_url = self.credentials["base_url"]
        self.project_id = self.credentials["project_id"]
        self.project_path = f"/v1/projects/{self.project_id}"
        self.user = self.client(self.credentials["user_key"])

    def _run(self, port: str) -> None:
        """Starts it; returns when it is ready."""
        self.process = subprocess.Popen(
            [*self._command, "--port", port],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environ,
            cwd=self._cwd,
        )
        ready = threading.Event()
        self._listener = threading.Thread(target=self._listen, args=(ready,), daemon=True)
        self._listener.start()
        if not ready.wait(READY_S) or self.process.poll() is not None:
            self.stop()
            raise AssertionError("the service did not get ready:\n" + "".join(self.output))

    def _listen(self, ready: threading.Event) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)
            if line.startswith("ready "):
                ready.set()
        ready.set()

    def start_again(self) -> None:
        """After a crash: on the same data, at the same address."""
        self._run(self.base_url.rpartition(":")[2])
        self.user = self.client(self.credentials["user_key"])

    def client(self, key: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.base_url, headers=headers, timeout=20)

    def stop(self) -> None:
        self.user.close() if hasattr(self, "user") else None
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(20)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()

    def crash(self) -> None:
        """SIGKILL for all of it at once."""
        self.user.close()
        for pid in (self.process.pid, *tree_of(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._listener.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()

    # -- what tests do

    def breaker(self, **fields: Any) -> dict[str, Any]:
        """A breaker with a short rule unless told otherwise; the 201 answer."""
        body = {
            "metric": "latency",
            "kind": "avg",
            "op": "gt",
            "threshold": 100,
            "window_ms": 30_000,
            "eval_interval_ms": 100,
            "min_state_duration_ms": 0,
            "cooldown_ms": 200,
            **fields,
        }
        answer = self.user.post(f"{self.project_path}/breakers", json=body)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def send(
        self,
        router_id: str,
        values: list[float],
        *,
        key: str | None = None,
        pauses: Iterable[float] = SDK_PAUSES_S,
        **sample: Any,
    ) -> httpx.Response:
        """One ingest request; repeated after each of the pauses when the answer is 429 or 503 or does not come."""
        now = int(time.time() * 1000)
        samples = [{"router_id": router_id, "metric": "latency", "ts_ms": now, "value": v, **sample} for v in values]
        headers = {"Idempotency-Key": key or os.urandom(12).hex()}
        for pause in (*pauses, None):
            try:
                answer = self.user.post(f"{self.project_path}/ingest", json={"samples": samples}, headers=headers)
                if answer.status_code not in (429, 500, 503) or pause is None:
                    return answer
            except httpx.TransportError:
                if pause is None:
                    raise
            time.sleep(pause or 0)
        raise AssertionError

    def state(self, breaker_id: str) -> dict[str, Any]:
        answer = self.user.get(f"{self.project_path}/breakers/{breaker_id}/state")
        assert answer.status_code == 200, answer.text
        state: dict[str, Any] = answer.json()
        return state

    def in_state(self, breaker_id: str, word: str, timeout_s: float = 20.0) -> dict[str, Any]:
        found: dict[str, Any] = wait_for(
            lambda: state if (state := self.state(breaker_id))["state"] == word else None, timeout_s
        )
        return found

    def trip(self, made: dict[str, Any], word: str = "open", timeout_s: float = 60.0) -> None:
        """The breaker of this 201 answer opens, and comes to this state.

        Bad samples go on until it is no longer closed: on a busy machine one may be older than a short window when
        it arrives.
        """
        breaker, router_id = made["breaker"], made["router_id"]

        def left() -> bool:
            answer = self.send(router_id, [900.0] * 3, metric=breaker["metric"])
            assert answer.status_code == 202, answer.text
            wait_until = time.monotonic() + 1.0
            while (closed := self.state(breaker["id"])["state"] == "closed") and time.monotonic() < wait_until:
                time.sleep(0.02)
            return not closed

        wait_for(left, timeout_s)
        self.in_state(breaker["id"], word, timeout_s)

    def use_all_actors(self) -> None:
        """All BreakerActors are up: the first breaker of each has tripped. A process that starts takes a core for
        seconds."""
        rule = {"cooldown_ms": 3_600_000, "window_ms": 1_000}
        made = [self.breaker(name=f"early {n}", **rule) for n in range(2 * (os.cpu_count() or 1) + 1)]
        for one in made:
            self.trip(one)

    def events(self, breaker_id: str) -> list[dict[str, Any]]:
        """All of them, oldest first. The list is rate limited, and says for how long."""
        found: list[dict[str, Any]] = []
        wanted: dict[str, Any] = {"breaker_id": breaker_id, "limit": 200}
        while True:
            answer = self.user.get(f"{self.project_path}/events", params=wanted)
            if answer.status_code == 429:
                time.sleep(int(answer.headers["Retry-After"]))
                continue
            assert answer.status_code == 200, answer.text
            page = answer.json()
            found += page["events"]
            if page["next_cursor"] is None:
                return found[::-1]
            wanted["cursor"] = page["next_cursor"]

    def pids(self, name: str) -> list[int]:
        """Processes of an actor class, e.g. "BreakerActor"."""
        return [pid for pid, line in tree_of(self.process.pid).items() if line.startswith(f"ray::{name}")]

    def kill(self, name: str) -> list[int]:
        """kill -9 of every process of an actor class."""
        victims = self.pids(name)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        return victims

    @contextlib.contextmanager
    def stream(self, key: str | None = None) -> Iterator[StreamReader]:
        reader = StreamReader(self, key or self.credentials["project_key"])
        try:
            yield reader
        finally:
            reader.close()


@contextlib.contextmanager
def serving(data_dir: Path, *options: str, cwd: Path | None = None, **environ: str) -> Iterator[LiveService]:
    """A service that ends with the block."""
    live = LiveService(data_dir, *options, cwd=cwd, **environ)
    try:
        yield live
    finally:
        live.stop()


class StreamReader:
    """Follows the state stream in a thread; `messages` grows, and `times` (time.perf_counter) with it."""

    def __init__(self, service: LiveService, key: str) -> None:
        self.messages: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.heartbeats = 0
        self.opened = threading.Event()
        self._closing = False
        self._client = service.client(key)
        self._path = f"{service.project_path}/breakers/state:stream"
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        assert self.opened.wait(20), "the stream did not open"

    def _follow(self) -> None:
        with contextlib.suppress(httpx.TransportError, RuntimeError):
            with self._client.stream("GET", self._path) as answer:
                assert answer.status_code == 200
                self._answer = answer
                self.headers = answer.headers
                self.opened.set()
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        self.times.append(time.perf_counter())
                        self.messages.append(json.loads(line[6:]))
                    elif line.startswith(": heartbeat"):
                        self.heartbeats += 1
                    if self._closing:
                        return

    def of(self, name: str) -> list[tuple[str, float | None]]:
        return [(m["state"], m["allow_rate"]) for m in self.messages if m["breaker"] == name]

    def close(self) -> None:
        self._closing = True
        self._client.close()
        self._thread.join(10)
