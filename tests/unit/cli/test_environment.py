"""What a service leaves in its data directory for those who watch it: where to scrape, and its logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from api import environment


def test_prometheus_is_told_where_to_scrape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_SERVE_HAPROXY_METRICS_PORT", "20002")
    path = tmp_path / "prometheus.json"
    environment.write_targets(tmp_path, 20001)
    assert json.loads(path.read_text()) == [
        {"targets": ["127.0.0.1:20001"], "labels": {"job": "breakers"}},
        {"targets": ["127.0.0.1:20002"], "labels": {"job": "breakers-haproxy"}},
    ]
    for _ in range(2):
        environment.write_targets(tmp_path, None)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wanted", [True, False])
def test_ray_collects_metrics_only_where_they_are_wanted(tmp_path: Path, wanted: bool) -> None:
    found = environment.ray_environment(tmp_path, 20_000, metrics=wanted)
    assert found["RAY_enable_metrics_collection"] == str(int(wanted))


def test_logs_are_found_while_the_service_runs_and_their_ends_kept_after_it(tmp_path: Path) -> None:
    folder, data = tmp_path / "folder", tmp_path / "data"
    written = folder / "session_latest" / "logs"
    written.mkdir(parents=True)
    data.mkdir()
    environment.link_logs(data, folder)
    (written / "worker-1.err").write_text("first\n")
    (written / "worker-2.err").write_text("")
    (written / "raylet.out").write_text("not kept\n")
    assert (data / "logs" / "worker-1.err").read_text() == "first\n"
    environment.keep_logs(data, folder)
    assert not (data / "logs").is_symlink()
    assert {path.name: path.read_text() for path in (data / "logs-last").iterdir()} == {"worker-1.err": "first\n"}

    environment.link_logs(data, folder)
    (written / "worker-1.err").unlink()
    (written / "worker-3.err").write_bytes(b"a" + b"b" * environment.LOG_KEPT_BYTES)
    environment.keep_logs(data, folder)
    assert {path.name for path in (data / "logs-last").iterdir()} == {"worker-3.err"}
    assert (data / "logs-last" / "worker-3.err").read_bytes() == b"b" * environment.LOG_KEPT_BYTES


def test_a_folder_without_logs_is_no_hindrance(tmp_path: Path) -> None:
    environment.keep_logs(tmp_path, tmp_path / "gone")
    assert [path.name for path in tmp_path.iterdir()] == ["logs-last"]
    assert list((tmp_path / "logs-last").iterdir()) == []
