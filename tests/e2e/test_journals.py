"""Two Journals on PostgreSQL: projects of both, one of them killed, and one fewer at the next start."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.live import LiveService, serving, wait_for
from tests.support.nodes import breakers

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


def two_projects(live: LiveService, url: str) -> dict[int, str]:
    """A project of each shard; more are made until both have one."""
    workspace = live.user.get("/v1/workspaces").json()["workspaces"][0]["id"]
    for n in range(40):
        with psycopg.connect(url) as connection:
            found = {int(shard): str(id_) for id_, shard in connection.execute("SELECT id, shard FROM projects")}
        if len(found) == 2:
            return found
        made = live.user.post("/v1/projects", json={"name": f"p{n}", "workspace_id": workspace})
        assert made.status_code == 201, made.text
    raise AssertionError("all projects have one Journal")


def test_projects_of_two_journals(tmp_path: Path, empty_postgres_url: str) -> None:
    on_postgres = {"BREAKERS_DATABASE_URL": empty_postgres_url, "BREAKERS_SECRET_KEY": "ab" * 32}
    data_dir = tmp_path / "data"

    def tripped(live: LiveService, project_id: str, name: str) -> dict[str, Any]:
        live.project_path = f"/v1/projects/{project_id}"
        made = live.breaker(name=name, cooldown_ms=3_600_000)
        live.trip(made)
        assert [event["sequence"] for event in live.events(made["breaker"]["id"])]
        return made

    with serving(data_dir, BREAKERS_JOURNALS="2", **on_postgres) as live:
        projects = two_projects(live, empty_postgres_url)
        for project_id in projects.values():
            tripped(live, project_id, "first")
        told = breakers("status", "--data-dir", str(data_dir), **on_postgres).stdout
        assert "journal-0 at " in told
        assert "journal-1 at " in told
        pids = live.pids("JournalActor")
        assert len(pids) == 2
        os.kill(pids[1], signal.SIGKILL)
        for project_id in projects.values():
            tripped(live, project_id, "second")
        wait_for(lambda: live.user.get("/api/readyz").status_code == 200)
    with serving(data_dir, **on_postgres) as live:
        wait_for(lambda: len(live.pids("JournalActor")) == 2)
        for project_id in projects.values():
            tripped(live, project_id, "third")
    told = breakers("verify", "--data-dir", str(data_dir), **on_postgres)
    assert told.returncode == 0, told
