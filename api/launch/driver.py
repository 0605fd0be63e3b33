"""How a process of this program becomes a driver of Ray: by `join`, and in no other way.

To be imported when Ray's environment is set: some of its settings are read at import.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import ray
from ray._private import node, parameter
from ray.job_config import JobConfig

from api.launch import worker
from breaker_actors.ray_runtime.actors import NAMESPACE


class InstalledCode(JobConfig):
    """A job whose workers import what is installed, and nothing of the folders that its driver was started in.

    Ray tells workers to look for modules in the driver's current directory and beside its script first. Whoever can
    write to that directory, say /tmp, could put a module there in the place of one of ours, Ray's or Python's.
    """

    def _get_proto_job_config(self) -> Any:
        job = super()._get_proto_job_config()  # type: ignore[no-untyped-call]
        del job.py_driver_sys_path[:]
        return job


class LeanParams(parameter.RayParams):
    """A head that starts neither the autoscaler's monitor, for its one node, nor the monitor that hands on to drivers
    what workers print, for nobody who asked; and whose workers are ours."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.no_monitor = True
        self.include_log_monitor = False  # type: ignore[assignment]  # declared a string, used as a bool
        self.worker_path = worker.__file__


@contextlib.contextmanager
def lean() -> Iterator[None]:
    """Within, a head that this process starts is one of LeanParams, and does without the dashboard's process, too,
    which Ray starts even without a dashboard."""
    params, api_server = parameter.RayParams, node.Node.start_api_server
    parameter.RayParams, node.Node.start_api_server = LeanParams, _start_nothing  # type: ignore[misc,method-assign]
    try:
        yield
    finally:
        parameter.RayParams, node.Node.start_api_server = params, api_server  # type: ignore[misc,method-assign]


def _start_nothing(self: node.Node, **_: object) -> None:
    pass


def start_alone(**options: Any) -> None:
    """Starts a cluster of this machine alone, for this process and those below it, and joins it."""
    with lean():
        join("local", include_dashboard=False, **options)


def join(address: str, **options: Any) -> None:
    """Connects to the cluster at HOST:PORT, or starts one ("local"). Raises what `ray.init` raises."""
    ray.init(
        address=address,
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level=logging.ERROR,
        job_config=InstalledCode(),
        **options,
    )
