"""A gate for asyncio services: asks a breaker before a call, reports the call after it.

The client of tripswitch-py follows the states of all breakers, so asking takes no request. Samples are signed and sent
here, once a second: the client itself sends at 500 samples, or after 15 seconds without one, so that under steady
traffic a breaker would hear late. `gate_quart.py` and `gate_fastapi.py` put it before a backend.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import tripswitch

STATES_WITHIN_S = 20.0
ANSWER_WITHIN_S = 10.0
SEND_EACH_S = 1.0
IN_A_REQUEST = 500
WAITING_MAX = 10_000
METRIC = "latency"


class Reports:
    """Samples on their way to the service. At most WAITING_MAX wait: beyond that, while the service is away, the oldest
    go. `lost` counts those, and samples that were refused."""

    def __init__(self, cred: dict[str, str], http: httpx.AsyncClient) -> None:
        self._path, self._secret, self._http = f"/v1/projects/{cred['project_id']}/ingest", cred["ingest_secret"], http
        self._waiting: deque[dict[str, Any]] = deque()
        self.lost = 0

    def add(self, sample: dict[str, Any]) -> None:
        if len(self._waiting) == WAITING_MAX:
            self._waiting.popleft()
            self.lost += 1
        self._waiting.append(sample)

    async def send_always(self) -> None:
        while True:
            await asyncio.sleep(SEND_EACH_S)
            await self.send()

    async def send(self) -> None:
        """All that waits; what can't be sent now waits on."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(IN_A_REQUEST, len(self._waiting)))]
            try:
                answer = await self._post(batch)
            except (httpx.TransportError, asyncio.CancelledError) as error:
                self._back(batch)
                if isinstance(error, asyncio.CancelledError):
                    raise
                return
            if answer.status_code == 429 or answer.status_code >= 500:
                self._back(batch)
                return
            if answer.status_code != 202:
                self.lost += len(batch)

    async def _post(self, batch: list[dict[str, Any]]) -> httpx.Response:
        body, now_ms = json.dumps({"samples": batch}).encode(), str(int(time.time() * 1_000))
        signature = hmac.new(bytes.fromhex(self._secret), now_ms.encode() + b"." + body, hashlib.sha256).hexdigest()
        signed = {"X-EB-Timestamp": now_ms, "X-EB-Signature": f"v1={signature}"}
        return await self._http.post(self._path, content=body, headers=signed)

    def _back(self, batch: list[dict[str, Any]]) -> None:
        room = WAITING_MAX - len(self._waiting)
        kept = batch[max(0, len(batch) - room) :]
        self.lost += len(batch) - len(kept)
        self._waiting.extendleft(reversed(kept))


class Gate:
    """One dependency behind one breaker, whose rule is about the metric "latency" in milliseconds, or about failures.
    A breaker that the project does not have lets everything pass."""

    def __init__(self, client: tripswitch.Client, reports: Reports, breaker: str, router_id: str) -> None:
        self.client, self.reports = client, reports
        self._breaker, self._router_id = breaker, router_id

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Around one call. Raises tripswitch.BreakerOpenError instead of letting it begin while the breaker is open,
        and for a share of calls while it is half_open. A call that its caller gave up is not reported."""
        self.client.execute(lambda: None, breakers=[self._breaker])
        begun = time.monotonic()
        try:
            yield
        except Exception:
            self._report(begun, ok=False)
            raise
        self._report(begun, ok=True)

    def _report(self, begun: float, ok: bool) -> None:
        taken_ms = (time.monotonic() - begun) * 1_000
        sample = {"router_id": self._router_id, "metric": METRIC, "value": taken_ms, "ok": ok}
        self.reports.add(sample | {"ts_ms": int(time.time() * 1_000)})


@asynccontextmanager
async def open_gate(breaker: str) -> AsyncIterator[Gate]:
    """The gate of a breaker by its name, with what credentials.json in BREAKERS_DATA_DIR (.breakers) says. Raises
    LookupError when the project has none of that name. What waits to be sent is sent at the end."""
    cred = await asyncio.to_thread(_credentials)
    keys = {"api_key": cred["project_key"], "base_url": cred["base_url"]}
    client = tripswitch.Client(cred["project_id"], timeout=STATES_WITHIN_S, **keys)
    async with httpx.AsyncClient(base_url=cred["base_url"], timeout=ANSWER_WITHIN_S) as http:
        router_id = await _router_of(breaker, cred, http)
        await asyncio.to_thread(client.connect)
        reports = Reports(cred, http)
        sending = asyncio.create_task(reports.send_always())
        try:
            yield Gate(client, reports, breaker, router_id)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await reports.send()
            await asyncio.to_thread(client.close)


def _credentials() -> dict[str, str]:
    path = Path(os.environ.get("BREAKERS_DATA_DIR", ".breakers"), "credentials.json")
    found: dict[str, str] = json.loads(path.read_text())
    return found


async def _router_of(breaker: str, cred: dict[str, str], http: httpx.AsyncClient) -> str:
    key = {"Authorization": f"Bearer {cred['project_key']}"}
    answer = (await http.get(f"/v1/projects/{cred['project_id']}/routers/metadata", headers=key)).raise_for_status()
    routers = {row["name"]: row["id"] for row in answer.json()["routers"]}
    if breaker not in routers:
        raise LookupError(f"the project has no router {breaker!r}; each breaker is made with one of its name")
    return str(routers[breaker])
