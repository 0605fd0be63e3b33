"""The gate of the examples, beside a stand-in for the service: what it finds, obeys, and does while nobody answers."""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tripswitch

PROJECT = "/v1/projects/p"
ROUTERS = {"errors": ["errors", "p95"], "other": ["other"]}
"""Routers by name, with the breakers on them: p95 has none of its own name."""
WITHIN_S = 30.0


class Standin(BaseHTTPRequestHandler):
    """As much of the service as the gate asks for. `states` are told once."""

    states: dict[str, tuple[str, float]]
    samples: list[dict[str, Any]]
    key = "k"
    answer: tuple[dict[str, Any], int]

    def do_GET(self) -> None:
        if self.headers["Authorization"] != f"Bearer {self.key}":
            self._answer({"code": "unauthorized"}, 401)
        elif self.path == f"{PROJECT}/routers/metadata":
            self._answer({"routers": [{"id": f"id-{name}", "name": name} for name in ROUTERS]})
        elif self.path == f"{PROJECT}/breakers/metadata":
            names = [name for on in ROUTERS.values() for name in on]
            self._answer({"breakers": [{"id": name, "name": name} for name in names]})
        else:
            assert self.path == f"{PROJECT}/breakers/state:stream"
            self.send_response(200)
            self.end_headers()
            for name, (state, rate) in self.states.items():
                told = json.dumps({"breaker": name, "state": state, "allow_rate": rate})
                self.wfile.write(f"data: {told}\n\n".encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == f"{PROJECT}/ingest":
            self.samples.extend(body["samples"])
            self._answer(*self.answer)
            return
        (router_id,) = body["router_ids"]
        self._answer({"states": [{"name": name} for name in ROUTERS[router_id.removeprefix("id-")]]})

    def _answer(self, body: dict[str, Any], status: int = 200) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *of: Any) -> None:
        pass


class Service:
    """The stand-in at a port that is known before it is there."""

    def __init__(self) -> None:
        self.states = dict.fromkeys(("errors", "p95", "other"), ("closed", 1.0))
        self.samples: list[dict[str, Any]] = []
        self.key = "k"
        self.answer: tuple[dict[str, Any], int] = {"accepted": 1}, 202
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        told = {"states": self.states, "samples": self.samples, "key": self.key, "answer": self.answer}
        kind = type("Bound", (Standin,), told)
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), kind)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    yield found
    found.stop()


@pytest.fixture
def gate(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    cred = {"project_id": "p", "project_key": "k", "ingest_secret": "00" * 32}
    (tmp_path / "credentials.json").write_text(json.dumps(cred | {"base_url": f"http://127.0.0.1:{service.port}"}))
    monkeypatch.setenv("BREAKERS_DATA_DIR", str(tmp_path))
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    found = importlib.import_module("gate")
    monkeypatch.setattr(found, "TRY_EACH_S", 0.05)
    monkeypatch.setattr(found, "SEND_EACH_S", 0.05)
    yield found
    sys.modules.pop("gate", None)


async def passed(opened: Any) -> bool:
    try:
        async with opened.call():
            return True
    except tripswitch.BreakerOpenError:
        return False


@pytest.mark.parametrize(
    ("asked", "router", "found"),
    [
        (("errors",), None, "id-errors"),
        (("p95",), None, "id-errors"),
        (("p95", "errors"), None, "id-errors"),
        (("p95",), "errors", "id-errors"),
        (("p95",), "id-errors", "id-errors"),
    ],
)
async def test_the_router_is_that_on_which_the_breakers_hang(
    service: Service, gate: Any, asked: tuple[str, ...], router: str | None, found: str
) -> None:
    service.start()
    async with gate.open_gate(*asked, router=router) as opened:
        assert await passed(opened)
    assert [(sample["router_id"], sample["ok"]) for sample in service.samples] == [(found, True)]


@pytest.mark.parametrize(
    ("asked", "router", "words"),
    [
        (("p96",), None, "the project has no breaker 'p96'"),
        (("p95",), "p95", "the project has no router 'p95'"),
        (("p95", "other"), None, "no router has all of these breakers: 'p95', 'other'"),
        (("p95",), "other", "router 'other' does not have all of these breakers: 'p95'"),
    ],
)
async def test_what_is_not_there_is_said(
    service: Service, gate: Any, asked: tuple[str, ...], router: str | None, words: str
) -> None:
    service.start()
    with pytest.raises(LookupError, match=words):
        async with gate.open_gate(*asked, router=router):
            pass


async def test_a_wrong_key_is_said(service: Service, gate: Any) -> None:
    service.key = "another"
    service.start()
    with pytest.raises(gate.httpx.HTTPStatusError, match="401"):
        async with gate.open_gate("p95"):
            pass


@pytest.mark.parametrize(
    ("states", "passes"),
    [
        ({"p95": ("open", 0.0)}, [False, False]),
        ({"errors": ("open", 0.0)}, [False, False]),
        ({"other": ("open", 0.0)}, [True, True]),
        ({"errors": ("half_open", 0.5), "p95": ("half_open", 0.2)}, [True, False]),
    ],
)
async def test_a_call_passes_where_all_let_it_and_at_the_least_rate(
    service: Service,
    gate: Any,
    states: dict[str, tuple[str, float]],
    passes: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service.states |= states
    service.start()
    async with gate.open_gate("errors", "p95") as opened:
        async with asyncio.timeout(WITHIN_S):
            while len(opened.client.get_all_states()) < len(service.states):
                await asyncio.sleep(0.01)
        found = []
        for chance in (0.1, 0.3):
            monkeypatch.setattr("tripswitch.client.random.random", lambda chance=chance: chance)
            found.append(await passed(opened))
        monkeypatch.undo()
    assert found == passes


async def test_a_service_starts_while_breakers_is_away_and_is_gated_later(service: Service, gate: Any) -> None:
    service.states["p95"] = ("open", 0.0)
    async with gate.open_gate("p95") as opened:
        assert await passed(opened), "nothing is known"
        assert opened.reports.router_id is None
        service.start()
        async with asyncio.timeout(WITHIN_S):
            while await passed(opened) or not service.samples:
                await asyncio.sleep(0.01)
    assert {sample["router_id"] for sample in service.samples} == {"id-errors"}
    assert opened.reports.lost == 0


async def test_what_is_made_later_is_found_later(
    service: Service, gate: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a service that was away at the start a breaker that is not there yet ends nothing."""
    async with gate.open_gate("late") as opened:
        service.start()
        async with asyncio.timeout(WITHIN_S):
            while "no breaker 'late'" not in caplog.text:
                await asyncio.sleep(0.01)
            monkeypatch.setitem(ROUTERS, "late", ["late"])
            while opened.reports.router_id is None:
                await asyncio.sleep(0.01)
    assert opened.reports.router_id == "id-late"


HEARS = {"code": "no_breaker_hears", "field": "metric", "message": 'its breakers have "errors".'}
OLD = {"index": 0, "field": "ts_ms", "code": "ts_ms_too_old", "message": "ts_ms is too old."}


@pytest.mark.parametrize(
    ("answer", "lost", "words"),
    [
        (({"code": "unauthorized", "message": "The signature is missing."}, 401), 2, "401 The signature is missing."),
        (({"message": "None can be taken.", "details": {"errors": [OLD]}}, 422), 2, "ts_ms is too old."),
        (({"accepted": 0, "rejected": 1, "errors": [OLD, OLD]}, 202), 2, "ts_ms is too old."),
        (({"accepted": 1, "warnings": [HEARS]}, 202), 0, 'its breakers have "errors".'),
        (([], 413), 2, "413"),
    ],
)
async def test_samples_that_count_for_nothing_are_said_once(
    service: Service, gate: Any, answer: tuple[Any, int], lost: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    service.answer = answer
    service.start()
    async with gate.open_gate("p95") as opened:
        for count in (1, 2):
            assert await passed(opened)
            async with asyncio.timeout(WITHIN_S):
                while len(service.samples) < count:
                    await asyncio.sleep(0.01)
    assert opened.reports.lost == lost
    assert caplog.text.count(words) == 1
