"""Another user of the machine, who wants ports for himself: run as root, becomes the user 65534.

`python -I -S squatter.py PORT...` tries to listen at each, on every address and with every option that sockets have for
it, again and again until its stdin ends; a line after the first round, at the end a JSON list of what he got.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator

NOBODY = 65534
OPTIONS = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)


class Squatter:
    """One who tries until `got` is asked for."""

    def __init__(self, ports: list[int]) -> None:
        command = [sys.executable, "-I", "-S", __file__, *map(str, ports)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "tried\n"

    def got(self) -> list[tuple[int, str]]:
        """Port and address of each socket that he could listen with."""
        said, _ = self._process.communicate(timeout=30)
        assert self._process.returncode == 0
        return [(port, address) for port, address in json.loads(said)]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def trying(*ports: int) -> Iterator[Squatter]:
    squatter = Squatter(list(ports))
    try:
        yield squatter
    finally:
        squatter.close()


def main(ports: list[int]) -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    got: list[tuple[int, str]] = []
    rounds = 0
    while not select.select([sys.stdin], [], [], 0.001)[0]:
        addresses = ("127.0.0.1", "0.0.0.0", "::") if socket.has_ipv6 else ("127.0.0.1", "0.0.0.0")
        for port, address, count in itertools.product(ports, addresses, range(len(OPTIONS) + 1)):
            for options in itertools.combinations(OPTIONS, count):
                got += [(port, address)] if _listens(address, port, options) else []
        rounds += 1
        if rounds == 1:
            print("tried", flush=True)
    print(json.dumps(got))


def _listens(address: str, port: int, options: tuple[int, ...]) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as mine:
        if ":" in address:
            mine.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        for option in options:
            mine.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            mine.bind((address, port))
            mine.listen()
        except OSError:
            return False
        return True


if __name__ == "__main__":
    main([int(port) for port in sys.argv[1:]])
