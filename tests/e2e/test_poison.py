"""What no RouterActor can read lies in the database of a running service: everybody else is served, also by the next
RouterActor."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from breaker_actors.persistence import make_store
from breaker_actors.settings import Settings
from breaker_actors.store.rows import RouterDraft
from tests.support.live import LiveService, wait_for

pytestmark = pytest.mark.e2e
BAD: Any = "static\n"


async def poison(live: LiveService) -> str:
    """A router as c930192 stored it."""
    store = make_store(Settings(data_dir=live.data_dir))
    await store.open()
    draft = RouterDraft(name="poison", mode=BAD)
    row, _ = await store.create_router(live.project_id, draft, int(time.time() * 1000))
    await store.close()
    return row.id


def aside(live: LiveService, *arguments: str) -> str:
    program = str(Path(sys.executable).with_name("breakers"))
    command = [program, "aside", *arguments, "--data-dir", str(live.data_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_one_row_ends_nobodys_ingest(live: LiveService) -> None:
    # the sample is as old as the next RouterActor is late, and counts all the same
    breaker = live.breaker(name="bystander of a poison", window_ms=60_000, cooldown_ms=60_000)
    (router_id,) = breaker["router_ids"]
    assert live.user.post(f"{live.project_path}/routers", json={"mode": BAD}).status_code == 422
    bad = asyncio.run(poison(live))

    def listed() -> list[dict[str, Any]]:
        rows = json.loads(aside(live, "list", "--json"))["set_aside"]
        return [row for row in rows if row["thing"] == bad]

    (row,) = wait_for(listed, 30.0, 0.5)
    assert row["kind"] == "log"
    assert live.kill("RouterActor")
    assert wait_for(lambda: live.send(router_id, [500.0]).status_code == 202, 30.0)
    live.in_state(breaker["id"], "open")
    ready = wait_for(lambda: live.user.get("/api/readyz").json().get("set_aside"), 30.0)
    assert ready >= 1
    assert live.user.delete(f"{live.project_path}/routers/{bad}").status_code == 204
    wait_for(lambda: aside(live, "drop", "--all"), 30.0)
