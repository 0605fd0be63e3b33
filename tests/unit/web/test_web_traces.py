"""A trace id on its way from a sample into the link of a notification, over all parts in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from api.app import create_app
from breaker_actors.clock import SystemClock
from breaker_actors.stores.base import ChannelDraft, DeliveryQuery, DeliveryRow
from tests.support.cluster import FAST_RULE, service, until
from tests.support.web_world import TIMING


async def test_a_notification_links_to_the_newest_trace(tmp_path: Path) -> None:
    """The ids travel only because the project asks for links; the id is one piece of the address."""
    async with service(tmp_path) as s:
        app = create_app(s.gateway, s.cluster.settings, SystemClock(), TIMING, owns_gateway=False)
        _, key = await s.store.create_key(s.project.org_id, "user", "u", s.clock.now_ms())
        path, headers = f"/v1/projects/{s.project.id}", {"Authorization": f"Bearer {key}"}
        draft = ChannelDraft(name="hook", channel="webhook", config={"url": "https://hook.example/"})
        channel = await s.store.create_channel(s.project.id, draft, 1)
        async with app.test_app() as running:
            client = running.test_client()
            template = {"trace_id_url_template": "https://traces.example/{{value}}?view=1"}
            assert (await client.patch(path, headers=headers, json=template)).status_code == 200
            made = await client.post(f"{path}/breakers", headers=headers, json=FAST_RULE | {"min_count": 3})
            router_id = (await made.get_json())["breaker"]["router_id"]
            now = s.clock.now_ms()

            def sample(ts_ms: int, **more: Any) -> dict[str, Any]:
                return {"router_id": router_id, "metric": "latency", "ts_ms": ts_ms, "value": 900} | more

            samples = [sample(now, trace_id="a/b c"), sample(now - 5, trace_id="older"), sample(now)]
            assert (await client.post(f"{path}/ingest", json=samples)).status_code == 202

            async def told() -> list[DeliveryRow]:
                return await s.store.deliveries(DeliveryQuery(project_id=s.project.id, channel_id=channel.id, limit=10))

            assert (await until(told))[-1].told.trace_url == "https://traces.example/a%2Fb%20c?view=1"
