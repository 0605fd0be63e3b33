"""Samples a second into a running service, and how long requests wait at 70 % of that.

python -m tests.bench ingest [--json FILE] [--smoke] [--samples 500] [--seconds 20] [--replicas 1] [--router-actors 1]

50 routers with 20 breakers each, signed and gzipped requests over 8 keep-alive connections, each for one or two of the
routers. Afterwards every accepted sample is in the log, and each breaker is where the core comes to with its log. Rates
are also given per calibration loop, and CPU seconds per stage.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Rule, Transition
from breaker_actors.core.records import BREAKER, GAP, SAMPLES, SampleColumns, decode_breaker, decode_gap
from breaker_actors.logreader import LogReader, concerned
from breaker_actors.messages import RouterRef
from tests.bench.core import calibrate
from tests.support import load
from tests.support.figures import options_of, show
from tests.support.invariants import Evidence
from tests.support.live import LiveService, serving, wait_for
from tests.support.usage import cpu_s

CONNECTIONS, SHARE, BODIES = 8, 0.7, 64


class Fleet:
    """A project with signed ingest whose breakers hang on few routers, by metric."""

    def __init__(self, live: LiveService, routers: int, metrics: int) -> None:
        self.live = live
        self.metrics = [f"m{i}" for i in range(metrics)]
        body = {"name": "bench", "workspace_id": live.credentials["workspace_id"]}
        made = live.user.post("/v1/projects", json=body).json()
        self.path = f"/v1/projects/{made['project_id']}"
        self.secret = made["ingest_secret"]
        self.key = live.user.post(f"{self.path}/keys", json={"name": "bench"}).json()["key"]
        self.breakers = {router: self._breakers(router) for router in range(routers)}
        self.routers = [self._router(list(self.breakers[router].values())) for router in range(routers)]
        assert live.user.patch(self.path, json={"enable_signed_ingest": True}).status_code == 200
        wait_for(self.all_fresh, 120)

    def _breakers(self, router: int) -> dict[str, str]:
        """Metric -> breaker: one of ten trips, and stays open."""
        found = {}
        for i, metric in enumerate(self.metrics):
            rule = {
                "metric": metric,
                "kind": ("avg", "p95", "error_rate", "max")[i % 4],
                "op": "gt",
                "window_ms": 60_000,
            }
            limit = {"threshold": 0.5 if rule["kind"] == "error_rate" else 1e6 if i % 10 else 100.0}
            more = {"cooldown_ms": 3_600_000, "min_state_duration_ms": 0, "name": f"r{router}-{metric}"}
            answer = self.live.user.post(f"{self.path}/breakers", json={**rule, **limit, **more})
            assert answer.status_code == 201, answer.text
            found[metric] = answer.json()["breaker"]["id"]
        return found

    def _router(self, breaker_ids: Sequence[str]) -> str:
        answer = self.live.user.post(f"{self.path}/routers", json={"breaker_ids": list(breaker_ids)})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["router"]["id"])

    def states(self) -> dict[str, dict[str, Any]]:
        ids = [breaker for breakers in self.breakers.values() for breaker in breakers.values()]
        answer = self.live.user.post(f"{self.path}/breakers/state:batch", json={"breaker_ids": ids})
        assert answer.status_code == 200, answer.text
        return {state["breaker_id"]: state for state in answer.json()["states"]}

    def all_fresh(self) -> bool:
        return not any(state.get("stale") for state in self.states().values())

    def target(self) -> load.Target:
        host, port = self.live.base_url.removeprefix("http://").split(":")
        return load.Target(host, int(port), f"{self.path}/ingest", self.key, self.secret)

    def bodies(self, samples: int, seed: int) -> list[bytes]:
        """Bodies of so many samples for one or two routers; their times lie in the next minute."""
        chance, now_ms = random.Random(seed), int(time.time() * 1000)
        return [load.body_of(list(self._samples(chance, samples, now_ms))) for _ in range(BODIES)]

    def _samples(self, chance: random.Random, count: int, now_ms: int) -> Iterator[dict[str, object]]:
        routers = chance.sample(self.routers, chance.choice((1, 2)) if len(self.routers) > 1 else 1)
        for i in range(count):
            yield {
                "router_id": routers[i % len(routers)],
                "metric": self.metrics[i // len(routers) % len(self.metrics)],
                "ts_ms": now_ms + chance.randrange(60_000),
                "value": round(chance.uniform(100, 300), 3),
                "ok": chance.random() < 0.9,
            }


def main(argv: list[str]) -> None:
    parser = options_of("ingest")
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--router-actors", type=int, default=1)
    options = parser.parse_args(argv)
    if options.smoke:
        options.seconds = 2.0
    environ = {"BREAKERS_REPLICAS": str(options.replicas), "BREAKERS_ROUTER_ACTORS": str(options.router_actors)}
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "data", **environ) as live:
        fleet = Fleet(live, *((2, 4) if options.smoke else (50, 20)))
        figures = measure(fleet, options.samples, options.seconds)
    show(figures, options.json)


def measure(fleet: Fleet, samples: int, seconds: float) -> dict[str, float]:
    target = fleet.target()
    warm = load.run(target, fleet.bodies(samples, 1), CONNECTIONS, min(3.0, seconds), None)
    before, loop_s = cpu_s(fleet.live), calibrate()
    full = load.run(target, fleet.bodies(samples, 2), CONNECTIONS, seconds, None)
    after = cpu_s(fleet.live)
    rate = full.accepted / full.seconds
    eased = load.run(target, fleet.bodies(samples, 3), CONNECTIONS, seconds, SHARE * rate / samples)
    reports = (warm, full, eased)
    check(fleet, reports, sum(report.accepted for report in reports))
    figures = {
        "samples_per_request": float(samples),
        "samples_per_s": rate,
        "samples_per_loop": rate * loop_s,
        "request_ms_p50": full.percentile(50),
        "refused_429": float(full.statuses[429]),
        "eased_samples_per_s": eased.accepted / eased.seconds,
        "eased_request_ms_p50": eased.percentile(50),
        "eased_request_ms_p99": eased.percentile(99),
    }
    for stage, used in sorted(after.items()):
        figures[f"cpu_us_per_sample {stage}"] = (used - before.get(stage, 0.0)) / full.accepted * 1e6
    figures["cpu_us_per_sample generator"] = full.cpu_s / full.accepted * 1e6
    return figures


def check(fleet: Fleet, reports: Sequence[load.Report], accepted: int) -> None:
    """A wrong run fails: other answers, a sample more or less in the log, a breaker elsewhere than its log says."""
    answers = {status for report in reports for status in report.statuses}
    assert answers <= {202, 429}, [dict(report.statuses) for report in reports]
    evidence = Evidence(fleet.live.data_dir)
    logged = sum(len(evidence.values(router)) for router in fleet.routers)
    assert logged == accepted, f"{accepted} samples were accepted, {logged} are in the log"
    asyncio.run(check_states(fleet, evidence))


async def check_states(fleet: Fleet, evidence: Evidence) -> None:
    born = births(evidence)
    for router, breakers in zip(fleet.routers, fleet.breakers.values(), strict=True):
        expected = await replayed(evidence, router, {breaker_id: born[breaker_id] for breaker_id in breakers.values()})
        for breaker_id, moves in expected.items():
            wait_for(lambda b=breaker_id, m=moves: len(evidence.history(b)) >= len(m), 30)
            got = [(event.prev, event.curr, event.ts_ms) for event in evidence.history(breaker_id)]
            assert got == moves, f"breaker {breaker_id}: stored {got}, its log says {moves}"
    states = fleet.states()
    assert {state["state"] for state in states.values()} <= {"closed", "open"}


def births(evidence: Evidence) -> dict[str, tuple[Rule, int]]:
    """Breaker -> its first rule and when it was created: in a log of its own."""
    found = {}
    for home in evidence.slots():
        for record in evidence.records(home, BREAKER):
            told = decode_breaker(record.payload)
            if told.created and told.rule is not None:
                found[told.breaker_id] = (told.rule, record.received_ms)
    return found


async def replayed(
    evidence: Evidence, router: str, born: dict[str, tuple[Rule, int]]
) -> dict[str, list[tuple[str, str, int]]]:
    """What a router's log says its breakers did, read once for all of them."""
    log = evidence.log()
    cores: dict[str, Breaker] = {}
    effects: dict[str, list[Any]] = {}
    for breaker_id, (rule, created_ms) in born.items():
        cores[breaker_id], first = Breaker.create(rule, created_ms)
        effects[breaker_id] = list(first)
    reader, ref = LogReader(log), RouterRef(router, "", evidence.slots()[router], 0)
    async for record in reader.after(ref, 0, 1 << 60):
        if record.kind not in (SAMPLES, GAP):
            continue
        for breaker_id, body, start, stop in concerned(record, await reader.splitter(ref, record)):
            if isinstance(body, SampleColumns):
                effects[breaker_id] += cores[breaker_id].ingest(body.rows(start, stop), record.received_ms)
            elif record.kind == GAP:
                gap = decode_gap(body)
                effects[breaker_id] += cores[breaker_id].gap(gap.from_ms, gap.to_ms)
    await log.close()
    moves = {b: [e for e in found if isinstance(e, Transition)] for b, found in effects.items()}
    return {breaker_id: [(e.prev, e.curr, e.ts_ms) for e in found] for breaker_id, found in moves.items()}
