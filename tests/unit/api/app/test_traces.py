"""A trace id on its way from a sample into the link of a notification, over all parts in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from api.app import create_app
from breaker_actors.clock import SystemClock
from breaker_actors.store import tables as t
from breaker_actors.store.rows import ChannelDraft, DeliveryQuery, DeliveryRow
from breaker_actors.text.escaping import link_of, link_template
from tests.support.cluster import FAST_RULE, service, until
from tests.support.hostile import LINKS
from tests.support.web_world import TIMING, World, error_of
from tests.unit.api.app.test_accounts import body_of


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


# templates of links


TEMPLATES = (
    *LINKS, "t", "https://", "https://{{value}}/x", "https://traces.example{{value}}", "https://u:p@traces.example/{{value}}",
    "https://traces.example@evil.example/", "https://t/\n{{value}}", "https://t/ {{value}}", 'https://t/"{{value}}', "ftp://t/x",
)  # fmt: skip


@pytest.mark.parametrize("template", TEMPLATES)
async def test_only_templates_of_web_links_are_taken(world: World, template: str) -> None:
    error = await error_of(
        await world.call("PATCH", world.path, json={"trace_id_url_template": template}), 422, "validation_failed"
    )
    assert list(error["details"]) == ["trace_id_url_template"]


@pytest.mark.parametrize("template", TEMPLATES)
async def test_a_template_of_earlier_is_rendered_nowhere(world: World, template: str) -> None:
    await world.store._db.write(lambda c: c.execute(update(t.projects).values(trace_id_url_template=template)))
    assert link_of(template, "4bf9") is None
    assert (await body_of(await world.call("GET", world.path)))["trace_id_url_template"] is None
    project = await world.store.get_project(world.project.id)
    assert project is not None
    assert project.trace_id_url_template is None
    changed = await body_of(await world.call("PATCH", world.path, json={"name": "n"}))
    assert changed["trace_id_url_template"] is None


@pytest.mark.parametrize(
    ("template", "link"),
    [
        ("https://t.example/{{value}}?v=1#{{value}}", "https://t.example/a%2F%2Fb%20c?v=1#a%2F%2Fb%20c"),
        ("HTTP://t.example:8080?x={{value}}", "HTTP://t.example:8080?x=a%2F%2Fb%20c"),
        ("https://t.example/all", "https://t.example/all"),
        ("https://t.example/a@b/{{value}}", "https://t.example/a@b/a%2F%2Fb%20c"),
    ],
)
async def test_a_template_of_web_links(world: World, template: str, link: str) -> None:
    changed = await body_of(await world.call("PATCH", world.path, json={"trace_id_url_template": template}))
    assert changed["trace_id_url_template"] == link_template(template) == template
    assert link_of(template, "a//b c") == link
    assert link_of(template, None) is None
