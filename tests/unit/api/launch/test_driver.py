"""What workers of Ray are told by a driver of this program: nothing of the folder that it was started in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private import node as ray_node
from ray._private import parameter
from ray.core.generated.common_pb2 import JobConfig as Told
from ray.job_config import JobConfig

from api.launch import driver, worker

ROOT = Path(__file__).parents[4]
CONNECTING = ("init", "client")


def told(job: JobConfig, *folders: str) -> Any:
    """What reaches the workers when Ray has added folders of the driver, as `ray._private.worker.connect` does."""
    job._py_driver_sys_path.extend(folders)
    return Told.FromString(job._serialize())


def test_workers_look_into_no_folder_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(ray, "init", lambda **options: asked.update(options))
    driver.join("127.0.0.1:6379", include_dashboard=False)
    assert (asked["address"], asked["namespace"], asked["include_dashboard"]) == ("127.0.0.1:6379", "breakers", False)
    job = asked["job_config"]
    job.set_ray_namespace("breakers")
    found = told(job, "/tmp", "/home/somebody")
    assert (list(found.py_driver_sys_path), found.ray_namespace) == ([], "breakers")
    assert list(told(JobConfig(), "/tmp").py_driver_sys_path) == ["/tmp"]  # it is here that Ray tells of them


def calls(path: Path) -> Iterator[str]:
    """The ways of `ray` to connect that a file uses."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ray":
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and node.module == "ray":
            yield from (name.name for name in node.names)


def test_every_driver_of_the_program_is_made_here() -> None:
    files = [path for top in ("api", "breaker_actors", "pipelines") for path in sorted((ROOT / top).rglob("*.py"))]
    assert len(files) > 100
    found = {str(path.relative_to(ROOT)) for path in files if not set(CONNECTING).isdisjoint(calls(path))}
    assert found == {"api/launch/driver.py"}


def test_a_head_starts_no_process_that_nothing_here_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """`start_head_processes` is Ray's own: what it does with these parameters is what a start does."""
    started: list[str] = []
    head = ray_node.Node.__new__(ray_node.Node)
    for name in ("gcs_server", "monitor", "log_monitor"):
        monkeypatch.setattr(head, f"start_{name}", lambda name=name: started.append(name), raising=False)
    monkeypatch.setattr(head, "get_gcs_client", lambda: object(), raising=False)
    monkeypatch.setattr(head, "_write_cluster_info_to_kv", lambda: None, raising=False)
    monkeypatch.setattr(ray_node.Node, "start_api_server", lambda *_, **__: started.append("dashboard"))

    def start(**options: Any) -> None:
        assert (options["address"], options["include_dashboard"]) == ("local", False)
        head._ray_params = parameter.RayParams(include_dashboard=False)
        head._ray_params.update_if_absent(include_log_monitor=True)
        head._logs_dir, head._gcs_address, head._gcs_client = "", None, None
        head.start_head_processes()
        if head._ray_params.include_log_monitor:
            started.append("log_monitor")

    monkeypatch.setattr(ray, "init", start)
    driver.start_alone()
    assert started == ["gcs_server"]
    started.clear()
    start(address="local", include_dashboard=False)
    assert started == ["gcs_server", "monitor", "dashboard", "log_monitor"]


def test_a_head_starts_workers_of_ours() -> None:
    params = driver.LeanParams()
    params.update_if_absent(worker_path="Ray's own")  # as `ray._private.node.Node` does
    assert params.worker_path == worker.__file__
