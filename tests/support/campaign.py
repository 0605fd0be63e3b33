"""Load for a running service in trouble: samples with idempotent retries, edits of the configuration, stream clients,
a receiver of webhooks, and somebody who watches how long all of them have to wait.

Who makes the trouble is in `killing.py`, what must hold afterwards in `invariants.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import hmac
import itertools
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import httpx

from tests.support.live import LiveService
from tests.support.receivers import Reply, Request, WebReceiver

GOOD, BAD = 10, 500
NUMBERS = 1 << 33
"""A sample is numbered by the fraction of its value, in units of 1 / NUMBERS: no two are alike, all are exact."""
SPELL_MS = 1_500
PATIENCE_S = 180.0
PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
STREAM_SILENCE_S = 15.0


class Caller:
    """Sends a request again, unchanged, until its answer is one that no repetition would change. `pauses_s`: before
    each repetition there may be; None: for PATIENCE_S."""

    def __init__(self, live: LiveService, key: str | None = None, pauses_s: Sequence[float] | None = None) -> None:
        self._pauses_s = pauses_s
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        self.http = httpx.AsyncClient(base_url=live.base_url, headers=headers, timeout=20, limits=limits)
        self.retries: Counter[str] = Counter()
        self.answered: list[tuple[float, float]] = []
        """(sent, answered) of each attempt that got its final answer, by the monotonic clock."""
        self.slowest_s = 0.0

    async def ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Raises AssertionError when there is to be no repetition any more."""
        begun = time.monotonic()
        for pause_s in self._pauses(begun + PATIENCE_S):
            sent = time.monotonic()
            try:
                answer = await self.http.request(method, path, **request)
                if answer.status_code < 500 and answer.status_code != 429:
                    self.answered.append((sent, time.monotonic()))
                    self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
                    return answer
                said = str(answer.status_code)
            except httpx.TransportError as error:
                said = type(error).__name__
            self.retries[said] += 1
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        raise AssertionError(f"{method} {path} was not answered within {time.monotonic() - begun:.1f} s: {said}")

    def _pauses(self, deadline: float) -> Iterator[float | None]:
        """What comes after each attempt; None: nothing, it is the last one."""
        if self._pauses_s is not None:
            yield from self._pauses_s
        else:
            for pause_s in itertools.chain(PAUSES_S, itertools.repeat(PAUSES_S[-1])):
                if time.monotonic() > deadline:
                    break
                yield pause_s
        yield None


@dataclass
class Project:
    """A project under load. `secret`: its requests are signed with it, otherwise they carry an Idempotency-Key."""

    id: str
    key: str
    secret: str | None = None
    channels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Notification channel -> the kinds it takes."""
    breakers: dict[str, str] = field(default_factory=dict)
    """Breaker id -> the router that was made with it."""
    shared: set[str] = field(default_factory=set)
    """Breakers that hang on a second router as well."""

    @property
    def path(self) -> str:
        return f"/v1/projects/{self.id}"

    @property
    def routers(self) -> list[str]:
        return list(self.breakers.values())


class Load:
    """Samples from several clients at once. Which are good and which are bad goes by spells, so that breakers trip and
    recover all the time. `accepted`: value of each sample that was answered with 202 -> its router."""

    def __init__(self, caller: Caller, seed: str) -> None:
        self.caller = caller
        self._seed = seed
        self._numbers = itertools.count(1)
        self.accepted: dict[float, str] = {}
        self.refused: list[str] = []

    async def run(self, project: Project, stop: asyncio.Event, rng: random.Random) -> None:
        """One client, until told to stop; what it has begun it brings to its end."""
        while not stop.is_set():
            await self._send(project, rng)
            await asyncio.sleep(rng.uniform(0.02, 0.15))

    async def _send(self, project: Project, rng: random.Random) -> None:
        samples = []
        now_ms = time.time_ns() // 1_000_000
        for router_id in rng.sample(project.routers, rng.randint(1, min(6, len(project.routers)))):
            bad = self._in_bad_spell(router_id, now_ms)
            for _ in range(rng.randint(1, 5)):
                ts_ms = now_ms - rng.choice((0, 0, 0, 40, 900, 5_000))
                samples.append(_sample(router_id, next(self._numbers), bad, ts_ms, rng))
        body, headers = _request(project, samples, rng)
        answer = await self.caller.ask("POST", f"{project.path}/ingest", content=body, headers=headers)
        if answer.status_code == 202 and answer.json()["accepted"] == len(samples):
            self.accepted.update((sample["value"], sample["router_id"]) for sample in samples)
        else:
            self.refused.append(answer.text)

    def _in_bad_spell(self, router_id: str, now_ms: int) -> bool:
        return random.Random(f"{self._seed}:{router_id}:{now_ms // SPELL_MS}").random() < 0.35


def _sample(router_id: str, number: int, bad: bool, ts_ms: int, rng: random.Random) -> dict[str, Any]:
    value = (BAD if bad else GOOD) + number / NUMBERS
    sample = {"router_id": router_id, "metric": "latency", "ts_ms": ts_ms, "value": value, "ok": not bad}
    return sample | ({"trace_id": f"trace-{number % 997}"} if rng.random() < 0.5 else {})


def _request(project: Project, samples: list[dict[str, Any]], rng: random.Random) -> tuple[bytes, dict[str, str]]:
    body = json.dumps({"samples": samples}).encode()
    headers = {}
    if rng.random() < 0.3:
        body, headers = gzip.compress(body), {"Content-Encoding": "gzip"}
    if project.secret is None:
        return body, headers | {"Idempotency-Key": f"{rng.getrandbits(96):x}"}
    stamp = str(time.time_ns() // 1_000_000)
    mac = hmac.new(bytes.fromhex(project.secret), f"{stamp}.".encode() + body, hashlib.sha256)
    return body, headers | {"X-EB-Timestamp": stamp, "X-EB-Signature": f"v1={mac.hexdigest()}"}


class Edits:
    """Changes of configuration: rules, names, modes and shares of routers; breakers that come and go, are overridden,
    observe and enforce."""

    def __init__(self, caller: Caller, rng: random.Random) -> None:
        self._caller = caller
        self._rng = rng
        self._guests: list[str] = []
        self.done: Counter[str] = Counter()

    async def run(self, project: Project, stop: asyncio.Event) -> None:
        edits = (self._rule, self._rule, self._rule, self._rename, self._router, self._guest)
        edits += (self._override, self._override, self._lift, self._mode)
        while not stop.is_set():
            edit = self._rng.choice(edits)
            answer = await edit(project)
            assert answer.status_code < 400 or answer.status_code in (404, 409), answer.text
            self.done[edit.__name__.strip("_")] += 1
            await asyncio.sleep(self._rng.uniform(0.3, 1.5))

    async def _rule(self, project: Project) -> httpx.Response:
        fields = {
            "threshold": self._rng.choice((90, 100, 110)),
            "window_ms": self._rng.choice((800, 1_500, 3_000)),
            "eval_interval_ms": self._rng.choice((100, 150, 300)),
            "cooldown_ms": self._rng.choice((200, 400, 900)),
            "recovery_allow_rate_ramp_steps": self._rng.choice((1, 2, 3)),
        }
        name = self._rng.choice(list(fields))
        path = f"{project.path}/breakers/{self._rng.choice(self._plain(project))}"
        return await self._caller.ask("PATCH", path, json={name: fields[name]})

    def _plain(self, project: Project) -> list[str]:
        """Breakers whose thresholds are all of one kind: made with the rule AVERAGE."""
        return [breaker_id for i, breaker_id in enumerate(project.breakers) if i % len(RULES) == 0]

    async def _rename(self, project: Project) -> httpx.Response:
        breaker_id = self._rng.choice(list(project.breakers))
        name = f"renamed-{self._rng.getrandbits(32):x}"
        return await self._caller.ask("PATCH", f"{project.path}/breakers/{breaker_id}", json={"name": name})

    async def _router(self, project: Project) -> httpx.Response:
        """A static router is switched off or on; one that splits gets other shares, or another mode."""
        breaker_id = self._rng.choice(list(project.breakers))
        edit: dict[str, Any] = {"enabled": self._rng.random() < 0.8}
        if project.shared and self._rng.random() < 0.7:
            breaker_id = next(iter(project.breakers))
            edit = {"mode": self._rng.choice(("weighted", "canary")), "metadata": _shares(project, self._rng)}
        path = f"{project.path}/routers/{project.breakers[breaker_id]}"
        return await self._caller.ask("PATCH", path, json=edit)

    async def _override(self, project: Project) -> httpx.Response:
        """Some are shorter than an actor is dead; each has a reason of its own."""
        kind = self._rng.choice(("force_open", "force_closed", "throttle"))
        body: dict[str, Any] = {"kind": kind, "reason": f"because {self._rng.getrandbits(64):x}"}
        body["for_ms"] = self._rng.choice((1_000, 1_500, 4_000, 12_000))
        if kind == "throttle":
            body["allow_rate"] = self._rng.choice((0, 0.1, 0.5, 1))
        if self._rng.random() < 0.4:
            body["then"] = "half_open"
        return await self._caller.ask("PUT", self._override_of(project), json=body)

    async def _lift(self, project: Project) -> httpx.Response:
        return await self._caller.ask("DELETE", self._override_of(project), params={"reason": "it is over"})

    async def _mode(self, project: Project) -> httpx.Response:
        """Rather back to enforce, or nobody would be told of anything after a while."""
        path = f"{project.path}/breakers/{self._rng.choice(list(project.breakers))}"
        mode = "observe" if self._rng.random() < 0.3 else "enforce"
        return await self._caller.ask("PATCH", path, json={"mode": mode})

    def _override_of(self, project: Project) -> str:
        """Of a few breakers rather than of all, so that some are replaced and ended."""
        return f"{project.path}/breakers/{self._rng.choice(list(project.breakers)[:6])}/override"

    async def _guest(self, project: Project) -> httpx.Response:
        """Its id is chosen here: a creation that is repeated because its answer got lost is a 409."""
        if len(self._guests) >= 5:
            gone = self._guests.pop(0)
            return await self._caller.ask("DELETE", f"{project.path}/breakers/{gone}")
        self._guests.append(str(UUID(int=self._rng.getrandbits(128), version=4)))
        body = {**BASE, **RULES[0], "id": self._guests[-1], "name": f"guest-{self._guests[-1]}"}
        return await self._caller.ask("POST", f"{project.path}/breakers", json=body)


def _shares(project: Project, rng: random.Random) -> dict[str, str]:
    members = [next(iter(project.breakers)), *sorted(project.shared)]
    weights = {f"weight:{breaker_id}": str(rng.choice((0, 1, 2, 5))) for breaker_id in members}
    return weights | {f"canary:{members[-1]}": str(rng.choice((0, 10, 50, 100)))}


BASE = {
    "metric": "latency",
    "window_ms": 1_500,
    "eval_interval_ms": 150,
    "min_state_duration_ms": 0,
    "cooldown_ms": 300,
    "half_open_backoff_cap_ms": 1_200,
    "recovery_allow_rate_ramp_steps": 2,
}
RULES: list[dict[str, Any]] = [
    {"kind": "avg", "op": "gt", "threshold": 100},
    {"kind": "error_rate", "op": "gt", "threshold": 0.5, "min_count": 3},
    {"kind": "p95", "op": "gte", "threshold": 400, "half_open_indeterminate_policy": "optimistic"},
    {"kind": "max", "op": "gt", "threshold": 400, "min_state_duration_ms": 500},
    {"kind": "count", "op": "lt", "threshold": 3, "window_ms": 2_000, "min_count": 0},
    {"kind": "sum", "op": "gt", "threshold": 2_000, "half_open_backoff_enabled": False},
    {"kind": "consecutive_failures", "op": "gte", "threshold": 4},
    {"kind": "delta", "op": "gt", "threshold": 60, "kind_params": {"delta_of": "max"}},
    {"kind": "stddev", "op": "gt", "threshold": 150, "half_open_indeterminate_policy": "pessimistic"},
    {"kind": "percentile", "op": "gt", "threshold": 400, "kind_params": {"percentile": 60}, "window_ms": 20_000},
]


class Hook(WebReceiver):
    """Receives webhooks. Now and then it is out of order, or hangs up when it has got everything: the Notifier can't
    know then that it did."""

    def __init__(self) -> None:
        super().__init__()
        self.got: dict[str, list[tuple[float, Reply]]] = defaultdict(list)
        """Idempotency-Key -> (when, what was answered), by the monotonic clock."""

    def answer(self, request: Request) -> Reply:
        n = len(self.requests)
        reply = Reply(503) if n % 40 == 13 else Reply(how="cut") if n % 40 == 33 else Reply()
        self.got[request.headers["idempotency-key"]].append((time.monotonic(), reply))
        return reply


async def _add_channel(caller: Caller, project: Project, hook: Hook, *kinds: str) -> None:
    config = {"url": hook.url(f"/{len(project.channels)}"), "secret": "shared"}
    body = {"channel": "webhook", "config": config, "events": list(kinds)}
    answer = await caller.ask("POST", f"{project.path}/notification-channels", json=body)
    project.channels[answer.json()["channel"]["id"]] = kinds


async def make_project(
    caller: Caller,
    live: LiveService,
    hook: Hook,
    count: int,
    *,
    signed: bool = False,
    shared: int = 0,
    rules: Sequence[dict[str, Any]] = RULES,
) -> Project:
    """A project that tells a webhook everything and another one of trips, with `count` breakers of these rules in turn;
    `shared` more hang on the first one's router as well, which splits between all of them."""
    body = {"name": "campaign", "workspace_id": live.credentials["workspace_id"]}
    made = (await caller.ask("POST", "/v1/projects", json=body)).json()
    keys = await caller.ask("POST", f"/v1/projects/{made['project_id']}/keys", json={"name": "streams"})
    project = Project(made["project_id"], keys.json()["key"], made["ingest_secret"] if signed else None)
    if signed:
        await caller.ask("PATCH", project.path, json={"enable_signed_ingest": True})
    await _add_channel(caller, project, hook, "trip", "recover")
    await _add_channel(caller, project, hook, "trip")
    for i in range(count + shared):
        rule = rules[i % len(rules)] if i < count else rules[0]
        answer = (await caller.ask("POST", f"{project.path}/breakers", json={**BASE, **rule, "name": f"b{i}"})).json()
        project.breakers[answer["breaker"]["id"]] = answer["router_id"]
        if i >= count:
            project.shared.add(answer["breaker"]["id"])
    if shared:
        await _share(caller, project)
    return project


async def _share(caller: Caller, project: Project) -> None:
    path = f"{project.path}/routers/{project.routers[0]}"
    await caller.ask("POST", f"{path}/breakers", json={"breaker_ids": sorted(project.shared)})
    shares = _shares(project, random.Random(0))
    await caller.ask("PATCH", path, json={"mode": "weighted", "metadata": shares})


class Follower:
    """Follows a project's states as the SDKs do: whenever the stream ends, for whatever reason, it connects again."""

    def __init__(self, live: LiveService, project: Project) -> None:
        headers = {"Authorization": f"Bearer {project.key}"}
        self._project = project
        self._http = httpx.AsyncClient(base_url=live.base_url, headers=headers, timeout=STREAM_SILENCE_S)
        self._path = f"{project.path}/breakers/state:stream"
        self.states: dict[str, tuple[str, float | None]] = {}
        self.connections = 0
        self.messages = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        async with self._http:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    await self._listen()
                await asyncio.sleep(0.2)

    async def _listen(self) -> None:
        async with self._http.stream("GET", self._path) as answer:
            if answer.status_code != 200:
                return
            self.connections += 1
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    told = json.loads(line[6:])
                    self.states[told["breaker"]] = (told["state"], told["allow_rate"])
                    self.messages += 1

    async def shows_all(self, caller: Caller) -> bool:
        """Whether it knows every breaker as it is, and every name that is gone as closed."""
        listed = (await caller.ask("GET", f"{self._project.path}/breakers")).json()["breakers"]
        body = {"breaker_ids": [breaker["id"] for breaker in listed]}
        answer = await caller.ask("POST", f"{self._project.path}/breakers/state:batch", json=body)
        states = answer.json()["states"]
        rates = {s["name"]: (s["state"], s["allow_rate"] if s["state"] == "half_open" else None) for s in states}
        gone = {name: ("closed", None) for name in self.states.keys() - rates.keys()}
        return len(states) == len(listed) and self.states == rates | gone


@dataclass
class Watch:
    """How long users wait: asks, again and again, for fresh states and for the newest change of state. All breakers
    have a state at any time, if not a fresh one."""

    caller: Caller
    project: Project
    fresh: list[tuple[float, float]] = field(default_factory=list)
    """(sent, answered) of each read that every owner answered."""
    moved: list[tuple[float, float]] = field(default_factory=list)
    """(sent, answered) of each look at the history that found something new."""

    async def run(self, stop: asyncio.Event) -> None:
        newest = 0
        while not stop.is_set():
            if await self.all_fresh():
                self.fresh.append(self.caller.answered[-1])
            answer = await self.caller.ask("GET", f"{self.project.path}/events", params={"after_sequence": newest})
            if answer.status_code == 200 and (events := answer.json()["events"]):
                newest = max(event["sequence"] for event in events)
                self.moved.append(self.caller.answered[-1])
            await asyncio.sleep(0.1)

    async def all_fresh(self) -> bool:
        ids = list(self.project.breakers)
        answer = await self.caller.ask("POST", f"{self.project.path}/breakers/state:batch", json={"breaker_ids": ids})
        states = answer.json()["states"]
        assert {state["breaker_id"] for state in states} == set(ids)
        return not any(state.get("stale") for state in states)
