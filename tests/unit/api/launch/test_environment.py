"""What a service leaves in its data directory for those who watch it, where to scrape and its logs; and what it
prepares for Ray and HAProxy."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import py_compile
import sys
from pathlib import Path

import pytest

from api.launch import haproxy as ingress
from api.launch import ray_environment as environment
from breaker_actors.settings import Settings


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


def test_a_link_beside_the_targets_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_SERVE_HAPROXY_METRICS_PORT", "20002")
    (tmp_path / "precious").write_text("precious")
    for name in ("prometheus.new", "prometheus.json"):
        (tmp_path / name).symlink_to(tmp_path / "precious")
    environment.write_targets(tmp_path, 20001)
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "prometheus.json").is_symlink()


@pytest.mark.parametrize("wanted", [True, False])
def test_ray_collects_metrics_only_where_they_are_wanted(tmp_path: Path, wanted: bool) -> None:
    found = environment.ray_environment(tmp_path, 20_000, metrics=wanted)
    assert found["RAY_enable_metrics_collection"] == str(int(wanted))


def test_logs_are_found_while_the_service_runs_and_their_ends_kept_after_it(tmp_path: Path) -> None:
    folder, data = tmp_path / "folder", tmp_path / "data"
    written = folder / "ray" / "session_latest" / "logs"
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


def test_where_scripts_can_not_run_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HAProxy would run without the launcher: no bounds, no TLS, no proof."""
    access = environment.os.access
    monkeypatch.setattr(environment.os, "access", lambda path, how: path != tmp_path / "haproxy" and access(path, how))
    with pytest.raises(environment.NotStarted, match=r"noexec.*set TMPDIR"):
        environment.node_environment(tmp_path, Settings())


def test_a_folder_of_the_operators_is_taken_where_tmp_runs_no_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(environment.private, "check_parents", lambda folder: None)
    folder = environment.make_folder()
    assert folder.parent == Path("/tmp")
    folder.rmdir()

    class Mounted:
        f_flag = environment.os.ST_NOEXEC

    monkeypatch.setattr(environment.os, "statvfs", lambda path: Mounted)
    assert environment.make_folder().parent == tmp_path


def test_replicas_and_haproxy_are_prepared_for_proofs_everywhere(tmp_path: Path) -> None:
    """Both find the token by themselves: what they are told holds no secret."""
    name = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
    for found in (
        environment.ray_environment(tmp_path, 20_000, metrics=True),
        environment.node_environment(tmp_path, Settings()),
    ):
        assert found[name] == "api.launch.listeners:narrow"
        assert ingress.PROOF not in json.dumps(found)


@pytest.mark.parametrize(("compiled", "kept"), [(("ray", "breaker_actors"), True), (("ray",), False), ((), False)])
def test_workers_write_bytecode_where_installation_did_not(
    compiled: tuple[str, ...], kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("ray", "breaker_actors"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    for package in compiled:
        py_compile.compile(str(tmp_path / package / "__init__.py"))
    finder = importlib.machinery.PathFinder()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: finder.find_spec(name, [str(tmp_path)]))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    environment.let_workers_keep_bytecode()
    assert (os.environ.get("PYTHONDONTWRITEBYTECODE") == "1") is kept
    assert sys.dont_write_bytecode is kept
