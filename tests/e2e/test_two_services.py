"""Two services on one PostgreSQL database by mistake: the second does not start, until the first one has crashed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.live import LiveService, serving
from tests.support.nodes import breakers

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_second_is_refused_and_a_crash_is_no_reason(tmp_path: Path, empty_postgres_url: str) -> None:
    on_postgres = {"BREAKERS_DATABASE_URL": empty_postgres_url, "BREAKERS_SECRET_KEY": "ab" * 32}
    first = LiveService(tmp_path / "first", **on_postgres)
    try:
        told = breakers("serve", "--port", "0", "--data-dir", str(tmp_path / "second"), **on_postgres)
        line = told.stderr.splitlines()[-1]
        assert told.returncode == 2, told
        assert line.startswith("breakers: another service works with PostgreSQL"), line
        assert any(f"pid {pid} on " in line for pid in first.pids("DirectoryActor")), line
        findings = breakers("doctor", "--data-dir", str(tmp_path / "first"), **on_postgres).stdout
        assert "one service works with this database" in findings
        first.crash()
        LiveService(tmp_path / "first", **on_postgres).crash()
        (tmp_path / "second").mkdir(mode=0o700, exist_ok=True)
        shutil.copy(tmp_path / "first" / "credentials.json", tmp_path / "second")
        with serving(tmp_path / "second", **on_postgres) as second:
            assert second.user.get(f"{second.project_path}/breakers").status_code == 200
    finally:
        if first.process.poll() is None:
            first.stop()
