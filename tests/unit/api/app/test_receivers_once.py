"""Requests of open protocols over all parts in one process: what is sent again counts once, part by part."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from api.app import create_app
from api.context.replica import EXTENSION
from breaker_actors.clock import SystemClock
from breaker_actors.gateway.gateway import ActorGateway
from breaker_actors.messages import AppendResult, Part
from breaker_actors.store.rows import BreakerRow
from tests.support.cluster import Service, service, until
from tests.support.remote_write import V1_HEADERS, V2_HEADERS, Sent, body1, body2
from tests.support.senders import JSON, encoded
from tests.support.web_world import TIMING, soon
from tests.unit.api.protocols.test_otlp import attribute, request_of

COUNTED = {"metric": "requests", "kind": "count", "op": "gt", "threshold": 100_000, "window_ms": 600_000}


class Running:
    """The app over a service, and two breakers whose routers series name by `router_id`."""

    def __init__(self, s: Service, client: Any, token: str, rows: list[BreakerRow]) -> None:
        self.s, self.rows = s, rows
        self._client, self._token = client, token
        self.routers = [row.router_ids[0] for row in rows]

    async def post(self, path: str, body: bytes, headers: dict[str, str]) -> int:
        full = f"/v1/projects/{self.s.project.id}/{path}"
        headers = headers | {"Authorization": f"Bearer {self._token}"}
        answer = await self._client.post(full, data=body, headers=headers)
        return int(answer.status_code)

    async def remote_write(self, body: bytes, v1: bool = False) -> int:
        return await self.post("remote_write", body, V1_HEADERS if v1 else V2_HEADERS)

    async def counted(self, *counts: int) -> None:
        """The breakers come to hold so many observations."""

        async def held() -> bool:
            return [(await self.s.fresh(row.id)).view.sample_count for row in self.rows] == list(counts)

        await until(held)


@asynccontextmanager
async def running(path: Path, **settings: Any) -> AsyncIterator[Running]:
    async with service(path, **settings) as s:
        app = create_app(s.gateway, s.cluster.settings, SystemClock(), TIMING, owns_gateway=False)
        _, token = await s.store.create_key(s.project.org_id, "ingest", "i", s.clock.now_ms(), s.project.id)
        rows = [await s.breaker(name, **COUNTED) for name in ("first", "second")]
        async with app.test_app() as serving:
            await soon(app.extensions[EXTENSION].feed.fresh)
            yield Running(s, serving.test_client(), token, rows)


def gauges(routers: list[str], ts_ms: int, n: int) -> list[Sent]:
    """`n` values of each router, of one metric."""
    return [
        Sent(labels={"__name__": "requests", "router_id": id_, "n": str(k)}, value=1.0, kind=2, ts_ms=ts_ms)
        for id_ in routers
        for k in range(n)
    ]


async def test_a_request_sent_again_counts_once(tmp_path: Path) -> None:
    """In each protocol; another body of the same values counts anew."""
    async with running(tmp_path) as r:
        now, first = r.s.clock.now_ms(), r.routers[:1]
        second = body2(*gauges(first, now, 3))
        for _ in range(3):
            assert await r.remote_write(second) == 204
        await r.counted(3, 0)
        for _ in range(2):
            assert await r.remote_write(body1(*gauges(first, now, 3)), v1=True) == 204
        await r.counted(6, 0)
        point = {"asInt": 1, "timeUnixNano": now * 1_000_000, "attributes": [named(first[0])]}
        request = request_of({"name": "requests", "gauge": {"dataPoints": [point] * 4}})
        for _ in range(2):
            assert await r.post("otlp/v1/metrics", encoded(request, JSON), {"Content-Type": JSON}) == 200
        await r.counted(10, 0)


def named(router_id: str) -> dict[str, Any]:
    return attribute("router_id", {"stringValue": router_id})


async def test_of_a_request_that_was_stored_in_part_the_rest_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one router's log refused is to be sent again; what the other took is known there."""
    async with running(tmp_path) as r:
        ingest, refused = ActorGateway._ingest_one, [r.routers[1]] * 2

        async def failing(gateway: ActorGateway, project_id: str, part: Part) -> AppendResult:
            if part.router_id in refused:
                refused.remove(part.router_id)
                return AppendResult("failed")
            return await ingest(gateway, project_id, part)

        monkeypatch.setattr(ActorGateway, "_ingest_one", failing)
        body = body2(*gauges(r.routers, r.s.clock.now_ms(), 2))
        assert [await r.remote_write(body) for _ in range(4)] == [503, 503, 204, 204]
        await r.counted(2, 2)


async def test_totals_rise_by_what_came_between_however_often_they_are_sent(tmp_path: Path) -> None:
    """Over a kill of their owner as well: neither lost nor doubled."""
    async with running(tmp_path) as r:
        now = r.s.clock.now_ms()

        def total(value: float, at: int) -> bytes:
            labels = {"__name__": "requests", "router_id": r.routers[0]}
            return body2(Sent(labels=labels, value=value, kind=1, ts_ms=now + at))

        for body in (total(100, 0), total(103, 1), total(103, 1)):
            assert await r.remote_write(body) == 204
        await r.counted(3, 0)
        await r.s.net.kill("router-0")
        r.s.net.revive("router", "router-0")
        for body in (total(103, 1), total(110, 2), total(110, 2), total(100, 0)):
            assert await r.remote_write(body) == 204
        await r.counted(10, 0)


async def test_beyond_what_a_router_keeps_is_told(tmp_path: Path) -> None:
    """Histograms as such, so that no count of what was written is less than none."""
    async with running(tmp_path, counter_series_max=2) as r:
        now = r.s.clock.now_ms()
        buckets = {"sum": 1.0, "count_int": 1, "positive_spans": ((0, 1),), "positive_deltas": (1,)}
        body = body2(
            *(
                Sent(labels={"__name__": "lat", "router_id": r.routers[0], "n": str(n)}, histogram=buckets, ts_ms=now)
                for n in range(5)
            )
        )
        full = f"/v1/projects/{r.s.project.id}/remote_write"
        answer = await r._client.post(full, data=body, headers=V2_HEADERS | {"Authorization": f"Bearer {r._token}"})
        written = [answer.headers[f"X-Prometheus-Remote-Write-{kind}-Written"] for kind in ("Samples", "Histograms")]
        assert (answer.status_code, written) == (400, ["0", "2"])
        assert "too_many_series" in await answer.get_data(as_text=True)
