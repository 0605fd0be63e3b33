"""Steady load for minutes, with logs trimmed all along: which process or file grows?

python -m tests.bench soak [--minutes 10] [--json FILE] [--smoke]

The log is copied all along, before it is trimmed: in the end every accepted sample was in it, and the histories of some
breakers, all those that trip among them, are what the core comes to with it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from breaker_actors.wal import sqlite_file as slotfile
from tests.support.campaign import Caller, Follower, Project, Watch
from tests.support.cluster import until
from tests.support.fleet import check_counts, check_replays
from tests.support.invariants import Evidence, assert_dense
from tests.support.live import LiveService, serving, tree_of
from tests.support.usage import memory_kb

BREAKERS = 200
FLIPPING = 4
SENDERS, FOLLOWERS = 4, 5
PER_REQUEST = 50
SEND_EVERY_S = 0.2
READ_EVERY_S = 0.5
COPY_EVERY_S = 2.0
REPLAYED = 20
"""Breakers whose histories are held against the log; those that flip among them."""
GROWTH_MAX = 0.10
COMPARED_WITH = 3
EVENT_BYTES_MAX = 2_000
FILE_SLACK = 4 << 20
SHORT_LIVES = {
    "BREAKERS_LOG_RETENTION_MS": "20000",
    "BREAKERS_UPKEEP_INTERVAL_MS": "2000",
    "BREAKERS_DUPLICATE_WINDOW_MS": "30000",
}
SMOKE_S, SMOKE_EVERY_S = 20.0, 4.0
STARTED_S = 120.0
RULE = {
    "metric": "latency",
    "kind": "avg",
    "op": "gt",
    "threshold": 100,
    "window_ms": 5_000,
    "eval_interval_ms": 500,
    "min_state_duration_ms": 0,
    "cooldown_ms": 1_000,
    "recovery_allow_rate_ramp_steps": 2,
}
_TITLE = re.compile(r"ray::(\w+)|(raylet|gcs_server|haproxy|breakers serve)|(\w+)\.py")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench soak")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true", help="seconds instead of minutes")
    options = parser.parse_args(argv)
    seconds, every_s = (SMOKE_S, SMOKE_EVERY_S) if options.smoke else (60 * options.minutes, 60.0)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "data", **SHORT_LIVES) as live:
        looks = asyncio.run(measure(live, seconds, every_s))
    print(table(looks))
    found = problems(looks)
    print("\n".join(found) or "nothing grows")
    if options.json:
        options.json.write_text(json.dumps({"looks": looks, "problems": found}, indent=1))
    return int(bool(found))


# -- load


async def make_breakers(caller: Caller, live: LiveService) -> Project:
    """A project with BREAKERS of them, made by one PUT, each with its router."""
    body = {"name": "soak", "workspace_id": live.credentials["workspace_id"]}
    project_id = (await caller.ask("POST", "/v1/projects", json=body)).json()["project_id"]
    key = (await caller.ask("POST", f"/v1/projects/{project_id}/keys", json={"name": "streams"})).json()["key"]
    project = Project(project_id, key)
    breakers = [{**RULE, "name": f"soak-{i}"} for i in range(BREAKERS)]
    answer = await caller.ask("PUT", f"{project.path}/breakers", json={"breakers": breakers})
    project.breakers.update((breaker["id"], breaker["router_id"]) for breaker in answer.json()["breakers"])
    return project


class Flow:
    """Good samples for all breakers in turn; the first FLIPPING get bad ones every tenth second."""

    def __init__(self, caller: Caller, project: Project) -> None:
        self._caller = caller
        self.project = project
        self._at = 0
        self.accepted: Counter[str] = Counter()
        """Samples by router."""
        self.reads = 0

    async def send(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        bad = now_ms // 1_000 % 10 == 0
        chosen = [(self._at + i) % BREAKERS for i in range(PER_REQUEST)]
        self._at = (self._at + PER_REQUEST) % BREAKERS
        samples = [
            {
                "router_id": self.project.routers[i],
                "metric": "latency",
                "ts_ms": now_ms,
                "value": 5_000.0 if bad and i < FLIPPING else random.uniform(5, 50),
            }
            for i in chosen
        ]
        headers = {"Idempotency-Key": f"{random.getrandbits(96):x}"}
        answer = await self._caller.ask("POST", f"{self.project.path}/ingest", json=samples, headers=headers)
        assert (answer.status_code, answer.json()["accepted"]) == (202, PER_REQUEST), answer.text
        self.accepted.update(self.project.routers[i] for i in chosen)

    async def read(self) -> None:
        body = {"breaker_ids": list(self.project.breakers)}
        answer = await self._caller.ask("POST", f"{self.project.path}/breakers/state:batch", json=body)
        assert len(answer.json()["states"]) == BREAKERS
        self.reads += 1


async def again(work: Callable[[], Awaitable[None]], every_s: float, stop: asyncio.Event) -> None:
    """Until it is told to stop; what it has begun it brings to its end."""
    while not stop.is_set():
        await work()
        await asyncio.sleep(every_s)


async def measure(live: LiveService, seconds: float, every_s: float) -> list[dict[str, Any]]:
    """Looks at everything, every so many seconds, under steady load; then checks what came of it."""
    caller = Caller(live, live.credentials["user_key"])
    async with caller.http:
        project = await make_breakers(caller, live)
        flow = Flow(caller, project)
        with tempfile.TemporaryDirectory() as folder:
            copy = Copy(live.data_dir, Path(folder), project.routers)
            await copy.keep()
            await until(Watch(caller, project).all_fresh, STARTED_S)
            looks = await load(live, flow, copy, seconds, every_s)
            await asyncio.to_thread(check, copy, project, flow.accepted)
    return looks


async def load(live: LiveService, flow: Flow, copy: Copy, seconds: float, every_s: float) -> list[dict[str, Any]]:
    stop = asyncio.Event()
    followers = [Follower(live, flow.project) for _ in range(FOLLOWERS)]
    works = [again(flow.send, SEND_EVERY_S, stop) for _ in range(SENDERS)]
    works += [again(flow.read, READ_EVERY_S, stop), again(copy.keep, COPY_EVERY_S, stop)]
    working = [asyncio.ensure_future(work) for work in works]
    running = [*working, *(asyncio.ensure_future(follower.run()) for follower in followers)]
    looks = []
    begun = time.monotonic()
    try:
        while time.monotonic() - begun < seconds:
            done, _ = await asyncio.wait(running, timeout=every_s, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
            looks.append(await asyncio.to_thread(look, live))
            looks[-1] |= {
                "at_s": round(time.monotonic() - begun, 1),
                "samples": flow.accepted.total(),
                "reads": flow.reads,
                "messages": [follower.messages for follower in followers],
            }
        stop.set()
        await asyncio.gather(*working)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return looks


# -- what must hold


RECORDS = "INSERT OR IGNORE INTO main.records SELECT * FROM service.records"


class Copy(Evidence):
    """Evidence whose logs are a copy that nothing is trimmed of, for some routers."""

    def __init__(self, data_dir: Path, folder: Path, routers: Sequence[str]) -> None:
        super().__init__(data_dir)
        self._from, self._logs = self._logs.absolute(), folder
        self._routers = routers

    def read_on(self) -> None:
        """What is new since the last time; to be called before it is trimmed."""
        slots = self.slots()
        for slot in {slots[router_id] for router_id in self._routers}:
            name = slotfile.file_name(slot)
            with closing(slotfile.open_writer(self._logs / name, False)) as connection:
                connection.execute("ATTACH ? AS service", (f"{(self._from / name).as_uri()}?mode=ro",))
                # heads first: what lies beyond one is no loss
                for copied in ("REPLACE INTO main.heads SELECT * FROM service.heads", RECORDS):
                    connection.execute(
                        f"{copied} WHERE router_id IN (SELECT value FROM json_each(?))", (json.dumps(self._routers),)
                    )

    async def keep(self) -> None:
        await asyncio.to_thread(self.read_on)


def check(copy: Copy, project: Project, accepted: Counter[str]) -> None:
    """A wrong run fails: a sample more or less in the log, a history that is not its log's."""
    copy.read_on()
    assert_dense(copy, project.routers)
    check_counts(copy, accepted)
    check_replays(copy, dict(list(project.breakers.items())[:REPLAYED]))
    moved = copy.histories().keys() & set(list(project.breakers)[FLIPPING:])
    assert not moved, f"breakers that got no bad samples have moved: {sorted(moved)}"


# -- looking


def look(live: LiveService) -> dict[str, Any]:
    """Memory of every process in kB, sizes of the files, rows of the history."""
    lines = {live.process.pid: "breakers serve", **tree_of(live.process.pid)}
    memory = {f"{title(line)} {pid}": found for pid, line in lines.items() if (found := memory_kb(pid))}
    logs = sorted((live.data_dir / "log").glob("*.sqlite"))
    store = live.data_dir / "breakers.sqlite"
    return {
        "memory_kb": memory,
        "log_bytes": sum(map(size_with_wal, logs)),
        "log_records": sum(count(path, "records") for path in logs),
        "log_trimmed": sum(map(trimmed, logs)),
        "log_keys": sum(count(path, "keys") for path in logs),
        "store_bytes": size_with_wal(store),
        "events": count(store, "events"),
    }


def title(line: str) -> str:
    found = _TITLE.search(line)
    return next(filter(None, found.groups()), "other") if found else "other"


def size_with_wal(path: Path) -> int:
    wal = path.with_name(f"{path.name}-wal")
    return path.stat().st_size + (wal.stat().st_size if wal.exists() else 0)


def count(path: Path, rows: str) -> int:
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {rows}").fetchone()[0])


def trimmed(path: Path) -> int:
    """Records that are gone from a log: offsets are dense and start at 1."""
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        there = connection.execute("SELECT count(*) FROM records").fetchone()[0]
        return int(connection.execute("SELECT sum(offset) FROM heads").fetchone()[0] - there)


# -- telling


def problems(looks: list[dict[str, Any]]) -> list[str]:
    """What grew between the third look and the last one by more than it may, and processes that ended or came."""
    early, late = looks[min(COMPARED_WITH, len(looks)) - 1], looks[-1]
    found = []
    for name, before in early["memory_kb"].items():
        after = late["memory_kb"].get(name)
        if after is None:
            found.append(f"{name} has ended")
        elif after["Rss"] > (1 + GROWTH_MAX) * before["Rss"]:
            found.append(f"{name} grew from {before['Rss']} to {after['Rss']} kB")
    found += [f"{name} has come" for name in late["memory_kb"] if name not in early["memory_kb"]]
    allowed = {
        "log_bytes": early["log_bytes"] + FILE_SLACK,
        "store_bytes": early["store_bytes"] + FILE_SLACK + EVENT_BYTES_MAX * (late["events"] - early["events"]),
    }
    found += [f"{name} grew to {late[name]}" for name, most in allowed.items() if late[name] > most]
    return found


def table(looks: list[dict[str, Any]]) -> str:
    """One line per process and file, one column per look."""
    names = list(looks[-1]["memory_kb"])
    lines = [f"{'at s':34}" + "".join(f"{look['at_s']:9.0f}" for look in looks)]
    for kind in ("Rss", "Pss"):
        for name in names:
            cells = (look["memory_kb"].get(name, {}).get(kind, 0) / 1024 for look in looks)
            lines.append(f"{name + ' ' + kind + ' MB':34}" + "".join(f"{cell:9.1f}" for cell in cells))
        totals = (sum(m.get(kind, 0) for m in look["memory_kb"].values()) / 1024 for look in looks)
        lines.append(f"{'all ' + kind + ' MB':34}" + "".join(f"{total:9.1f}" for total in totals))
    for name in ("log_bytes", "store_bytes"):
        lines.append(f"{name.replace('bytes', 'MB'):34}" + "".join(f"{look[name] / (1 << 20):9.2f}" for look in looks))
    for name in ("log_records", "log_trimmed", "log_keys", "events", "samples", "reads"):
        lines.append(f"{name:34}" + "".join(f"{look[name]:9}" for look in looks))
    return "\n".join(lines)
