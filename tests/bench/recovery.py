"""How long a service with very many breakers and no load takes to answer as before: started, or after kill -9.

python -m tests.bench recovery [--json FILE] [--smoke] [--breakers 10000]

Seconds, medians of three rounds. Cold start: until a service on an empty folder is ready. Restart: all its processes
are killed at once; from the new start until it is ready, and until every breaker is told by its owner to be as it was.
Then one process after another is killed, and what is waited for is: BreakerActor: states of all its breakers, told by
an owner. RouterActor: the answer 202 for one of its routers. Journal: a breaker that is sent bad samples is open.
Directory: a breaker can be made, and its owner answers. API replica: any state. Notifier: the webhook of a trip. Right
before each of these kills, and when what is waited for has come, some samples are sent.

Afterwards all breakers are as they were before the first kill, and the only new events are the bench's own trips, once
each, and told. All accepted samples are in the log, those sent around kills exactly once by their values, and the
histories of the breakers that took these and of a draw of the others are what the core comes to with the log.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from breaker_actors.transport.peers import DIRECTORY, NOTIFIER, journal_name
from tests.support.figures import options_of, show
from tests.support.fleet import Fleet, check_events, check_logged, check_replays
from tests.support.invariants import Evidence, assert_in_sequence, assert_logged_once, assert_records_agree
from tests.support.live import LiveService, wait_for
from tests.support.receivers import WebReceiver

METRICS, ROUNDS = 100, 3
TURNS, TURN_S, PER_REQUEST = 2, 10.0, 500
BACK_S = 120.0
GOOD, BAD, NUMBERS = 10.0, 500.0, 1 << 20
"""Values of samples; each has a number of its own, in units of 1 / NUMBERS."""
DRAWN = 200
SHOWN = ("state", "state_since_ms", "allow_rate", "transition_seq")
States = dict[str, dict[str, Any]]


def main(argv: list[str]) -> None:
    parser = options_of("recovery")
    parser.add_argument("--breakers", type=int, default=10_000)
    options = parser.parse_args(argv)
    routers, metrics, rounds = max(1, options.breakers // METRICS), METRICS, ROUNDS
    if options.smoke:
        routers, metrics, rounds = 3, 20, 1
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(with_receiver(Path(folder), routers, metrics, rounds))
    show(figures, options.json)


async def with_receiver(folder: Path, routers: int, metrics: int, rounds: int) -> dict[str, float]:
    """The bench on a thread: the receiver of webhooks answers in this loop."""
    async with WebReceiver() as hook:
        return await asyncio.to_thread(measure, folder, hook, routers, metrics, rounds)


def measure(folder: Path, hook: WebReceiver, routers: int, metrics: int, rounds: int) -> dict[str, float]:
    environ = {
        "BREAKERS_BREAKERS_PER_PROJECT_MAX": str(max(10_000, routers * metrics)),
        "BREAKERS_ALLOW_PRIVATE_DESTINATIONS": "true",
    }
    bench = Recovery(hook, environ)
    try:
        for i in range(rounds):
            bench.start_cold(folder / f"data-{i}")
        bench.fill(routers, metrics)
        for _ in range(rounds):
            bench.restart()
        bench.prepare()
        for i in range(rounds):
            for kill in bench.kills():
                kill(i)
        bench.check()
    finally:
        bench.stop()
    figures = {"breakers": float(len(bench.fleet.homes)), "open": float(len(bench.fleet.tripping))}
    return figures | {name: statistics.median(times) for name, times in bench.times.items()}


class Recovery:
    """One service, what its breakers were before anything was killed, and the times that were measured."""

    live: LiveService
    fleet: Fleet

    def __init__(self, hook: WebReceiver, environ: dict[str, str]) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)
        self._hook = hook
        self._environ = environ
        self._chance = random.Random(1)
        self._before: States = {}
        self._tripped: set[str] = set()
        self._filled = 0
        self._probes: dict[str, str] = {}
        self._witness: dict[str, Any] = {}
        self._numbers = itertools.count(1)
        self._accepted: dict[float, str] = {}
        self._pids: dict[str, int] = {}

    # -- all at once

    def _start(self, data_dir: Path) -> float:
        began = time.monotonic()
        self.live = LiveService(data_dir, **self._environ)
        return time.monotonic() - began

    def stop(self) -> None:
        if hasattr(self, "live"):
            self.live.stop()

    def start_cold(self, data_dir: Path) -> None:
        self.stop()
        self.times["cold_start_s"].append(self._start(data_dir))

    def fill(self, routers: int, metrics: int) -> None:
        """Breakers with windows, some of them open, all at rest."""
        self.fleet = Fleet(self.live, routers, metrics)
        bodies = self.fleet.turns(TURNS, PER_REQUEST, TURN_S, 1.0, 2)
        self._filled = self.fleet.send(bodies, 10.0).accepted
        tripping = self.fleet.tripping

        def at_rest() -> States | None:
            states = self.fleet.until_fresh()
            found = {breaker_id for breaker_id, state in states.items() if state["state"] == "open"}
            return states if found == tripping else None

        self._before = shown(wait_for(at_rest, BACK_S, 0.5))
        assert all(state["state"] == "closed" for i, state in self._before.items() if i not in tripping)
        assert Evidence(self.live.data_dir).histories().keys() == tripping

    def restart(self) -> None:
        self.live.crash()
        began = time.monotonic()
        self.times["restart_ready_s"].append(self._start(self.live.data_dir))
        self.fleet.live = self.live
        states = self.fleet.until_fresh()
        self.times["restart_all_fresh_s"].append(time.monotonic() - began)
        self._compare(states)

    # -- one after another

    def kills(self) -> tuple[Callable[[int], None], ...]:
        return (
            self._breaker_actor,
            self._router_actor,
            self._journal,
            self._directory,
            self._replica,
            self._notifier,
        )

    def prepare(self) -> None:
        """A channel for what the bench trips, and who is there."""
        config = {"url": self._hook.url("/"), "secret": "for the bench"}
        body = {"name": "hook", "channel": "webhook", "config": config, "events": ["trip"]}
        answer = self.live.user.post(f"{self.live.project_path}/notification-channels", json=body)
        assert answer.status_code == 201, answer.text
        self._witness = self._probe("witness")
        self._settle()

    def _breaker_actor(self, n: int) -> None:
        rows = self._rows("SELECT id, owner FROM breakers")
        owners = {breaker_id: owner for breaker_id, owner in rows if breaker_id in self.fleet.homes}
        victim = self._chance.choice(sorted(set(owners.values())))
        mine = [breaker_id for breaker_id, owner in owners.items() if owner == victim]
        began = self._kill(victim)
        states = self.fleet.until_fresh(mine)
        self._note("BreakerActor", began)
        self._compare(states)

    def _router_actor(self, n: int) -> None:
        made = self._probe(f"router-{n}")
        [(owner,)] = self._rows("SELECT owner FROM routers WHERE id = ?", made["router_id"])
        began = self._kill(owner)
        self._send(made, GOOD)
        self._note("RouterActor", began)

    def _journal(self, n: int) -> None:
        made = self._probe(f"journal-{n}")
        began = self._kill(journal_name(0))
        self._trip(made)
        self.live.in_state(made["id"], "open", BACK_S)
        self._note("Journal", began)

    def _directory(self, n: int) -> None:
        began = self._kill(DIRECTORY)
        self._probe(f"directory-{n}")
        self._note("Directory", began)

    def _replica(self, n: int) -> None:
        path = f"{self.fleet.path}/breakers/{self._chance.choice(sorted(self.fleet.homes))}/state"
        pid = self.live.pids("ServeReplica")[0]
        self._send(self._witness, GOOD)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: answered(self.live.user, path), BACK_S)
        self._note("API replica", began)

    def _notifier(self, n: int) -> None:
        made = self._probe(f"notifier-{n}")
        began = self._kill(NOTIFIER)
        self._trip(made)
        wait_for(lambda: made["id"] in self._told(), BACK_S)
        self._note("Notifier", began)

    # -- helpers

    def _note(self, part: str, began: float) -> None:
        self.times[f"back_s {part}"].append(time.monotonic() - began)
        self._send(self._witness, GOOD)
        self._settle()

    def _settle(self) -> None:
        """Waits until nothing of a kill is left to be seen."""
        wait_for(lambda: answered(self.live.user, "/api/readyz"), BACK_S)
        self._pids = wait_for(self._actors, BACK_S, 0.2)
        self.fleet.until_fresh()
        wait_for(lambda: self._told() >= self._tripped, BACK_S)

    def _actors(self) -> dict[str, int] | None:
        """Processes of the actors by name, once all of them answer."""
        with self.live.client(self.live.credentials["admin_key"]) as operator:
            actors = (answered(operator, "/v1/admin/status") or {}).get("actors", [])
        found = {actor["name"]: actor["pid"] for actor in actors}
        return None if None in found.values() else found

    def _kill(self, name: str) -> float:
        """When one actor was killed, just after some samples were accepted."""
        self._send(self._witness, GOOD)
        began = time.monotonic()
        os.kill(self._pids[name], signal.SIGKILL)
        return began

    def _probe(self, name: str) -> dict[str, Any]:
        """A breaker more, in another project, whose owner answers."""
        answer = self.live.breaker(name=name, cooldown_ms=3_600_000)
        made: dict[str, Any] = answer["breaker"]
        self._probes[made["id"]] = answer["router_id"]
        path = f"{self.live.project_path}/breakers/{made['id']}/state"
        wait_for(lambda: (state := answered(self.live.user, path)) and not state.get("stale"), BACK_S)
        return made

    def _send(self, made: dict[str, Any], value: float) -> None:
        values = [value + number / NUMBERS for number in itertools.islice(self._numbers, 10)]
        answer = self.live.send(made["router_id"], values)
        assert (answer.status_code, answer.json().get("accepted")) == (202, len(values)), answer.text
        self._accepted |= dict.fromkeys(values, made["router_id"])

    def _trip(self, made: dict[str, Any]) -> None:
        self._tripped.add(made["id"])
        self._send(made, BAD)

    def _told(self) -> set[str]:
        return {request.json["breaker_id"] for request in list(self._hook.requests)}

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return Evidence(self.live.data_dir).rows(sql, *values)

    def _compare(self, states: States) -> None:
        for breaker_id, state in shown(states).items():
            assert state == self._before[breaker_id], f"breaker {breaker_id}: {state}, was {self._before[breaker_id]}"

    def check(self) -> None:
        """A wrong run fails: a sample lost or twice in the log, a breaker that is not as it was, an event more, less or
        twice or other than the log says, a trip that was not told or told as two."""
        self._compare(self.fleet.until_fresh())
        evidence = Evidence(self.live.data_dir)
        self._check_samples(evidence)
        drawn = self._chance.sample(sorted(self.fleet.homes), min(DRAWN, len(self.fleet.homes)))
        check_events(self.fleet, evidence, drawn)
        check_replays(evidence, self._probes)
        histories = evidence.histories()
        assert histories.keys() == self.fleet.tripping | self._tripped
        for breaker_id, history in histories.items():
            assert_in_sequence(breaker_id, history)
            assert [event.curr for event in history] == ["open"], history
        assert_records_agree(evidence)
        assert self._told() == self._tripped
        assert len(self._hook.by_key()) == len(self._tripped)

    def _check_samples(self, evidence: Evidence) -> None:
        """Each breaker of the fleet has its samples of every turn; those of the probes are known by their values."""
        for router, counts in check_logged(self.fleet, evidence, self._filled).items():
            assert counts == dict.fromkeys(self.fleet.metrics, TURNS), f"router {router}: {counts}"
        assert_logged_once(evidence, self._accepted, self._probes.values())


def shown(states: States) -> States:
    return {breaker_id: {name: state[name] for name in SHOWN} for breaker_id, state in states.items()}


def answered(client: httpx.Client, path: str) -> dict[str, Any] | None:
    """A body that came with 200."""
    try:
        answer = client.get(path)
    except httpx.TransportError:
        return None
    if answer.status_code != 200:
        return None
    body: dict[str, Any] = answer.json()
    return body
