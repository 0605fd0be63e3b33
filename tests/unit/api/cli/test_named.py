"""Names where a command asks for a project, a router or a channel; without one the project of credentials.json."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from api.cli.named import NAMED_MAX, one_of
from api.launch import bootstrap
from breaker_actors.errors import Invalid
from breaker_actors.persistence import make_store
from breaker_actors.settings import Settings
from breaker_actors.store.rows import ChannelDraft, RouterDraft
from tests.contract.store_world import World
from tests.support.recorded import START_MS
from tests.unit.api.cli.test_admin import breakers, find, lines, refused


@pytest.fixture
def shop(tmp_path: Path) -> dict[str, Any]:
    """Project "shop" with router "edge" and channel "pager"; two of its routers have one name."""

    async def make() -> dict[str, Any]:
        store = make_store(Settings(data_dir=tmp_path))
        await store.open()
        world = await World.make(store)
        (router, _), *_ = [
            await store.create_router(world.project_id, RouterDraft(name=name), 1) for name in ("edge", "twin", "twin")
        ]
        channel = ChannelDraft(channel="webhook", name="pager", config={"url": "https://a.example"})
        await store.create_channel(world.project_id, channel, 1)
        await store.close()
        return {"folder": tmp_path, "project": world.project_id, "router": router.id}

    return asyncio.run(make())


@pytest.fixture
def samples(shop: dict[str, Any], tmp_path: Path) -> str:
    path = tmp_path / "samples.parquet"
    pl.DataFrame({"ts_ms": [START_MS], "value": [1.0]}).write_parquet(path)
    return str(path)


def test_a_project_by_its_name(shop: dict[str, Any]) -> None:
    made = breakers(shop["folder"], "keys", "create", "--kind", "project", "--project", "shop")
    assert made.exit_code == 0, made.output
    key = find(shop["folder"], made.stdout.strip())
    assert key is not None
    assert key.project_id == shop["project"]
    result = breakers(shop["folder"], "keys", "create", "--kind", "project", "--project", "shops")
    refused(result, "there is no project shops: did you mean shop?")


def test_a_channel_by_its_name(shop: dict[str, Any]) -> None:
    asked = ["deliveries", "list", "--project", "shop", "--channel"]
    assert lines(breakers(shop["folder"], *asked, "pager")) == []
    refused(breakers(shop["folder"], *asked, "page"), "there is no channel page in project shop (")
    refused(breakers(shop["folder"], *asked, "page"), "): did you mean pager?")


def test_a_router_by_its_name(shop: dict[str, Any], samples: str) -> None:
    asked = ["backfill", samples, "--project", "shop", "--metric", "m", "--dry-run", "--json", "--router"]
    by_name, by_id = (breakers(shop["folder"], *asked, router) for router in ("edge", shop["router"].upper()))
    assert by_name.exit_code == 0, by_name.output
    assert json.loads(by_name.stdout) == json.loads(by_id.stdout)
    assert json.loads(by_name.stdout)["history"] == 1
    refused(breakers(shop["folder"], *asked, "twin"), "2 routers are named twin: say which by id: ")


def test_the_project_of_the_credentials(shop: dict[str, Any], samples: str) -> None:
    asked = ["backfill", samples, "--metric", "m", "--dry-run", "--json", "--router", "edge"]
    refused(breakers(shop["folder"], *asked), "name the project with --project: there is no ")
    path = shop["folder"] / bootstrap.FILE_NAME
    words = {name: "x" for name in bootstrap.Credentials.__struct_fields__} | {"project_id": shop["project"]}
    path.write_text(json.dumps(words))
    path.chmod(0o600)
    found = breakers(shop["folder"], *asked)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["project_id"] == shop["project"]
    out = breakers(shop["folder"], "export", "--out", str(shop["folder"] / "out"), "--json")
    assert json.loads(out.stdout)["project_id"] == shop["project"]


def test_ids_go_before_names_and_many_are_not_all_listed() -> None:
    assert one_of("router", "A", [("a", "b"), ("b", "A")]) == "a"
    with pytest.raises(Invalid) as caught:
        one_of("router", "x", [(str(i), "x") for i in range(NAMED_MAX + 1)])
    assert str(caught.value).endswith("8, 9, ...")
