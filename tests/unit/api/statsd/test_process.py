"""The receiver with real sockets: what comes in goes out at the flush; what the kernel drops is counted."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from api.protocols import otlp_protobuf
from api.protocols.memory import Memory
from api.statsd.aggregation import Aggregate
from api.statsd.outbox import Answer, Outbox
from api.statsd.process import Process
from api.statsd.sockets import UNIX_MODE, kernel_drops, open_udp, open_unix
from breaker_actors.clock import SystemClock
from breaker_actors.errors import Invalid
from tests.bench.__main__ import main

LOOPBACK = "127.0.0.1:0"
NEVER_S = 600


class Running:
    """A receiver on a thread; `counts`: rises by name as they were posted."""

    def __init__(self, *sockets: socket.socket, flush_ms: int = 20) -> None:
        self.counts: dict[str, float] = {}
        self.statuses: list[dict[str, Any]] = []
        self.posted = threading.Event()
        self._stop = os.pipe()
        clock = SystemClock()
        outbox = Outbox(self._post, clock, lambda: 0.5)
        told = self.statuses.append
        self.process = Process(sockets, Aggregate(), outbox, clock, lambda: 0.5, flush_ms, NEVER_S, told)
        self._thread = threading.Thread(target=self.process.run, args=(self._stop[0],))
        self._thread.start()

    def _post(self, body: bytes) -> Answer:
        points = otlp_protobuf.decode(body, Memory())
        for number, value in zip(points.of.tolist(), points.value.tolist(), strict=True):
            name = points.series[number].name
            self.counts[name] = self.counts.get(name, 0.0) + value
        self.posted.set()
        return Answer("taken")

    def stop(self) -> dict[str, Any]:
        """Ends it; the last status."""
        os.write(self._stop[1], b".")
        self._thread.join(20)
        for end in self._stop:
            os.close(end)
        return self.statuses[-1]


@contextmanager
def sender(to: Any, family: int = socket.AF_INET) -> Iterator[socket.socket]:
    with socket.socket(family, socket.SOCK_DGRAM) as made:
        made.connect(to)
        yield made


def test_datagrams_of_all_sockets_are_summed_up(tmp_path: Path) -> None:
    path = tmp_path / "statsd.sock"
    with open_udp(LOOPBACK) as udp, open_udp("[::1]:0") as udp6, open_unix(path) as unix:
        running = Running(udp, udp6, unix)
        with (
            sender(udp.getsockname()) as one,
            sender(udp6.getsockname()[:2], socket.AF_INET6) as two,
            sender(str(path), socket.AF_UNIX) as three,
        ):
            for each in (one, two, three):
                for _ in range(300):
                    each.send(b"hits:1|c\nhits:2|c\n")
            assert running.posted.wait(10)
            one.send(b"last:1|c")
        status = running.stop()
        assert running.counts == {"hits": 2700.0, "last": 1.0}
    assert (status["datagrams"], status["lines"], status["malformed"]) == (901, 1801, {})
    assert (status["requests_waiting"], status["datagrams_dropped_by_kernel"]) == (0, 0)
    assert path.stat().st_mode & 0o777 == UNIX_MODE


def test_what_came_before_the_end_is_sent_at_the_end() -> None:
    with open_udp(LOOPBACK) as udp, sender(udp.getsockname()) as one:
        running = Running(udp, flush_ms=NEVER_S * 1000)
        for _ in range(1000):
            one.send(b"hits:1|c")
        running.stop()
    assert running.counts == {"hits": 1000.0}


def test_a_datagram_of_65507_bytes_is_read_whole_and_of_a_longer_one_the_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with open_udp(LOOPBACK) as udp, open_unix(path) as unix:
        running = Running(udp, unix)
        with sender(udp.getsockname()) as one, sender(str(path), socket.AF_UNIX) as two:
            lines = 65_507 // 9
            one.send(b"hits:1|c\n" * lines)
            two.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
            two.send(b"more:1|c\n" * 8000)
        status = running.stop()
    assert running.counts == {"hits": lines, "more": 65_536 // 9}
    assert status["datagrams_cut_off"] == 1
    assert status["malformed"] == {}


def quiet(udp: socket.socket, aggregate: Aggregate) -> Process:
    """A receiver that does what it is told."""
    clock = SystemClock()
    outbox = Outbox(lambda body: Answer("taken"), clock, lambda: 0.5)
    return Process([udp], aggregate, outbox, clock, lambda: 0.5, NEVER_S, NEVER_S, lambda status: None)


@pytest.mark.parametrize("lines", [b"t:" + b":".join(b"%d" % n for n in range(1000)) + b"|ms", b"g:1|g\n" * 3])
def test_a_flush_lets_others_in_by_what_it_makes(lines: bytes) -> None:
    """A thousand points of one series are as much work as a thousand series."""
    aggregate = Aggregate()
    with open_udp(LOOPBACK) as udp, sender(udp.getsockname()) as one:
        process = quiet(udp, aggregate)
        aggregate.take(lines)
        one.send(b"hits:1|c")
        process.flush()
        assert process.datagrams == (len(lines) > 1000)


def test_a_turn_ends_after_so_many_bytes() -> None:
    """So a flush ends while others never stop."""
    aggregate = Aggregate()
    with open_udp(LOOPBACK) as udp, sender(udp.getsockname()) as one:
        process = quiet(udp, aggregate)
        for _ in range(8):
            one.send(b"hits:1|c\n" * 900)
        assert [process._read(udp) for _ in range(3)] == [5, 3, 0]
        assert (process.datagrams, aggregate.lines) == (8, 7200)


@pytest.mark.skipif(not Path("/proc/net/udp").exists(), reason="there is no /proc")
@pytest.mark.parametrize("at", [LOOPBACK, "[::1]:0"])
def test_what_the_kernel_drops_is_counted(at: str) -> None:
    with open_udp(at, receive_bytes=1) as udp, open_udp(LOOPBACK) as other:
        with sender(udp.getsockname()[:2], udp.family) as one:
            for _ in range(500):
                one.send(b"hits:1|c")
        drops = kernel_drops([udp])
        running = Running(udp)
        status = running.stop()
        assert 0 < drops < 500
        assert drops == status["datagrams_dropped_by_kernel"]
        assert running.counts == {"hits": 500.0 - drops}
        assert kernel_drops([other]) == 0
        assert kernel_drops([udp], ["/nowhere"]) == 0


@pytest.mark.parametrize("at", ["8125", "host:port", ":8125", "127.0.0.1:70000", "[::1", "nowhere.invalid:1"])
def test_an_address_that_is_none_is_told(at: str) -> None:
    with pytest.raises(Invalid, match="--listen"):
        open_udp(at)


def test_an_address_in_use_is_told_and_a_socket_that_nobody_reads_is_replaced(tmp_path: Path) -> None:
    with open_udp(LOOPBACK) as udp:
        with pytest.raises(Invalid, match="in use"):
            open_udp("{}:{}".format(*udp.getsockname()))
    path = tmp_path / "s"
    open_unix(path).close()
    with open_unix(path):
        with pytest.raises(Invalid, match="in use"):
            open_unix(path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Invalid, match="in use"):
        open_unix(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_socket_whose_name_somebody_takes_at_once_opens_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder of somebody else's: he puts a link in its place as soon as it is there."""
    path, secret = tmp_path / "s", tmp_path / "secret"
    secret.touch(mode=0o600)
    made = list[int]()

    class Replaced(socket.socket):
        def bind(self, address: Any) -> None:
            super().bind(address)
            made.append(path.stat().st_mode & 0o777)
            path.unlink()
            path.symlink_to(secret)

    monkeypatch.setattr(socket, "socket", Replaced)
    before = os.umask(0o077)
    try:
        open_unix(path).close()
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    assert (secret.stat().st_mode & 0o777, made) == (0o600, [UNIX_MODE])


def test_the_bench_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """At toy size; its figures are not judged here."""
    assert main(["statsd", "--smoke"]) == 0
    assert capsys.readouterr().out.count("us a ") == 4
