"""A gate for asyncio services: asks a breaker before a call, reports the call after it.

The client of tripswitch-py follows the states of all breakers, so asking takes no request; what is reported goes out in
batches from a thread of its own. `gate_quart.py` and `gate_fastapi.py` put it before a backend.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import tripswitch

STATES_WITHIN_S = 20.0
ANSWER_WITHIN_S = 10.0
METRIC = "latency"


class Gate:
    """One dependency behind one breaker, whose rule is about the metric "latency" in milliseconds, or about failures.
    A breaker that the project does not have lets everything pass."""

    def __init__(self, client: tripswitch.Client, breaker: str, router_id: str) -> None:
        self.client = client
        self._breaker = breaker
        self._router_id = router_id

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
        self.client.report(router_id=self._router_id, metric=METRIC, value=taken_ms, ok=ok)


@asynccontextmanager
async def open_gate(breaker: str) -> AsyncIterator[Gate]:
    """The gate of a breaker by its name, with what credentials.json in BREAKERS_DATA_DIR (.breakers) says. Raises
    LookupError when the project has none of that name. What waits to be reported is sent at the end."""
    cred = await asyncio.to_thread(_credentials)
    router_id = await asyncio.to_thread(_router_of, breaker, cred)
    client = tripswitch.Client(
        cred["project_id"],
        api_key=cred["project_key"],
        ingest_secret=cred["ingest_secret"],
        base_url=cred["base_url"],
        timeout=STATES_WITHIN_S,
    )
    await asyncio.to_thread(client.connect)
    try:
        yield Gate(client, breaker, router_id)
    finally:
        await asyncio.to_thread(client.close)


def _credentials() -> dict[str, str]:
    path = Path(os.environ.get("BREAKERS_DATA_DIR", ".breakers"), "credentials.json")
    found: dict[str, str] = json.loads(path.read_text())
    return found


def _router_of(breaker: str, cred: dict[str, str]) -> str:
    url = f"{cred['base_url']}/v1/projects/{cred['project_id']}/breakers"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {cred['user_key']}"})
    with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S) as answer:
        routers = {row["name"]: row["router_id"] for row in json.load(answer)["breakers"]}
    if breaker not in routers:
        raise LookupError(f"the project has no breaker {breaker!r}")
    return str(routers[breaker])
