"""Another user of the machine, who takes the port of a Ray head that has died: run as root, becomes the user 65534.

`python -m tests.support.impostor PORT SECONDS` tries to listen there, then answers whoever comes as a gRPC server
without TLS, for so many seconds. Writes a line when it begins to try, at the end JSON: how many came, how many of them
began with a handshake of TLS, and how many calls showed a token.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401  # afterwards he may not read where Python's modules lie
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

NOBODY = 65534
TRY_S, PAUSE_S = 30.0, 0.02
HANDSHAKE = b"\x16\x03"


class Impostor:
    """One who tries from when it is made."""

    def __init__(self, port: int, seconds: float) -> None:
        command = [sys.executable, "-m", "tests.support.impostor", str(port), str(seconds)]
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "tries\n"

    def saw(self) -> dict[str, int]:
        """Waits for its end."""
        said, _ = self._process.communicate(timeout=120)
        assert self._process.returncode == 0
        found: dict[str, int] = json.loads(said)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def waiting(port: int, seconds: float) -> Iterator[Impostor]:
    impostor = Impostor(port, seconds)
    try:
        yield impostor
    finally:
        impostor.close()


class Recorder(grpc.GenericRpcHandler):
    """Refuses every call, as a service that is busy would, so that it is made again."""

    def __init__(self) -> None:
        self.tokens = 0

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        self.tokens += any(name == "authorization" for name, _ in details.invocation_metadata)
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: context.abort(grpc.StatusCode.UNAVAILABLE, "busy")
        )


def main(port: int, seconds: float) -> None:
    recorder = Recorder()
    server = grpc.server(ThreadPoolExecutor(8), handlers=[recorder])
    behind = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{behind}") as channel, contextlib.suppress(grpc.RpcError):
        channel.unary_unary("/any/Call")(b"", timeout=TRY_S)  # imports the rest
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    print("tries", flush=True)
    came: list[bytes] = []
    with _taken(port) as listener:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            listener.settimeout(left)
            with contextlib.suppress(TimeoutError):
                threading.Thread(target=_hand_on, args=(listener.accept()[0], behind, came), daemon=True).start()
    handshakes = sum(first.startswith(HANDSHAKE) for first in came)
    print(json.dumps({"came": len(came), "handshakes": handshakes, "tokens": recorder.tokens}), flush=True)
    os._exit(0)  # threads may still wait for somebody


def _taken(port: int) -> socket.socket:
    end = time.monotonic() + TRY_S
    while True:
        mine = socket.socket(socket.AF_INET6)
        mine.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            mine.bind(("::", port))
            mine.listen(64)
            return mine
        except OSError:
            mine.close()
            if time.monotonic() > end:
                raise
            time.sleep(PAUSE_S)


def _hand_on(caller: socket.socket, behind: int, came: list[bytes]) -> None:
    caller.settimeout(None)
    with contextlib.suppress(OSError), caller, socket.create_connection(("127.0.0.1", behind)) as answers:
        first = caller.recv(1 << 16)
        came.append(first[:2])
        answers.sendall(first)
        threading.Thread(target=_copy, args=(answers, caller), daemon=True).start()
        _copy(caller, answers)


def _copy(source: Any, target: Any) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(1 << 16):
            target.sendall(part)
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
