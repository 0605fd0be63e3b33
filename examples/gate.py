"""A gate for asyncio services: asks breakers before a call, reports the call after it.

The client of tripswitch-py follows the states of all breakers, so asking takes no request. Samples are signed and sent
here, once a second: the client itself sends at 500 samples, or after 15 seconds without one, so that under steady
traffic a breaker would hear late. `gate_quart.py` and `gate_fastapi.py` put it before a backend.

While breakers is away a service with a gate starts and runs: what is not known to be open passes.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import tripswitch

STATES_WITHIN_S = 20.0
"""How long a start waits for the first states, where the service answers at all."""
ANSWER_WITHIN_S = 10.0
TRY_EACH_S = 5.0
SEND_EACH_S = 1.0
IN_A_REQUEST = 500
WAITING_MAX = 10_000
ROUTERS_MAX = 200
"""Routers among which one is looked for; of more it has to be named."""
TOLD_MAX = 20
"""Sentences of the service that are logged in all."""
METRIC = "latency"
log = logging.getLogger("gate")


class Project:
    """The service as a project key sees it."""

    def __init__(self, cred: dict[str, str], http: httpx.AsyncClient) -> None:
        self._path, self._http = f"/v1/projects/{cred['project_id']}", http
        self._key = {"Authorization": f"Bearer {cred['project_key']}"}
        self._secret = cred["ingest_secret"]

    async def router_of(self, breakers: tuple[str, ...], router: str | None) -> str:
        """The id of the router on which all of these hang: of this name or id, or the first that is found. Raises
        LookupError with what to do instead; httpx.HTTPError where the service does not answer, or refuses the key."""
        known = {row["name"] for row in await self._list("GET", "breakers/metadata", "breakers")}
        if missing := [name for name in breakers if name not in known]:
            raise LookupError(f"the project has no breaker {', '.join(map(repr, missing))}")
        routers = await self._list("GET", "routers/metadata", "routers")
        if router is not None:
            routers = [row for row in routers if router in (row["name"], row["id"])]
            if not routers:
                raise LookupError(f"the project has no router {router!r}")
        routers.sort(
            key=lambda row: row["name"] not in breakers
        )  # a breaker is made with one of its name, or on another
        for row in routers[:ROUTERS_MAX]:
            states = await self._list("POST", "breakers/state:batch", "states", {"router_ids": [row["id"]]})
            if {state["name"] for state in states}.issuperset(breakers):
                return str(row["id"])
        where = "no router has" if router is None else f"router {router!r} does not have"
        told = ", ".join(map(repr, breakers))
        raise LookupError(f"{where} all of these breakers: {told}; link them to one, or open a gate for each router")

    async def _list(self, method: str, path: str, key: str, body: Any = None) -> list[dict[str, Any]]:
        answer = await self._http.request(method, f"{self._path}/{path}", headers=self._key, json=body)
        found: list[dict[str, Any]] = answer.raise_for_status().json()[key]
        return found

    async def send(self, samples: list[dict[str, Any]]) -> httpx.Response:
        body, now_ms = json.dumps({"samples": samples}).encode(), str(int(time.time() * 1_000))
        signature = hmac.new(bytes.fromhex(self._secret), now_ms.encode() + b"." + body, hashlib.sha256).hexdigest()
        signed = {"X-EB-Timestamp": now_ms, "X-EB-Signature": f"v1={signature}"}
        return await self._http.post(f"{self._path}/ingest", content=body, headers=signed)


class Reports:
    """Samples on their way to the service. At most WAITING_MAX wait: beyond that, while the service is away, the oldest
    go. `lost` counts those, and samples that were refused: the log says why. `router_id` None: not found, all wait."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._waiting: deque[dict[str, Any]] = deque()
        self._told: set[str] = set()
        self.router_id: str | None = None
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
        while self._waiting and self.router_id is not None:
            batch = [self._waiting.popleft() for _ in range(min(IN_A_REQUEST, len(self._waiting)))]
            try:
                answer = await self._project.send([{"router_id": self.router_id, **sample} for sample in batch])
            except (httpx.TransportError, asyncio.CancelledError) as error:
                self._back(batch)
                if isinstance(error, asyncio.CancelledError):
                    raise
                return
            if answer.status_code == 429 or answer.status_code >= 500:
                self._back(batch)
                return
            self._count(answer, len(batch))

    def _count(self, answer: httpx.Response, sent: int) -> None:
        """What was refused is lost. Why it was, and what the service warns of (a metric that no breaker hears, say), is
        logged, the same words once: otherwise a gate that never closes would look like a backend that never fails."""
        try:
            body = dict(answer.json())
        except (TypeError, ValueError):  # no object of JSON: something on the way to the service answered
            body = {}
        taken = answer.status_code == 202
        refused = body.get("rejected", 0) if taken else sent
        self.lost += refused
        errors = body.get("errors") or body.get("details", {}).get("errors") or []
        told = [] if taken else [f"{answer.status_code} {body.get('message', '')}"]
        for words in told + [str(one["message"]) for one in [*errors[:1], *body.get("warnings", [])]]:
            if words not in self._told and len(self._told) < TOLD_MAX:
                self._told.add(words)
                log.warning("of samples the service says: %s", words)

    def _back(self, batch: list[dict[str, Any]]) -> None:
        room = WAITING_MAX - len(self._waiting)
        kept = batch[max(0, len(batch) - room) :]
        self.lost += len(batch) - len(kept)
        self._waiting.extendleft(reversed(kept))


class Gate:
    """One dependency behind breakers of one router, whose rules are about the metric "latency" in milliseconds, or
    about failures. A breaker of which nothing is known lets everything pass."""

    def __init__(self, client: tripswitch.Client, reports: Reports, breakers: tuple[str, ...]) -> None:
        self.client, self.reports = client, reports
        self._breakers = list(breakers)

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Around one call. Raises tripswitch.BreakerOpenError instead of letting it begin while one of the breakers is
        open, and for a share of calls while some are half_open: the least of their rates passes. A call that its caller
        gave up is not reported."""
        self.client.execute(lambda: None, breakers=self._breakers)
        begun = time.monotonic()
        try:
            yield
        except Exception:
            self._report(begun, ok=False)
            raise
        self._report(begun, ok=True)

    def _report(self, begun: float, ok: bool) -> None:
        taken_ms = (time.monotonic() - begun) * 1_000
        self.reports.add({"metric": METRIC, "value": taken_ms, "ok": ok, "ts_ms": int(time.time() * 1_000)})


@asynccontextmanager
async def open_gate(*breakers: str, router: str | None = None) -> AsyncIterator[Gate]:
    """The gate of breakers by their names, which hang on one router, with what credentials.json in BREAKERS_DATA_DIR
    (.breakers) says. Raises LookupError when the project has no such breakers, httpx.HTTPStatusError for a wrong key.
    While the service is away the gate is open, and it goes on trying. What waits to be sent is sent at the end."""
    cred = await asyncio.to_thread(_credentials)
    client = tripswitch.Client(cred["project_id"], api_key=cred["project_key"], base_url=cred["base_url"])
    async with httpx.AsyncClient(base_url=cred["base_url"], timeout=ANSWER_WITHIN_S) as http:
        project = Project(cred, http)
        reports = Reports(project)
        states = _follow(client)
        tasks = [asyncio.create_task(reports.send_always())]
        try:
            if await _find_router(project, reports, breakers, router):
                await _wait_for(states)
            else:
                tasks.append(asyncio.create_task(_find_later(project, reports, breakers, router)))
            yield Gate(client, reports, breakers)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await reports.send()
            await asyncio.to_thread(client.close)


def _credentials() -> dict[str, str]:
    path = Path(os.environ.get("BREAKERS_DATA_DIR", ".breakers"), "credentials.json")
    found: dict[str, str] = json.loads(path.read_text())
    return found


def _follow(client: tripswitch.Client) -> asyncio.Event:
    """Has the client follow the states, for as long as that takes; the event is set with the first ones. In a daemon
    thread: its `connect` waits for them, and no end of this program is to wait for that."""
    loop, first = asyncio.get_running_loop(), asyncio.Event()

    def connect() -> None:
        client.connect()
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(first.set)

    threading.Thread(target=connect, name="gate-states", daemon=True).start()
    return first


async def _wait_for(states: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(STATES_WITHIN_S):
            await states.wait()
    except TimeoutError:
        log.warning("no states within %.0f s: calls pass until there are some", STATES_WITHIN_S)


async def _find_router(project: Project, reports: Reports, breakers: tuple[str, ...], router: str | None) -> bool:
    """False: the service is away. Raises what `router_of` does for the rest."""
    try:
        reports.router_id = await project.router_of(breakers, router)
    except httpx.HTTPError as error:
        status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 503
        if status < 500 and status != 429:
            raise
        log.warning("breakers does not answer (%s): calls pass, and it is asked again", type(error).__name__)
        return False
    return True


async def _find_later(project: Project, reports: Reports, breakers: tuple[str, ...], router: str | None) -> None:
    while reports.router_id is None:
        await asyncio.sleep(TRY_EACH_S)
        try:
            if await _find_router(project, reports, breakers, router):
                log.warning("breakers answers: calls are gated")
        except (LookupError, httpx.HTTPStatusError) as error:  # it may be made, or mended, yet
            log.error("calls are not reported: %s", error)
