"""Ray Serve with an application that does nothing, in a process of its own: the yardstick for what a start and an idle
service cost. Run as a program it says `ready URL` and stays until its standard input ends.
"""

from __future__ import annotations

import socket
import sys
import tempfile
from pathlib import Path


def main(folder: str) -> None:
    import ray
    from ray import serve
    from starlette.requests import Request

    @serve.deployment
    class Nothing:
        async def __call__(self, request: Request) -> str:
            return "nothing"

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ray.init(include_dashboard=False, log_to_driver=False, _temp_dir=folder)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(Nothing.bind())
    print(f"ready http://127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="brk-", ignore_cleanup_errors=True) as folder:
        main(str(Path(folder) / "ray"))
