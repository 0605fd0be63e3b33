"""A running `breakers statsd`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.support.live import wait_for


class Receiver:
    """The process; `statuses` as it printed them."""

    def __init__(self, base_url: str, project_id: str, token: str, folder: Path, flush_ms: int = 100) -> None:
        self.socket = folder / "statsd.sock"
        program = str(Path(sys.executable).with_name("breakers"))
        command = [program, "statsd", "--listen", "127.0.0.1:0", "--unix", str(self.socket), "--url", base_url]
        command += ["--project", project_id, "--flush-ms", str(flush_ms), "--status-s", "1", "--json"]
        environ = {**os.environ, "BREAKERS_INGEST_TOKEN": token}
        self.log = folder / "statsd.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environ, cwd=folder
            )
        self.statuses: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_for(lambda: len(self.told("listening")) == 2 or self.process.poll() is not None, 30)
        assert self.process.poll() is None, self.log.read_text()
        at = self.told("listening")[0]["at"]
        self.host, self.port = "127.0.0.1", int(at.rpartition(":")[2])

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.statuses.append(json.loads(line))

    def told(self, *events: str) -> list[dict[str, Any]]:
        """What it told of these."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] in events]

    def stop(self) -> dict[str, Any]:
        """SIGTERM; the last status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, self.log.read_text()
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.statuses[-1]

    def close(self) -> None:
        if self.process.poll() is None:
            self.stop()
