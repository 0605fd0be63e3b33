"""The app over all parts in one process: a sample's way from a request to the answer, the history and the stream."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from api.app import create_app
from breaker_actors.clock import SystemClock
from tests.support.cluster import FAST_RULE, service, until
from tests.support.web_world import TIMING


async def test_a_sample_shows_in_state_events_and_stream(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        app = create_app(s.gateway, s.cluster.settings, SystemClock(), TIMING, owns_gateway=False)
        now = s.clock.now_ms()
        _, key = await s.store.create_key(s.project.org_id, "user", "u", now)
        path, headers = f"/v1/projects/{s.project.id}", {"Authorization": f"Bearer {key}"}
        async with app.test_app() as running:
            client = running.test_client()

            async def get(rest: str) -> Any:
                response = await client.get(path + rest, headers=headers)
                assert response.status_code == 200
                return await response.get_json()

            made = await client.post(f"{path}/breakers", headers=headers, json=FAST_RULE | {"name": "checkout"})
            assert made.status_code == 201
            breaker = (await made.get_json())["breaker"]
            async with client.request(f"{path}/breakers/state:stream", headers=headers) as stream:
                await stream.send_complete()
                first = await asyncio.wait_for(stream.receive(), 5)
                assert b'{"breaker":"checkout","state":"closed","allow_rate":null}' in first
                sample = {
                    "router_id": breaker["router_id"],
                    "metric": "latency",
                    "ts_ms": s.clock.now_ms(),
                    "value": 900,
                }
                sent = await client.post(f"{path}/ingest", json={"samples": [sample] * 3})
                assert (sent.status_code, await sent.get_json()) == (202, {"accepted": 3})
                heard = b""
                async with asyncio.timeout(10):
                    while b'"half_open"' not in heard:
                        heard += await stream.receive()
                await stream.disconnect()
            states = [json.loads(line[6:])["state"] for line in heard.decode().splitlines() if line[:6] == "data: "]
            assert states[:2] == ["open", "half_open"]

            async def told() -> Any:
                return len((await get("/events"))["events"]) >= 2

            await until(told)
            newest = (await get("/events"))["events"][-1]
            assert (newest["curr"], newest["agg"]["count"], newest["reason"]) == ("open", 3, "threshold_exceeded")
            assert (await get(f"/breakers/{breaker['id']}/state"))["transition_seq"] >= 2
            gone = await client.delete(f"{path}/breakers/{breaker['id']}", headers=headers)
            assert gone.status_code == 204
