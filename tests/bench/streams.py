"""Thousands of state stream clients: how long messages take to all of them, and what it costs to hold and serve them.

python -m tests.bench streams [--json FILE] [--smoke] [--clients 4000] [--projects 40] [--seconds 60]

Two changes of state a second in each project; one client of 20 reads slowly, one of ten is replaced each minute. In the
end every client must show for every breaker what a REST read of its state says, every accepted sample must be in the
log, and each breaker's history what the core comes to with its log. Latencies count from the POST of a tripping batch
to its `open` at each client that reads promptly and was there from the start. A batch that meets a breaker which has
not recovered yet trips nothing; it counts as lost. Memory is set against a bare Quart stream.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np

from tests.support.bare_stream import PATH, bare_stream
from tests.support.figures import options_of, show
from tests.support.fleet import check_counts, check_replays
from tests.support.invariants import Evidence, assert_in_sequence
from tests.support.live import LiveService, serving, wait_for
from tests.support.load import answer_of
from tests.support.sse_clients import Ask, Audience, Report, Shown
from tests.support.usage import connections_max, cpu_s, cpu_used, memory_kb, private_kb

P99_MS_MAX, BEYOND_BARE_KB_MAX = 250, 40
SLOW_EVERY, REPLACED_PER_MINUTE = 20, 0.1
BARE_SHARE = 4
ONE_SOURCE = {"BREAKERS_CONNECTIONS_PER_SOURCE_MAX": "0", "BREAKERS_STREAMS_PER_ORG_MAX": "0"}
"""All clients come from this machine's address, and are one organisation's."""
TRIP_EVERY_S = 1.5
"""In each project; a trip is three changes: open, half_open, closed."""
FLICKERING = 4
RULE = {
    "metric": "latency",
    "kind": "max",
    "op": "gt",
    "threshold": 100,
    "window_ms": 10_000,
    "min_state_duration_ms": 0,
    "eval_interval_ms": 250,
}
FLICKERS = RULE | {
    "cooldown_ms": 500,
    "recovery_allow_rate_ramp_steps": 1,
    "half_open_indeterminate_policy": "optimistic",
}
LASTS = RULE | {"cooldown_ms": 3_600_000}
TRIP_ENDS_S = 2.0
"""A trip and its recovery take one second on an idle machine."""
SETTLE_S = 6.0
"""Longer than the pause between two heartbeats."""
ARRIVE_S, FINAL_S = 180.0, 30.0


@dataclass(frozen=True)
class Size:
    clients: int
    projects: int
    seconds: float
    replaced_per_s: float


SMOKE = Size(60, 3, 5.0, 2.0)


@dataclass
class Crowd:
    """One project: breakers that flicker and one that stays open once it has tripped."""

    path: str
    key: str
    ids: dict[str, str]
    """Name -> breaker."""
    routers: dict[str, str]
    """Name -> its router."""

    @property
    def flickering(self) -> list[str]:
        return list(self.ids)[:FLICKERING]

    @property
    def lasting(self) -> str:
        return list(self.ids)[FLICKERING]

    @property
    def stream(self) -> str:
        return f"{self.path}/breakers/state:stream"


class Post(NamedTuple):
    """A batch that should trip a breaker: when it was sent (time.perf_counter), and between which times it came in."""

    at: float
    from_ms: float
    to_ms: float


class Trips:
    """Sends batches that trip breakers, and notes them by the breaker's name. On bare connections, as many as are under
    way: a pool of httpx takes several times the CPU when answers are late, which they are when the CPU is short."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.sent: dict[str, list[Post]] = defaultdict(list)
        self.accepted: Counter[str] = Counter()
        """Samples by router."""

    async def flicker(self, crowds: Sequence[Crowd], seconds: float) -> None:
        """At fixed times, however long answers take: the projects one after another, their breakers in turn."""
        pause, begun = TRIP_EVERY_S / len(crowds), time.perf_counter()
        async with asyncio.TaskGroup() as trips:
            for n in range(int(seconds / pause)):
                await asyncio.sleep(begun + n * pause - time.perf_counter())
                around, chosen = divmod(n, len(crowds))
                crowd = crowds[chosen]
                trips.create_task(self.trip(crowd, crowd.flickering[around % FLICKERING]))
            await asyncio.sleep(begun + seconds - time.perf_counter())

    async def trip(self, crowd: Crowd, name: str) -> None:
        at, from_ms = time.perf_counter(), time.time() * 1000
        await self._post(crowd, [sample(crowd, name, 500.0)])
        self.sent[name].append(Post(at, from_ms, time.time() * 1000))

    async def last(self, crowds: Sequence[Crowd]) -> None:
        for crowd in crowds:
            await self.trip(crowd, crowd.lasting)

    async def warm(self, crowds: Sequence[Crowd]) -> None:
        """As in use: who owns each router is known."""
        for crowd in crowds:
            await self._post(crowd, [sample(crowd, name, 1.0) for name in crowd.ids])

    async def _post(self, crowd: Crowd, samples: Sequence[dict[str, Any]]) -> None:
        body = json.dumps({"samples": samples}).encode()
        head = f"POST {crowd.path}/ingest HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        while self._idle and self._idle[0][0].at_eof():  # idle for too long; the first are the oldest
            self._idle.pop(0)[1].close()
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(self._host, self._port)
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status, answer, kept = await answer_of(reader)
        assert (status, json.loads(answer).get("accepted")) == (202, len(samples)), answer
        self.accepted.update(one["router_id"] for one in samples)
        if kept:
            self._idle.append((reader, writer))
        else:
            writer.close()

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()


def sample(crowd: Crowd, name: str, value: float) -> dict[str, Any]:
    now_ms = time.time_ns() // 1_000_000
    return {"router_id": crowd.routers[name], "metric": RULE["metric"], "ts_ms": now_ms, "value": value}


def main(argv: list[str]) -> int:
    parser = options_of("streams")
    parser.add_argument("--clients", type=int, default=4_000)
    parser.add_argument("--projects", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args(argv)
    replaced_per_s = options.clients * REPLACED_PER_MINUTE / 60
    size = SMOKE if options.smoke else Size(options.clients, options.projects, options.seconds, replaced_per_s)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "data", **ONE_SOURCE) as live:
        crowds = [make(live, n) for n in range(size.projects)]
        wait_for(lambda: not any(item.get("stale") for crowd in crowds for item in read(live, crowd)), 120, 0.5)
        figures = measure(live, crowds, size)
    figures |= bare(size.clients // BARE_SHARE, size.seconds)
    figures["beyond_bare_kb_per_client"] = max(0.0, figures["replica_kb_per_client"] - figures["bare_kb_per_client"])
    show(figures, options.json)
    found = [] if options.smoke else problems(figures)
    print("\n".join(found))
    return int(bool(found))


def problems(figures: dict[str, float]) -> list[str]:
    """Which figures are above what they may be."""
    most = {"open_ms_p99": P99_MS_MAX, "beyond_bare_kb_per_client": BEYOND_BARE_KB_MAX}
    return [f"{name} is above {limit}" for name, limit in most.items() if figures[name] > limit]


# -- before


def make(live: LiveService, number: int) -> Crowd:
    body = {"name": f"crowd-{number}", "workspace_id": live.credentials["workspace_id"]}
    path = f"/v1/projects/{live.user.post('/v1/projects', json=body).json()['project_id']}"
    key = live.user.post(f"{path}/keys", json={"name": "bench"}).json()["key"]
    rules = [*[FLICKERS] * FLICKERING, LASTS]
    breakers = [{**rule, "name": f"p{number}-{i}"} for i, rule in enumerate(rules)]
    answer = live.user.put(f"{path}/breakers", json={"breakers": breakers})
    assert answer.status_code == 200, answer.text
    made = {breaker["name"]: breaker for breaker in answer.json()["breakers"]}
    found = {str(breaker["name"]): made[breaker["name"]] for breaker in breakers}
    ids, routers = ({name: one[field] for name, one in found.items()} for field in ("id", "router_id"))
    return Crowd(path, key, ids, routers)


def asks(crowds: Sequence[Crowd], clients: int) -> list[Ask]:
    """The projects in turn; of each project's clients every 20th reads slowly."""
    found = []
    for n in range(clients):
        place, chosen = divmod(n, len(crowds))
        crowd = crowds[chosen]
        found.append(Ask(crowd.stream, crowd.key, len(crowd.ids), slow=place % SLOW_EVERY == SLOW_EVERY - 1))
    return found


def touch(url: str, key: str) -> None:
    """One client that comes and goes, so that what is made for the first one is there."""
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.stream("GET", url, headers=headers, timeout=20, trust_env=False) as answer:
        next(answer.iter_lines())


# -- the run


def measure(live: LiveService, crowds: Sequence[Crowd], size: Size) -> dict[str, float]:
    clients, address = size.clients, httpx.URL(live.base_url)
    touch(live.base_url + crowds[0].stream, crowds[0].key)
    asked = asks(crowds, clients)
    empty = private_kb(live)
    with Audience((address.host, address.port or 80), asked) as audience:
        figures = connections_max(live) | {"clients": float(clients), "projects": float(len(crowds))}
        figures["slow_readers"] = float(sum(ask.slow for ask in asked))
        begun = time.perf_counter()
        files = audience.tell("arrive", ARRIVE_S).files_max
        figures |= {"files_max clients": float(files), "arrive_s": time.perf_counter() - begun}
        settle(size.seconds)
        full = private_kb(live)
        figures |= asyncio.run(run(live, crowds, audience, size))
        worn = private_kb(live)
    for name, stage in (("replica", "API replicas"), ("haproxy", "HAProxy")):
        figures[f"{name}_kb_per_client"] = grown(empty[stage], full[stage], clients)
        figures[f"{name}_kb_per_client after"] = grown(empty[stage], worn[stage], clients)
    return figures


async def run(live: LiveService, crowds: Sequence[Crowd], audience: Audience, size: Size) -> dict[str, float]:
    address = httpx.URL(live.base_url)
    trips = Trips(address.host, address.port or 80)
    await trips.warm(crowds)
    before, looked = audience.tell("replace", size.replaced_per_s), cpu_used(live)
    begun, sending = time.perf_counter(), time.process_time()
    await trips.flicker(crowds, size.seconds)
    took = time.perf_counter() - begun
    await asyncio.sleep(TRIP_ENDS_S)
    after, used = audience.tell("count"), cpu_s(looked, cpu_used(live))
    sending = time.process_time() - sending
    await trips.last(crowds)
    trips.close()
    expected = {crowd.stream: await asyncio.to_thread(final, live, crowd) for crowd in crowds}
    report = audience.tell("settle", expected, FINAL_S)
    missed = "\n".join([f"{len(report.wrong)} of {size.clients} clients missed a final state:", *report.wrong[:20]])
    assert not report.wrong, missed
    assert not report.counts["malformed"], "clients could not read what was sent to them"
    changes, starts = await asyncio.to_thread(check, live, crowds, trips)
    messages = after.counts["messages"] - before.counts["messages"]
    figures = {
        "seconds": took,
        "changes_per_s_and_project": changes / took / len(crowds),
        "messages": float(messages),
        "heartbeats": float(after.counts["heartbeats"] - before.counts["heartbeats"]),
        "messages_per_s": messages / took,
    }
    for stage in ("API replicas", "HAProxy", "RouterActors", "BreakerActors", "Journal", "Ray"):
        figures[f"cpu_us_per_message {stage}"] = used[stage] / messages * 1e6
    figures["cpu_us_per_message sender"] = sending / messages * 1e6
    figures["cpu_us_per_message clients"] = (after.cpu_s - before.cpu_s) / messages * 1e6
    return figures | told(report, trips, starts, crowds, size.clients)


def told(
    report: Report, trips: Trips, starts: dict[str, list[float]], crowds: Sequence[Crowd], clients: int
) -> dict[str, float]:
    """How long the messages of trips took, and what became of the clients."""
    found = [(np.array(times) - starts[name][n]) * 1000 for (name, n), times in report.opens.items()]
    ordered = np.sort(np.concatenate(found))
    due = {crowd.stream: sum(len(starts[name]) for name in crowd.ids) for crowd in crowds}
    posts = sum(map(len, trips.sent.values()))
    counts = report.counts
    return {
        "trips": float(sum(due.values())),
        "trips_lost": float(posts - sum(due.values())),
        "opens": float(len(ordered)),
        "open_ms_p50": float(np.percentile(ordered, 50)),
        "open_ms_p99": float(np.percentile(ordered, 99)),
        "open_ms_max": float(ordered[-1]),
        "opens_missed": float(sum(abs(due[path] - opens) for path, opens in report.steady)),
        "clients_steady": float(len(report.steady)),
        "replaced": float(counts["replaced"]),
        "slow_cut": float(counts["cut"]),
        "dropped": float(counts["dropped"]),
        "refused": float(counts["refused"]),
        "reconnects": float(counts["connections"] - counts["replaced"] - clients),
    }


# -- what must hold


def read(live: LiveService, crowd: Crowd) -> list[dict[str, Any]]:
    answer = live.user.post(f"{crowd.path}/breakers/state:batch", json={"breaker_ids": list(crowd.ids.values())})
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["states"]
    return items


def final(live: LiveService, crowd: Crowd) -> dict[str, Shown]:
    """What a stream client of the project is to show: the states as read, once they are what the load leads to."""
    due = dict.fromkeys(crowd.flickering, "closed") | {crowd.lasting: "open"}
    names = {breaker_id: name for name, breaker_id in crowd.ids.items()}

    def as_due() -> list[dict[str, Any]] | None:
        items = read(live, crowd)
        states = {names[item["breaker_id"]]: item["state"] for item in items if not item.get("stale")}
        return items if states == due else None

    items = wait_for(as_due, FINAL_S, 0.2)
    return {
        names[item["breaker_id"]]: (item["state"], item["allow_rate"] if item["state"] == "half_open" else None)
        for item in items
    }


def check(live: LiveService, crowds: Sequence[Crowd], trips: Trips) -> tuple[int, dict[str, list[float]]]:
    """Every accepted sample is in the log, every breaker moved as its log says, and opened because of a POST; answers
    how often those that flicker changed, and when the POST of each opening was sent."""
    evidence = Evidence(live.data_dir)
    check_counts(evidence, {router: trips.accepted[router] for crowd in crowds for router in crowd.routers.values()})
    for crowd in crowds:
        check_replays(evidence, {crowd.ids[name]: crowd.routers[name] for name in crowd.ids})
    histories, changes, starts = evidence.histories(), 0, {}
    for crowd in crowds:
        for name, breaker_id in crowd.ids.items():
            events = histories.get(breaker_id, [])
            assert_in_sequence(breaker_id, events)
            starts[name] = [start(name, trips.sent[name], event.ts_ms) for event in events if event.curr == "open"]
            changes += len(events) if name in crowd.flickering else 0
    return changes, starts


def start(name: str, posts: Sequence[Post], ts_ms: int) -> float:
    """When the batch was sent that came in at this time; the first of several that were under way together."""
    found = [post.at for post in posts if post.from_ms - 2 <= ts_ms <= post.to_ms + 2]
    assert found, f"{name} opened at {ts_ms} without a batch"
    return min(found)


# -- memory


def grown(before: int, after: int, clients: int) -> float:
    return max(0, after - before) / clients


def settle(seconds: float) -> None:
    """Waits until what the arrival of the clients left behind is gone; a short run does not wait for long."""
    time.sleep(min(SETTLE_S, seconds / 2))


def bare(clients: int, seconds: float) -> dict[str, float]:
    """What a stream of a bare Quart app takes."""
    with bare_stream() as (pid, address):
        touch(f"http://{address[0]}:{address[1]}{PATH}", "none")
        empty = memory_kb(pid)["Private"]
        with Audience(address, [Ask(PATH, "none", 0)] * clients) as audience:
            audience.tell("arrive", ARRIVE_S)
            settle(seconds)
            return {"bare_kb_per_client": grown(empty, memory_kb(pid)["Private"], clients)}
