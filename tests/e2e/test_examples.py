"""The examples that speak to a service, run as they stand there against the running one."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live import LiveService

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
EXAMPLES = Path(__file__).parents[2] / "examples"
FAILURES = 20
OPEN_WITHIN_S = 30.0


def run(live: LiveService, *command: str) -> list[str]:
    environ = {**os.environ, "BREAKERS_DATA_DIR": str(live.data_dir)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def names(live: LiveService) -> list[str]:
    return [row["name"] for row in live.user.get(f"{live.project_path}/breakers").json()["breakers"]]


def test_curl_trips_a_breaker(live: LiveService) -> None:
    accepted, state, events = run(live, str(EXAMPLES / "curl.sh"))
    assert (accepted, state) == ('{"accepted":5}', "open")
    assert [(event["prev"], event["curr"]) for event in json.loads(events)["events"]] == [("closed", "open")]
    assert "example of curl" not in names(live)


def test_the_sdk_is_gated_as_often_as_it_is_run(live: LiveService) -> None:
    for _ in range(2):
        told = run(live, sys.executable, str(EXAMPLES / "sdk.py"))
        assert told == ["paid", "the breaker is open: the call was not made"]
    assert [name for name in names(live) if name.startswith("example-")] == []


@pytest.fixture
def gated(live: LiveService, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One of BREAKER, on the router of the other, opens when more than half of the calls fail; the examples find them,
    and each other."""
    slow = live.breaker(name=f"gate-{os.urandom(4).hex()}", kind="p95", threshold=60_000, cooldown_ms=60_000)
    made = live.breaker(name=f"gate-{os.urandom(4).hex()}", kind="error_rate", threshold=0.5, cooldown_ms=60_000)
    path = f"{live.project_path}/routers"
    linked = live.user.post(f"{path}/{slow['router_id']}/breakers", json={"breaker_ids": [made["id"]]})
    assert linked.status_code < 300, linked.text
    assert live.user.delete(f"{path}/{made['router_id']}/breakers/{made['id']}").status_code < 300
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("BREAKERS_DATA_DIR", str(live.data_dir))
    monkeypatch.setenv("BREAKER", f"{slow['name']},{made['name']}")
    yield
    for module in ("gate", "gate_quart", "gate_fastapi"):
        sys.modules.pop(module, None)
    for each in (made, slow):
        assert live.user.delete(f"{live.project_path}/breakers/{each['id']}").status_code == 204


async def broken(words: str) -> str:
    raise OSError("the backend is gone")


async def until_refused(search: Callable[[], Awaitable[Any]]) -> Any:
    """The first 503: it comes after few failures, far fewer than the SDK would wait for."""
    assert {(await search()).status_code for _ in range(FAILURES)} == {500}
    async with asyncio.timeout(OPEN_WITHIN_S):
        while (answer := await search()).status_code == 500:
            await asyncio.sleep(0.5)
    return answer


@pytest.mark.usefixtures("gated")
async def test_the_gate_in_quart_closes_when_the_backend_fails() -> None:
    app = importlib.import_module("gate_quart").create_app(broken)
    app.config["PROPAGATE_EXCEPTIONS"] = False
    async with app.test_app():
        answer = await until_refused(lambda: app.test_client().get("/search"))
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


@pytest.mark.usefixtures("gated")
async def test_the_gate_in_fastapi_closes_when_the_backend_fails() -> None:
    pytest.importorskip("fastapi")
    app = importlib.import_module("gate_fastapi").create_app(broken)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://a") as client:
        answer = await until_refused(lambda: client.get("/search"))
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
