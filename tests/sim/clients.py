"""Who uses the service in a run: clients that post samples and never give up, one that changes the configuration, one
that reads states. All of them repeat what failed under the same key, as the interface asks for."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import numpy as np

from breaker_actors.core.log_entries import encode_samples
from breaker_actors.core.model import Counts
from breaker_actors.core.rule_fields import DELTA_OF, KINDS, POLICIES
from breaker_actors.errors import BreakersError, Unavailable
from breaker_actors.messages import AppendResult
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.world import World

METRICS = ("latency", "load")
TAG = 2.0**-20
"""Samples differ by so much: each value is there once in a run."""
GOOD, BAD = 10.0, 500.0

# Thresholds that tell good times from bad ones, per kind; `count` and `sum` also notice silence with lt.
_OPS: dict[str, tuple[tuple[str, float], ...]] = {
    "error_rate": (("gt", 0.4),),
    "avg": (("gt", 100.0), ("gte", 200.0)),
    "p95": (("gt", 100.0),),
    "percentile": (("gt", 100.0),),
    "max": (("gt", 300.0),),
    "min": (("gt", 100.0), ("lt", 50.0)),
    "sum": (("gt", 2_000.0), ("lt", 60.0)),
    "count": (("gt", 12.0), ("lt", 3.0), ("lte", 1.0)),
    "stddev": (("gt", 100.0),),
    "consecutive_failures": (("gte", 3.0), ("gt", 4.0)),
    "delta": (("gt", 80.0), ("lt", -60.0)),
}


WINDOW_MAX_MS = 8_000


def random_rule(draws: Random) -> dict[str, Any]:
    """A rule that moves every few seconds under the load of the clients."""
    kind = draws.choice(KINDS)
    op, threshold = draws.choice(_OPS[kind])
    rule: dict[str, Any] = {
        "metric": draws.choice(METRICS),
        "kind": kind,
        "op": op,
        "threshold": threshold,
        "window_ms": draws.choice([900, 2_000, 4_000, WINDOW_MAX_MS]),
        "eval_interval_ms": draws.choice([300, 500, 700, 1_100]),
        "min_count": draws.choice([0, 1, 1, 2, 4]),
        "min_state_duration_ms": draws.choice([0, 0, 400, 1_500, 3_000]),
        "cooldown_ms": draws.choice([0, 500, 2_000]),
        "half_open_backoff_enabled": draws.random() < 0.7,
        "half_open_backoff_cap_ms": draws.choice([1_000, 4_000, 9_000]),
        "half_open_indeterminate_policy": draws.choice(POLICIES),
        "recovery_allow_rate_ramp_steps": draws.choice([1, 2, 3, 5]),
    }
    if kind == "percentile":
        rule["kind_params"] = {"percentile": draws.choice([50, 66.7, 99])}
    elif kind == "delta":
        rule["kind_params"] = {"delta_of": draws.choice(DELTA_OF[1:4]), "alpha": draws.choice([0.05, 0.3])}
    return rule


async def pause(seconds: float, until_s: float) -> None:
    """A pause that ends at the end: just behind it, or rounding could leave the time standing still."""
    await asyncio.sleep(min(seconds, until_s - asyncio.get_running_loop().time() + 0.001))


async def configure(world: World, client: Process, draws: Random, change: str, fields: dict[str, Any]) -> None:
    """Has some replica carry out a change; asks until it is answered."""
    world.trace("configures", change, fields)
    while True:
        try:
            await world.ask_replica(client, "configure", change, fields)
            return
        except Unavailable:
            await asyncio.sleep(draws.uniform(0.1, 0.8))


class Request(msgspec.Struct):
    """One request of a client, and what became of it. `key` None: it is not sent again by the client."""

    router_id: str
    key: bytes | None
    payload: bytes
    values: tuple[float, ...]
    answered: str | None = None


class SampleClients:
    """Post samples to every router there is, in good spells and bad ones."""

    def __init__(self, world: World, client: Process) -> None:
        self._world = world
        self._client = client
        self._draws = world.faults.stream("samples")
        self._counts = world.faults.stream("counts")
        self._spells: dict[str, tuple[float, bool]] = {}
        self._made = 0
        self._pause_s = self._draws.uniform(0.15, 0.6)
        self.requests: list[Request] = []
        self.open: set[int] = set()

    async def run(self, until_s: float) -> None:
        loop, draws = self._world.loop, self._draws
        while loop.time() < until_s:
            await pause(draws.expovariate(1 / self._pause_s), until_s)
            routers = self._world.router_ids()
            if not routers:
                continue
            request = self._request(draws.choice(routers))
            self.requests.append(request)
            number = len(self.requests)
            for _ in range(2 if request.key and draws.random() < 0.1 else 1):
                self._client.run(self._post(number, request))

    def _request(self, router_id: str) -> Request:
        draws = self._draws
        metrics = [m for m in METRICS if draws.random() < 0.7] or [METRICS[0]]
        counts = [draws.choice([1, 1, 2, 3, 5, 9]) for _ in metrics]
        n = sum(counts)
        bad = self._is_bad(router_id)
        values, ok = [], []
        for _ in range(n):
            self._made += 1
            wrong = bad != (draws.random() < 0.1)
            values.append((BAD if wrong else GOOD) + self._made * TAG)
            ok.append(not wrong)
        shares = None
        if draws.random() < 0.3:
            shares = np.array([draws.getrandbits(63) for _ in range(n)], np.int64)
        ts = np.array(self._times(n), np.int64)
        payload = encode_samples(metrics, counts, ts, np.array(values), np.array(ok), shares, count=self._count(n))
        return Request(router_id, draws.randbytes(16) if draws.random() < 0.9 else None, payload, tuple(values))

    def _count(self, n: int) -> Counts:
        """How many observations samples stand for; most requests say nothing of it."""
        if self._counts.random() < 0.75:
            return None
        self._world.reach("client sends counts")
        return np.array([self._counts.choice([1, 1, 2, 3, 12]) for _ in range(n)], np.int64)

    def _times(self, n: int) -> list[int]:
        """Mostly now; some late, some very late, some ahead, often several at one instant."""
        draws, now = self._draws, self._client.clock.now_ms()
        late_ms = draws.choice([0, 0, 0, 0, draws.randrange(2_000), draws.randrange(12_000), -draws.randrange(400)])
        spread_ms = draws.choice([1, 1, 300, 2_500])
        return [now - late_ms - draws.randrange(spread_ms) for _ in range(n)]

    def _is_bad(self, router_id: str) -> bool:
        now = self._world.loop.time()
        ends, bad = self._spells.get(router_id, (0.0, True))
        if now >= ends:
            bad = not bad
            self._spells[router_id] = now + self._draws.uniform(1.0, 9.0), bad
        return bad

    async def _post(self, number: int, request: Request) -> None:
        """Until it is answered; a request without a key is tried once, its repetition would count twice."""
        self.open.add(number)
        while request.router_id in self._world.router_ids():
            word = await self._try(request)
            if word in ("ok", "duplicate"):
                request.answered = word
                break
            if request.key is None:
                break
            await asyncio.sleep(self._draws.uniform(0.05, 0.6))
        self.open.discard(number)

    async def _try(self, request: Request) -> str:
        try:
            outcome: AppendResult = await self._world.ask_replica(
                self._client, "ingest", request.router_id, request.key, request.payload, len(request.values)
            )
            self._world.reach(f"client is answered {outcome.status}")
            return outcome.status
        except Unavailable:
            return "failed"


class ConfigurationClient:
    """Creates, changes, links and deletes; what is there is read from the store itself, so every change makes sense."""

    def __init__(self, world: World, client: Process) -> None:
        self._world = world
        self._client = client
        self._draws = world.faults.stream("configuration")
        self._gone: list[str] = []
        self._named = 0
        self._breakers_max = self._draws.randint(1, 6)
        self._routers_max = self._draws.choice([0, 1, 2])
        self.done = 0

    async def begin(self) -> None:
        """The first breakers, before anything fails."""
        for _ in range(self._draws.randint(1, self._breakers_max)):
            await self._create()

    async def run(self, until_s: float) -> None:
        pause_s = self._draws.uniform(1.5, 8.0)
        while self._world.loop.time() < until_s:
            await pause(self._draws.expovariate(1 / pause_s), until_s)
            await self._change()

    async def _change(self) -> None:
        breakers = self._world.breaker_rows()
        routers = [r for r in self._world.router_rows() if r.created_by == "user"]
        choices = {"create": 2 if len(breakers) < self._breakers_max else 0}
        if breakers:
            choices |= {"edit": 5, "rename": 1, "delete": 1, "mode": 1}
            choices["create_router"] = 1 if len(routers) < self._routers_max else 0
            if routers:
                choices |= {"link": 2, "unlink": 2, "edit_router": 1, "delete_router": 1}
        if not any(choices.values()):
            return
        change = self._draws.choices(list(choices), list(choices.values()))[0]
        await getattr(self, f"_{change}")()
        self.done += 1

    async def _create(self) -> None:
        if self._gone and self._draws.random() < 0.5:
            breaker_id = self._gone.pop()
        else:
            breaker_id = str(UUID(int=self._draws.getrandbits(128), version=4))
        self._named += 1
        fields = {"breaker_id": breaker_id, "name": f"b{self._named}", "rule": random_rule(self._draws)}
        mode = "observe" if self._draws.random() < 0.1 else "enforce"
        await self._send("create", fields | {"mode": mode})

    async def _edit(self) -> None:
        """One or a few fields; kind and metric change rarely, for they make a breaker forget."""
        row, new = self._draws.choice(self._world.breaker_rows()), random_rule(self._draws)
        if self._draws.random() < 0.2:
            fields = {name: new.get(name) for name in ("kind", "op", "threshold", "kind_params")}
        elif self._draws.random() < 0.15:
            fields = {"metric": new["metric"]}
        else:
            calm = [n for n in new if n not in ("kind", "op", "threshold", "kind_params", "metric")]
            fields = {name: new[name] for name in self._draws.sample(calm, self._draws.randint(1, 3))}
            if self._draws.random() < 0.3:
                fields["threshold"] = row.rule.threshold * self._draws.choice([0.5, 0.9, 1.5])
            if "window_ms" in fields and self._world.settings.log_retention_ms < WINDOW_MAX_MS:
                # a larger window is filled from what is kept, the replays know all there ever was
                fields["window_ms"] = min(fields["window_ms"], row.rule.window_ms)
        await self._send("edit", {"breaker_id": row.id, "rule": fields})

    async def _rename(self) -> None:
        self._named += 1
        row = self._draws.choice(self._world.breaker_rows())
        await self._send("rename", {"breaker_id": row.id, "name": f"b{self._named}"})

    async def _delete(self) -> None:
        row = self._draws.choice(self._world.breaker_rows())
        await self._send("delete", {"breaker_id": row.id})
        self._gone.append(row.id)

    async def _create_router(self) -> None:
        rows, mode = self._world.breaker_rows(), self._draws.choice(["static", "canary", "weighted"])
        chosen = [row.id for row in rows if self._draws.random() < 0.5]
        self._named += 1
        await self._send("create_router", {"name": f"r{self._named}", "breaker_ids": chosen, "mode": mode})

    async def _mode(self) -> None:
        """Any router, also the one made with a breaker."""
        await self._edit_any(self._world.router_rows())

    async def _edit_router(self) -> None:
        await self._edit_any([r for r in self._world.router_rows() if r.created_by == "user"])

    async def _edit_any(self, rows: list[Any]) -> None:
        draws = self._draws
        if not rows:
            return
        row = draws.choice(rows)
        fields: dict[str, Any] = draws.choice(
            [
                {"mode": draws.choice(["static", "canary", "weighted"])},
                {"enabled": not row.enabled},
                {
                    "mode": "canary",
                    "metadata": {f"canary:{i}": str(draws.choice([0, 30, 70])) for i in row.breaker_ids},
                },
            ]
        )
        await self._send("edit_router", {"router_id": row.id, "fields": fields})

    async def _delete_router(self) -> None:
        empty = [r for r in self._world.router_rows() if r.created_by == "user" and not r.breaker_ids]
        if empty:
            await self._send("delete_router", {"router_id": self._draws.choice(empty).id})

    async def _link(self) -> None:
        routers = [r for r in self._world.router_rows() if r.created_by == "user"]
        breaker = self._draws.choice(self._world.breaker_rows())
        await self._send("link", {"router_id": self._draws.choice(routers).id, "breaker_id": breaker.id})

    async def _unlink(self) -> None:
        linked = [r for r in self._world.router_rows() if r.breaker_ids]
        if linked:
            row = self._draws.choice(linked)
            await self._send("unlink", {"router_id": row.id, "breaker_id": self._draws.choice(row.breaker_ids)})

    async def _send(self, change: str, fields: dict[str, Any]) -> None:
        await configure(self._world, self._client, self._draws, change, fields)


class Reader:
    """Asks for states now and then, and has every answer checked."""

    def __init__(self, world: World, client: Process) -> None:
        self._world = world
        self._client = client
        self._draws = world.faults.stream("reads")

    async def run(self, until_s: float) -> None:
        while self._world.loop.time() < until_s:
            await asyncio.sleep(self._draws.uniform(0.3, 1.5))
            ids = self._world.breaker_ids()
            if not ids:
                continue
            try:
                readings = await self._world.ask_replica(self._client, "states", ids)
            except BreakersError:
                continue
            for reading in readings:
                self._world.reach("reader gets a stale state" if reading.stale else "reader gets a state")
                self._world.check(self._world.checks.reading, reading)
