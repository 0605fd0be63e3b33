"""Samples at three times what the service can take, and how soon it takes as many as before afterwards.

python -m tests.bench overload [--json FILE] [--smoke] [--seconds 30]

Capacity is what four connections bring in, each as fast as it is answered. Then requests are due at three times that
rate, over very many connections, so that more samples wait than lanes may hold. From then on capacity is measured
again, piece by piece, until goodput is back at 95 %. What is refused has to be 429 or 503 with a Retry-After, and
nothing else may be answered; in the end every accepted sample is in the log, and each breaker where its log leads.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support import load
from tests.support.figures import options_of, show
from tests.support.fleet import Fleet, check_fleet
from tests.support.invariants import Evidence
from tests.support.live import LiveService, serving

CONNECTIONS, TIMES = 4, 3
BACK_SHARE, BACK_S_MAX = 0.95, 30.0
REFUSALS = {429, 503}


@dataclass(frozen=True)
class Size:
    """`connections`: of the overload; `lane_samples_max`: the service's, unless None."""

    routers: int
    metrics: int
    samples: int
    connections: int
    seconds: float
    piece_s: float
    pieces: int
    lane_samples_max: int | None = None


SMOKE = Size(2, 10, 500, 32, 3.0, 1.0, 1, lane_samples_max=4_000)


def main(argv: list[str]) -> int:
    parser = options_of("overload")
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args(argv)
    size = SMOKE if options.smoke else Size(10, 100, 1_000, 800, options.seconds, 5.0, 3)
    environ = {"BREAKERS_CONNECTIONS_PER_SOURCE_MAX": "0"}
    if size.lane_samples_max is not None:
        environ["BREAKERS_LANE_SAMPLES_MAX"] = str(size.lane_samples_max)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "data", **environ) as live:
        figures = measure(live, size)
    show(figures, options.json)
    late = not options.smoke and figures["back_s"] > BACK_S_MAX
    print(f"goodput is not back within {BACK_S_MAX:g} s" if late else "")
    return int(late)


def measure(live: LiveService, size: Size) -> dict[str, float]:
    fleet = Fleet(live, size.routers, size.metrics)
    accepted = piece(fleet, size).accepted  # as in use: everything is warm
    before = [piece(fleet, size) for _ in range(size.pieces)]
    capacity = statistics.median(goodput(report) for report in before)
    over = overload(fleet, size, TIMES * capacity / size.samples)
    after, back_s = until_back(fleet, size, BACK_SHARE * capacity)
    accepted += sum(report.accepted for report in (*before, over, *after))
    refused = {status: over.statuses[status] for status in REFUSALS}
    assert not any(report.statuses.keys() - {202} for report in (*before, *after)), "refused without an overload"
    assert over.statuses.keys() <= {202, *REFUSALS}, dict(over.statuses)
    assert all(over.put_off[status] == count for status, count in refused.items()), "refused without a Retry-After"
    check_fleet(fleet, Evidence(live.data_dir), accepted)
    return {
        "capacity_samples_per_s": capacity,
        "offered_times_capacity": over.statuses.total() * size.samples / over.seconds / capacity,
        "goodput_under_overload, share of capacity": goodput(over) / capacity,
        **{f"answers {status}": float(count) for status, count in sorted(over.statuses.items())},
        "request_ms_p50 under overload": over.percentile(50),
        "request_ms_p99 under overload": over.percentile(99),
        "back_s": back_s,
        "goodput_after, share of capacity": goodput(after[-1]) / capacity,
    }


def goodput(report: load.Report) -> float:
    """Samples accepted a second."""
    return report.accepted / report.seconds


def piece(fleet: Fleet, size: Size) -> load.Report:
    """What goes in, each connection as fast as it is answered."""
    return load.run(fleet.target(), bodies(fleet, size, size.piece_s), CONNECTIONS, size.piece_s, None)


def overload(fleet: Fleet, size: Size, per_s: float) -> load.Report:
    """Requests of which more are due than can be taken."""
    return load.run(fleet.target(), bodies(fleet, size, size.seconds), size.connections, size.seconds, per_s)


def until_back(fleet: Fleet, size: Size, wanted: float) -> tuple[list[load.Report], float]:
    """Runs until one of them has goodput enough, or time is over; and when that run began to, in seconds."""
    begun, found = time.monotonic(), list[load.Report]()
    while True:
        at_s = time.monotonic() - begun
        found.append(piece(fleet, size))
        if goodput(found[-1]) >= wanted or at_s > BACK_S_MAX:
            return found, at_s


def bodies(fleet: Fleet, size: Size, seconds: float) -> Sequence[bytes]:
    return fleet.bodies(size.samples, 5, size.connections / seconds, seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
