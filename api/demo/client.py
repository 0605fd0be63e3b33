"""The demo's HTTP client: what any client of the service would send, with httpx."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx

from api.launch.bootstrap import Credentials
from breaker_actors.clock import Clock
from breaker_actors.errors import Unavailable

RETRY_AFTER_S = (0.1, 0.4, 1.0, 2.0)


class Client:
    """One project of the service. Use as an async context manager."""

    def __init__(self, base_url: str, credentials: Credentials, clock: Clock) -> None:
        self._clock = clock
        self._project = f"/v1/projects/{credentials.project_id}"
        self._secret = bytes.fromhex(credentials.ingest_secret)
        headers = {"Authorization": f"Bearer {credentials.user_key}"}
        self._http = httpx.AsyncClient(base_url=base_url, headers=headers, timeout=10.0, trust_env=False)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask_for_signatures(self) -> None:
        """From here on the project takes signed samples only."""
        await self._call("PATCH", self._project, {"enable_signed_ingest": True})

    async def create(self, breakers: Sequence[dict[str, Any]]) -> tuple[str, dict[str, str]]:
        """Makes the breakers on one router; returns the router's id and the breakers' ids by name."""
        ids: dict[str, str] = {}
        for body in breakers:
            made = await self._call("POST", f"{self._project}/breakers", body)
            ids[body["name"]] = made["breaker"]["id"]
        shared = {"name": "all of them", "breaker_ids": list(ids.values())}
        made = await self._call("POST", f"{self._project}/routers", shared)
        return made["router"]["id"], ids

    async def ingest(self, samples: Sequence[dict[str, Any]]) -> int:
        """Sends samples, signed; a repetition carries the same signature and is applied once."""
        body = gzip.compress(json.dumps({"samples": samples}).encode(), compresslevel=1)
        stamp = str(self._clock.now_ms())
        mac = hmac.new(self._secret, stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
        headers = {
            "Content-Type": "application/json",
            "Content-Encoding": "gzip",
            "X-EB-Timestamp": stamp,
            "X-EB-Signature": f"v1={mac}",
        }
        for pause_s in (*RETRY_AFTER_S, None):
            try:
                answer = await self._http.post(f"{self._project}/ingest", content=body, headers=headers)
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code not in (429, 503):
                return int(_content(answer)["accepted"])
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        raise Unavailable("the service took no samples")

    async def follow(self) -> AsyncIterator[dict[str, Any]]:
        """The messages of the state stream, reconnecting when it is cut."""
        while True:
            try:
                async with self._http.stream("GET", f"{self._project}/breakers/state:stream", timeout=15.0) as stream:
                    stream.raise_for_status()
                    async for line in stream.aiter_lines():
                        if line.startswith("data: "):
                            yield json.loads(line.removeprefix("data: "))
            except httpx.HTTPError:
                await asyncio.sleep(0.2)

    async def state(self, breaker_id: str) -> dict[str, Any]:
        return await self._call("GET", f"{self._project}/breakers/{breaker_id}/state")

    async def events(self, breaker_id: str) -> list[dict[str, Any]]:
        """The breaker's transitions, oldest first."""
        page = await self._call("GET", f"{self._project}/events?breaker_id={breaker_id}&limit=200")
        return sorted(page["events"], key=lambda event: event["transition_seq"])

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return _content(await self._http.request(method, path, json=body))


def _content(answer: httpx.Response) -> dict[str, Any]:
    if not answer.is_success:
        raise Unavailable(f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text}")
    return dict(answer.json()) if answer.content else {}
