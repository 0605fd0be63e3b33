"""A storm: the breakers of many projects trip within one second. How long until all clients and receivers know, and
what that does to a quiet project of another organisation.

python -m tests.bench storm [--json FILE] [--smoke] [--breakers 10000] [--projects 40]

Each project has one router, one webhook channel and two stream clients; one of 20 breakers recovers after a second, the
others stay open. The quiet project sends, reads, edits and trips at fixed times, alone and during the storm, which ends
with its last webhook. Times of the storm count from its first request.

Afterwards: each sample is in its log; the breakers have the events that they must have, each once, and those of a draw
are what the core comes to with the log; each client was shown each trip once and shows the last states; each
notification came once, those of a breaker in order. The aim: last message <= 3 s, last webhook <= 10 s, medians of the
quiet project <= 5 x those alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.bench.fairness import Client, head
from tests.support import load
from tests.support.figures import options_of, show
from tests.support.fleet import Fleet, check_events, check_logged
from tests.support.invariants import Evidence, assert_in_sequence, assert_told_once
from tests.support.live import LiveService, serving
from tests.support.sse_clients import Ask, Audience, Report, Shown
from tests.support.swift_receiver import Came, SwiftReceiver
from tests.support.usage import cpu_s, cpu_used

PUT_OFF = {429, 503}
MESSAGES_S_MAX, WEBHOOKS_S_MAX, QUIET_MAX = 3.0, 10.0, 5.0
WITHIN_S, CLIENTS = 1.0, 2
FLICKERS_EVERY = 20
FLICKER_EVENTS, LAST_EVENTS = 3, 1
EVERY_S, QUIET_S, LASTS_S = 0.2, 10.0, 60.0
QUIET_TRIPS = int((QUIET_S + LASTS_S) / EVERY_S)
ARRIVE_S, FINAL_S, DRAWN = 60.0, 30.0, 200
PRIVATE = {"BREAKERS_ALLOW_PRIVATE_DESTINATIONS": "true", "BREAKERS_CONNECTIONS_PER_SOURCE_MAX": "0"}
LASTS = {
    "kind": "max",
    "op": "gt",
    "threshold": 100.0,
    "window_ms": 10_000,
    "min_state_duration_ms": 0,
    "cooldown_ms": 3_600_000,
}
FLICKERS = LASTS | {
    "cooldown_ms": 1_000,
    "eval_interval_ms": 250,
    "recovery_allow_rate_ramp_steps": 1,
    "half_open_indeterminate_policy": "optimistic",
}


def rule_of(i: int, metric: str) -> dict[str, Any]:
    return {**(LASTS if i % FLICKERS_EVERY else FLICKERS), "metric": metric}


@dataclass
class Times:
    """What the quiet project waited for, in ms, by kind, how often it was put off (429 or 503), and when it tripped
    which breaker."""

    put_off: Counter[str] = field(default_factory=Counter)
    ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    tripped: dict[str, float] = field(default_factory=dict)


def main(argv: list[str]) -> int:
    parser = options_of("storm")
    parser.add_argument("--breakers", type=int, default=10_000)
    parser.add_argument("--projects", type=int, default=40)
    options = parser.parse_args(argv)
    projects, metrics, quiet_s = options.projects, options.breakers // options.projects, QUIET_S
    if options.smoke:
        projects, metrics, quiet_s = 8, 40, 1.0
    with (
        tempfile.TemporaryDirectory() as folder,
        SwiftReceiver() as hook,
        serving(Path(folder) / "data", **PRIVATE) as live,
    ):
        quiet = Quiet(live, hook)
        fleets = [Fleet(live, 1, metrics, prefix=f"p{n}-", rule=rule_of) for n in range(projects)]
        channels = [add_channel(fleet.live.user, fleet.path, hook) for fleet in fleets]
        figures = asyncio.run(Storm(live, fleets, quiet, hook).run(quiet_s))
        check_store(live, fleets, channels, hook.came())
    show(figures, options.json)
    found = [] if options.smoke else problems(figures)
    print("\n".join(found))
    return int(bool(found))


def problems(figures: dict[str, float]) -> list[str]:
    """Which figures are above what they may be."""
    most = {"last_message_s": MESSAGES_S_MAX, "last_webhook_s": WEBHOOKS_S_MAX, "quiet requests put off": 0.0}
    most |= {name: QUIET_MAX for name in figures if name.endswith("median, times that alone")}
    return [f"{name} is above {limit}" for name, limit in most.items() if figures[name] > limit]


def add_channel(user: httpx.Client, path: str, hook: SwiftReceiver) -> str:
    config = {"url": hook.url(path), "secret": "for the bench"}
    answer = user.post(f"{path}/notification-channels", json={"name": "hook", "channel": "webhook", "config": config})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["channel"]["id"])


class Quiet:
    """A project of another organisation with breakers to trip, a channel and a stream client."""

    def __init__(self, live: LiveService, hook: SwiftReceiver) -> None:
        self._live = live
        self._key = f"Bearer {tenant(live)}"
        with live.client(self._key.removeprefix("Bearer ")) as user:
            [workspace] = user.get("/v1/workspaces").json()["workspaces"]
            made = user.post("/v1/projects", json={"name": "quiet", "workspace_id": workspace["id"]}).json()
            self.path = f"/v1/projects/{made['project_id']}"
            rules = [{**LASTS, "metric": "m", "name": f"quiet-{n}"} for n in range(QUIET_TRIPS)]
            answer = user.put(f"{self.path}/breakers", json={"breakers": rules}, timeout=60)
            assert answer.status_code == 200, answer.text
            made = {one["name"]: one for one in answer.json()["breakers"]}
            self.made = [made[rule["name"]] for rule in rules]
            self.stream_key = user.post(f"{self.path}/keys", json={"name": "bench"}).json()["key"]
            add_channel(user, self.path, hook)
        self._next = 1

    def ask(self) -> Ask:
        return Ask(f"{self.path}/breakers/state:stream", self.stream_key, len(self.made))

    async def run(self, over: asyncio.Event) -> Times:
        """One request of each kind at fixed times until it is over. Any answer but the right one, or 429 and 503,
        fails."""
        found, kept = Times(), self.made[0]
        breaker = f"{self.path}/breakers/{kept['id']}"
        reads = {"read of a state": f"{breaker}/state", "list of breakers": f"{self.path}/breakers?limit=20"}
        paces = [self._paced(found, over, kind, 200, self._get(path)) for kind, path in reads.items()]
        paces.append(self._paced(found, over, "ingest", 202, lambda: self._samples(kept["router_id"], 1.0)))
        paces.append(self._paced(found, over, "edit of a breaker", 200, lambda: self._edit(breaker)))
        paces.append(self._paced(found, over, "ingest that trips", 202, lambda: self._trip(found)))
        await asyncio.gather(*paces)
        return found

    async def _paced(
        self, found: Times, over: asyncio.Event, kind: str, wanted: int, request: Callable[[], bytes]
    ) -> None:
        free, tasks, begun = list[Client](), list[asyncio.Task[None]](), time.perf_counter()

        async def one(due: float) -> None:
            client = free.pop() if free else Client(self._live.base_url)
            status = await client.ask(request())
            free.append(client)
            if status in PUT_OFF and wanted != 202:
                found.put_off[kind] += 1
                print(f"{kind}: {status} {client.told.decode()}")
                return
            assert status == wanted, (kind, status, client.told)
            found.ms[kind].append((time.perf_counter() - due) * 1000)

        n = 0
        while not over.is_set():
            tasks.append(asyncio.create_task(one(begun + n * EVERY_S)))
            n += 1
            await asyncio.sleep(begun + n * EVERY_S - time.perf_counter())
        await asyncio.gather(*tasks)
        for client in free:
            client.close()

    def _get(self, path: str) -> Callable[[], bytes]:
        return lambda: head("GET", path, b"", Authorization=self._key)

    def _samples(self, router_id: str, value: float) -> bytes:
        sample = {"router_id": router_id, "metric": "m", "ts_ms": time.time_ns() // 1_000_000, "value": value}
        return head("POST", f"{self.path}/ingest", json.dumps([sample] * 10).encode())

    def _edit(self, breaker: str) -> bytes:
        body = json.dumps({"threshold": 100.0 + random.random()}).encode()
        return head("PATCH", breaker, body, Authorization=self._key)

    def _trip(self, found: Times) -> bytes:
        one, self._next = self.made[self._next], self._next + 1
        found.tripped[one["id"]] = found.tripped[one["name"]] = time.perf_counter()
        return self._samples(one["router_id"], 500.0)


def tenant(live: LiveService) -> str:
    """The user key of a new organisation."""
    program = str(Path(sys.executable).with_name("breakers"))

    def ran(*words: str) -> str:
        command = [program, *words, "--data-dir", str(live.data_dir)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ}).stdout.strip()

    org_id = ran("orgs", "create", "quiet")
    return ran("keys", "create", "--org", org_id, "--kind", "user", "--name", "bench")


class Storm:
    """The run, from the first quiet request to the last look of the clients."""

    def __init__(self, live: LiveService, fleets: Sequence[Fleet], quiet: Quiet, hook: SwiftReceiver) -> None:
        self._live, self._fleets, self._quiet, self._hook = live, fleets, quiet, hook
        self._flickering = {b for fleet in fleets for b in flickering(fleet)}
        self._count = sum(len(fleet.homes) for fleet in fleets)

    async def run(self, quiet_s: float) -> dict[str, float]:
        asks = [ask_of(fleet) for fleet in self._fleets for _ in range(CLIENTS)] + [self._quiet.ask()]
        address = httpx.URL(self._live.base_url)
        with Audience((address.host, address.port or 80), asks) as audience:
            audience.tell("arrive", ARRIVE_S)
            await self._strike(1.0)  # as in use: who owns each router is known
            alone = await self._quiet_for(quiet_s)
            looked, begun = cpu_used(self._live), time.perf_counter()
            over = asyncio.Event()
            quiet, _ = await asyncio.gather(self._quiet.run(over), self._strike_and_wait(over))
            took, used = time.perf_counter() - begun, cpu_s(looked, cpu_used(self._live))
            expected = {ask_of(fleet).path: self._last_shown(fleet) for fleet in self._fleets}
            tripped = [one["name"] for one in self._quiet.made[1:] if one["name"] in alone.tripped | quiet.tripped]
            shown = {one["name"]: ("closed", None) for one in self._quiet.made}
            expected[asks[-1].path] = shown | dict.fromkeys(tripped, ("open", None))
            report = await asyncio.to_thread(audience.tell, "settle", expected, FINAL_S)
        self._check_clients(report)
        figures = {"breakers": float(self._count), "projects": float(len(self._fleets)), "took_s": took}
        figures |= self._last(report, begun) | {f"cpu_s {stage}": spent_s for stage, spent_s in sorted(used.items())}
        return figures | self._compared(report, alone, quiet)

    async def _strike_and_wait(self, over: asyncio.Event) -> None:
        try:
            before = await asyncio.to_thread(self._hook.count)
            await self._strike(500.0)
            due = before + self._count + len(self._flickering)  # the quiet ones come besides
            deadline = time.perf_counter() + LASTS_S
            while await asyncio.to_thread(self._hook.count) < due and time.perf_counter() < deadline:
                await asyncio.sleep(0.1)
            while len(storm_of(await asyncio.to_thread(self._hook.came), self._fleets)) < due - before:
                assert time.perf_counter() < deadline, f"not all of {due - before} notifications came"
                await asyncio.sleep(0.5)
        finally:
            over.set()

    async def _strike(self, value: float) -> None:
        """One sample for each breaker, a request for each project, evenly within WITHIN_S."""
        begun = time.perf_counter()

        async def one(n: int, fleet: Fleet) -> None:
            client, now_ms = Client(self._live.base_url), time.time_ns() // 1_000_000
            [router] = fleet.routers
            rows = [{"router_id": router, "metric": m, "ts_ms": now_ms, "value": value} for m in fleet.metrics]
            status = await client.ask(load.signed(fleet.target(), load.body_of(rows), now_ms))
            assert status == 202, status
            client.close()

        async with asyncio.TaskGroup() as requests:
            for n, fleet in enumerate(self._fleets):
                await asyncio.sleep(begun + n * WITHIN_S / len(self._fleets) - time.perf_counter())
                requests.create_task(one(n, fleet))

    async def _quiet_for(self, seconds: float) -> Times:
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, over.set)
        return await self._quiet.run(over)

    # -- what came of it

    @staticmethod
    def _last_shown(fleet: Fleet) -> dict[str, Shown]:
        back = flickering(fleet)
        return {name: ("closed" if id_ in back else "open", None) for id_, name in fleet.names.items()}

    def _check_clients(self, report: Report) -> None:
        assert not report.wrong, "\n".join(report.wrong[:20])
        assert not any(report.counts[end] for end in ("malformed", "dropped", "refused", "cut")), report.counts
        for fleet in self._fleets:
            for name in fleet.names.values():
                assert len(report.opens[name, 0]) == CLIENTS, f"{name} was not shown open to all"
                assert (name, 1) not in report.opens, f"{name} was shown open again"

    def _last(self, report: Report, begun: float) -> dict[str, float]:
        """When of all trips the last, and half of them, were there."""
        shown = [at for fleet in self._fleets for name in fleet.names.values() for at in report.opens[name, 0]]
        told = [one.at for one in storm_of(self._hook.came(), self._fleets) if one.body["event"] == "trip"]
        mine = {breaker_id for fleet in self._fleets for breaker_id in fleet.homes}
        rows = Evidence(self._live.data_dir).rows("SELECT breaker_id, ts_ms FROM events WHERE curr = 'open'")
        tripped = [ts_ms for breaker_id, ts_ms in rows if breaker_id in mine]
        figures = {"tripped_within_s": (max(tripped) - min(tripped)) / 1000}
        for what, times in (("message", shown), ("webhook", told)):
            figures[f"half_{what}_s"] = statistics.median(times) - begun
            figures[f"last_{what}_s"] = max(times) - begun
        return figures

    def _compared(self, report: Report, alone: Times, quiet: Times) -> dict[str, float]:
        """The quiet project's waits, alone and during the storm."""
        told = {one.body["breaker_id"]: one.at for one in self._hook.came()}
        figures: dict[str, float] = {}
        for times in (alone, quiet):
            for one in self._quiet.made:
                if (sent := times.tripped.get(one["name"])) is not None and one["id"] in told:
                    times.ms["trip, to its message"].append((report.opens[one["name"], 0][0] - sent) * 1000)
                    times.ms["trip, to its webhook"].append((told[one["id"]] - sent) * 1000)
        figures["quiet requests put off"] = float(quiet.put_off.total())
        for kind, before in alone.ms.items():
            usual, then = statistics.median(before), sorted(quiet.ms[kind])
            figures[f"{kind}, ms alone"] = usual
            figures[f"{kind}, ms, median"] = statistics.median(then)
            figures[f"{kind}, ms, most"] = then[-1]
            figures[f"{kind}: median, times that alone"] = statistics.median(then) / usual
        return figures


def ask_of(fleet: Fleet) -> Ask:
    return Ask(f"{fleet.path}/breakers/state:stream", fleet.key, len(fleet.homes))


def flickering(fleet: Fleet) -> set[str]:
    """Breakers that recover by themselves."""
    [breakers] = fleet.breakers.values()
    return {breakers[metric] for metric in fleet.metrics[::FLICKERS_EVERY]}


def storm_of(came: Iterable[Came], fleets: Sequence[Fleet]) -> list[Came]:
    mine = {breaker_id for fleet in fleets for breaker_id in fleet.homes}
    return [one for one in came if one.body["breaker_id"] in mine]


def check_store(live: LiveService, fleets: Sequence[Fleet], channels: Sequence[str], came: Sequence[Came]) -> None:
    """A wrong run fails: a sample, an event or a notification too few, too many or out of its place."""
    evidence, chance = Evidence(live.data_dir), random.Random(1)
    histories = evidence.histories()
    for fleet, channel_id in zip(fleets, channels, strict=True):
        check_logged(fleet, evidence, 2 * len(fleet.homes))
        back = flickering(fleet)
        for breaker_id in fleet.homes:
            events = histories.get(breaker_id, [])
            assert_in_sequence(breaker_id, events)
            due = FLICKER_EVENTS if breaker_id in back else LAST_EVENTS
            assert len(events) == due, f"breaker {breaker_id}: {events}"
        check_events(fleet, evidence, chance.sample(sorted(fleet.homes), min(len(fleet.homes), DRAWN // len(fleets))))
        mine = storm_of(came, [fleet])
        kinds = {channel_id: ("trip", "recover")}
        sent = assert_told_once(evidence, fleet.path.rpartition("/")[2], kinds)
        assert Counter(one.key for one in mine) == Counter(sent), "each notification comes once"
        told: dict[str, list[str]] = defaultdict(list)
        for one in mine:
            told[one.body["breaker_id"]].append(one.body["event"])
        for breaker_id in fleet.homes:
            assert told[breaker_id] == ["trip", "recover"][: 1 + (breaker_id in back)], told[breaker_id]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
