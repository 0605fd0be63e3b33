"""What bodies cost the event loop of a replica: bombs of 16 KiB as sent, bombs with a key, usual requests.

python -m tests.bench decoding [--json FILE] [--smoke]

In milliseconds of CPU time, the best of a few.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from functools import partial

from api.wire import samples
from api.wire.requests import decode_object
from api.wire.requests_bulk import bulk_items
from breaker_actors.errors import BreakersError
from breaker_actors.settings import Settings
from tests.bench.core import calibrate
from tests.support.bombs import keyed, ladders, packed, sets, unpacked
from tests.support.figures import options_of, show

ROUTER = "0000000a-0000-0000-0000-000000000001"
NOW_MS = 1_795_242_600_000
BOUNDS = samples.ValidationContext.at(NOW_MS, 3_600_000, 300_000, {ROUTER: False}, None)


def main(argv: list[str]) -> None:
    options = options_of("decoding").parse_args(argv)
    show(measure(1 if options.smoke else 3, 3 if options.smoke else 100), options.json)


def measure(bomb_turns: int, turns: int) -> dict[str, float]:
    loop_s, figures = calibrate(), {}
    bytes_max = Settings().max_inflated_bytes
    for name, bodies in ladders().items():
        sent = [packed(body) for body in bodies]
        figures[f"bomb ms {name}"] = max(
            best_ms(lambda one=one: read(one, "gzip", bytes_max), bomb_turns) for one in sent
        )
    for name, bodies in keyed().items():
        figures[f"bomb ms keyed {name}"] = max(best_ms(lambda one=one: read_keyed(one), bomb_turns) for one in bodies)
    figures["bomb ms worst"] = max(figures.values())
    for name, body in sets().items():
        figures[f"set ms {name}, in slices"] = best_ms(lambda body=body: read_set(body), bomb_turns)
    for count in (1, 500, 1000):
        for name, body in requests(count).items():
            figures[f"request ms {count} {name}"] = best_ms(lambda body=body: read(body, None, bytes_max), turns)
    figures["loop ms"] = loop_s * 1000
    return figures


def requests(count: int) -> dict[str, bytes]:
    """Bodies of so many samples of four metrics."""
    plain = [{"router_id": ROUTER, "metric": f"m{n % 4}", "ts_ms": NOW_MS - n, "value": n / 7} for n in range(count)]
    tagged = [{**sample, "ok": True, "tags": {"region": "eu", "host": f"h{n}"}} for n, sample in enumerate(plain)]
    one_bad = [*plain[1:], {"router_id": ROUTER, "metric": "m", "value": None}]
    kinds = {"plain": plain, "tagged": tagged, "with one bad": one_bad}
    return {name: json.dumps({"samples": found}).encode() for name, found in kinds.items()}


def read(body: bytes, encoding: str | None, bytes_max: int) -> None:
    """What a handler does with a body."""
    with contextlib.suppress(BreakersError):
        asked = samples.Request(unpacked(body, encoding, bytes_max))
        asked.router_ids()
        found = asked.validate(BOUNDS)
        samples.to_parts(found.good, (b"k" * 16,))


def read_keyed(body: bytes) -> None:
    """What a handler does first with the body of a request that carries a key."""
    with contextlib.suppress(BreakersError):
        decode_object(body)


def read_set(body: bytes) -> None:
    """The same of a PUT of breakers."""
    with contextlib.suppress(BreakersError):
        asyncio.run(bulk_items(body, Settings().breakers_per_project_max, partial(asyncio.sleep, 0)))


def best_ms(act: Callable[[], object], turns: int) -> float:
    best = float("inf")
    for _ in range(turns):
        begun = time.thread_time()
        act()
        best = min(best, time.thread_time() - begun)
    return best * 1000
