"""How soon a stream client sees an override, beside how soon it sees a trip, in one run and in turn.

python -m tests.bench override [--json FILE] [--smoke] [--turns 60]

Each from the begin of its request (PUT of an override, POST of the tripping batch) to the line of the stream.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from tests.support.figures import options_of, show
from tests.support.live import LiveService, StreamReader, serving, wait_for

PAUSE_S = 0.05


def main(argv: list[str]) -> int:
    parser = options_of("override")
    parser.add_argument("--turns", type=int, default=60)
    options = parser.parse_args(argv)
    turns = 5 if options.smoke else options.turns
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as service, service.stream() as stream:
        times = _turns(service, stream, turns)
    medians = {what: statistics.median(found) for what, found in times.items()}
    figures = {f"{what}, ms (median)": value for what, value in medians.items()}
    show(figures | {"override / trip": medians["override"] / medians["trip"]}, options.json)
    return 0


def _turns(service: LiveService, stream: StreamReader, turns: int) -> dict[str, list[float]]:
    """Milliseconds of each turn."""
    found: dict[str, list[float]] = {"trip": [], "override": []}
    for turn in range(turns):
        tripped = service.breaker(name=f"tripped {turn}", cooldown_ms=3_600_000)
        forced = service.breaker(name=f"forced {turn}", cooldown_ms=3_600_000)
        time.sleep(PAUSE_S)
        path = f"{service.project_path}/breakers/{forced['id']}/override"
        begun = time.perf_counter()
        service.send(tripped["router_id"], [900.0] * 5)
        found["trip"].append(_seen(stream, tripped["name"], begun))
        begun = time.perf_counter()
        assert service.user.put(path, json={"kind": "force_open", "reason": "bench"}).status_code == 200
        found["override"].append(_seen(stream, forced["name"], begun))
    return found


def _seen(stream: StreamReader, name: str, begun: float) -> float:
    """Milliseconds until the stream said that a breaker is open."""
    wait_for(lambda: ("open", None) in stream.of(name), every_s=0.0005)
    at = next(at for at, message in zip(stream.times, stream.messages, strict=False) if _is_open(message, name))
    return (at - begun) * 1000


def _is_open(message: dict[str, object], name: str) -> bool:
    return message["breaker"] == name and message["state"] == "open"
