"""The examples that need no service: gates before a backend, in Quart and in FastAPI, and the backtest."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import importlib
import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import tripswitch

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SECRET = "ab" * 32
Ask = Callable[[str], Awaitable[tuple[int, str, str | None]]]


class Client:
    """The method of tripswitch.Client that a gate uses."""

    def __init__(self) -> None:
        self.open = False

    def execute(self, task: Callable[[], Any], breakers: list[str]) -> Any:
        assert breakers == ["search"]
        if self.open:
            raise tripswitch.BreakerOpenError("search")
        return task()


class Door:
    """Where the samples of a gate arrive. `words`: what is answered first; an error is raised. Then all is taken."""

    def __init__(self, *words: int | Exception) -> None:
        self._words, self.samples = list(words), list[dict[str, Any]]()
        cred = {"project_id": "p1", "project_key": "k", "ingest_secret": SECRET}
        http = httpx.AsyncClient(transport=httpx.MockTransport(self._answer), base_url="http://door")
        gate = importlib.import_module("gate")
        self.reports = gate.Reports(gate.Project(cred, http))
        self.reports.router_id = "r1"

    def _answer(self, request: httpx.Request) -> httpx.Response:
        word = self._words.pop(0) if self._words else 202
        if isinstance(word, Exception):
            raise word
        now_ms = request.headers["X-EB-Timestamp"]
        said = hmac.new(bytes.fromhex(SECRET), now_ms.encode() + b"." + request.content, hashlib.sha256).hexdigest()
        assert (request.url.path, request.headers["X-EB-Signature"]) == ("/v1/projects/p1/ingest", f"v1={said}")
        if word == 202:
            self.samples += json.loads(request.content)["samples"]
        return httpx.Response(word)


class Backend:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.broken = False

    async def __call__(self, words: str) -> str:
        self.asked.append(words)
        if self.broken:
            raise OSError("the backend is gone")
        return f"found {words}"


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The examples find each other as they do when one is run; nothing of them stays."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.delenv("BREAKER", raising=False)
    names = {path.stem for path in EXAMPLES.glob("*.py")} - sys.modules.keys()
    yield
    for name in names & sys.modules.keys():
        del sys.modules[name]


@asynccontextmanager
async def quart_service(backend: Backend, gates: Any) -> AsyncIterator[Ask]:
    app = importlib.import_module("gate_quart").create_app(backend, gates)
    app.config["PROPAGATE_EXCEPTIONS"] = False

    async def ask(words: str) -> tuple[int, str, str | None]:
        answer = await app.test_client().get("/search", query_string={"q": words})
        return answer.status_code, await answer.get_data(as_text=True), answer.headers.get("Retry-After")

    async with app.test_app():
        yield ask


@asynccontextmanager
async def fastapi_service(backend: Backend, gates: Any) -> AsyncIterator[Ask]:
    pytest.importorskip("fastapi")
    app = importlib.import_module("gate_fastapi").create_app(backend, gates)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    async def ask(words: str) -> tuple[int, str, str | None]:
        answer = await client.get("/search", params={"q": words})
        return answer.status_code, answer.text, answer.headers.get("Retry-After")

    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://a") as client:
        yield ask


Service = Callable[[Backend, Any], AbstractAsyncContextManager[Ask]]


@pytest.mark.parametrize("service", [quart_service, fastapi_service])
async def test_a_gate_passes_reports_and_refuses(service: Service) -> None:
    client, door, backend, gate = Client(), Door(), Backend(), importlib.import_module("gate")

    @asynccontextmanager
    async def gates(breaker: str) -> AsyncIterator[Any]:
        yield gate.Gate(client, door.reports, (breaker,))

    async with service(backend, gates) as ask:
        assert await ask("shoes") == (200, "found shoes", None)
        backend.broken = True
        status, _, _ = await ask("hats")
        assert status == 500
        client.open = True
        assert await ask("coats") == (503, "search is resting", "1")
    assert backend.asked == ["shoes", "hats"]
    await door.reports.send()
    assert [(r["router_id"], r["metric"], r["ok"]) for r in door.samples] == [
        ("r1", "latency", True),
        ("r1", "latency", False),
    ]
    assert all(0 <= r["value"] < 60_000 for r in door.samples)


async def test_a_call_that_was_given_up_is_no_failure() -> None:
    door = Door()
    gate = importlib.import_module("gate").Gate(Client(), door.reports, ("search",))
    begun = asyncio.Event()

    async def call() -> None:
        async with gate.call():
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(call())
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await door.reports.send()
    assert door.samples == []


@pytest.mark.parametrize("word", [429, 503, httpx.ConnectError("gone")])
async def test_what_the_service_cant_take_now_is_sent_later_and_in_order(word: int | Exception) -> None:
    door = Door(202, word)
    for number in range(1_200):
        door.reports.add({"value": number})
    await door.reports.send()
    assert len(door.samples) == 500
    door.reports.add({"value": 1_200})
    await door.reports.send()
    assert [sample["value"] for sample in door.samples] == list(range(1_201))
    assert door.reports.lost == 0


async def test_what_waits_is_bounded_and_what_goes_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("gate"), "WAITING_MAX", 3)
    door = Door(503)
    for number in range(5):
        door.reports.add({"value": number})
    await door.reports.send()
    await door.reports.send()
    assert [sample["value"] for sample in door.samples] == [2, 3, 4]
    door = Door(401)
    door.reports.add({"value": 1})
    await door.reports.send()
    assert (door.reports.lost, door.samples) == (1, [])


def test_the_backtest_runs_cell_by_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made = runpy.run_path(str(EXAMPLES / "backtest.py"))
    assert made["run"].summary["caught"].to_list() == [2]
    assert set(made["swept"].best()["caught"]) == {3}
    assert "half_open" in capsys.readouterr().out
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_every_example_is_in_a_guide_and_loads_what_it_says() -> None:
    guide = "".join(page.read_text() for page in (ROOT / "docs" / "guides").glob("*.md"))
    for path in EXAMPLES.iterdir():
        if path.suffix in (".py", ".sh"):
            assert f"`examples/{path.name}`" in guide, path.name
    script = re.compile(r"^# /// script\n(.*?)^# ///$", re.DOTALL | re.MULTILINE)
    for name in ("sdk.py", "gate_quart.py", "gate_fastapi.py"):
        found = script.search((EXAMPLES / name).read_text())
        assert found is not None, name
        needs = tomllib.loads(re.sub(r"^# ?", "", found[1], flags=re.MULTILINE))["dependencies"]
        assert any(need.startswith("tripswitch-py") for need in needs), name


def test_the_receiver_prints_what_comes() -> None:
    """With the key by which a repetition is told."""
    command = [sys.executable, str(EXAMPLES / "receiver.py"), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            answer = httpx.post(url, json={"event": "trip"}, headers={"Idempotency-Key": "k-1"})
            assert (answer.status_code, process.stdout.readline()) == (200, 'k-1 {"event":"trip"}\n')
        finally:
            process.kill()
