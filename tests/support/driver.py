"""A program that joins a running service's Ray cluster as a driver, in a process of its own; asked line by line."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.live import LiveService, tree_of

JOIN = """
import json, logging, os, sys
os.environ.update(RAY_ENABLE_UV_RUN_RUNTIME_ENV="0", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Ray prints warnings, wherever it wants

def answer(value):
    print(json.dumps(value), file=out, flush=True)

import ray
ray.init(address=sys.argv[1], _node_ip_address="127.0.0.1", log_to_driver=False, logging_level=logging.ERROR)
"""
WITHIN_S = 60
PROOFS = ("RAY_AUTH_", "RAY_USE_TLS", "RAY_TLS_", "GRPC_")


class Driver:
    """`program` goes on behind `ray.init`; it is to `answer` every line of its input with a value."""

    def __init__(self, live: LiveService, program: str) -> None:
        pid, line = next((p, line) for p, line in tree_of(live.process.pid).items() if "--gcs-address=" in line)
        (address,) = set(re.findall(r"--gcs-address=(\S+)", line))
        environ = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        proofs = dict(entry.split("=", 1) for entry in environ if entry.startswith(PROOFS))
        self._process = subprocess.Popen(
            [sys.executable, "-c", JOIN + program, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **proofs},
        )

    def ask(self, line: str = "") -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answered, _, _ = select.select([self._process.stdout], [], [], WITHIN_S)
        assert answered, f"no answer within {WITHIN_S} s"
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        with self._process:  # closes its pipes and waits
            self._process.kill()
