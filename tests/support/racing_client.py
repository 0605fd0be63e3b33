"""A stream client with the start-up race of one public SDK, as far as a server can see it.

That SDK starts its stream on a thread of its own; its caller goes on with the start (it builds an HTTP client, which
parses the machine's certificates) and only then waits for the first state. The signal of the first state is kept for
nobody: when it comes before the caller waits, the caller waits for ever.
As a program it starts so many times and prints how many hung: python -m tests.support.racing_client PORT PATH KEY N
"""

from __future__ import annotations

import hashlib
import socket
import sys
import threading
from collections.abc import Callable

GIVE_UP_S = 1.0
"""The states of a start come within tenths of a second; nothing that comes later would help the caller."""
ROUNDS = 40_000
"""Of the caller's work: some 20 ms of one idle core, outside Python's lock like that SDK's own."""


class LossySignal:
    """Wakes who waits; one that comes too early is lost."""

    def __init__(self) -> None:
        self._condition = threading.Condition()

    def send(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def wait(self, timeout_s: float) -> bool:
        with self._condition:
            return self._condition.wait(timeout_s)


def listen(port: int, path: str, key: str, ready: LossySignal) -> None:
    """The stream's thread: asks without a User-Agent, as that SDK does, and signals the first state."""
    with socket.create_connection(("127.0.0.1", port)) as stream:
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nAccept: text/event-stream\r\n\r\n"
        stream.sendall(head.encode())
        got = b""
        while b"event: state" not in got:
            got += stream.recv(65536)
        ready.send()


def build() -> None:
    """What the caller does before it waits."""
    hashlib.pbkdf2_hmac("sha256", b"certificates", b"", ROUNDS)


def start(port: int, path: str, key: str, work: Callable[[], None] = build) -> bool:
    """Whether the client's start comes to its end."""
    ready = LossySignal()
    threading.Thread(target=listen, args=(port, path, key, ready), daemon=True).start()
    work()
    return ready.wait(GIVE_UP_S)


if __name__ == "__main__":
    port, path, key, starts = sys.argv[1:5]
    print(sum(not start(int(port), path, key) for _ in range(int(starts))), flush=True)
