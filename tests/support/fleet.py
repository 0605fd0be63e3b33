"""Many breakers on few routers: one project for benches, and its samples. And what has to come of them and of other
breakers: as many samples in the log as were accepted, and the events and states that the core comes to with their log.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from breaker_actors.core.log_entries import (
    BREAKER,
    GAPS,
    SAMPLES,
    SampleColumns,
    decode_breaker,
    decode_gap,
    decode_samples,
)
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Rule, Transition
from breaker_actors.messages import RouterRef
from breaker_actors.wal.reader import LogReader, concerned
from tests.support import load
from tests.support.arrow_streams import of_polars
from tests.support.invariants import Evidence, assert_replayed
from tests.support.live import LiveService

FORMS, CONNECTIONS = 64, 8
READ_MAX = 1_000
"""States asked for at once: many more are not told within BREAKERS_OWNER_TIMEOUT_MS by a busy service."""
MADE_S, STORED_S = 600.0, 30.0
RuleOf = Callable[[int, str], dict[str, Any]]
Move = tuple[str, str, int]
"""From which state to which, and when."""


def rule_of(i: int, metric: str) -> dict[str, Any]:
    """One of twenty trips by its first sample, those of error rates by samples that are not ok; open ones stay open."""
    kind = ("avg", "p95", "error_rate", "max")[i % 4]
    return {
        "metric": metric,
        "kind": kind,
        "op": "gt",
        "threshold": 0.5 if kind == "error_rate" else 1e6 if i % 10 else 100.0,
        "window_ms": 60_000,
        "cooldown_ms": 3_600_000,
        "min_state_duration_ms": 0,
    }


class Fleet:
    """A project with signed ingest whose breakers, made by one PUT, hang on few routers, by metric. (Each has the
    router that was made with it as well.) `prefix`: how their names begin; `rule`: of the i-th metric of a router.
    `took_s`: how long the steps of making it took."""

    def __init__(self, live: LiveService, routers: int, metrics: int, prefix: str = "", rule: RuleOf = rule_of) -> None:
        self.live = live
        self._prefix, self._rule = prefix, rule
        self.metrics = [f"m{i}" for i in range(metrics)]
        self.took_s: dict[str, float] = {}
        body = {"name": "bench", "workspace_id": live.credentials["workspace_id"]}
        made = live.user.post("/v1/projects", json=body).json()
        self.path = f"/v1/projects/{made['project_id']}"
        self.secret = made["ingest_secret"]
        self.key = live.user.post(f"{self.path}/keys", json={"name": "bench"}).json()["key"]
        began = time.monotonic()
        self.homes: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.breakers = self._breakers(routers)
        self.took_s["put"] = time.monotonic() - began
        self.until_fresh()
        self.took_s["put_fresh"] = time.monotonic() - began
        self.routers = [self._router(list(self.breakers[router].values())) for router in range(routers)]
        assert live.user.patch(self.path, json={"enable_signed_ingest": True}).status_code == 200
        self.until_fresh()
        self.took_s["all"] = time.monotonic() - began

    def _breakers(self, routers: int) -> dict[int, dict[str, str]]:
        """Router -> metric -> breaker."""
        places = {
            f"{self._prefix}r{router}-{m}": (router, i, m)
            for router in range(routers)
            for i, m in enumerate(self.metrics)
        }
        wanted = [{**self._rule(i, metric), "name": name} for name, (_, i, metric) in places.items()]
        answer = self.live.user.put(f"{self.path}/breakers", json={"breakers": wanted}, timeout=MADE_S)
        assert answer.status_code == 200, answer.text
        found: dict[int, dict[str, str]] = {router: {} for router in range(routers)}
        for breaker in answer.json()["breakers"]:
            router, _, metric = places[breaker["name"]]
            found[router][metric] = breaker["id"]
            self.names[breaker["id"]] = breaker["name"]
            self.homes[breaker["id"]] = breaker["router_id"]
        assert len(self.homes) == len(places)
        return found

    def _router(self, breaker_ids: Sequence[str]) -> str:
        answer = self.live.user.post(f"{self.path}/routers", json={"breaker_ids": list(breaker_ids)}, timeout=60)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["router"]["id"])

    @property
    def tripping(self) -> set[str]:
        """Breakers that any sample trips."""
        usual = [i for i, metric in enumerate(self.metrics) if self._rule(i, metric)["threshold"] == 100.0]
        return {breakers[self.metrics[i]] for breakers in self.breakers.values() for i in usual}

    # -- states

    def states(self, breaker_ids: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
        """All, or those of some breakers."""
        wanted = list(self.homes if breaker_ids is None else breaker_ids)
        found = {}
        for start in range(0, len(wanted), READ_MAX):
            body = {"breaker_ids": wanted[start : start + READ_MAX]}
            answer = self.live.user.post(f"{self.path}/breakers/state:batch", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            found.update({state["breaker_id"]: state for state in answer.json()["states"]})
        assert len(found) == len(wanted)
        return found

    def until_fresh(self, breaker_ids: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
        """States once owners answer for all of them; only those that did not are asked again, which costs least."""
        found: dict[str, dict[str, Any]] = {}
        missing = set(self.homes if breaker_ids is None else breaker_ids)
        deadline = time.monotonic() + MADE_S
        while missing:
            some = self.states(sorted(missing)[:READ_MAX])
            fresh = {breaker_id: state for breaker_id, state in some.items() if not state.get("stale")}
            found |= fresh
            missing -= fresh.keys()
            assert time.monotonic() < deadline, f"owners don't answer for {len(missing)} breakers"
            if len(fresh) < len(some):
                time.sleep(0.05)
        return found

    # -- samples

    def target(self) -> load.Target:
        host, port = self.live.base_url.removeprefix("http://").split(":")
        return load.Target(host, int(port), f"{self.path}/ingest", self.key, self.secret)

    def bodies(self, samples: int, seed: int, per_s: float, seconds: float) -> list[bytes]:
        """Bodies of so many samples for one or two routers each, as many as are sent at a rate, with the times at which
        they are due then. The same few in turn, but for their times."""
        chance, start_ms = random.Random(seed), time.time() * 1000
        forms = [load.form_of(list(self._samples(chance, samples))) for _ in range(FORMS)]
        count = max(CONNECTIONS, int(per_s * seconds))
        return [load.body_at(forms[n % FORMS], int(start_ms + 1000 * n / per_s)) for n in range(count)]

    def streams(self, rows: int, count: int, seed: int, coded: bool) -> list[bytes]:
        """Arrow streams of so many rows for all routers and metrics, as polars writes them with zstd; `coded`: with
        categorical columns."""
        chance, now_ms = np.random.default_rng(seed), int(time.time() * 1000)
        return [of_polars(self._frame(rows, chance, now_ms, coded), compression="zstd") for _ in range(count)]

    def _frame(self, rows: int, chance: np.random.Generator, now_ms: int, coded: bool) -> pl.DataFrame:
        kind = pl.Categorical if coded else pl.String
        columns = {
            "router_id": pl.Series(self.routers)[chance.integers(0, len(self.routers), rows)].cast(kind),
            "metric": pl.Series(self.metrics)[chance.integers(0, len(self.metrics), rows)].cast(kind),
            "ts_ms": np.sort(now_ms - chance.integers(0, 1000, rows)),
            "value": chance.uniform(100, 300, rows).round(3),
            "ok": chance.random(rows) < 0.9,
        }
        return pl.DataFrame(columns)

    def _samples(self, chance: random.Random, count: int) -> Iterator[dict[str, object]]:
        routers = chance.sample(self.routers, chance.choice((1, 2)) if len(self.routers) > 1 else 1)
        for i in range(count):
            metric = self.metrics[i // len(routers) % len(self.metrics)]
            yield sample(routers[i % len(routers)], metric, load.TIME, chance, 0.9)

    def turns(self, count: int, per_request: int, every_s: float, ok_share: float, seed: int) -> list[bytes]:
        """Bodies that bring each breaker one sample in each of `count` turns, in the order of routers. A turn begins
        every so many seconds, and its requests are due evenly over them."""
        chance, start_ms = random.Random(seed), time.time() * 1000
        places = [(router, metric) for router in self.routers for metric in self.metrics]
        parts = [places[start : start + per_request] for start in range(0, len(places), per_request)]
        bodies = []
        for n, part in enumerate(parts * count):
            ts_ms = int(start_ms + 1000 * every_s * n / len(parts))
            bodies.append(load.body_of([sample(*place, ts_ms, chance, ok_share) for place in part]))
        return bodies

    def send(self, bodies: Sequence[bytes], per_s: float) -> load.Report:
        """Each body once, in order, in an open loop; any answer but 202 is an error."""
        report = load.run(self.target(), bodies, 1, (len(bodies) + 0.5) / per_s, per_s)
        assert report.statuses == {202: len(bodies)}, dict(report.statuses)
        return report


def sample(router: str, metric: str, ts_ms: int, chance: random.Random, ok_share: float) -> dict[str, object]:
    ok = chance.random() < ok_share
    return {
        "router_id": router,
        "metric": metric,
        "ts_ms": ts_ms,
        "value": round(chance.uniform(100, 300), 3),
        "ok": ok,
    }


# -- what must have come of them


def counted(evidence: Evidence, router: str) -> Counter[str]:
    """How many samples of each metric a router's log has."""
    found: Counter[str] = Counter()
    for record in evidence.records(router, SAMPLES):
        columns = decode_samples(record.payload)
        for metric, start, stop in zip(columns.metrics, columns.starts, columns.starts[1:], strict=False):
            found[metric] += stop - start
    return found


def check_counts(evidence: Evidence, accepted: Mapping[str, int]) -> None:
    """The log of each router (router -> samples accepted for it) has as many samples as were accepted."""
    for router, count in accepted.items():
        logged = counted(evidence, router).total()
        assert logged == count, f"router {router}: {count} samples were accepted, {logged} are in its log"


def check_replays(evidence: Evidence, homes: Mapping[str, str]) -> None:
    """What was stored up to now of these breakers (breaker -> its only router) is what the core comes to with their
    log."""
    until_ms = time.time_ns() // 1_000_000

    async def replay() -> None:
        for breaker_id, router in homes.items():
            await assert_replayed(evidence, router, breaker_id, until_ms, STORED_S)

    asyncio.run(replay())


def check_fleet(fleet: Fleet, evidence: Evidence, accepted: int) -> None:
    """Nothing is lost or made up: every sample is in the log, every breaker where its log leads, and what had to trip
    has tripped."""
    logged = check_logged(fleet, evidence, accepted)
    check_states(fleet, evidence)
    tripped, must = evidence.histories().keys(), fleet.tripping
    for router, breakers in zip(fleet.routers, fleet.breakers.values(), strict=True):
        for metric in logged[router]:
            breaker_id = breakers[metric]
            assert breaker_id in tripped or breaker_id not in must, f"breaker {breaker_id} did not trip"


def check_logged(fleet: Fleet, evidence: Evidence, accepted: int) -> dict[str, Counter[str]]:
    """The log has as many samples as were accepted; answers how many of each metric by router."""
    found = {router: counted(evidence, router) for router in fleet.routers}
    logged = sum(counts.total() for counts in found.values())
    assert logged == accepted, f"{accepted} samples were accepted, {logged} are in the log"
    return found


def check_states(fleet: Fleet, evidence: Evidence) -> None:
    """What was stored is what the core comes to, and where that leads is what owners tell. Breakers that move while
    this is found out are looked at again."""
    moving = set(fleet.homes)
    while moving:
        began_ms = time.time_ns() // 1_000_000
        expected = check_events(fleet, evidence, moving)
        states = fleet.until_fresh(moving)
        moving = {breaker_id for breaker_id, state in states.items() if state["state_since_ms"] > began_ms}
        for breaker_id in states.keys() - moving:
            told = states[breaker_id]["state"], states[breaker_id]["transition_seq"]
            moves = expected[breaker_id]
            due = (moves[-1][1] if moves else "closed"), len(moves)
            assert told == due, f"breaker {breaker_id}: its owner tells {told}, its log says {due}"


def check_events(fleet: Fleet, evidence: Evidence, chosen: Iterable[str]) -> dict[str, list[Move]]:
    """What was stored of these breakers up to now is what the core comes to with their log; answers that."""
    until_ms, found = time.time_ns() // 1_000_000, dict[str, list[Move]]()
    born = births(evidence, {breaker_id: fleet.homes[breaker_id] for breaker_id in chosen})
    for router, breakers in zip(fleet.routers, fleet.breakers.values(), strict=True):
        mine = {breaker_id: born[breaker_id] for breaker_id in breakers.values() if breaker_id in born}
        expected = asyncio.run(replayed(evidence, router, mine, until_ms)) if mine else {}
        for breaker_id, moves in expected.items():
            got = stored(evidence, breaker_id, until_ms, len(moves))
            assert got == moves, f"breaker {breaker_id}: stored {got}, its log says {moves}"
        found |= expected
    return found


def stored(evidence: Evidence, breaker_id: str, until_ms: int, count: int) -> list[Move]:
    """A breaker's stored events up to a time, once there are so many, or when there has been time enough for them."""
    deadline = time.monotonic() + STORED_S
    while True:
        over = time.monotonic() > deadline
        events = evidence.history(breaker_id)
        found = [(event.prev, event.curr, event.ts_ms) for event in events if event.ts_ms <= until_ms]
        if over or len(found) >= count:
            return found
        time.sleep(0.02)


def births(evidence: Evidence, homes: Mapping[str, str]) -> dict[str, tuple[Rule, int]]:
    """Breaker -> its first rule and when it was created: in the log of the router that was made with it."""
    found = {}
    for home in homes.values():
        for record in evidence.records(home, BREAKER):
            told = decode_breaker(record.payload)
            if told.created and told.rule is not None:
                found[told.breaker_id] = (told.rule, record.received_ms)
    assert found.keys() == homes.keys()
    return found


async def replayed(
    evidence: Evidence, router: str, born: dict[str, tuple[Rule, int]], until_ms: int
) -> dict[str, list[Move]]:
    """What a router's log says these breakers did up to a time, read once for all of them."""
    log = evidence.log()
    cores: dict[str, Breaker] = {}
    effects: dict[str, list[Any]] = {}
    for breaker_id, (rule, created_ms) in born.items():
        cores[breaker_id], first = Breaker.create(rule, created_ms)
        effects[breaker_id] = list(first)
    reader, ref = LogReader(log), RouterRef(router, "", evidence.slots()[router], 0)
    async for record in reader.after(ref, 0, 1 << 60):
        if record.kind not in (SAMPLES, *GAPS):
            continue
        for breaker_id, body, start, stop in concerned(record, await reader.splitter(ref, record)):
            if breaker_id not in cores:
                continue
            if isinstance(body, SampleColumns):
                effects[breaker_id] += cores[breaker_id].ingest(body.rows(start, stop), record.received_ms)
            elif record.kind in GAPS:
                gap = decode_gap(body)
                effects[breaker_id] += cores[breaker_id].gap(gap.from_ms, gap.to_ms)
    await log.close()
    for breaker_id, core in cores.items():
        effects[breaker_id] += core.advance(until_ms)
    moves = {b: [e for e in found if isinstance(e, Transition)] for b, found in effects.items()}
    return {b: [(e.prev, e.curr, e.ts_ms) for e in found if e.ts_ms <= until_ms] for b, found in moves.items()}
