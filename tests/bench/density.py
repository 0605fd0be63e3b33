"""What very many breakers with little to do cost: memory, CPU, and how late they look at their samples.

python -m tests.bench density [--json FILE] [--smoke] [--breakers 10000] [--projects 1] [--seconds 60]

Routers with 100 breakers each, each breaker with a metric of its own, so that a sample concerns exactly one. Every
breaker gets a sample each ten seconds, in requests of 500, in an open loop. Memory is what is private to the processes,
beyond what they need with few breakers; lag comes from the service's own histogram, with the bounds of its bucket; CPU
is a share of one core. Targets: 8 KB a breaker in the BreakerActors, 200 ms of lag at the 99th percentile, half a core.
With several projects each has its share of the breakers. In the end all processes are killed at once, and the service
is started again: until it is ready, and until the owners answer for all breakers.

Afterwards every answer was 202, every sample is in the log, and for a draw of breakers the stored events are what the
core comes to with their log, and reads are fresh.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.support import load
from tests.support.figures import options_of, show
from tests.support.fleet import Fleet, check_events, check_logged
from tests.support.invariants import Evidence
from tests.support.live import LiveService, serving
from tests.support.scraping import Series, gained, quantile, scrape
from tests.support.usage import cpu_s, cpu_used, private_kb

T = TypeVar("T")
METRICS = 100
FEW_ROUTERS, FEW_METRICS = 4, max(16, os.cpu_count() or 1)
"""Breakers that are there before: enough that every BreakerActor has some."""
WARM_TURNS = 20
OK_SHARE, DRAWN, SEED = 0.99, 200, 4
QUIET_S, TOLD_S = 10.0, 60.0
LAG, APPLIED = "breakers_evaluation_lag_seconds", "breakers_samples_applied_total"


@dataclass(frozen=True)
class Sizes:
    routers: int
    metrics: int
    seconds: float
    every_s: float = 10.0
    per_request: int = 500
    projects: int = 1


def main(argv: list[str]) -> None:
    parser = options_of("density")
    parser.add_argument("--breakers", type=int, default=10_000)
    parser.add_argument("--projects", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args(argv)
    routers = max(1, options.breakers // METRICS // options.projects)
    sizes = Sizes(routers, METRICS, options.seconds, projects=options.projects)
    if options.smoke:
        sizes = Sizes(3, 20, 4.0, every_s=1.0, per_request=25, projects=2)
    environ = {"BREAKERS_BREAKERS_PER_PROJECT_MAX": str(max(10_000, sizes.routers * sizes.metrics))}
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "data", **environ) as live:
        figures = measure(live, sizes)
    show(figures, options.json)


def measure(live: LiveService, sizes: Sizes) -> dict[str, float]:
    few = Fleet(live, FEW_ROUTERS, FEW_METRICS)
    told = few.send(few.turns(WARM_TURNS, 10, 0.5, OK_SHARE, 1), 15.0).accepted
    until_applied(live, told)
    base, actors = private_kb(live), live.pids("BreakerActor")

    fleets = [Fleet(live, sizes.routers, sizes.metrics) for _ in range(sizes.projects)]
    ready = private_kb(live)
    first = [fleet.turns(1, sizes.per_request, sizes.every_s, OK_SHARE, 2) for fleet in fleets]
    per_s = len(first[0]) / sizes.every_s
    begun = [report.accepted for report in send(fleets, first, per_s)]
    before = until_applied(live, told + sum(begun))
    _, quiet = busy(live, min(QUIET_S, sizes.seconds), lambda: None)

    turns = round(sizes.seconds / sizes.every_s)
    bodies = [fleet.turns(turns, sizes.per_request, sizes.every_s, OK_SHARE, 3) for fleet in fleets]
    seconds = len(bodies[0]) / per_s
    reports, shares = busy(live, seconds, lambda: send(fleets, bodies, per_s))
    accepted = [n + report.accepted for n, report in zip(begun, reports, strict=True)]
    after = until_applied(live, told + sum(accepted))
    loaded = private_kb(live)
    assert live.pids("BreakerActor") == actors, "they are the same processes all along"
    for fleet, count in zip(fleets, accepted, strict=True):
        check(fleet, count)

    breakers = sum(len(fleet.homes) for fleet in fleets)
    figures = {"breakers": float(breakers), "breaker_actors": float(len(actors)), "projects": float(sizes.projects)}
    for step in fleets[0].took_s:
        figures[f"create_s {step}"] = sum(fleet.took_s[step] for fleet in fleets)
    sent = sum(report.accepted for report in reports)
    figures |= {"samples_per_s": sent / max(seconds, *(report.seconds for report in reports))}
    figures |= {f"request_ms_p{n}": max(report.percentile(n) for report in reports) for n in (50, 99)}
    figures |= lags_ms(gained(before, after, LAG))
    figures |= {f"cpu {stage}": used for stage, used in sorted(shares.items())}
    figures |= {"cpu in all": sum(shares.values()), "cpu in all, without load": sum(quiet.values())}
    return figures | memory(base, {"ready": ready, "loaded": loaded}, breakers) | restart(live, fleets)


def send(fleets: Sequence[Fleet], bodies: Sequence[Sequence[bytes]], per_s: float) -> list[load.Report]:
    """Each fleet's bodies, so many a second, all fleets at once."""
    with ThreadPoolExecutor(len(fleets)) as pool:
        return list(pool.map(lambda fleet, mine: fleet.send(mine, per_s), fleets, bodies))


def restart(live: LiveService, fleets: Sequence[Fleet]) -> dict[str, float]:
    """How long a start takes after the end of all processes at once."""
    live.crash()
    began = time.monotonic()
    live.start_again()
    ready_s = time.monotonic() - began
    for fleet in fleets:
        fleet.until_fresh()
    return {"restart_s ready": ready_s, "restart_s fresh": time.monotonic() - began}


def memory(base: Mapping[str, int], looks: Mapping[str, Mapping[str, int]], breakers: int) -> dict[str, float]:
    """Each stage's need without them, and what each of the breakers adds."""
    figures = {f"base_mb {stage}": kb / 1024 for stage, kb in base.items()}
    for when, found in looks.items():
        figures |= {
            f"kb_per_breaker {when} {stage}": max(0, found[stage] - kb) / breakers for stage, kb in base.items()
        }
    return figures


def until_applied(live: LiveService, samples: int) -> dict[str, Series]:
    """The service's figures once they tell of all samples since its start; Ray hands them on every ten seconds."""
    deadline = time.monotonic() + TOLD_S
    while (found := scrape(live)).get(APPLIED, {}).get((), 0.0) < samples:
        assert time.monotonic() < deadline, f"{samples} samples were accepted, {dict(found[APPLIED])} are applied"
        time.sleep(0.5)
    assert found[APPLIED][()] == samples, f"{samples} samples were accepted, {dict(found[APPLIED])} are applied"
    return found


def busy(live: LiveService, seconds: float, work: Callable[[], T]) -> tuple[T, dict[str, float]]:
    """Work that is to take so long, and the CPU by stage over that time, as shares of one core."""
    before, began = cpu_used(live), time.monotonic()
    done = work()
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    used, took = cpu_s(before, cpu_used(live)), time.monotonic() - began
    return done, {stage: spent_s / took for stage, spent_s in used.items()}


def lags_ms(counts: list[float]) -> dict[str, float]:
    """Quantiles of the lag with the bounds of the buckets they lie in."""
    figures = {"lag_values": counts[-1]}
    for percent in (50, 99):
        value, low, high = quantile(LAG, counts, percent / 100)
        figures[f"lag_ms_p{percent}"] = value * 1000
        figures[f"lag_ms_p{percent} above"] = low * 1000
        figures[f"lag_ms_p{percent} up to"] = high * 1000
    return figures


def check(fleet: Fleet, accepted: int) -> None:
    """A wrong run fails. (That all answers were 202 was seen as they came.)"""
    evidence = Evidence(fleet.live.data_dir)
    check_logged(fleet, evidence, accepted)
    chosen = random.Random(SEED).sample(sorted(fleet.homes), min(DRAWN, len(fleet.homes)))
    check_events(fleet, evidence, chosen)
    histories = evidence.histories()
    for breaker_id in chosen:
        answer = fleet.live.user.get(f"{fleet.path}/breakers/{breaker_id}/state")
        assert answer.status_code == 200, answer.text
        state, history = answer.json(), histories.get(breaker_id)
        assert not state.get("stale"), state
        assert state["state"] == (history[-1].curr if history else "closed"), state
    tripped = {breaker_id for breaker_id in fleet.homes if breaker_id in histories}
    assert fleet.tripping <= tripped, "some breakers did not trip by what they must trip by"
