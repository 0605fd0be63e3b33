"""What `breakers statsd` spends on a line and on a point of a flush: medians of CPU time, in microseconds.

python -m tests.bench statsd [--json FILE] [--smoke]

630 series with three tags and a rate, that have come before; of all timings half are distinct values. Lines come over a
UDP socket of this machine, one in a datagram or twenty.
"""

from __future__ import annotations

import random
import socket
import statistics
import time

from api.statsd.aggregation import Aggregate
from api.statsd.encoding import Encoder
from api.statsd.outbox import Answer, Outbox
from api.statsd.process import Process
from api.statsd.sockets import open_udp
from breaker_actors.clock import SystemClock
from tests.support.figures import options_of, show

NOW_MS = 1_795_242_600_000


def main(argv: list[str]) -> None:
    options = options_of("statsd").parse_args(argv)
    show(measure(1, 100) if options.smoke else measure(21, 3000), options.json)


def measure(turns: int, datagrams: int) -> dict[str, float]:
    figures = {}
    for lines in (1, 20):
        sent = [b"\n".join(line(random.Random(n * 20 + k)) for k in range(lines)) for n in range(datagrams)]
        spent = [turn(sent, lines) for _ in range(turns)]
        figures[f"us a line, {lines} in a datagram"] = statistics.median(one for one, _ in spent)
        figures[f"us a point of a flush, {lines}"] = statistics.median(other for _, other in spent)
    return figures


def line(rnd: random.Random) -> bytes:
    kind = rnd.choice(("c", "g", "ms", "d"))
    value = rnd.choice((rnd.randint(1, 300), round(rnd.random() * 300, 3)))
    tags = f"router_id:shop,status:{rnd.choice((200, 500))},host:web{rnd.randint(1, 5)}"
    return f"shop.checkout.{rnd.randint(0, 20)}:{value}|{kind}|@0.5|#{tags}".encode()


def turn(sent: list[bytes], lines: int) -> tuple[float, float]:
    """What a line takes from the kernel to its series, and a point from there into a request."""
    clock, aggregate = SystemClock(), Aggregate()
    with open_udp("127.0.0.1:0") as udp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        outbox = Outbox(lambda body: Answer("taken"), clock, lambda: 0.5)
        process = Process([udp], aggregate, outbox, clock, lambda: 0.5, 1000, 60, lambda status: None)
        aggregate.take(b"\n".join(sent))
        flush(aggregate)
        sender.connect(udp.getsockname())
        for datagram in sent:
            sender.send(datagram)
        begun = time.thread_time()
        while process._read(udp):
            pass
        read_s = time.thread_time() - begun
    begun = time.thread_time()
    points = flush(aggregate)
    flush_s = time.thread_time() - begun
    return read_s * 1e6 / (process.datagrams * lines), flush_s * 1e6 / points


def flush(aggregate: Aggregate) -> int:
    """How many points went out."""
    requests = aggregate.flush(Encoder(NOW_MS - 1000, NOW_MS, (1, 2)))
    return sum(request.points for request in requests if request is not None)
